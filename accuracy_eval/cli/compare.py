"""accuracy-eval compare."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accuracy_eval.cli import completion
from accuracy_eval.cli.progress import progress
from accuracy_eval.cli.selection import FILTERS, as_options, listed, selection
from accuracy_eval.cli.tables import terminal_width

if TYPE_CHECKING:
    from accuracy_eval.history import Change
    from accuracy_eval.records import Case, Results

FORMS = "xlsx,html,json,csv,md,junit"
DEFAULT_FORMS = "xlsx,html,json"
JOURNAL = "compare.journal"  # beside the reports, as long as they are not written
MOST_NAME = 200  # characters of a folder's name, which are ASCII; file systems take 255
MAX_CHANGES = 40  # lines said about a baseline
FOR_ARRAYS = {
    "dumps",
    "labels",
    "cases",
    "forms",
    "out",
    "baseline",
    "strict",
    "quiet",
    "verbose",
    "as_json",
}  # the parameters they have use for


@click.command("compare")
@click.argument("dumps", nargs=-1, required=True, type=click.Path())
@click.option("--label", "labels", multiple=True, help="Name of each dump in the report, in order (default: the device's).")
@click.option(
    "--reference",
    type=click.Choice(["full", "sampled", "auto", "none"]),
    default="auto",
    show_default=True,
    help="Reference to judge by: computed in full, sampled for large products, auto (in full up to 2^41 operations), or none.",
)
@click.option("--reference-cache", type=click.Path(file_okay=False), metavar="DIR", help="Store references in this folder and reuse them.")
@click.option(
    "--gates",
    default="default",
    show_default=True,
    shell_complete=completion.profiles,
    help="Profile of limits: a built-in name or a .toml file.",
)
@click.option("--case", "cases", multiple=True, metavar="ID", shell_complete=completion.cases, help="Only this case id.")
@selection
@click.option("--candidate", "candidates", multiple=True, metavar="NAME", help="Judge only these implementations, or all (the default).")
@click.option("--cross-format", is_flag=True, help="Compare fp8 encodings (OCP, FNUZ) of one family by value.")
@click.option("--explain", is_flag=True, help="Find the order of operations that makes each product's bits (notation: docs/datapath.md).")
@click.option("--unit", metavar="UNIT", help="With --explain: whose arithmetic to try (default: each dump's device).")
@click.option("--no-verify", is_flag=True, help="Skip the check of stored digests.")
@listed("--to", "forms", metavar="FORMS", help=f"Reports to write: {FORMS}; none for no file (default: {DEFAULT_FORMS}; with --case none).")
@click.option("-o", "--out", type=click.Path(file_okay=False), help="Folder for the reports (default: reports/A-vs-B).")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes that share the cases (default: one per core, from 1,000 results).",
)
@click.option("--baseline", type=click.Path(), metavar="RESULTS", help="Say what changed since this results.json.")
@click.option("--strict", is_flag=True, help="Exit with 1 for a warning.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no table.")
@click.option("-v", "--verbose", is_flag=True, help="Print every finding in full.")
@click.option("--json", "as_json", is_flag=True, help="Print results.json on stdout.")
def compare_command(
    dumps: tuple[str, ...], strict: bool, quiet: bool, verbose: bool, as_json: bool, forms: str | None, out: str | None, **options: Any
) -> int:
    """Judge DUMPS (files or folders of parts; or .npy, .npz, .safetensors, .pt) and write reports.

    \b
    accuracy-eval compare mi300x.h5 h200.h5
    accuracy-eval compare mi300x.h5 h200.h5 --gates turbo --op gemm --to json
    accuracy-eval compare mi300x.safetensors h200.npz   arrays by name, against each other alone
    accuracy-eval compare h200.h5                       one dump against the reference alone
    accuracy-eval compare mi300x.h5 h200.h5 --op gemm --explain
    accuracy-eval compare mi300x.h5 h200.h5 --baseline reports/last-week/results.json
    """
    from accuracy_eval.compare import compare_dumps
    from accuracy_eval.errors import UsageError
    from accuracy_eval.foreign.arrays import is_foreign

    if options["unit"] is not None and not options["explain"]:
        raise UsageError("--unit says whose arithmetic explains the outputs; give --explain with it")
    # one case looked at again must not replace the report of the whole run
    wanted = report_forms(forms if forms is not None else "none" if options["cases"] and out is None else DEFAULT_FORMS)
    chosen = {n: options.pop(n) for n in FILTERS}
    keep = case_filter(chosen)
    filters = [*as_options(chosen), *(f"--candidate {name}" for name in options["candidates"])]
    before = _baseline(options["baseline"])
    with _resumable(out, quiet=quiet) as journal:
        if any(map(is_foreign, dumps)):
            results = _arrays(dumps, options["labels"], options["cases"])
        else:
            with progress("compare", quiet=quiet or as_json) as update, _naming(filters):
                results = compare_dumps(
                    *dumps, labels=options["labels"], reference=options["reference"], reference_cache=options["reference_cache"],
                    gates=options["gates"], cases=options["cases"], keep=keep, candidates=options["candidates"],
                    cross_format=options["cross_format"], verify=not options["no_verify"], explain=options["explain"],
                    unit=options["unit"], workers=options["workers"], journal=journal if wanted else None, progress=update,
                )  # fmt: skip
        found: list[Change] = []
        if before is not None:
            from accuracy_eval.history import changes, other_dumps, summary

            part = bool(options["cases"] or filters)
            found = [c for c in changes(before, results) if not (part and c.kind == "gone")]  # what was not asked for is not gone
            said = summary(found, "/".join(Path(options["baseline"]).parts[-2:]), other_dumps(before, results))
            results = replace(results, notes=(*results.notes, said))
        if wanted and out is None and not quiet:
            _say_replaced(results)
        written = publish(results, forms=wanted, out=out)
    code = show(results, written, strict=strict, quiet=quiet, verbose=verbose, as_json=as_json)
    if not quiet and not as_json:
        for change in found[:MAX_CHANGES]:
            click.echo(change.line)
        if len(found) > MAX_CHANGES:
            click.echo(f"and {len(found) - MAX_CHANGES} more changes")
    return code


@contextmanager
def _naming(filters: Sequence[str]) -> Iterator[None]:
    """The filters at the end of the sentence where they leave nothing to judge."""
    from accuracy_eval.errors import NothingJudged

    try:
        yield
    except NothingJudged as error:
        raise NothingJudged(f"{error} ({' '.join(filters)})") from None


@contextmanager
def _resumable(out: str | None, *, quiet: bool) -> Iterator[Callable[[Sequence[str]], Path]]:
    """What names the journal beside the reports by the dumps' labels. It goes when the reports are written, and stays when that fails."""
    used: list[Path] = []

    def journal(labels: Sequence[str]) -> Path:
        used.append(_report_folder(out, labels) / JOURNAL)
        if used[0].is_file() and not used[0].is_symlink() and not quiet:
            click.echo(f"compare: results of this comparison that {used[0]} holds are not judged again", err=True)
        return used[0]

    try:
        yield journal
    except KeyboardInterrupt:
        for path in filter(Path.exists, used):
            click.echo(f"compare: what is judged so far is kept in {path}; the same command goes on from there", err=True)
        raise
    for path in used:
        path.unlink(missing_ok=True)


def _say_replaced(results: Results) -> None:
    """That the folder, which is named by labels, holds the reports of other dumps."""
    from accuracy_eval.report.results_file import dumps_before

    folder = _report_folder(None, [d.label for d in results.dumps])
    before = dumps_before(folder)
    if before and {Path(f).resolve() for f in before} != {Path(d.file).resolve() for d in results.dumps}:
        click.echo(f"compare: {folder} held the reports of {', '.join(before)}; they are replaced. Another folder: -o", err=True)


def _arrays(paths: tuple[str, ...], labels: tuple[str, ...], names: tuple[str, ...]) -> Results:
    """The comparison of array files; UsageError for a dump among them, and for what only dumps can be asked."""
    from accuracy_eval.errors import UsageError
    from accuracy_eval.foreign.arrays import READERS, is_foreign
    from accuracy_eval.foreign.comparing import compare_arrays

    dumps = [p for p in paths if not is_foreign(p)]
    if dumps:
        raise UsageError(f"{dumps[0]} is no file of arrays ({', '.join(READERS)}), the others are; compare dumps with dumps")
    context = click.get_current_context()
    unused = [
        p.opts[-1]
        for p in context.command.params
        if p.name not in FOR_ARRAYS and context.get_parameter_source(str(p.name)) is click.core.ParameterSource.COMMANDLINE
    ]
    if unused:
        raise UsageError(
            f"{', '.join(unused)}: nothing in files of arrays for that; they hold no cases and no operands, and are judged by the limits "
            "of their formats. Leave it out, or compare dumps"
        )
    return compare_arrays(*paths, labels=labels, names=names)


def _baseline(path: str | None) -> Results | None:
    from accuracy_eval.report import load_results

    return load_results(path) if path is not None else None


def case_filter(chosen: dict[str, tuple[str, ...]]) -> Callable[[Case], bool]:
    """What says whether a case is one of those chosen by `selection`'s options. UsageError for unknown names."""
    from accuracy_eval.suite import filter_cases

    filter_cases([], **chosen)  # unknown names are an error even when no case is read
    return lambda case: bool(filter_cases([case], **chosen))


def report_forms(text: str) -> tuple[str, ...]:
    """The report forms of a comma-separated list; an error, before anything runs, for one that cannot be written."""
    from accuracy_eval.report import WRITERS, writers

    forms = tuple(f for f in text.split(",") if f and f != "none")
    writers(forms, allowed=[*WRITERS, "none"])
    return forms


def present(
    results: Results, *, forms: tuple[str, ...], out: str | None, strict: bool, quiet: bool, as_json: bool, verbose: bool = False
) -> int:
    """Write the reports, print table or JSON, and return the exit code."""
    return show(results, publish(results, forms=forms, out=out), strict=strict, quiet=quiet, as_json=as_json, verbose=verbose)


def publish(results: Results, *, forms: tuple[str, ...], out: str | None) -> list[Path]:
    """Write the reports; the files."""
    from accuracy_eval.report import write_reports

    return write_reports(results, _report_folder(out, [d.label for d in results.dumps]), to=forms) if forms else []


def show(results: Results, written: Sequence[Path], *, strict: bool, quiet: bool, as_json: bool, verbose: bool) -> int:
    """Print the table with the files `written`, or JSON, and return the exit code."""
    from accuracy_eval.records import Verdict

    if as_json:
        from accuracy_eval.report.results_file import pieces

        for piece in pieces(results):
            click.echo(piece, nl=False)
    elif not quiet:
        from accuracy_eval.report import console_table

        click.echo(console_table(results, width=terminal_width(), color=_color(), verbose=verbose), nl=False)
        for path in written:
            click.echo(f"  {path}")
    warned = strict and any(t.verdict is Verdict.WARN for t in results.tensors)
    return max(results.exit_code, 1) if warned else results.exit_code


def _report_folder(out: str | None, labels: Sequence[str]) -> Path:
    return Path(out) if out else Path("reports") / _fitting("-vs-".join(map(_folder_name, labels)))


def _fitting(name: str) -> str:
    """The name of a folder, cut where many or long labels give more than a file system takes: what is cut off counts in a digest."""
    if len(name) <= MOST_NAME:
        return name
    import hashlib

    return f"{name[:MOST_NAME]}-{hashlib.sha256(name.encode(), usedforsecurity=False).hexdigest()[:12]}"


def _folder_name(label: str) -> str:
    """A label as part of a folder's name: no path of the label's own."""
    import re

    return re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip(".-") or "dump"


def _color() -> bool:
    import os

    return sys.stdout.isatty() and "NO_COLOR" not in os.environ
