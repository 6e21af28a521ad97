"""Quantised and grouped GEMMs of a GPU, judged: verdicts, use of the budget, what fast accumulation costs.

    python benchmarks/h200_fp8.py OUT [--device cuda:0] [--all]

Dumps a cut of suite fp8 (--all: the whole of it) on the device and compares it with the reference. Besides torch's own candidates, one
runs fast accumulation under the contract fp32acc, which it does not keep: the report must call it off_contract(fp8fast). Prints the
tables and leaves dump.h5, results.json and table.txt in OUT.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accuracy_eval as ae
from accuracy_eval.backends.open import open_backend
from accuracy_eval.compare import compare_dumps
from accuracy_eval.dump import dump
from accuracy_eval.ops import quantised
from accuracy_eval.records import Case, Results, Side, TensorResult, Verdict
from accuracy_eval.report import write_reports
from accuracy_eval.store import Dump
from accuracy_eval.suite import Suite, load_suite, parse_suite

FEWER = 5  # of the cases that differ in sizes alone, those kept
FLOP = 1 << 34  # of the largest case kept
LONG = {
    "name": "long",
    "cases": [
        {
            "op": "gemm", "format": "fp8_e4m3", "recipe": ["tensorwise", "rowwise"], "out_format": "float32", "seed": 42,
            "shape": ["256x256x1024", "256x256x4096", "256x256x16384"],
        },
    ],
}  # fmt: skip


def flop(case: Case) -> int:
    """Multiplications and additions, forward."""
    d = case.dims
    return 2 * d["m"] * d["n"] * d["k"] * d.get("g", 1)


def chosen(whole: bool) -> Suite:
    """The suite, or of every kind of case the first few that are small enough."""
    suite, long = load_suite("fp8"), parse_suite(LONG, "long").cases
    if whole:
        return Suite(suite.name, suite.description, tuple(dict.fromkeys((*suite.cases, *long))), suite.expected)
    kinds: dict[tuple[Any, ...], list[Case]] = defaultdict(list)
    for case in suite.cases:
        if flop(case) <= FLOP:
            kinds[case.op, case.layout, case.format, case.out_format, case.recipe, case.lane, case.direction, case.options].append(case)
    kept = [c for cases in kinds.values() for c in cases[:: max(1, len(cases) // FEWER)][:FEWER]]
    return Suite("fp8-cut", suite.description, tuple(dict.fromkeys((*kept, *long))), suite.expected)


def long_only(case: Case, platform: Any) -> str | None:
    fits = case.dims["k"] >= 1024 and case.out_format == "float32" and quantised.has_fast_accum(case)
    return None if fits else "the long contractions only"


@ae.candidate("gemm", name="fast_as_fp32acc", contract="fp32acc", supports=long_only)
def fast_as_fp32acc(case: Case, tensors: Any, out: Any) -> Any:
    """Fast accumulation under a promise that it does not keep."""
    import torch

    return quantised.fast_products(torch, case, tensors, out)


def sides(results: Results) -> Iterator[tuple[TensorResult, Side]]:
    for t in results.tensors:
        for s in t.sides:
            yield t, s


def number(value: Any, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def table(results: Results) -> Iterator[str]:
    """One line a kind of case: verdicts, the largest use of the budget, the smallest SNRs."""
    rows: dict[tuple[str, ...], list[Side]] = defaultdict(list)
    for t, s in sides(results):
        c = t.case
        rows[c.op, c.recipe or "-", c.format, c.out_format or "-", c.lane, c.direction, t.candidate, s.contract].append(s)
    yield "op recipe format out lane direction candidate contract: tensors, verdicts | budget used %, least kernel SNR dB, most excess dB"
    for key, found in sorted(rows.items()):
        used = [float(s.metrics["budget_max"]) * 100 for s in found if s.metrics.get("budget_max") is not None]
        snr = [float(s.metrics["snr_db"]) for s in found if isinstance(s.metrics.get("snr_db"), float)]
        excess = [float(s.metrics["excess_db"]) for s in found if isinstance(s.metrics.get("excess_db"), float)]
        verdicts = " ".join(f"{v} {n}" for v, n in sorted(Counter(str(s.verdict) for s in found).items()))
        yield (f"{' '.join(key)}: {len(found)} {verdicts} | {number(max(used, default=None))} {number(min(snr, default=None), 4)} "
               f"{number(max(excess, default=None))}")  # fmt: skip


def failures(results: Results) -> Iterator[str]:
    for t, s in sides(results):
        if s.verdict not in (Verdict.PASS, Verdict.WARN) or s.off_contract:
            causes = "; ".join(f"{d.code} {dict(d.evidence)}" for d in s.diagnoses[:3])
            gates = "; ".join(f"{g.gate} {number(g.value)} {g.comparison} {g.limit:g}" for g in s.gates if g.passed is False)
            kept = s.off_contract or "-"
            yield f"{s.verdict} {t.case_id} {t.tensor} ({t.candidate}, {s.contract}) off_contract={kept} [{gates}] {causes}"


def accumulation(results: Results) -> Iterator[str]:
    """Kernel SNR of long contractions in float32, by candidate."""
    yield "kernel SNR in dB of float32 outputs, by K and candidate"
    for t, s in sides(results):
        if t.case.out_format == "float32" and t.case.dims["m"] == t.case.dims["n"] == 256 and t.case.input_class == "normal":
            k, snr, used = t.case.dims["k"], s.metrics["snr_db"], 100 * s.metrics["budget_max"]
            kept = f", off_contract({s.off_contract})" if s.off_contract else ""
            yield f"K={k:6d} {t.case.recipe:12s} {t.candidate:16s} {snr:6.1f} dB, {used:6.1f} % of {s.contract}{kept}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    suite = chosen(options.all)
    started = time.monotonic()
    backend = open_backend(options.device)
    summary = dump(suite, backend, options.out / "dump.h5")
    backend.close()
    dumped = time.monotonic()
    results = compare_dumps(options.out / "dump.h5")
    write_reports(results, options.out, to=("json",))
    compared = time.monotonic()
    records = Dump.open(options.out / "dump.h5").records
    reasons = Counter(
        (r.case.op, r.case.recipe, r.candidate, r.reason[:160]) for r in records if r.status != "done" and r.candidate != "fast_as_fp32acc"
    )
    lines = [
        f"{len(suite.cases)} cases on {backend.platform().get('device_name')}: {summary.done} done, {summary.unsupported} unsupported, "
        f"{summary.error} errors; dump {dumped - started:.1f} s, compare {compared - dumped:.1f} s",
        *(f"not deterministic: {ident}" for ident in summary.nondeterministic),
        *(f"never written: {ident}" for ident in summary.never_written),
        *(f"error: {text[:300]}" for text in summary.errors),
        *(f"not run {n}×: {' '.join(k)}" for k, n in sorted(reasons.items())),
        "", *table(results), "", *failures(results), "", *accumulation(results),
    ]  # fmt: skip
    text = "\n".join(lines) + "\n"
    (options.out / "table.txt").write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
