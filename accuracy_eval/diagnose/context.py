"""What a diagnosis is made from: the measurement, and where known the codes, the operands and what was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.budget import within_budget
from accuracy_eval.contracts import parse_contract
from accuracy_eval.formats import Format, Values, decode, get_format, round_to, ulp
from accuracy_eval.metrics.aggregates import LIMIT
from accuracy_eval.metrics.measured import Measured
from accuracy_eval.metrics.registry import AGGREGATES
from accuracy_eval.ops.spec import Panel, rows_and_columns
from accuracy_eval.records import Case, Coded, OptionValue

Rows = Callable[[int, int], NDArray[Any]]  # (first, end) -> [end - first, columns] of the tensor's 2-D view
Flags = NDArray[np.bool_]

EXPLAINED = 0.9  # of the wrong elements a cause must explain one by one: an energy may be that of a few
STEPS = 4.0  # of the format an element may be off where neither its budget nor an exact lane says whether it is wrong


@dataclass(frozen=True)
class Context:
    """One tensor to diagnose. Only `measured` is needed; every other part lets more rules speak.

    measured   actual against its expectation
    actual     rows of actual codes (measured.actual_format)
    expected   rows of expected codes (measured.expected_format), or of float64 values if the measurement was against real values;
               None: a GEMM's are computed from its inputs, row by row as asked for
    op … recipe, lane, direction, options   what was asked for; "" where unknown. options are the op's that differ from their default
    output     name of the output ("d", "da", "scale")
    inputs     operands as stored, scales included ("a_scale"); empty where unknown
    contract   what the call promised; "" where unknown
    contraction   products added per element; 0 where unknown (taken from the inputs of a GEMM)
    encoding   fp8 encoding of the device, for recipes whose element is a family
    shape      dimension letters and sizes of the case; () where unknown
    input_class   what the operands look like; "" where unknown
    budget     what each element of the 2-D view may be off by; None where unknown
    """

    measured: Measured
    actual: Rows | None = None
    expected: Rows | None = None
    op: str = ""
    layout: str = ""
    format: str = ""
    out_format: str = ""
    recipe: str = ""
    lane: str = "random"
    direction: str = "fwd"
    output: str = ""
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    inputs: Mapping[str, Coded] = field(default_factory=dict)
    contract: str = ""
    contraction: int = 0
    encoding: Literal["ocp", "fnuz"] = "ocp"
    shape: tuple[tuple[str, int], ...] = ()
    input_class: str = ""
    budget: Values | None = None

    @property
    def case(self) -> Case:
        """What was asked for, as far as a reference depends on it."""
        options = tuple(self.options.items())
        return Case(
            self.op, self.shape, self.layout, self.format, self.out_format, self.recipe, options, lane=self.lane, direction=self.direction
        )


class Limits:
    """elements  of a tensor that one rule looks at again: 32 MiB of float64."""

    elements = 1 << 22


def context_of(
    case: Case,
    measured: Measured,
    *,
    output: str = "",
    actual: Rows | None = None,
    expected: Rows | None = None,
    inputs: Mapping[str, Coded] | None = None,
    contract: str = "",
    encoding: Literal["ocp", "fnuz"] = "ocp",
    budget: Values | None = None,
) -> Context:
    """The context of one output of a case; `inputs` as stored (see `Context`)."""
    axis = {"da": "n", "db": "m", "dbias": "m"}.get(output, "k")
    return Context(
        measured, actual, expected, case.op, case.layout, case.format, case.out_format, case.recipe, case.lane, case.direction, output,
        dict(case.options), dict(inputs or {}), contract, case.dims.get(axis, 0), encoding, case.shape, case.input_class, budget,
    )  # fmt: skip


def rows_of(array: NDArray[Any]) -> Rows:
    """Rows of an array held in memory, any shape."""
    view = array.reshape(rows_and_columns(array.shape))
    return lambda first, end: view[first:end]


@dataclass(frozen=True)
class Finding:
    """What a rule found: evidence by key, and words its sentence needs besides."""

    evidence: Mapping[str, Any] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)


def rows_of_panels(panels: Callable[[], Iterator[Panel]]) -> Rows:
    """Rows of a reference that is streamed in panels: it is run again from the start where an earlier row is asked for.

    One panel is kept, so rows asked for in order cost one run.
    """
    state: dict[str, Any] = {"run": None, "first": 0, "rows": None}

    def rows(first: int, end: int) -> NDArray[Any]:
        if state["run"] is None or first < state["first"]:
            state.update(run=panels(), first=0, rows=None)
        parts, at = [], first
        while at < end:
            held = state["rows"]
            if held is not None and at < state["first"] + len(held):
                part = held[at - state["first"] : end - state["first"]]
                parts.append(part)
                at += len(part)
            else:
                panel = next(state["run"])
                state.update(first=panel.first_row, rows=panel.values)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return rows


class Look:
    """A context with what several rules ask of it, computed once."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.m: Measured = context.measured
        self.metrics: Mapping[str, Any] = self.m.metrics
        self.rows, self.cols = rows_and_columns(self.m.shape)
        self.fmt: Format = get_format(self.m.actual_format)
        self.truth: Rows | None = context.expected
        self.places: Any = None  # what `places.locate` found
        self.product: Any = None  # what `sampling.sample` drew
        self.hypotheses: Any = None  # what `products.explanations` chose
        self.attention: Any = None  # what `attention` chose
        self.named: dict[str, Finding] = {}  # what was found so far, by code

    @property
    def count(self) -> int:
        return int(self.metrics["count"])

    @cached_property
    def reference(self) -> bool:
        """Expected is real values, not codes."""
        return self.metrics.get("inner_err_max") is not None

    @cached_property
    def exact(self) -> bool:
        """Any differing code is a fault: an exact or coded lane, an op that rounds once, or integers."""
        c = self.context
        return c.lane in ("exact", "coded") or c.contract == "exact" or self.fmt.kind == "int" or self.fmt.scale_only

    @cached_property
    def quiet(self) -> bool:
        """Nothing to explain: no value differs, or every element and line keeps its budget and the classes agree."""
        return not self.metrics.get("value_mismatch_count") or self.within_budget

    @cached_property
    def within_budget(self) -> bool:
        budget = self.metrics.get("budget_max")
        return not self.exact and budget is not None and not self.over_budget and not self.metrics["nonfinite_mismatch"]

    @cached_property
    def over_budget(self) -> bool:
        """The error is known to be more than rounding."""
        budget = self.metrics.get("budget_max")
        return self.exact or (budget is not None and budget > 1) or any((self.metrics.get(n) or 0.0) > LIMIT for n in AGGREGATES)

    @cached_property
    def rounding(self) -> float:
        """‖d‖/‖e‖ that rounding alone gives normal data: 0.43·2^-(p+1), of integers 1/√12 each; and √2 of it between two rounded sides."""
        if self.fmt.kind == "int":
            size = math.sqrt(float(np.sum(np.square(self.m.rows.reference)))) if self.m.rows is not None else 0.0
            return math.sqrt(self.count / (12 if self.reference else 6)) / size if size else 0.0
        return 0.4253 * self.fmt.eps / 2 * (1.0 if self.reference else math.sqrt(2))

    @property
    def open(self) -> bool:
        """Both sides can be looked at again."""
        return self.context.actual is not None and self.truth is not None

    def actual(self, first: int, end: int) -> Values:
        """Values of actual rows, float64."""
        assert self.context.actual is not None
        return decode(np.asarray(self.context.actual(first, end)), self.fmt)

    def expected(self, first: int, end: int) -> Values:
        """Values of expected rows, float64: the truth unrounded where the measurement was against real values."""
        assert self.truth is not None
        rows = np.asarray(self.truth(first, end))
        return np.asarray(rows, np.float64) if rows.dtype.kind == "f" else decode(rows, self.m.expected_format)

    def rounded(self, expected: Values) -> Values:
        """Expected values as the actual's format holds them."""
        if self.fmt.kind == "int" or not self.fmt.has_nan:
            expected = np.nan_to_num(expected, nan=0.0)
        return round_to(expected, self.fmt)

    @cached_property
    def whole(self) -> tuple[Values, Values] | None:
        """Both sides, where they are small enough to be held."""
        if not self.open or self.count > Limits.elements:
            return None
        return self.actual(0, self.rows), self.expected(0, self.rows)

    @cached_property
    def wrong(self) -> Flags:
        """Which elements of `whole` are off by more than rounding; none where the tensor is not held."""
        if self.whole is None:
            return np.zeros((0, 0), np.bool_)
        a, e = self.whole
        budget = self.context.budget
        if budget is not None and budget.shape == e.shape and not self.exact:
            assert self.context.actual is not None
            kept: Flags = within_budget(np.asarray(self.context.actual(0, self.rows)), e, budget, self.fmt)
            return ~kept
        r = self.rounded(e)
        same = (a == r) | (np.isnan(a) & np.isnan(r))
        return np.asarray(~same if self.exact else ~same & ~(np.abs(a - e) <= STEPS * ulp(e, self.fmt)))

    def explained(self, where: Flags) -> bool:
        """Whether nearly all wrong elements are among these."""
        return not self.wrong.any() or float(where[self.wrong].mean()) >= EXPLAINED

    def explains(self, prediction: Values) -> bool:
        """Whether nearly all wrong elements are what a prediction for `whole`, rounded, says: at least four times nearer to it than to the
        truth, or within two steps of it."""
        assert self.whole is not None
        a, e = self.whole
        near = np.abs(a - prediction) <= np.maximum(np.abs(a - e) / 4, 2 * ulp(prediction, self.fmt))
        return self.explained((near & np.isfinite(prediction)) | (a == prediction) | (np.isnan(a) & np.isnan(prediction)))

    @cached_property
    def height(self) -> int:
        """Rows a rule may hold at a time; 0 where even one is too wide."""
        return min(self.rows, Limits.elements // max(self.cols, 1))

    def bias(self, k: int) -> float:
        """Relative shift of a result that the contract allows: truncating adders and truncated operands pull toward zero.

        E[e·sgn C]/rms C = 0.144·steps·2^-bits for a truncating chain of `steps` additions on normal data; operands cut to b bits
        lose 0.35·2^-b each.
        """
        if not self.context.contract:
            return 0.0
        contract = parse_contract(self.context.contract)
        part = min(k, contract.part) if contract.part else k
        shift = max((0.144 * a.steps(part) * 2.0**-a.bits for a in contract.accumulators if a.rounding == "RZ"), default=0.0)
        if contract.part:
            pieces = -(-k // contract.part)
            shift += max((0.144 * a.steps(pieces) * 2.0**-a.bits for a in contract.promoted if a.rounding == "RZ"), default=0.0)
        return shift + (0.7 * 2.0**-contract.operand_bits if contract.operand_bits else 0.0)

    def index(self, flat: int) -> int | list[int]:
        """The index of a flat position: an int for 1-D arrays, else a list."""
        place = [int(i) for i in np.unravel_index(flat, self.m.shape)] if self.m.shape else []
        return place[0] if len(place) == 1 else place
