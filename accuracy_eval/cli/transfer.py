"""accuracy-eval transfer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from accuracy_eval.transfer import FileResult, Options


F = TypeVar("F", bound=Callable[..., Any])

_CONNECTION = (
    click.option("-P", "--port", type=click.IntRange(1, 65535), help="Port, where the ssh configuration names none."),
    click.option("-i", "--identity", "identities", multiple=True, type=click.Path(dir_okay=False), help="Private key to try first."),
    click.option("-F", "--ssh-config", "ssh_config", type=click.Path(dir_okay=False), help="This ssh configuration instead of yours."),
    click.option("--accept-new", is_flag=True, help="Remember an unknown host's key; a changed key is refused all the same."),
    click.option(
        "--timeout", default=30.0, show_default=True, type=click.FloatRange(min=1), help="Longest silence of the other side, in seconds."
    ),
    click.option(
        "--retries", default=3, show_default=True, type=click.IntRange(min=0), help="Attempts to go on after a broken connection."
    ),
    click.option(
        "--transport",
        type=click.Choice(["auto", "paramiko", "openssh"]),
        default="auto",
        show_default=True,
        help="What carries the bytes; auto: the ssh program for large files.",
    ),
    click.option("--limit", "limit_mb", default=0.0, type=click.FloatRange(min=0), help="Most megabytes a second (default: no limit)."),
    click.option("-v", "--verbose", is_flag=True, help="Say what is chosen and tried again."),
)


def connection_options(function: F) -> F:
    """Adds the options of how hosts are reached, shared by the commands that do; `options_of` reads them."""
    for option in reversed(_CONNECTION):
        function = option(function)
    return function


def options_of(chosen: dict[str, Any]) -> Options:
    """Transfer options from what `connection_options` gave."""
    from accuracy_eval.transfer import Options

    def note(text: str) -> None:
        if chosen["verbose"]:
            click.echo(text, err=True)

    return Options(
        port=chosen["port"],
        identity_files=tuple(Path(i) for i in chosen["identities"]),
        config_file=Path(chosen["ssh_config"]) if chosen["ssh_config"] else None,
        accept_new=chosen["accept_new"],
        timeout_s=chosen["timeout"],
        retries=chosen["retries"],
        transport=chosen["transport"],
        rate_limit=chosen["limit_mb"] * 1e6,
        ask=_ask,
        note=note,
    )


@click.command("transfer")
@click.argument("sources", nargs=-1, metavar="SOURCES...")
@click.argument("destination")
@connection_options
@click.option(
    "--include",
    "include",
    multiple=True,
    metavar="PATTERN",
    help="Of dumps here: only cases whose id matches, such as 'gemm.*', as NAME.cases.h5.",
)
@click.option(
    "--digests",
    is_flag=True,
    help="Of dumps here: digests alone, no codes, as NAME.digests.h5; compare says which results are bit-identical.",
)
@click.option("--no-resume", is_flag=True, help="Start over instead of continuing a partial file.")
@click.option("--dry-run", is_flag=True, help="Connect and look; write nothing.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no summary.")
def transfer_command(
    sources: tuple[str, ...],
    destination: str,
    include: tuple[str, ...],
    digests: bool,
    no_resume: bool,
    dry_run: bool,
    quiet: bool,
    **connection: Any,
) -> int:
    """Copy SOURCES (files or folders; local or [user@]host:path) to DESTINATION, like scp: SHA-256 at both ends, resumable.

    \b
    accuracy-eval transfer h200.h5 me@laptop:dumps/
    accuracy-eval transfer gpu1:a.h5 gpu1:b.h5 .
    """
    from accuracy_eval.cli.progress import progress
    from accuracy_eval.errors import UsageError
    from accuracy_eval.transfer import transfer

    if not sources:
        raise UsageError(f"the destination is missing; say where to: accuracy-eval transfer {destination} HOST:FOLDER/")
    options = replace(options_of(connection), resume=not no_resume, dry_run=dry_run)
    with _extracted(sources, include, digests) as chosen, progress("transfer", quiet=quiet, unit="bytes") as update:
        moved = transfer(chosen, destination, options=options, progress=lambda done, total: update(done, total, ""))
    if not quiet:
        for m in moved:
            click.echo(_line(m, dry_run))
    return 0


@contextmanager
def _extracted(sources: tuple[str, ...], include: tuple[str, ...], digests: bool) -> Iterator[list[str]]:
    """The sources, or smaller dumps in their place, named so that none takes the name of the whole: NAME.cases.h5, NAME.digests.h5."""
    if not include and not digests:
        yield list(sources)
        return
    from accuracy_eval.errors import UsageError
    from accuracy_eval.records import CaseRecord
    from accuracy_eval.store import extract
    from accuracy_eval.transfer import parse_location

    def keep(record: CaseRecord) -> bool:
        return not include or any(fnmatchcase(record.id, pattern) for pattern in include)

    with TemporaryDirectory() as folder:
        made = []
        for number, source in enumerate(sources):
            if parse_location(source).remote:
                raise UsageError(
                    f"{source}: --include and --digests choose from dumps here; run the transfer on the host that has the dump"
                )
            name = Path(source).resolve().name.removesuffix(".parts").removesuffix(".h5")
            path = Path(folder) / str(number) / f"{name}{'.cases' if include else ''}{'.digests' if digests else ''}.h5"
            made.append(str(extract(source, path, keep=keep, codes=not digests)))
        yield made


def _ask(prompt: str) -> str | None:
    """A passphrase or password from the terminal; None where there is none to ask."""
    import sys

    if not sys.stdin.isatty():
        return None
    answer: str = click.prompt(prompt, hide_input=True, err=True, prompt_suffix=" ")
    return answer


def _line(m: FileResult, dry_run: bool) -> str:
    done = f"would be {m.action}" if dry_run and m.method else str(m.action)
    resumed = f", continued at {m.resumed_from}" if m.resumed_from else ""
    replaced = ", in place of another file of this name" if m.replaced else ""
    digest = f"  sha256 {m.sha256}" if m.sha256 else ""
    return f"{m.destination}: {done}, {m.size_bytes} bytes{resumed}{replaced}{digest}"
