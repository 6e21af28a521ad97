"""Progress on stderr: bars with rate and time left on a terminal, a line now and then elsewhere, nothing with -q."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

LINE_EVERY_S = 10.0
RATE_OF_LINES = 3  # as long ago as the rate looks
Unit = Literal["cases", "bytes"]
Update = Callable[[int, int, str], None]


@contextmanager
def progress(title: str, *, quiet: bool = False, unit: Unit = "cases") -> Iterator[Update]:
    """A function update(done, total, what) for the length of the block."""
    with progress_of([title], quiet=quiet, unit=unit) as update:
        yield lambda done, total, what: update(title, done, total, what)


@contextmanager
def progress_of(titles: Sequence[str], *, quiet: bool = False, unit: Unit = "cases") -> Iterator[Callable[[str, int, int, str], None]]:
    """A function update(title, done, total, what) for several things that go on at once."""
    if quiet:
        yield lambda title, done, total, what: None
        return
    if not sys.stderr.isatty():
        lines = {title: _lines(title, unit) for title in titles}
        yield lambda title, done, total, what: lines[title](done, total, what)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(*_columns(unit), console=Console(stderr=True), transient=True) as bar:
        tasks = {title: bar.add_task(title, total=None, what="") for title in titles}
        yield lambda title, done, total, what: bar.update(tasks[title], completed=done, total=total, what=what)


def _columns(unit: Unit) -> tuple[ProgressColumn, ...]:
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as Speed

    amount = (DownloadColumn(binary_units=True), Speed()) if unit == "bytes" else (MofNCompleteColumn(), TimeElapsedColumn())
    return (TextColumn("{task.description}"), BarColumn(), *amount, TimeRemainingColumn(), TextColumn("{task.fields[what]}", markup=False))


def _lines(title: str, unit: Unit) -> Update:
    """Lines of what is done, and of what is left at the rate of the last lines: the cases of a suite are not alike."""
    started = time.monotonic()
    said: deque[tuple[float, int]] = deque(maxlen=RATE_OF_LINES)

    def update(done: int, total: int, what: str) -> None:
        if not said:
            said.append((started, done))  # what an earlier run had done says nothing about this one's rate
        now = time.monotonic()
        if now - said[-1][0] < LINE_EVERY_S:
            return
        rate = (done - said[0][1]) / (now - said[0][0])
        said.append((now, done))
        # the first cases compile kernels and say nothing about the rest
        estimate = f", about {(total - done) / rate:.0f} s left" if rate > 0 and 10 * done >= total else ""
        amount = (
            f"{done / 2**20:.1f} of {total / 2**20:.1f} MiB, {rate / 2**20:.1f} MiB/s" if unit == "bytes" else f"{done} of {total} {unit}"
        )
        print(f"{title}: {amount}{estimate}{f' ({what})' if what else ''}", file=sys.stderr, flush=True)

    return update
