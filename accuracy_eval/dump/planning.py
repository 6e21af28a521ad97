"""What a suite costs before it runs: operations, bytes on the device and on the disk, and time by rates that were measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Self

from accuracy_eval.backends.candidates import FEATURES, Candidate, registered
from accuracy_eval.dump.choosing import check_names, chosen, expected_names, known, registered_facts, share
from accuracy_eval.dump.running import Job
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
    """What a kind of device was measured to do, on a host that does nothing else.

    start_s     seconds until the first case runs: interpreter, framework, first kernels
    result_s    seconds a result costs whatever its size: launches, a file, its digests
    refused_s   the same of a candidate that the device has not: its record alone
    flop_s      operations a second of its products, by size of operands in bits; the widest entry stands for wider ones
    drawn_s     bytes of random operands made and digested a second
    companion_s the same of integer and coded operands, which the host makes
    quantised_s the same of operands under a recipe, which the host makes and quantises
    written_s   bytes of outputs brought to the host, digested and written a second
    group_s     seconds until the first group of ranks has met
    rank_s      seconds that each rank of a later group takes to start
    shared_s    seconds more that a result costs for each rank it has
    """

    source: str
    vendor: str
    start_s: float
    result_s: float
    refused_s: float
    flop_s: Mapping[int, float]
    drawn_s: float
    companion_s: float
    quantised_s: float
    written_s: float
    group_s: float
    rank_s: float
    shared_s: float

    def seconds(self, job: Job, sizes: Sizes, repeats: int) -> float:
        """Of a case by all its candidates, without the start and the starts of ranks."""
        case, runs = job.case, len(job.candidates)
        bits = max(get_format(o).bits for o in sizes.formats) if sizes.formats else 32
        rate = self.flop_s[min((b for b in self.flop_s if b >= bits), default=max(self.flop_s))]
        made = self.quantised_s if case.recipe else self.drawn_s if case.lane == "random" else self.companion_s
        each = self.result_s + ranks(case) * self.shared_s + flop(case) * repeats / rate + sizes.outputs / self.written_s
        return runs * each + (sizes.operands / made if runs else 0.0)

    def meeting(self, jobs: Sequence[Job]) -> float:
        """Seconds that ranks take to start: a group is kept for as long as the cases have as many ranks."""
        groups = [count for count, _ in groupby(ranks(j.case) for j in jobs if j.candidates and ranks(j.case))]
        return self.group_s + self.rank_s * sum(groups[1:]) if groups else 0.0


def ranks(case: Case) -> int:
    """How many ranks compute the case together; 0 where none do."""
    spec = get_op(case.op)
    return spec.ranks(case) if spec.ranks else 0


# measured points and how well this model meets them: docs/scale.md
RATES = {
    "h200": Rates(
        "one H200, 16 Xeon cores", "nvidia", start_s=5.0, result_s=0.018, refused_s=0.003,
        flop_s={8: 600e12, 16: 500e12, 32: 40e12, 64: 40e12},
        drawn_s=1.45e9, companion_s=0.22e9, quantised_s=0.16e9, written_s=1.2e9,
        group_s=13.0, rank_s=0.0, shared_s=0.0,  # of 80 cases of two ranks in 20 s; a second group by NCCL was not timed
    ),
    "cpu": Rates(
        "2 idle cores of an EPYC", "cpu", start_s=3.0, result_s=0.020, refused_s=0.003,
        flop_s={16: 12e9, 32: 60e9, 64: 30e9},
        drawn_s=1.0e9, companion_s=0.22e9, quantised_s=0.34e9, written_s=0.4e9,
        group_s=1.9, rank_s=0.05, shared_s=0.009,
    ),
}  # fmt: skip
VENDORS = ("gpu", "nvidia", "amd")  # of what a candidate may need, what is known of a device that is not here


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
    """A row of a plan: the cases of one op. A result is a case by a candidate; `refused` are those of candidates for other devices."""

    op: str
    cases: int
    results: int
    refused: int
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
    suite: Suite, device: str = "h200", *, candidates: Sequence[str] = (), states: Sequence[str] = (), workers: int = 1, repeats: int = 2,
    store_inputs: bool = False, shard: tuple[int, int] = (0, 1),
) -> Plan:  # fmt: skip
    """The cost of a dump.

    device   a row of RATES
    candidates, states, shard   as for `dump`
    seconds  by the measured rates; with several workers the sum shared evenly, but not less than the longest case
    disk     outputs (and operands if stored) once as parts and once in the packed file, which is how a dump ends
    memory   of the largest case on the device: operands and the outputs of each repeat
    """
    if device not in RATES:
        raise unknown("kind of device to plan for", device, RATES)
    rates = RATES[device]
    work = [_Work.of(case, suite, rates.vendor, candidates, states) for case in share(suite, shard)]
    facts = registered_facts((w.job.case for w in work), lambda case: known(_there(case)), candidates)
    check_names(candidates, (n for w in work for n in (*w.job.candidates, *w.refused)), facts)
    by_op: dict[str, list[_Work]] = {}
    for w in work:
        by_op.setdefault(w.job.case.op, []).append(w)
    lines, seconds, disk, memory = [], [], 0, 0
    for op, of_op in by_op.items():
        found = [sizes(w.job.case) for w in of_op]
        runs = [len(w.job.candidates) for w in of_op]
        refused = sum(len(w.refused) for w in of_op)
        times = [rates.seconds(w.job, s, repeats) + rates.refused_s * len(w.refused) for w, s in zip(of_op, found, strict=True)]
        operands = sum(s.operands for s, n in zip(found, runs, strict=True) if n)
        outputs = sum(s.outputs * n for s, n in zip(found, runs, strict=True))
        stored = sum(s.operands * n for s, n in zip(found, runs, strict=True)) if store_inputs else 0
        largest = max((s.operands + repeats * s.outputs for s, n in zip(found, runs, strict=True) if n), default=0)
        operations = sum(flop(w.job.case) * n for w, n in zip(of_op, runs, strict=True))
        lines.append(Line(op, len(of_op), sum(runs) + refused, refused, operations, operands, outputs, largest, sum(times)))
        seconds += times
        disk += outputs + stored
        memory = max(memory, largest)
    meeting = rates.meeting([w.job for w in work])
    total = rates.start_s + meeting + max(max(seconds, default=0.0), sum(seconds) / workers)
    return Plan(suite.name, tuple(lines), shard, workers, rates.source, 2 * disk, memory, total)


@dataclass(frozen=True)
class _Work:
    """A case with the candidates that run on a vendor's device, and those of others, which are recorded as unsupported."""

    job: Job
    refused: tuple[str, ...]

    @classmethod
    def of(cls, case: Case, suite: Suite, vendor: str, names: Sequence[str], states: Sequence[str]) -> Self:
        there = _there(case)
        alien = {c.name for c in there if not all(FEATURES[n].present({"vendor": vendor}) for n in c.needs if n in VENDORS)}
        every = chosen(known(there), names, states, expected_names(suite, case, vendor))
        refused = tuple(n for n in every if n.partition("+")[0] in alien)
        return cls(Job(case, tuple(n for n in every if n not in refused)), refused)


def _there(case: Case) -> list[Candidate]:
    return [c for c in registered(case.op) if c.applies(case)]


def table(p: Plan) -> str:
    """The plan as a person reads it."""
    head = ("op", "cases", "results", "operations", "operands", "outputs", "largest case", "time")
    rows: list[Sequence[str]] = [head]
    rows += [
        (x.op, f"{x.cases:,}", f"{x.results:,}", _scaled(x.flop, 1000, ""), _bytes(x.operands), _bytes(x.outputs), _bytes(x.largest),
         duration(x.seconds))
        for x in p.lines
    ]  # fmt: skip
    widths = [max(len(r[i]) for r in rows) for i in range(len(head))]
    text = ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))) for r in rows]
    workers = f" on {p.workers} workers" if p.workers > 1 else ""
    part = f", shard {p.shard[0]}/{p.shard[1]}" if p.shard[1] > 1 else ""
    refused = sum(x.refused for x in p.lines)
    text.append(
        f"suite {p.suite}{part}: {_count(sum(x.cases for x in p.lines), 'case')}, {_count(sum(x.results for x in p.lines), 'result')}"
        f"{f' ({refused:,} of candidates for other devices)' if refused else ''}, about {duration(p.seconds)}{workers} "
        f"(rates of {p.rates}), {_bytes(p.disk)} of disk while packing, {_bytes(p.memory)} of device memory"
    )
    return "\n".join(text)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


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
