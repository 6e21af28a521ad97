"""history.html: how a metric moved over dated results, one small chart a series, library versions on the axis. No script, no network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accuracy_eval import messages
from accuracy_eval.records import Verdict
from accuracy_eval.report.html import environment

WIDTH, HEIGHT = 860, 150  # of the plot; the versions stand below it
LEFT, TOP = 70, 12
MAX_CHARTS = 60


@dataclass(frozen=True)
class Chart:
    """One series: (index of the date, value, verdict), and the versions from an index on."""

    title: str
    points: Sequence[tuple[int, float, Verdict]]
    versions: Mapping[int, str]

    @property
    def telling(self) -> bool:
        """Whether it moved, or a point failed: a flat line of passes needs no picture."""
        return len({v for _, v, _ in self.points}) > 1 or any(verdict.exit_code for _, _, verdict in self.points)


@dataclass(frozen=True)
class Mark:
    x: float
    y: float
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class Drawing:
    """A chart as places on a plot of WIDTH × HEIGHT."""

    title: str
    marks: Sequence[Mark]
    ticks: Sequence[tuple[float, str]]
    versions: Sequence[tuple[float, str, bool]]  # the last: they changed there, and do not merely begin
    first: str
    last: str

    @property
    def line(self) -> str:
        return " ".join(f"{m.x:.1f},{m.y:.1f}" for m in self.marks)

    @property
    def height(self) -> int:
        return TOP + HEIGHT + 24 + 16 * len(self.versions)


def page(metric: str, dates: Sequence[str], charts: Sequence[Chart]) -> str:
    """The page: the series in the order given; those that moved or fail are drawn, at most MAX_CHARTS, the flat ones are rows."""
    telling = [c for c in charts if c.telling]
    drawings = [_drawn(c, dates) for c in telling[:MAX_CHARTS]]
    flat = [(c.title, messages.number(c.points[0][1], 6), len(c.points), c.points[-1][2]) for c in charts if not c.telling]
    template = environment().get_template("history.html.j2")
    return template.render(
        metric=metric, dates=dates, drawings=drawings, flat=flat, rest=len(telling) - len(drawings),
        width=WIDTH, height=HEIGHT, left=LEFT, top=TOP,
    )  # fmt: skip


def _drawn(chart: Chart, dates: Sequence[str]) -> Drawing:
    values = [v for _, v, _ in chart.points]
    logarithmic = min(values) > 0 and max(values) > 20 * min(values)
    scale = math.log10 if logarithmic else float
    low, high = scale(min(values)), scale(max(values))
    room = (high - low) * 0.1 or abs(high) * 0.1 or 1.0
    low, high = low - room, high + room

    def x(i: int) -> float:
        return LEFT + 12 + i * (WIDTH - LEFT - 40) / max(len(dates) - 1, 1)

    def y(v: float) -> float:
        return TOP + HEIGHT - (scale(v) - low) / (high - low) * HEIGHT

    marks = [Mark(x(i), y(v), verdict, f"{dates[i]}: {messages.number(v, 6)} ({verdict})") for i, v, verdict in chart.points]
    ticks = [(y(v), messages.number(v, 3)) for v in dict.fromkeys((min(values), max(values)))]
    start = min(chart.versions, default=0)
    versions = [(x(i), messages.visible(text), i > start) for i, text in chart.versions.items()]
    return Drawing(chart.title, marks, ticks, versions, dates[chart.points[0][0]], dates[chart.points[-1][0]])
