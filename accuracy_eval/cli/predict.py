"""accuracy-eval predict."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from accuracy_eval.cli import completion
from accuracy_eval.cli.progress import progress
from accuracy_eval.cli.selection import FILTERS, chosen_suite, selection


@click.command("predict")
@click.argument("suite", required=False, shell_complete=completion.suites)
@click.option("--unit", required=True, metavar="UNIT", help="Any name in accuracy-eval list units: cdna3, MI300X, B200, …")
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False), help="The sealed dump to write (HDF5).")
@selection
@click.option("--seed", type=click.IntRange(min=0), help="Another seed for every case.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def predict_command(suite: str | None, unit: str, out: str, seed: int | None, quiet: bool, **options: Any) -> int:
    """Write the complete outputs that a model of UNIT predicts for the matrix products of SUITE, and the digest that seals them.

    Whoever has the part dumps the same suite and compares: identical bytes confirm the model, equivalent ones the part.

    \b
    accuracy-eval predict smoke --unit cdna3 -o sealed-mi300x.h5
    accuracy-eval compare sealed-mi300x.h5 mi300x.h5 --op gemm
    """
    from accuracy_eval.backends.model import ModelBackend
    from accuracy_eval.dump import dump
    from accuracy_eval.errors import UsageError, counted
    from accuracy_eval.ops.registry import get_op
    from accuracy_eval.store import Dump

    if Path(out).exists():
        raise UsageError(f"{out} exists already; remove it, or choose another name")
    backend = ModelBackend(unit)
    chosen = chosen_suite(suite, {n: options.pop(n) for n in FILTERS}, seed=seed, max_m=None, huge=False)
    cases = tuple(c for c in chosen.cases if get_op(c.op).products is not None)
    if not cases:
        raise UsageError(f"suite {chosen.name}: no case is a matrix product; a model of a matrix unit predicts nothing else")
    with progress("predict", quiet=quiet) as update:
        summary = dump(chosen.part(cases, ["what is a matrix product"]), backend, out, repeats=1, resume=True, progress=update)
    digest = Dump.open(summary.path).content_digest
    click.echo(f"{summary.path}: {summary.done} of {counted(len(cases), 'case')} predicted by {backend.name}")
    for reason, count in Counter(summary.reasons).most_common():
        click.echo(f"  not predicted {count} × {reason}")
    click.echo(f"content digest {digest}")
    return 0 if summary.done else 2
