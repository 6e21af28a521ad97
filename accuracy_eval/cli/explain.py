"""accuracy-eval explain."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from accuracy_eval.cli import completion
from accuracy_eval.cli.compare import case_filter
from accuracy_eval.cli.progress import progress
from accuracy_eval.cli.selection import FILTERS, selection

if TYPE_CHECKING:
    from accuracy_eval.explained import ExplainedOutput


@click.command("explain")
@click.argument("dump", type=click.Path())
@click.option("--case", "cases", multiple=True, metavar="ID", shell_complete=completion.cases, help="Only this case id.")
@selection
@click.option("--unit", metavar="UNIT", help='Whose arithmetic to try: any name in list units, or "any" (default: the dump\'s device).')
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def explain_command(dump: str, cases: tuple[str, ...], unit: str | None, quiet: bool, as_json: bool, **options: Any) -> int:
    """Search the models of matrix units, and the orders in which libraries use them, for what gives exactly DUMP's bits.

    Exits with 1 where an output stays unexplained, with 2 where DUMP holds no matrix product. It judges nothing. Compositions such as
    "T16.25.23 fwd" are read as docs/datapath.md says.

    \b
    accuracy-eval explain h200.h5 --op gemm
    accuracy-eval explain mi300x.h5 --case gemm.m64.n64.k64.nt.bfloat16-float32.normal.s0 --unit MI300X
    """
    import json

    from accuracy_eval.cases import parse_case
    from accuracy_eval.errors import UsageError, counted
    from accuracy_eval.explained import explain_dump, nothing_to_explain
    from accuracy_eval.explanations import OPEN, gives_no_wider, wider_output
    from accuracy_eval.json_data import to_json
    from accuracy_eval.store import Dump

    keep = case_filter({n: options.pop(n) for n in FILTERS})
    found: list[ExplainedOutput] = []
    with progress("explain", quiet=quiet or as_json) as update:
        for item in explain_dump(dump, cases=cases, keep=keep, unit=unit, progress=update):
            found.append(item)
            if not as_json:
                click.echo(explained_text(item))
    if not found:
        raise UsageError(f"{dump}: {nothing_to_explain(dump, cases, keep)}")
    if as_json:
        click.echo(json.dumps([to_json(item) for item in found]))
    else:
        counts = Counter(item.explanation.status for item in found)
        click.echo(f"{counted(len(found), 'product')}: {'; '.join(f'{n} {status}' for status, n in counts.items())}")
        still_open = [(parse_case(i.case_id), i.candidate) for i in found if i.explanation.status == OPEN]
        if gives_no_wider(Dump.open(dump).platform):
            still_open = [(case, candidate) for case, candidate in still_open if candidate != "default"]
        if more := wider_output(still_open):
            click.echo(more)
        click.echo("docs/datapath.md says how to read compositions")
    return 1 if any(item.explanation.status == "unexplained" for item in found) else 0


def explained_text(item: ExplainedOutput) -> str:
    """Two lines: which product, and what was found."""
    candidate = "" if item.candidate == "default" else f" @{item.candidate}"
    return f"{item.case_id}{candidate} {item.tensor}{item.index}\n  {item.explanation}"
