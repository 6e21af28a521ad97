"""How torch._scaled_mm reads the float32 scales of 128×128 blocks: rows of them packed, and at multiples of 16 bytes as cuBLAS has them.

    python benchmarks/scale_rows.py [--device cuda] [--k 256,384,512,640,768]

One product of e4m3 codes, 128 × 1024, A under 1×128 and B under 128×128 scales, multiplied with B's scales either way. Prints whether
the call takes them, its verdict and what the diagnosis says (docs/findings.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch

import accuracy_eval as ae
from accuracy_eval.cases import make_case
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import OPS

M, N = 128, 1024


def layouts(scale: Any) -> Iterator[tuple[str, Any]]:
    """B's scales [blocks of columns, blocks along K], their rows packed and padded."""
    yield "packed", scale
    yield "padded", torch.nn.functional.pad(scale, (0, -scale.shape[1] % 4)).contiguous()[:, : scale.shape[1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--k", default="256,384,512,640,768")
    given = parser.parse_args()
    print(f"torch {torch.__version__}, cuda {torch.version.cuda}")
    gemm = OPS["gemm"]
    for k in map(int, given.k.split(",")):
        case = make_case("gemm", (("m", M), ("n", N), ("k", k)), format="fp8_e4m3", recipe="block1x128", seed=42)
        inputs = stored_inputs(gemm, case, "ocp", operand_codes(gemm, case, "ocp"))
        a, b = (torch.from_numpy(inputs[n].codes).view(torch.float8_e4m3fn).to(given.device) for n in "ab")
        scale_a, scale_b = (torch.from_numpy(inputs[f"{n}_scale"].codes.view("float32")).to(given.device) for n in "ab")
        scale_a = torch.empty_strided(scale_a.shape, (1, M), dtype=scale_a.dtype, device=scale_a.device).copy_(scale_a)
        operands = {n: ae.codes(inputs[n].codes, format=inputs[n].format) for n in ("a", "b", "a_scale", "b_scale")}
        for name, scale in layouts(scale_b):
            where = f"K = {k}, rows of {scale.shape[1]} scales {scale.stride(0)} apart ({name})"
            try:
                d = torch._scaled_mm(a, b.t(), scale_a, scale.t(), out_dtype=torch.bfloat16)
            except (RuntimeError, ValueError, NotImplementedError) as error:
                print(f"{where}: refused: {str(error).splitlines()[0]}")
                continue
            c = ae.check(d, op="gemm", layout="nt", inputs=operands, recipe="block1x128")
            said = "; ".join(f"{x.code}: {x.sentence}" for x in c.diagnoses)
            print(f"{where}: {c.verdict}, rel_fro {c.metrics['rel_fro']:.3g}. {said}")


if __name__ == "__main__":
    main()
