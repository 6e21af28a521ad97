"""accuracy-eval transfer."""

from __future__ import annotations

import click


@click.command("transfer", short_help="Move dumps between hosts over SSH, verified at both ends.")
@click.argument("sources", nargs=-1, required=True)
@click.argument("destination")
@click.option("--accept-new", is_flag=True, help="Add an unknown host's key to known_hosts; a changed key is refused all the same.")
@click.option("--dry-run", is_flag=True, help="Say what would be moved; move nothing.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no summary.")
def transfer_command(sources: tuple[str, ...], destination: str, accept_new: bool, dry_run: bool, quiet: bool) -> int:
    """Copy SOURCES (files or folders; [user@]host:path or local) to DESTINATION, like scp: SHA-256 at both ends, resumable.

    \b
    accuracy-eval transfer h200.h5 me@laptop:dumps/
    accuracy-eval transfer gpu1:a.h5 gpu1:b.h5 .
    """
    from accuracy_eval.cli.progress import progress
    from accuracy_eval.transfer import TransferOptions, transfer

    with progress("transfer", quiet=quiet, unit="bytes") as update:
        moved = transfer(
            list(sources),
            destination,
            options=TransferOptions(accept_new=accept_new, dry_run=dry_run),
            progress=lambda d, t: update(d, t, ""),
        )
    if not quiet:
        for m in moved:
            click.echo(str(m))
    return 0
