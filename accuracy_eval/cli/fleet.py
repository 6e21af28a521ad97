"""accuracy-eval run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from accuracy_eval.cli.compare import DEFAULT_FORMS, FORMS, present, report_forms
from accuracy_eval.cli.progress import progress, progress_of
from accuracy_eval.cli.selection import listed
from accuracy_eval.cli.transfer import connection_options, options_of

if TYPE_CHECKING:
    from pathlib import Path

    from accuracy_eval.fleet import Fleet
    from accuracy_eval.transfer import Options

_GIVEN_BY_RUN = {
    "out": "-o, but each host's dump is called as the host is; set out in the file, beside suite, for the folder here",
    "device": '--device, which belongs to a host: device = "…" under [hosts.NAME]',
    "plan_for": "--plan, which runs nothing; give it to accuracy-eval dump here",
}


@click.command("run")
@click.argument("fleet", type=click.Path())
@click.option("--push", is_flag=True, help="Give the hosts this package; they need what it imports, and their own torch.")
@click.option("--fresh", is_flag=True, help="Do not go on with what earlier runs left on the hosts.")
@click.option(
    "--patience",
    default=600.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Seconds a host may be out of reach once it has begun.",
)
@connection_options
@listed("--to", "forms", metavar="FORMS", help=f"Reports to write: {FORMS}; none for no file (default: {DEFAULT_FORMS}).")
@click.option("-o", "--out", type=click.Path(file_okay=False), help="Folder for the reports (default: `report` beside the dumps).")
@click.option("--strict", is_flag=True, help="A warning exits with 1.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no table.")
@click.option("--json", "as_json", is_flag=True, help="Print results.json on stdout.")
def run_command(
    fleet: str,
    push: bool,
    fresh: bool,
    patience: float,
    forms: str | None,
    out: str | None,
    strict: bool,
    quiet: bool,
    as_json: bool,
    **connection: Any,
) -> int:
    """Run the suite of FLEET (a .toml file) on all its hosts, bring the dumps here and compare all of them and the reference.

    \b
    accuracy-eval run fleet.toml
    accuracy-eval run fleet.toml --push        the hosts need no installation of their own
    """
    from accuracy_eval.compare import compare_dumps
    from accuracy_eval.fleet import load_fleet

    wanted = report_forms(forms or DEFAULT_FORMS)
    plan = load_fleet(fleet)
    _check_arguments(plan)
    paths = _dumps(plan, options_of(connection), push=push, fresh=fresh, patience_s=patience, quiet=quiet or as_json)
    with progress("compare", quiet=quiet or as_json) as update:
        names = [h.name for h in plan.hosts]
        results = compare_dumps(*paths, labels=names, gates=plan.gates, reference=plan.reference, progress=update)  # type: ignore[arg-type]
    return present(results, forms=wanted, out=out or str(plan.out / "report"), strict=strict, quiet=quiet, as_json=as_json)


def _check_arguments(plan: Fleet) -> None:
    """The dump's own reading of suite and arguments, here: what it refuses is said before any host is asked."""
    from click.core import ParameterSource

    from accuracy_eval.cli.dump import dump_command, suite_of
    from accuracy_eval.errors import UsageError

    context = dump_command.make_context("dump", [plan.suite, *plan.arguments])
    for name, instead in _GIVEN_BY_RUN.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"arguments of the fleet: {' '.join(plan.arguments)} has {instead}")
    suite_of(plan.suite, {k: v for k, v in context.params.items() if k != "suite"})


def _dumps(plan: Fleet, options: Options, *, push: bool, fresh: bool, patience_s: float, quiet: bool) -> list[Path]:
    from accuracy_eval.fleet import Hooks, run_fleet

    def note(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    with progress_of([h.name for h in plan.hosts], quiet=quiet) as update:
        hooks = Hooks(
            progress=lambda host, done, total, what: update(host, done, total, what, "results"),
            fetching=lambda host, done, total: update(host, done, total, "fetching", "bytes"),
            note=note,
        )
        return run_fleet(plan, push=push, fresh=fresh, patience_s=patience_s, options=options, hooks=hooks)
