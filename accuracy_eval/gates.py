"""Gates: limits on metrics, grouped in profiles. A limit lives in one TOML file under profiles/ and states its source.

A profile answers one question about a tensor whose metrics are known: which limits apply, and does it keep them. What fails
under every profile (NaN and Inf sets, never-written elements, all-zero outputs, shape, format) is not a gate: see judge.
"""

from __future__ import annotations

import math
import operator
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.metrics.registry import KNOWN, allclose_name
from accuracy_eval.records import ERRORS, GateInfo, GateResult

COMPARISONS = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
}  # fmt: skip
FACTS = ("op", "family", "format", "out_format", "recipe", "quantised", "lane", "input", "direction", "tensor", "exact", "contract",
         "long_rows", "long_columns", "large_tiles")  # fmt: skip
_GATE_KEYS = ("name", "metric", "comparison", "limit", "source", "applies", "rtol", "atol", "round_expected", "error")


@dataclass(frozen=True)
class Gate:
    """One limit.

    applies         fact -> values; the gate applies to a tensor whose facts match all of them (an absent fact matches anything)
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

    @property
    def key(self) -> str:
        """What the metrics call the one it limits."""
        return allclose_name(self.rtol, self.atol) if self.metric == "allclose_violations" else self.metric

    @cached_property
    def of_one_error(self) -> Gate:
        """The gate where nothing was quantised: there is one error, and it needs no name."""
        return replace(self, error="")

    def matches(self, facts: Mapping[str, Any]) -> bool:
        """Whether the gate applies to a tensor with these facts; a '+'-joined format matches when it is listed or all its parts are."""
        for name, allowed in self.applies.items():
            found = facts.get(name)
            if name == "format" and isinstance(found, str):
                if found not in allowed and not all(part in allowed for part in found.split("+")):
                    return False
            elif found not in allowed:
                return False
        return True

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
            where = "; ".join(f"{k}: {', '.join(map(str, v))}" for k, v in g.applies.items()) or "everything"
            rows.append(GateInfo(g.name, g.metric, g.comparison, f"{g.limit:g}{tolerance}", where, g.source))
        return tuple(rows)


def builtin_profiles() -> tuple[str, ...]:
    folder = resources.files("accuracy_eval") / "profiles"
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".toml")))


@cache
def load_profile(name: str) -> Profile:
    """A built-in profile by name, or a user's by path (ending in .toml). UsageError names the gate and key at fault."""
    if name.endswith(".toml"):
        try:
            text = Path(name).read_text("utf-8")
        except OSError as error:
            raise UsageError(f"gates profile {name}: {error.strerror}") from error
    elif name in builtin_profiles():
        text = (resources.files("accuracy_eval") / "profiles" / f"{name}.toml").read_text("utf-8")
    else:
        raise unknown("gates profile", name, [*builtin_profiles(), "a path ending in .toml"])
    try:
        return parse_profile(tomllib.loads(text), name)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"gates profile {name}: not TOML: {error}") from error


def parse_profile(data: Mapping[str, Any], label: str) -> Profile:
    """The profile a TOML document describes: name, description, and [[gate]] tables with metric, comparison, limit, source, applies.

    `extends = "default"` takes that profile's gates first; a gate of the same name replaces it and must state `reason` in its source.
    """
    for key in data:
        if key not in ("name", "description", "extends", "gate"):
            raise unknown(f"key in gates profile {label}:", key, ("name", "description", "extends", "gate"))
    gates = {g.name: g for g in load_profile(str(data["extends"])).gates} if "extends" in data else {}
    stated: set[str] = set()
    for row in data.get("gate", []):
        where = f"gates profile {label}, gate {row.get('name', '(unnamed)')}"
        for key in row:
            if key not in _GATE_KEYS:
                raise unknown(f"key in {where}:", key, _GATE_KEYS)
        for key in ("name", "metric", "source"):
            if not row.get(key):
                raise UsageError(f"{where}: {key} is missing; every gate names itself, its metric and the source of its limit")
        if row["name"] in stated:
            raise UsageError(f"{where}: a second gate of that name in one file would replace the first; give it another name")
        stated.add(row["name"])
        if row["metric"] != "allclose_violations" and row["metric"] not in KNOWN:
            raise unknown(f"metric in {where}:", row["metric"], [*KNOWN, "allclose_violations"], listed="metrics")
        comparison = row.get("comparison", "<=")
        if comparison not in COMPARISONS:
            raise unknown(f"comparison in {where}:", comparison, COMPARISONS)
        if row.get("error", "") not in ("", *ERRORS):
            raise unknown(f"error in {where}:", row["error"], ERRORS)
        applies = row.get("applies", {})
        for fact in applies:
            if fact not in FACTS:
                raise unknown(f"fact in {where}:", fact, FACTS)
        gates[row["name"]] = Gate(
            row["name"], row["metric"], comparison, float(row.get("limit", 0)), row["source"],
            {fact: tuple(v if isinstance(v, list) else [v]) for fact, v in applies.items()},
            float(row.get("rtol", 0)), float(row.get("atol", 0)), bool(row.get("round_expected", False)),
            str(row.get("error", "")),
        )  # fmt: skip
    if not gates:
        raise UsageError(f"gates profile {label} holds no gates; expected [[gate]] tables")
    file = label if label.endswith(".toml") else ""
    return Profile(str(data.get("name", Path(label).stem)), str(data.get("description", "")), tuple(gates.values()), file)
