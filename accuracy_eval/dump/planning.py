"""What a suite costs before it runs: operations, bytes on the device and on the disk, and time by rates that were measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from accuracy_eval.dump.choosing import share
from accuracy_eval.errors import unknown
from accuracy_eval.formats import get_format
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Encoding, Operand, Output
from accuracy_eval.records import Case
from accuracy_eval.suite import Suite


def flop(case: Case) -> int:
    """Operations of one run: 2·∏sizes of a contraction (twice that for its two gradients), one an element of everything else."""
    sizes = math.prod(case.dims.values())
    if "k" in case.dims:
        return 2 * sizes * (2 if case.direction == "bwd" else 1)
    return sizes


@dataclass(frozen=True)
class Rates:
    """What a kind of device was measured to do.

    start_s     seconds until the first case runs: interpreter, framework, first kernels
    case_s      seconds a case costs whatever its size: launches, a file, its digests
    flop_s      operations a second of its products, by size of operands in bits; the widest entry stands for wider ones
    drawn_s     bytes of random operands made and digested a second
    companion_s the same of integer and coded operands, which the host makes
    quantised_s the same of operands under a recipe, which the host makes and quantises
    written_s   bytes of outputs brought to the host, digested and written a second
    """

    source: str
    start_s: float
    case_s: float
    flop_s: Mapping[int, float]
    drawn_s: float
    companion_s: float
    quantised_s: float
    written_s: float

    def seconds(self, case: Case, sizes: Sizes, repeats: int) -> float:
        """Of a case, without the start."""
        bits = max(get_format(o).bits for o in sizes.formats) if sizes.formats else 32
        rate = self.flop_s[min((b for b in self.flop_s if b >= bits), default=max(self.flop_s))]
        made = self.quantised_s if case.recipe else self.drawn_s if case.lane == "random" else self.companion_s
        return self.case_s + flop(case) * repeats / rate + sizes.operands / made + sizes.outputs / self.written_s


# measured points and how well this model meets them: docs/scale.md
RATES = {
    "h200": Rates("one H200, 16 Xeon cores", 5.0, 0.018, {8: 600e12, 16: 500e12, 32: 40e12, 64: 40e12}, 1.45e9, 0.22e9, 0.13e9, 1.2e9),
    "cpu": Rates("2 cores of an EPYC", 3.0, 0.020, {16: 12e9, 32: 60e9, 64: 30e9}, 1.0e9, 0.22e9, 0.34e9, 0.4e9),
}


@dataclass(frozen=True)
class Sizes:
    """Bytes of a case's operands and outputs, and the operands' formats."""

    operands: int
    outputs: int
    formats: tuple[str, ...]


def sizes(case: Case, encoding: Encoding = "ocp") -> Sizes:
    """Bytes of a case as stored: codes of less than a byte take one."""

    def total(tensors: Iterable[Operand | Output]) -> int:
        return sum(math.prod(t.shape) * get_format(t.format).storage.itemsize for t in tensors)

    spec = get_op(case.op)
    operands = spec.operands(case, encoding)
    return Sizes(total(operands), total(spec.outputs(case, encoding)), tuple(o.format for o in operands))


@dataclass(frozen=True)
class Line:
    """A row of a plan: the cases of one op."""

    op: str
    cases: int
    flop: int
    operands: int
    outputs: int
    largest: int
    seconds: float


@dataclass(frozen=True)
class Plan:
    """What a dump of a suite would take: a line per op, the disk it needs, and the time on the workers asked for."""

    suite: str
    lines: tuple[Line, ...]
    shard: tuple[int, int]
    workers: int
    rates: str
    disk: int
    memory: int
    seconds: float


def plan(
    suite: Suite, device: str = "h200", *, workers: int = 1, repeats: int = 2, store_inputs: bool = False, shard: tuple[int, int] = (0, 1)
) -> Plan:
    """The cost of a dump.

    device   a row of RATES
    shard    (i, n): of only the cases whose position in the suite is i modulo n
    seconds  by the measured rates; with several workers the sum shared evenly, but not less than the longest case
    disk     outputs (and operands if stored) once as parts and once in the packed file, which is how a dump ends
    memory   of the largest case on the device: operands and the outputs of each repeat
    """
    if device not in RATES:
        raise unknown("kind of device to plan for", device, RATES)
    rates = RATES[device]
    by_op: dict[str, list[Case]] = {}
    for case in share(suite, shard):
        by_op.setdefault(case.op, []).append(case)
    lines, seconds, disk, memory = [], [], 0, 0
    for op, cases in by_op.items():
        found = [sizes(c) for c in cases]
        times = [rates.seconds(c, s, repeats) for c, s in zip(cases, found, strict=True)]
        largest = max(s.operands + repeats * s.outputs for s in found)
        lines.append(
            Line(
                op,
                len(cases),
                sum(flop(c) for c in cases),
                sum(s.operands for s in found),
                sum(s.outputs for s in found),
                largest,
                sum(times),
            )
        )
        seconds += times
        disk += sum(s.outputs + (s.operands if store_inputs else 0) for s in found)
        memory = max(memory, largest)
    total = rates.start_s + max(max(seconds, default=0.0), sum(seconds) / workers)
    return Plan(suite.name, tuple(lines), shard, workers, rates.source, 2 * disk, memory, total)


def table(p: Plan) -> str:
    """The plan as a person reads it."""
    head = ("op", "cases", "operations", "operands", "outputs", "largest case", "time")
    rows: list[Sequence[str]] = [head]
    rows += [
        (x.op, f"{x.cases:,}", _scaled(x.flop, 1000, ""), _bytes(x.operands), _bytes(x.outputs), _bytes(x.largest), duration(x.seconds))
        for x in p.lines
    ]
    widths = [max(len(r[i]) for r in rows) for i in range(len(head))]
    text = ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))) for r in rows]
    workers = f" on {p.workers} workers" if p.workers > 1 else ""
    part = f", shard {p.shard[0]}/{p.shard[1]}" if p.shard[1] > 1 else ""
    cases = sum(x.cases for x in p.lines)
    text.append(
        f"suite {p.suite}{part}: {cases:,} case{'s' * (cases != 1)}, about {duration(p.seconds)}{workers} (rates of {p.rates}), "
        f"{_bytes(p.disk)} of disk while packing, {_bytes(p.memory)} of device memory"
    )
    return "\n".join(text)


def _scaled(value: float, step: int, unit: str) -> str:
    for prefix in ("", "K", "M", "G", "T", "P"):
        if value < step or prefix == "P":
            return f"{value:.3g} {prefix}{unit}".rstrip()
        value /= step
    raise AssertionError("unreachable")


def _bytes(value: float) -> str:
    return _scaled(value, 1000, "B")


def duration(seconds: float) -> str:
    """Seconds as a person says them: 12 s, 3 min 20 s, 5 h 10 min."""
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
