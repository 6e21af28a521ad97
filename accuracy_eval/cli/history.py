"""accuracy-eval history."""

from __future__ import annotations

import click

from accuracy_eval.cli import completion


@click.command("history")
@click.argument("folder", type=click.Path())
@click.option(
    "--metric", default="rel_fro", show_default=True, shell_complete=completion.metrics, help="What to chart (accuracy-eval list metrics)."
)
@click.option("--case", "cases", multiple=True, metavar="ID", help="Only this case id.")
@click.option("-o", "--out", type=click.Path(file_okay=False), help="Folder for history.html and history.csv (default: FOLDER).")
@click.option("-q", "--quiet", is_flag=True, help="No text.")
def history_command(folder: str, metric: str, cases: tuple[str, ...], out: str | None, quiet: bool) -> int:
    """Read every results.json below FOLDER with a date in its path, and chart METRIC of every dump's tensors over the dates.

    \b
    accuracy-eval history reports/nightly
    accuracy-eval history reports/nightly --metric budget_max --case gemm.m512.n128.k256.nt.bfloat16.normal.s42
    """
    from accuracy_eval.errors import counted
    from accuracy_eval.history import dated_results, series, write_history

    dated = dated_results(folder)
    found = series(dated, metric, cases)
    written = write_history(dated, metric, found, out or folder)
    if not quiet:
        moved = sum(s.spread != 1 for s in found)
        span = f"{counted(len(dated), 'result')}, {dated[0].date} to {dated[-1].date}"
        click.echo(f"{span}: {metric} moved in {moved} of {len(found)} series")
        for path in written:
            click.echo(f"  {path}")
    return 0
