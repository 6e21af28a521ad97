"""accuracy-eval report."""

from __future__ import annotations

import click

from accuracy_eval.cli import completion
from accuracy_eval.cli.compare import FORMS
from accuracy_eval.cli.selection import listed

DEFAULT_FORMS = "xlsx,html"


@click.command("report")
@click.argument("results", type=click.Path())
@listed("--to", "forms", metavar="FORMS", help=f"{FORMS} (default: {DEFAULT_FORMS}).")
@click.option("-o", "--out", type=click.Path(file_okay=False), help="Folder for the reports (default: reports/A-vs-B).")
@click.option(
    "--gates",
    metavar="PROFILE",
    shell_complete=completion.profiles,
    help="Judge again under this profile of limits, from the metrics alone.",
)
@click.option("-q", "--quiet", is_flag=True, help="No table.")
@click.option("-v", "--verbose", is_flag=True, help="The whole text of every finding.")
def report_command(results: str, forms: str | None, out: str | None, gates: str | None, quiet: bool, verbose: bool) -> int:
    """Write any report from RESULTS (a results.json), without the dumps. The exit code is the comparison's.

    With --gates, a limit on what was not measured is refused: compare the dumps with those gates then. The profiles strict, turbo and l3
    limit numbers that a comparison under default does not measure.

    \b
    accuracy-eval report reports/mi300x-vs-h200/results.json --to xlsx,md
    accuracy-eval report reports/mi300x-vs-h200/results.json --gates exact --to json -o reports/exact
    """
    from accuracy_eval.cli.compare import present, report_forms
    from accuracy_eval.errors import FileError
    from accuracy_eval.report import load_results

    wanted = report_forms(forms or DEFAULT_FORMS)
    loaded = load_results(results)
    if gates is not None:
        from accuracy_eval.regating import regated

        loaded = regated(loaded, gates)
    try:
        return present(loaded, forms=wanted, out=out, strict=False, quiet=quiet, verbose=verbose, as_json=False)
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        # metrics are open: in a file that was changed any value may stand there
        raise FileError(
            f"{results}: a value in it cannot be shown ({type(error).__name__}: {error}); was it changed by hand? "
            "Write it again with accuracy-eval compare"
        ) from error
