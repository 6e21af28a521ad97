"""Progress on stderr: a bar with rate and time left on a terminal, a line now and then elsewhere, nothing with -q."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_EVERY_S = 10.0


@contextmanager
def progress(title: str, *, quiet: bool = False, unit: str = "cases") -> Iterator[Callable[[int, int, str], None]]:
    """A function update(done, total, what) for the length of the block."""
    if quiet:
        yield lambda done, total, what: None
        return
    if not sys.stderr.isatty():
        yield _lines(title, unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, what="")
        yield lambda done, total, what: bar.update(task, completed=done, total=total, what=what)


def _lines(title: str, unit: str) -> Callable[[int, int, str], None]:
    started = last = time.monotonic()

    def update(done: int, total: int, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < LINE_EVERY_S:
            return
        last = now
        left = (now - started) / max(done, 1) * (total - done)
        # the first cases compile kernels and say nothing about the rest
        estimate = f", about {left:.0f} s left" if 10 * done >= total else ""
        print(f"{title}: {done} of {total} {unit}{estimate} ({what})", file=sys.stderr, flush=True)

    return update
