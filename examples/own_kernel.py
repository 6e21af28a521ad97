"""A kernel of one's own beside the framework's: dumped, judged, and its worst element taken apart. Runs anywhere, in a few seconds.

python examples/own_kernel.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import accuracy_eval as ae
from accuracy_eval.cli import run


@ae.candidate("gemm", name="half-sums", supports=lambda case, platform: None if case.layout == "nt" else "only nt")
def half_sums(case, tensors):
    """D = A·Bᵀ in two halves of k, each rounded to the operands' format before they are added: a mistake one meets in real kernels."""
    a, b = tensors["a"], tensors["b"]
    half = a.shape[1] // 2
    return a[:, :half] @ b[:, :half].t() + a[:, half:] @ b[:, half:].t()


def main(folder: Path) -> int:
    dump = folder / "mine.h5"
    grid = ["--op", "gemm", "--shape", "64x48x96", "--layout", "nt", "--format", "bfloat16", "--lane", "random"]
    run(["dump", *grid, "--device", "cpu", "--candidate", "default", "--candidate", "half-sums", "-o", str(dump), "-q"])
    results = ae.compare_dumps(dump)
    ae.write_reports(results, folder / "report", to=("html", "json"))
    for tensor in results.tensors:
        (side,) = tensor.sides
        print(f"{tensor.candidate}: {side.verdict}, {side.metrics['budget_max']:.3g} × budget, {[d.code for d in side.diagnoses]}")
    print(f"open {folder / 'report' / 'report.html'}")
    return results.exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())))
