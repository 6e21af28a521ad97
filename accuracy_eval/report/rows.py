"""Flat rows: one per tensor and side, per tensor and pair, and per case not compared. CSV, workbooks and Markdown show these columns."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from accuracy_eval import messages
from accuracy_eval.budget import distance
from accuracy_eval.json_data import to_json
from accuracy_eval.labels import default_labels
from accuracy_eval.metrics.registry import KNOWN
from accuracy_eval.ops.registry import OPS
from accuracy_eval.records import (
    ARRAYS,
    Attribution,
    Case,
    Diagnosis,
    GateResult,
    NotCompared,
    Pair,
    Results,
    Side,
    TensorResult,
    Verdict,
    WorstElement,
)
from accuracy_eval.reproducing import whole

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Row:
    """One verdict. `subject` is what it was given to; `result` the tensor it belongs to (None for a case not compared)."""

    subject: Side | Pair | NotCompared
    result: TensorResult | None = None

    @property
    def kind(self) -> str:
        return {Side: "side", Pair: "pair", NotCompared: "not compared"}[type(self.subject)]

    @property
    def verdict(self) -> Verdict:
        return self.subject.verdict

    @property
    def case(self) -> Case | None:
        return self.result.case if self.result else self.subject.case if isinstance(self.subject, NotCompared) else None

    @property
    def holder(self) -> TensorResult | NotCompared:
        """Where case id, family and candidate are found."""
        if self.result is not None:
            return self.result
        assert isinstance(self.subject, NotCompared)
        return self.subject

    @property
    def actual(self) -> str:
        return self.subject.a if isinstance(self.subject, Pair) else self.subject.label

    @property
    def maker(self) -> str:
        """Who made the actual result: the dump, and the candidate where it is not the framework's own choice."""
        return messages.of_candidate(self.actual, self.holder.candidate)

    @property
    def expected(self) -> str:
        if isinstance(self.subject, Pair):
            return self.subject.b
        return messages.REFERENCE if isinstance(self.subject, Side) else ""

    @property
    def attribution(self) -> Attribution | None:
        return self.subject.attribution if isinstance(self.subject, Pair) else None

    @property
    def metrics(self) -> Mapping[str, Any]:
        return {} if isinstance(self.subject, NotCompared) else self.subject.metrics

    @cached_property
    def gate(self) -> GateResult | None:
        """The gate that decides."""
        return messages.deciding_gate(self.gates)

    @cached_property
    def flat(self) -> dict[str, Any]:
        """Metrics as scalars."""
        return flat_metrics(self.metrics)

    @property
    def gates(self) -> Sequence[GateResult]:
        return () if isinstance(self.subject, NotCompared) else self.subject.gates

    @property
    def diagnoses(self) -> Sequence[Diagnosis]:
        return () if isinstance(self.subject, NotCompared) else self.subject.diagnoses

    @property
    def worst(self) -> Sequence[WorstElement]:
        return () if isinstance(self.subject, NotCompared) else self.subject.worst

    @property
    def format(self) -> str:
        """Concrete format of the actual codes; "" where unknown."""
        if isinstance(self.subject, Side):
            return self.subject.format
        sides = self.result.sides if self.result else ()
        return next((s.format for s in sides if s.label == self.actual), "")

    @cached_property
    def reason(self) -> str:
        """Why, in one line."""
        if isinstance(self.subject, NotCompared):
            return messages.visible(self.subject.reason)
        return messages.side_reason(self.subject) if isinstance(self.subject, Side) else messages.pair_reason(self.subject)

    @property
    def message(self) -> str:
        """The whole text."""
        if self.result is None or isinstance(self.subject, NotCompared):
            where = f" ({messages.visible(self.actual)})" if self.actual else ""
            return f"{self.verdict} {messages.visible(self.holder.case_id)}{where}: {self.reason}"
        if isinstance(self.subject, Side):
            return messages.side_message(self.result, self.subject)
        return messages.pair_message(self.result, self.subject)


@dataclass(frozen=True)
class Column:
    """A column of the flat table: what it holds, how a spreadsheet shows its numbers, one sentence on it."""

    name: str
    get: Callable[[Row], Value]
    number_format: str = "General"
    note: str = ""


def shape_text(case: Case | None) -> str:
    """Sizes as case ids write them: "m512.n128.k256"; "" for none."""
    return ".".join(f"{letter}{size}" for letter, size in case.shape) if case else ""


def case_words(case: Case, *, seed: bool = False) -> list[str]:
    """What distinguishes a case of known op and shape, defaults left out; `seed`: cases differ in it too."""
    formats = case.format + (f" → {case.out_format}" if case.out_format else "")
    inputs = case.input_class if case.lane == "random" else case.lane
    options = [f"{k}={messages.number(v)}" for k, v in case.options]
    direction = "" if case.direction == "fwd" else case.direction
    return [w for w in (formats, case.layout, case.recipe, *options, inputs, direction, f"s{case.seed}" if seed else "") if w]


def by_maker(rows: Iterable[Row], labels: Sequence[str]) -> dict[str, list[Row]]:
    """Rows by who made them: dumps in the order of `labels`, of each the framework's own choice first."""
    place = {label: i for i, label in enumerate(labels)}

    def order(row: Row) -> tuple[int, bool, str]:
        return place.get(row.actual, len(place)), row.holder.candidate not in messages.USUAL_CANDIDATES, row.maker

    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=order):
        found.setdefault(row.maker, []).append(row)
    return found


def all_rows(results: Results) -> Iterator[Row]:
    """Every verdict of a result, in the order of its tensors: sides, pairs; then what was not compared."""
    for result in results.tensors:
        yield from tensor_rows(result)
    for item in results.not_compared:
        yield Row(item)


def tensor_rows(result: TensorResult) -> Iterator[Row]:
    for side in result.sides:
        yield Row(side, result)
    for pair in result.pairs:
        yield Row(pair, result)


def findings_first(results: Results) -> list[Row]:
    """All rows, the worst tensors and cases first, otherwise in the order given; the rows of one tensor stay together."""
    items: list[tuple[Verdict, list[Row]]] = [(t.verdict, list(tensor_rows(t))) for t in results.tensors]
    items += [(n.verdict, [Row(n)]) for n in results.not_compared]
    return [row for _, rows in sorted(items, key=lambda item: -item[0].severity) for row in rows]


def _of_case(name: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.case, name) if row.case else None


def _of_gate(name: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.gate, name) if row.gate else None


def _options(row: Row) -> Value:
    return ", ".join(f"{k}={messages.number(v, 17)}" for k, v in row.case.options) if row.case else None


def _of_side(name: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.subject, name) if isinstance(row.subject, Side) else None


def _resolution(row: Row) -> Value:
    return messages.side_resolution(row.subject) or None if isinstance(row.subject, Side) else None


def _errors(row: Row) -> Value:
    return messages.errors_text(row.subject) or None if isinstance(row.subject, Side) else None


def _errors_failed(row: Row) -> Value:
    return ", ".join(messages.failed_errors(row.subject)) or None if isinstance(row.subject, Side) else None


def _scales(row: Row) -> Value:
    facts = row.subject.scales if isinstance(row.subject, Side | Pair) else None
    return messages.scales_text(facts) if facts else None


def _expectation(row: Row) -> Value:
    return messages.expectation_text(row.subject.expectation) if isinstance(row.subject, Side) else None


def _explanation(row: Row) -> Value:
    return next((messages.visible(d.sentence) for d in row.diagnoses if d.code in EXPLAINS), None)


EXPLAINS = ("explained-by-datapath", "not-explained")
LIMIT_FORMAT = "0.00E+00;-0.00E+00;0"
MARGIN_FORMAT = "0.0%;-0.0%;0.0%"
_FAR_MARGIN = 10.0  # limits beyond the limit, where a percentage is no longer read
COLUMNS: tuple[Column, ...] = (
    Column("verdict", lambda r: str(r.verdict), note="PASS, WARN, FAIL, INCONCLUSIVE, INPUTS_DIFFER, UNSUPPORTED, MISSING, ERROR"),
    Column("attribution", lambda r: str(r.attribution) if r.attribution else None, note="who is off in a pair, as a code"),
    Column("who", lambda r: messages.who_is_off(r.subject) if isinstance(r.subject, Pair) else None, note="the attribution in words"),
    Column("kind", lambda r: r.kind, note="side: a dump against the reference; pair: dump against dump; not compared"),
    Column("actual", lambda r: r.actual, note="label of the dump that is judged"),
    Column("expected", lambda r: r.expected, note="what judges: the reference or another dump"),
    Column("case_id", lambda r: r.holder.case_id, note="as inspect and explain take it: --case ID"),
    Column("family", lambda r: r.holder.family),
    Column("op", _of_case("op")),
    Column("shape", lambda r: shape_text(r.case)),
    Column("layout", _of_case("layout")),
    Column("format", _of_case("format"), note="family of the operands' number format"),
    Column("out_format", _of_case("out_format"), note="family of the output's format where it is not the op's default"),
    Column("recipe", _of_case("recipe"), note="how operands are quantised"),
    Column("lane", _of_case("lane")),
    Column("input_class", _of_case("input_class")),
    Column("direction", _of_case("direction")),
    Column("seed", _of_case("seed"), "0"),
    Column("options", _options),
    Column("candidate", lambda r: r.holder.candidate),
    Column("tensor", lambda r: r.result.tensor if r.result else None),
    Column("tensor_shape", lambda r: "x".join(map(str, r.result.shape)) if r.result else None),
    Column("tensor_format", lambda r: r.format, note="concrete format of the actual codes"),
    Column("contract", _of_side("contract"), note="the arithmetic the call promises"),
    Column("off_contract", _of_side("off_contract"), note="a looser contract that is kept where the promised one is broken"),
    Column("scope", _of_side("scope"), note="full, or sampled where the reference covers a part"),
    Column("gate", _of_gate("gate"), note="the gate that decides: broken worst, else nearest its limit"),
    Column("gate_metric", _of_gate("metric")),
    Column("gate_value", _of_gate("value"), LIMIT_FORMAT),
    Column("gate_comparison", _of_gate("comparison")),
    Column("gate_limit", _of_gate("limit"), LIMIT_FORMAT),
    Column("gate_margin", _of_gate("margin"), MARGIN_FORMAT, "distance from the limit in units of the limit; negative is beyond"),
    Column("gate_source", _of_gate("source"), note="where the limit comes from"),
    Column("errors_failed", _errors_failed, note="which errors of a quantised result broke a limit: conversion, scale, kernel, total"),
    Column("errors", _errors, note="the errors of a quantised result, each with its own verdict"),
    Column("scales", _scales, note="scale factors: steps of the exponent, relative difference, the rounding rule each side follows"),
    Column("causes", lambda r: messages.causes(r.diagnoses, r.verdict), note="named causes (diagnosis codes)"),
    Column("explanation", _explanation, note="the order of operations that makes these bits (compare --explain)"),
    Column("reason", lambda r: r.reason, note="why, in one sentence"),
    Column("resolution", _resolution, note="smallest faults that would have failed"),
    Column("expectation", _expectation, note="what a healthy unit shows on normal data, beside what was seen; bounds of |A||B|"),
    Column("sha256", _of_side("sha256"), note="of the output's codes"),
)
# Metrics a reader looks at first; the others follow in the order of the registry.
_FIRST = ("budget_max", "rel_fro", "snr_db", "max_abs", "ulp_max", "mismatch_count", "cosine")


def metric_format(name: str, value: Any = None) -> str:
    """Spreadsheet number format of a metric: the registry's, and for names it does not know that of a count or of a ratio.

    Distances in ulp that are whole numbers (between two dumps all are) get no decimals.
    """
    if name.startswith("ulp") and isinstance(value, int | float) and float(value).is_integer():
        return "#,##0"
    if name in KNOWN:
        return KNOWN[name].number
    return "#,##0" if isinstance(value, int) or name.startswith("allclose_violations") else "0.00E+00"


def metric_names(rows: Iterable[Row]) -> list[str]:
    """Names of all metrics the rows hold, the ones looked at most first. Nested ones are flattened with dots."""
    names = dict.fromkeys(name for row in rows for name in row.flat)
    known = [n for n in dict.fromkeys((*_FIRST, *KNOWN)) if n in names]
    return [*known, *(n for n in names if n not in known)]


def flat_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as scalars: a nested table becomes one entry per leaf ("classes.nan.actual"), a list its compact JSON text."""
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            flat.update({f"{name}.{k}": v for k, v in flat_metrics(value).items()})
        elif value is None or isinstance(value, bool | int | float | str):
            flat[name] = value
        else:
            plain = to_json(value)
            flat[name] = json.dumps(plain) if isinstance(plain, list) else plain
    return flat


def dimension_letters(rows: Iterable[Row]) -> list[str]:
    """Dimension letters of all cases, in order of first appearance."""
    return list(dict.fromkeys(letter for row in rows if row.case for letter in row.case.dims))


def margin_format(margin: float | None) -> str:
    """Spreadsheet number format of a margin: a percentage, and far beyond the limit how many times of it: "76,235 × beyond"."""
    if margin is None or margin >= -_FAR_MARGIN:
        return MARGIN_FORMAT
    return f'0.0%;{"#,##0" if margin > -1e9 else "0.00E+00"}" × beyond";0.0%'


def share_of_limit(gate: GateResult | None) -> float | None:
    """The part of its limit a gate's value uses: 1 is the limit itself, more is beyond it. None where that says nothing."""
    if gate is None or gate.value is None or not math.isfinite(gate.value) or gate.limit <= 0 or gate.value < 0:
        return None
    if gate.comparison in ("<=", "<"):
        return gate.value / gate.limit
    return gate.limit / gate.value if gate.comparison in (">", ">=") and gate.value > 0 else None


def of_budget(row: Row, element: WorstElement) -> float | None:
    """How many budgets an element is off, as its gate counts: from the truth to the reals that round to its code. None without a budget."""
    if not element.budget:
        return None
    right = element.actual_code == element.expected_code
    return 0.0 if right else distance(element.actual, element.expected, row.format) / element.budget


def reproduce_element(results: Results, row: Row, index: Sequence[int]) -> str:
    """The command that prints an element of a row's actual dump with the codes it was computed from; "" where no dump is at hand."""
    file, case = next((d.file for d in results.dumps if d.label == row.actual), ""), row.case
    if not file or row.result is None or case is None or case.op not in OPS or whole(case, OPS[case.op]):
        return ""
    place = ",".join(map(str, index))
    words = ["accuracy-eval inspect", shlex.quote(messages.visible(file)), "--case", shlex.quote(messages.visible(row.holder.case_id))]
    if row.result.candidate not in messages.USUAL_CANDIDATES:
        words += ["--candidate", shlex.quote(messages.visible(row.result.candidate))]
    words += ["--element", place, "--tensor", shlex.quote(messages.visible(row.result.tensor))]
    return " ".join(words)


def reproduce(results: Results, case_id: str) -> str:
    """The command that compares this case alone under the same names, quoted for a POSIX shell."""
    files = [shlex.quote(messages.visible(d.file)) for d in results.dumps]
    profile = results.profile_file or results.profile
    gates = [] if profile in ("default", ARRAYS) else ["--gates", shlex.quote(messages.visible(profile))]
    names = [d.label for d in results.dumps]
    given = [] if profile == ARRAYS or names == default_labels([(d.platform, d.file) for d in results.dumps]) else names
    labels = [word for name in given for word in ("--label", shlex.quote(messages.visible(name)))]
    return " ".join(["accuracy-eval compare", *files, "--case", shlex.quote(messages.visible(case_id)), *gates, *labels])
