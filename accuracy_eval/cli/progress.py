"""Progress on stderr: bars with rate and time left on a terminal, a line now and then elsewhere, nothing with -q."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from accuracy_eval.compiling import heard

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

LINE_EVERY_S = 10.0
RATE_OF_LINES = 3  # as long ago as the rate looks
COMPILES_LONG_S = 3.0  # from then on a log says what takes so long
Unit = Literal["results", "dumps", "bytes"]


@contextmanager
def progress(title: str, *, quiet: bool = False, unit: Unit = "results") -> Iterator[Callable[[int, int, str], None]]:
    """A function update(done, total, what) for the length of the block."""
    with progress_of([title], quiet=quiet) as update:
        yield lambda done, total, what: update(title, done, total, what, unit)


@contextmanager
def progress_of(titles: Sequence[str], *, quiet: bool = False) -> Iterator[Callable[[str, int, int, str, Unit], None]]:
    """A function update(title, done, total, what, unit) for several things that go on at once; the unit of each may change."""
    if quiet:
        yield lambda title, done, total, what, unit: None
        return
    terminal = sys.stderr.isatty()
    said_when = heard(_compiles(titles[0] if len(titles) == 1 else "accuracy-eval", after_s=0.0 if terminal else COMPILES_LONG_S))
    if not terminal:
        lines = {title: _lines(title) for title in titles}
        with said_when:
            yield lambda title, done, total, what, unit: lines[title](done, total, what, unit)
        return
    from rich.console import Console
    from rich.progress import Progress

    with said_when, Progress(*_columns(), console=Console(stderr=True), transient=True) as bar:
        tasks = {title: bar.add_task(title, total=None, what="", unit="") for title in titles}
        units: dict[str, Unit] = {}

        def update(title: str, done: int, total: int, what: str, unit: Unit) -> None:
            if units.setdefault(title, unit) != unit:
                units[title] = unit
                bar.reset(tasks[title])
            bar.update(tasks[title], completed=done, total=total, what=what, unit=unit)

        yield update


def _compiles(title: str, *, after_s: float) -> Callable[[], None]:
    """What says once that kernels are compiled, as soon as that has taken so long."""
    began: float | None = None
    said = False

    def compiles() -> None:
        nonlocal began, said
        now = time.monotonic()
        began = now if began is None else began
        if not said and now - began >= after_s:
            said = True
            print(
                f"{title}: compiling kernels, which takes up to a minute once; later runs take them from the cache",
                file=sys.stderr,
                flush=True,
            )

    return compiles


def _columns() -> tuple[ProgressColumn, ...]:
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    class Amount(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("" if task.total is None else _amount(int(task.completed), int(task.total), task.fields["unit"], task.speed or 0))

    rest = TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[what]}", markup=False)
    return TextColumn("{task.description}"), BarColumn(), Amount(), *rest


def _amount(done: int, total: int, unit: Unit, rate: float) -> str:
    if unit == "bytes":
        return f"{done / 2**20:.1f} of {total / 2**20:.1f} MiB, {rate / 2**20:.1f} MiB/s"
    return f"{done} of {total} {unit}"


def _lines(title: str) -> Callable[[int, int, str, Unit], None]:
    """Lines of what is done, and of what is left at the rate of the last lines: the cases of a suite are not alike."""
    started = time.monotonic()
    said: deque[tuple[float, int]] = deque(maxlen=RATE_OF_LINES)
    of: Unit | None = None

    def update(done: int, total: int, what: str, unit: Unit) -> None:
        nonlocal of
        now = time.monotonic()
        if unit != of:  # what an earlier run had done says nothing about this one's rate, nor does what is counted in another unit
            said.clear()
            said.append((started if of is None else now, done))
            of = unit
        if now - said[-1][0] < LINE_EVERY_S:
            return
        rate = (done - said[0][1]) / (now - said[0][0])
        said.append((now, done))
        # the first cases compile kernels and say nothing about the rest
        estimate = f", about {(total - done) / rate:.0f} s left" if rate > 0 and 10 * done >= total else ""
        print(f"{title}: {_amount(done, total, unit, rate)}{estimate}{f' ({what})' if what else ''}", file=sys.stderr, flush=True)

    return update
