"""Gates: limits on metrics, grouped in profiles. A limit lives in one TOML file under profiles/ and states its source.

A profile answers one question about a tensor whose metrics are known: which limits apply, and does it keep them. What fails
under every profile (NaN and Inf sets, never-written elements, all-zero outputs, shape, format) is not a gate: see judge.
"""

from __future__ import annotations

import math
import operator
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from accuracy_eval.cases import DIRECTIONS, LANES
from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.inputs import INPUT_CLASSES
from accuracy_eval.metrics.registry import KNOWN, allclose_name
from accuracy_eval.ops.reduce import AXES
from accuracy_eval.ops.registry import OPS
from accuracy_eval.records import ERRORS, GateInfo, GateResult
from accuracy_eval.toml_data import check_table, read_toml

COMPARISONS = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
}  # fmt: skip
FACTS = ("op", "family", "format", "out_format", "recipe", "quantised", "lane", "input", "direction", "tensor", "axis", "exact",
         "contract", "long_rows", "long_columns", "large_tiles")  # fmt: skip
# facts with a closed set of values: a gate for another one would never apply
_FLAGS = ("quantised", "exact", "long_rows", "long_columns", "large_tiles")
_NAMES: dict[str, Collection[str]] = {"op": OPS, "lane": LANES, "direction": DIRECTIONS, "axis": AXES, "input": INPUT_CLASSES}
_PROFILE_KINDS = {"name": "text", "description": "text", "extends": "text", "gate": "tables"}
_GATE_KINDS = {
    "name": "text", "metric": "text", "comparison": "text", "limit": "number", "source": "text", "applies": "table", "unless": "table",
    "rtol": "number", "atol": "number", "round_expected": "flag", "error": "text",
}  # fmt: skip


@dataclass(frozen=True)
class Gate:
    """One limit.

    applies         fact -> values; the gate applies to a tensor whose facts match all of them (an absent fact matches anything)
    unless          the same; the gate does not apply to a tensor whose facts match all of these. Empty: it makes no exception
    rtol, atol      for metric "allclose_violations": |actual - expected| <= atol + rtol·|expected|
    round_expected  judge against the reference rounded to the output format, not against the unrounded truth
    error           which error of a quantised result it limits: see records.ERRORS; "" for none in particular
    """

    name: str
    metric: str
    comparison: str
    limit: float
    source: str
    applies: Mapping[str, tuple[Any, ...]]
    rtol: float = 0.0
    atol: float = 0.0
    round_expected: bool = False
    error: str = ""
    unless: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What the metrics call the one it limits."""
        return allclose_name(self.rtol, self.atol) if self.metric == "allclose_violations" else self.metric

    @cached_property
    def of_one_error(self) -> Gate:
        """The gate where nothing was quantised: there is one error, and it needs no name."""
        return replace(self, error="")

    def matches(self, facts: Mapping[str, Any]) -> bool:
        """Whether the gate applies to a tensor with these facts."""
        return _match(self.applies, facts) and not (self.unless and _match(self.unless, facts))

    def judge(self, metrics: Mapping[str, Any]) -> GateResult:
        """The gate's answer for these metrics. A metric without a value leaves `passed` None: not applied, never a pass."""
        value = metrics.get(self.key)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return GateResult(
                self.name, self.metric, None, self.comparison, self.limit, None, self.source, f"{self.metric} is undefined here", self.error
            )
        return GateResult(
            self.name,
            self.metric,
            float(value),
            self.comparison,
            self.limit,
            bool(COMPARISONS[self.comparison](value, self.limit)),
            self.source,
            error=self.error,
        )


def _match(asked: Mapping[str, tuple[Any, ...]], facts: Mapping[str, Any]) -> bool:
    """Whether every fact has one of the values asked for; a '+'-joined format has when it is listed or all its parts are."""
    for name, allowed in asked.items():
        found = facts.get(name)
        if name == "format" and isinstance(found, str):
            if found not in allowed and not all(part in allowed for part in found.split("+")):
                return False
        elif found not in allowed:
            return False
    return True


@dataclass(frozen=True)
class Profile:
    """A named set of gates; `file` is the path of one that does not come with the package."""

    name: str
    description: str
    gates: tuple[Gate, ...]
    file: str = ""

    def applicable(self, facts: Mapping[str, Any]) -> tuple[Gate, ...]:
        return tuple(g for g in self.gates if g.matches(facts))

    def info(self) -> tuple[GateInfo, ...]:
        """The gates as rows for a report."""
        rows = []
        for g in self.gates:
            tolerance = f" (rtol {g.rtol:g}, atol {g.atol:g})" if g.metric == "allclose_violations" else ""
            where = _facts_text(g.applies) or "everything"
            but = f", not {_facts_text(g.unless)}" if g.unless else ""
            rows.append(GateInfo(g.name, g.metric, g.comparison, f"{g.limit:g}{tolerance}", where + but, g.source))
        return tuple(rows)


def _facts_text(facts: Mapping[str, tuple[Any, ...]]) -> str:
    return "; ".join(f"{k}: {', '.join(map(str, v))}" for k, v in facts.items())


def builtin_profiles() -> tuple[str, ...]:
    folder = resources.files("accuracy_eval") / "profiles"
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".toml")))


@cache
def load_profile(name: str) -> Profile:
    """A built-in profile by name, or a user's by path (ending in .toml). UsageError names the gate and key at fault."""
    return _load(name, ())


def _load(name: str, extending: tuple[str, ...]) -> Profile:
    if name.endswith(".toml"):
        return parse_profile(read_toml(name, "gates profile"), name, extending)
    if name not in builtin_profiles():
        raise unknown("gates profile", name, [*builtin_profiles(), "a path ending in .toml"])
    text = (resources.files("accuracy_eval") / "profiles" / f"{name}.toml").read_text("utf-8")
    return parse_profile(tomllib.loads(text), name, extending)


def parse_profile(data: Mapping[str, Any], label: str, extending: tuple[str, ...] = ()) -> Profile:
    """The profile a TOML document describes: name, description, and [[gate]] tables with metric, comparison, limit, source, applies.

    `extends = "default"` takes that profile's gates first; a gate of the same name replaces it.
    extending  the profiles that this one is read for, outermost first
    """
    where = f"gates profile {label}"
    check_table(data, _PROFILE_KINDS, where)
    gates: dict[str, Gate] = {}
    if "extends" in data:
        if data["extends"] in (*extending, label):
            raise UsageError(f"{where}: extends {data['extends']!r}, which extends this one; start from another profile")
        gates = {g.name: g for g in _load(data["extends"], (*extending, label)).gates}
    stated: set[str] = set()
    for row in data.get("gate", []):
        gate = _gate(row, f"{where}, gate {row.get('name', '(unnamed)')}")
        if gate.name in stated:
            raise UsageError(
                f"{where}, gate {gate.name}: a second gate of that name in one file would replace the first; give it another name"
            )
        stated.add(gate.name)
        gates[gate.name] = gate
    if not gates:
        raise UsageError(f"{where} holds no gates; expected [[gate]] tables")
    file = label if label.endswith(".toml") else ""
    return Profile(data.get("name", Path(label).stem), data.get("description", ""), tuple(gates.values()), file)


def _gate(row: Mapping[str, Any], where: str) -> Gate:
    """The gate of a [[gate]] table."""
    check_table(row, _GATE_KINDS, where, required=("limit",))
    for key in ("name", "metric", "source"):
        if not row.get(key):
            raise UsageError(f"{where}: {key} is missing; every gate names itself, its metric and the source of its limit")
    metric, comparison, error = row["metric"], row.get("comparison", "<="), row.get("error", "")
    if metric != "allclose_violations" and metric not in KNOWN:
        raise unknown(f"metric in {where}:", metric, [*KNOWN, "allclose_violations"], listed="metrics")
    if comparison not in COMPARISONS:
        raise unknown(f"comparison in {where}:", comparison, COMPARISONS)
    if error not in ("", *ERRORS):
        raise unknown(f"error in {where}:", error, ERRORS)
    for key in ("rtol", "atol"):
        if row.get(key, 0) < 0:
            raise UsageError(f"{where}: {key} = {row[key]}; allowed: 0 or more")
    return Gate(
        row["name"], metric, comparison, float(row["limit"]), row["source"],
        _facts(row, "applies", where), float(row.get("rtol", 0)), float(row.get("atol", 0)), row.get("round_expected", False), error,
        _facts(row, "unless", where),
    )  # fmt: skip


def _facts(row: Mapping[str, Any], key: str, where: str) -> dict[str, tuple[Any, ...]]:
    """What a [[gate]] table asks of a tensor under `key`: facts of FACTS and the values they may have."""
    found = {fact: tuple(v if isinstance(v, list) else [v]) for fact, v in row.get(key, {}).items()}
    for fact, values in found.items():
        if fact not in FACTS:
            raise unknown(f"fact in {where}:", fact, FACTS)
        for v in values:
            if not isinstance(v, bool if fact in _FLAGS else str):
                raise UsageError(f"{where}: {key}, {fact} = {v!r}; expected {'true or false' if fact in _FLAGS else 'a string'}")
            if fact in _NAMES and v not in _NAMES[fact]:
                raise unknown(f"{fact} in {where}:", v, _NAMES[fact])
    return found
