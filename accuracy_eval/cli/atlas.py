"""accuracy-eval atlas."""

from __future__ import annotations

import click


@click.command("atlas")
@click.argument("dumps", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False), help="The page to write (HTML).")
def atlas_command(dumps: tuple[str, ...], out: str) -> int:
    """Write one self-contained page from DUMPS (and JSON files of full sweeps): numerics cards, special functions by range beside the
    vendors' documented limits, monotonicity, parity, and where two platforms differ. It judges nothing.

    \b
    accuracy-eval dump turbo-special --probe -o h200.h5       on each machine
    accuracy-eval atlas h200.h5 mi300x.h5 -o atlas.html
    """
    from accuracy_eval.atlas import atlas, write
    from accuracy_eval.errors import counted

    found = atlas(dumps)
    path = write(found, out)
    cards = sum(bool(p.card) for p in found.platforms)
    numbers = counted(len(found.platforms), "platform"), counted(cards, "numerics card"), counted(len(found.functions), "row")
    click.echo(f"{path}: {', '.join(numbers)} of special functions")
    return 0
