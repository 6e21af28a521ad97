"""What platforms compute, side by side: numerics cards and special functions of every dump, and where two platforms differ.

A page to read, not a judgement: limits stand beside what was seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.special import Vendor, evaluate, limit_ulps, region
from accuracy_eval.cpu_ref.special_functions import FUNCTIONS
from accuracy_eval.cpu_ref.special_profile import RANGES, FunctionProfile, profile
from accuracy_eval.digests import sha256_many
from accuracy_eval.errors import FileError, InputMismatch, UsageError
from accuracy_eval.formats import Codes, decode, get_format, ordinal_distance
from accuracy_eval.json_data import from_json
from accuracy_eval.ops.operands import operand_codes
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Case, CaseRecord
from accuracy_eval.report.html import environment
from accuracy_eval.store import Dump
from accuracy_eval.version import PRODUCER

VENDORS: dict[str, Vendor] = {"nvidia": "cuda", "amd": "hip"}  # whose documentation stands beside a platform; both elsewhere
SWEEP = "accuracy-eval-sweep/1"  # kind of a JSON file of profiles over all float32 operands (benchmarks/special_sweep.py)


@dataclass(frozen=True)
class Platform:
    """One dump, or one sweep: its name and what it shows of itself. `card` is the numerics card, empty where it was not probed."""

    label: str
    device: str
    software: str
    card: dict[str, Any]


@dataclass(frozen=True)
class FunctionRow:
    """One function, format and set of operands: a profile per platform, None where a platform has none."""

    function: str
    format: str
    operands: str
    cells: tuple[FunctionProfile | None, ...]


@dataclass(frozen=True)
class FunctionTable:
    """The function rows of one format and set of operands.

    columns  numbers of the platforms that have any of them
    ranges   numbers of the ranges that any operand lies in
    """

    format: str
    operands: str
    rows: tuple[FunctionRow, ...]

    @property
    def columns(self) -> list[int]:
        return [i for i in range(len(self.rows[0].cells)) if any(row.cells[i] for row in self.rows)]

    @property
    def ranges(self) -> list[int]:
        return [n for n in range(len(RANGES)) if any(p.ranges[n].count for row in self.rows for p in row.cells if p)]


@dataclass(frozen=True)
class DifferenceRow:
    """Two platforms' results of one function in one range: elements, those with other codes, the largest distance in codes, the largest
    that both documents together allow (float32) or one code (narrower formats); None outside the core, where limits are of absolute
    error."""

    function: str
    format: str
    operands: str
    a: str
    b: str
    range: str
    count: int
    differing: int
    steps: int
    allowed: float | None


@dataclass(frozen=True)
class Atlas:
    """Everything on the page."""

    platforms: tuple[Platform, ...]
    functions: tuple[FunctionRow, ...]
    differences: tuple[DifferenceRow, ...]

    @property
    def tables(self) -> list[FunctionTable]:
        """The function rows, those of one format and set of operands together."""
        return [FunctionTable(*key, tuple(rows)) for key, rows in groupby(self.functions, key=lambda r: (r.format, r.operands))]


def atlas(paths: Sequence[str | Path]) -> Atlas:
    """Read dumps, and JSON files of full sweeps. FileError for what is neither, UsageError where none holds a card or a special function,
    InputMismatch where a dump's operands are not this version's."""
    platforms: list[Platform] = []
    found: dict[tuple[str, str, str], dict[int, FunctionProfile]] = {}
    outputs: dict[tuple[str, str, str], dict[int, tuple[Codes, Codes]]] = {}
    for number, path in enumerate(paths):
        if Path(path).suffix == ".json":
            platform, operands, profiles = _sweep(Path(path))
            for p in profiles:
                found.setdefault((p.function, p.format, operands), {})[number] = p
        else:
            dump = Dump.open(path)
            platform = _platform(dump)
            for record, x, y in _special(dump):
                key = record.case.op, get_format(record.tensors[0].format).name, _operands(record.case)
                vendor = VENDORS.get(str(dump.platform.get("vendor")), "any")
                found.setdefault(key, {})[number] = profile(record.case.op, x, y, key[1], vendor=vendor)
                outputs.setdefault(key, {})[number] = (x, y)
        platforms.append(platform)
    labels = _unique([p.label for p in platforms])
    named = tuple(Platform(label, p.device, p.software, p.card) for label, p in zip(labels, platforms, strict=True))
    if not found and not any(p.card for p in named):
        raise UsageError(
            f"{', '.join(map(str, paths))}: no numerics card and no special function; dump with --probe, or a suite such as turbo-special"
        )
    rows = [FunctionRow(*key, tuple(cells.get(i) for i in range(len(named)))) for key, cells in sorted(found.items(), key=_order)]
    differences = [d for key, both in sorted(outputs.items(), key=_order) for d in _differences(key, both, labels)]
    return Atlas(named, tuple(rows), tuple(differences))


def _order(item: tuple[tuple[str, str, str], Any]) -> tuple[int, str, str, int]:
    function, fmt, operands = item[0]
    return -get_format(fmt).bits, fmt, operands, list(FUNCTIONS).index(function)


def _unique(labels: list[str]) -> list[str]:
    return [label if labels.count(label) == 1 else f"{label}-{labels[: i + 1].count(label)}" for i, label in enumerate(labels)]


def _platform(dump: Dump) -> Platform:
    p = dump.platform
    software = ", ".join(f"{name} {p[key]}" for name, key in _SOFTWARE if p.get(key))
    card = dump.info.get("numerics")
    return Platform(str(p.get("label") or dump.path.stem), str(p.get("device_name") or "unknown"), software, dict(card or {}))


_SOFTWARE = (("torch", "torch_version"), ("CUDA", "torch_cuda"), ("HIP", "torch_hip"), ("driver", "driver_version"))


def _sweep(path: Path) -> tuple[Platform, str, list[FunctionProfile]]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: not a JSON file of profiles: {error}") from error
    if not isinstance(data, dict) or data.get("kind") != SWEEP:
        raise FileError(f"{path}: expected kind {SWEEP!r}, found {data.get('kind') if isinstance(data, dict) else type(data).__name__!r}")
    platform = Platform(str(data["label"]), str(data["device"]), str(data["software"]), {})
    step = int(data.get("step", 1))
    return platform, "every operand" if step == 1 else f"one operand in {step}", [from_json(FunctionProfile, p) for p in data["profiles"]]


def _special(dump: Dump) -> Iterator[tuple[CaseRecord, Codes, Codes]]:
    """Every result of a unary special function, with its operands as this version generates them."""
    with dump.kept_open():
        for record in dump.records:
            case = record.case
            if case.op not in FUNCTIONS or FUNCTIONS[case.op].arity != 1 or record.status != "done" or record.candidate != "default":
                continue
            codes = operand_codes(get_op(case.op), case, "ocp")
            stored = {t.name: t.sha256 for t in record.tensors if t.role == "source"}
            (digest,) = sha256_many(codes.values())
            if stored.get("x") != digest:
                raise InputMismatch(f"{dump.path}: {record.id}: its operands are not those of this version; dump it again")
            output = next(t for t in record.tensors if t.role == "output")
            rows = int(np.prod(output.shape[:-1], dtype=np.int64))
            yield record, codes["x"], np.asarray(dump.view(record, output, verify=True)[0:rows]).reshape(output.shape)


def _operands(case: Case) -> str:
    if case.input_class == "codes":
        return "every code"
    return f"{case.input_class} {'×'.join(str(size) for _, size in case.shape)}"


def _differences(key: tuple[str, str, str], outputs: dict[int, tuple[Codes, Codes]], labels: Sequence[str]) -> Iterator[DifferenceRow]:
    function, fmt, operands = key
    out = get_format(fmt)
    for a, b in combinations(sorted(outputs), 2):
        x, ya = (v.reshape(-1) for v in outputs[a])
        yb = outputs[b][1].reshape(-1)
        if (ya == yb).all():
            continue
        values = decode(x, out)
        where = region(function, values, evaluate(function, values), out)
        finite = np.isfinite(decode(ya, out)) & np.isfinite(decode(yb, out))
        for number, name in enumerate(RANGES):
            here: NDArray[np.bool_] = finite & (where == number)
            steps = np.abs(ordinal_distance(ya[here], yb[here], out))
            if steps.size and steps.max():
                yield DifferenceRow(
                    function, fmt, operands, labels[a], labels[b], name, int(here.sum()), int(np.count_nonzero(steps)), int(steps.max()),
                    limit_ulps(function, out, "pair") if name == "core" else None,
                )  # fmt: skip


def write(found: Atlas, path: str | Path) -> Path:
    """The page: one self-contained HTML file."""
    template = environment().get_template("atlas.html.j2")
    Path(path).write_text(template.render(atlas=found, producer=PRODUCER, ranges=RANGES), encoding="utf-8")
    return Path(path)
