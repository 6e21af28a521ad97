"""accuracy-eval coverage."""

from __future__ import annotations

import json

import click


@click.command("coverage")
@click.argument("dumps", nargs=-1, required=True, type=click.Path())
@click.option("--op", "ops", multiple=True, metavar="OP", help="Only this op (repeatable).")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def coverage_command(dumps: tuple[str, ...], ops: tuple[str, ...], as_json: bool) -> int:
    """Print, for each op, the formats, layouts, recipes, directions, lanes, inputs and candidates that DUMPS hold, and a checklist.

    \b
    accuracy-eval coverage h200.h5 mi300x.h5
    accuracy-eval coverage h200.h5 --op gemm --op attention
    """
    from accuracy_eval.coverage import coverage_of, coverage_text
    from accuracy_eval.json_data import to_json
    from accuracy_eval.ops.registry import get_op
    from accuracy_eval.store import Dump

    for op in ops:
        get_op(op)
    found = [c for c in coverage_of([Dump.open(d) for d in dumps]) if not ops or c.op in ops]
    click.echo(json.dumps(to_json(found)) if as_json else coverage_text(found, empty=bool(ops)))
    return 0
