"""accuracy-eval screen."""

from __future__ import annotations

import json
from typing import Any

import click

from accuracy_eval.cli.progress import progress
from accuracy_eval.cli.selection import FILTERS, selection


@click.command("screen")
@click.argument("dumps", nargs=-1, required=True, type=click.Path())
@click.option("--label", "labels", multiple=True, help="Name of each dump, in order (default: its file's).")
@selection
@click.option("-q", "--quiet", is_flag=True, help="No progress, no text.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def screen_command(dumps: tuple[str, ...], labels: tuple[str, ...], quiet: bool, as_json: bool, **options: Any) -> int:
    """Compare DUMPS of many devices by their digests: equal part, libraries, flags, kernels and operands must give equal bytes.

    Dumps of several kinds of devices are screened kind by kind. One that differs from what more than half of its kind have is the odd one
    out. Exits with 1 for an odd one out or a result that is absent, with 2 where nobody has more than half or a dump could not be screened
    at all: no other of its kind. One device alone: dump --certify.

    \b
    accuracy-eval screen node*.h5
    accuracy-eval screen node*.h5 --op gemm --json
    """
    from accuracy_eval.cli.compare import case_filter
    from accuracy_eval.json_data import to_json
    from accuracy_eval.screening import screen, screening_text

    keep = case_filter({n: options.pop(n) for n in FILTERS})
    with progress("screen", quiet=quiet or as_json, unit="dumps") as update:
        found = screen(dumps, labels=labels, keep=keep, progress=update)
    if as_json:
        click.echo(json.dumps(to_json(found)))
    elif not quiet:
        click.echo(screening_text(found))
    return found.exit_code
