"""The records that travel between layers and into files: frozen, typed, free of I/O.

Terms: *case* what is computed; *candidate* who computes it; *side* one dump's tensor judged against the reference; *pair* two
sides against each other. `json_data` writes and reads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from numpy.typing import NDArray

RESULTS_SCHEMA = "accuracy-eval-results/1.2"
ARRAYS = "arrays"  # family, suite and profile of arrays without operands: no case, no truth
ERRORS = ("conversion", "scale", "kernel", "total")  # the parts of a quantised result's error, see docs/gates.md
OptionValue = bool | int | float | str


class Verdict(StrEnum):
    """What was decided about a tensor, a pair, a run. Order of `severity` decides which of several is shown first."""

    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INPUTS_DIFFER = "INPUTS_DIFFER"
    UNSUPPORTED = "UNSUPPORTED"
    MISSING = "MISSING"
    ERROR = "ERROR"

    @property
    def exit_code(self) -> int:
        """PASS, WARN, UNSUPPORTED 0; FAIL, MISSING, ERROR 1; INPUTS_DIFFER, INCONCLUSIVE 2."""
        if self in (Verdict.PASS, Verdict.WARN, Verdict.UNSUPPORTED):
            return 0
        return 2 if self in (Verdict.INPUTS_DIFFER, Verdict.INCONCLUSIVE) else 1

    @property
    def severity(self) -> int:
        return _SEVERITY.index(self)


_SEVERITY = (
    Verdict.UNSUPPORTED, Verdict.PASS, Verdict.WARN, Verdict.INCONCLUSIVE,
    Verdict.MISSING, Verdict.INPUTS_DIFFER, Verdict.ERROR, Verdict.FAIL,
)  # fmt: skip


class Attribution(StrEnum):
    """Who is off in a pair. The first that fits, in this order."""

    NOT_COMPARABLE = "not_comparable"
    IDENTICAL = "identical"
    DIFFERENT_CONTRACTS = "different_contracts"
    OFF_CONTRACT = "off_contract"
    BOTH_OFF = "both_off"
    A_OFF = "a_off"
    B_OFF = "b_off"
    EQUIVALENT = "equivalent"
    UNDETERMINED = "undetermined"


@dataclass(frozen=True)
class Coded:
    """An array as codes of a named format (any shape)."""

    codes: NDArray[Any]
    format: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.codes.shape)


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to compute. `cases.case_id` prints it, `cases.parse_case` reads it.

    shape        sizes by dimension letter, in the op's order: (("m", 512), ("n", 128), ("k", 256))
    layout       gemm: nn, nt, tn, tt (DESIGN letters: first A, second B); "" where the op has none
    format       family of the operands ("bfloat16", "fp8_e4m3"); "+"-joined where operands differ; "tfloat32" is float32
                 operands computed as TF32
    out_format   family of the output; "" is the op's default for the operands
    recipe       how operands are quantised; "" is not at all
    options      the op's options that differ from their default, sorted by name
    input_class  what the operand values look like ("normal", "cancellation", …)
    lane         "random"; "exact", "coded": the operands are the companion's, whatever the class; "metamorphic": those of the random
                 lane, changed as option "relation" says
    direction    "fwd" or "bwd"
    """

    op: str
    shape: tuple[tuple[str, int], ...]
    layout: str = ""
    format: str = "float32"
    out_format: str = ""
    recipe: str = ""
    options: tuple[tuple[str, OptionValue], ...] = ()
    input_class: str = "normal"
    lane: str = "random"
    direction: str = "fwd"
    seed: int = 0

    @property
    def dims(self) -> dict[str, int]:
        return dict(self.shape)

    def option(self, name: str, default: Any) -> Any:
        return dict(self.options).get(name, default)


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A stored tensor: what it is, its digest, and where in the file its codes lie ("" = not stored).

    role     "output", "input" or "source" (an unquantised operand: its digest proves equal inputs)
    format   concrete format name
    sha256   of the little-endian codes in C order
    """

    name: str
    role: str
    format: str
    shape: tuple[int, ...]
    sha256: str
    path: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CaseRecord:
    """One case run by one candidate in a dump.

    status      "done", "unsupported" (reason says why) or "error" (reason holds the text)
    tensors     outputs, further distinct results of repeats ("d#2"), digests of inputs
    contract    what the call promises; "" where the op has none
    repeats     runs made; `distinct` results seen per output tensor
    notes       kernel names, poison findings ("never_written": {"d": 128}), time is not here
    """

    id: str
    case: Case
    candidate: str
    status: str
    reason: str = ""
    tensors: Sequence[TensorRecord] = ()
    contract: str = ""
    repeats: int = 1
    distinct: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A named cause: stable code, one plain sentence, evidence by key."""

    code: str
    sentence: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GateResult:
    """One limit applied to one tensor.

    comparison  how value must relate to limit: "<=", "<", ">=", ">", "=="
    passed      None when the gate could not be applied (never counts as a pass); `note` says why
    error       which of ERRORS it limits, where the tensor is a quantised result; "" for none in particular
    """

    gate: str
    metric: str
    value: float | None
    comparison: str
    limit: float
    passed: bool | None
    source: str = ""
    note: str = ""
    error: str = ""

    @property
    def margin(self) -> float | None:
        """Distance from the limit in units of the limit, positive inside it; None where undefined."""
        if self.value is None or self.limit == 0 or not math.isfinite(self.limit) or not math.isfinite(self.value):
            return None
        sign = 1.0 if self.comparison in ("<=", "<") else -1.0
        return sign * (self.limit - self.value) / abs(self.limit)


@dataclass(frozen=True)
class ScaleFacts:
    """What a tensor of scale factors says against another.

    rule, expected_rule   rules that give exactly these scales for the data, joined by " or "; "" where none does, or is known
    steps                 (exponent of actual less that of expected, how many), by step; NaN apart
    nan_actual, nan_expected   scales that are NaN on that side alone
    max_rel               largest |actual / expected - 1| over finite, non-zero expected scales; None without one
    """

    rule: str
    expected_rule: str
    steps: tuple[tuple[int, int], ...]
    nan_actual: int
    nan_expected: int
    max_rel: float | None


@dataclass(frozen=True, slots=True)
class WorstElement:
    """One of the largest errors of a tensor. Codes are integers of the side's format; None where there is no such side.

    reference  the float64 truth there, for a pair (a side's `expected` is the truth itself); None where unknown
    budget     the error allowed there, in the unit of `error`; None where the tensor has no budget
    """

    index: tuple[int, ...]
    actual_code: int
    expected_code: int | None
    actual: float
    expected: float
    error: float
    ulp: float
    reference: float | None = None
    budget: float | None = None

    @property
    def signed_error(self) -> float:
        """`error` with the sign of actual - expected."""
        return math.copysign(self.error, self.ulp)


@dataclass(frozen=True, slots=True)
class InputBin:
    """Elements whose input lies in [low, high): the largest |error| and the least limit, both in ulp of the output."""

    low: float
    high: float
    ulp: float
    limit: float


@dataclass(frozen=True, slots=True)
class Sketch:
    """A tensor's error in few numbers, for pictures; an empty part was not measured.

    ulp_histogram  (upper edge, count): |ulp error| = 0, then bins (previous edge, edge] at powers of two; empty bins left out
    error_map      rows of a grid over the 2-D view [prod(shape[:-1]), shape[-1]]: norm of error/norm of expected values, three digits;
                   () where nothing is off
    cell           rows and columns of a cell of the map; those at the far edges may be cut
    by_input       special functions: errors by octave of the input, from the most negative input on
    """

    ulp_histogram: tuple[tuple[float, int], ...] = ()
    error_map: tuple[tuple[float, ...], ...] = ()
    cell: tuple[int, int] = (0, 0)
    by_input: tuple[InputBin, ...] = ()


@dataclass(frozen=True, slots=True)
class Side:
    """One dump's tensor, judged against the reference.

    off_contract  a looser contract that the output keeps, where it breaks the one it promised: a FAIL with a name
    scales        for scale factors: what they say against the expected ones
    """

    label: str
    format: str
    sha256: str
    verdict: Verdict
    contract: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    gates: tuple[GateResult, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    worst: tuple[WorstElement, ...] = ()
    resolution: Mapping[str, Any] = field(default_factory=dict)
    expectation: Mapping[str, Any] = field(default_factory=dict)
    scope: str = "full"
    note: str = ""
    off_contract: str = ""
    sketch: Sketch = Sketch()
    scales: ScaleFacts | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sides against each other: `a` is actual, `b` is expected. `scales` as in `Side`."""

    a: str
    b: str
    verdict: Verdict
    attribution: Attribution
    sentence: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    gates: tuple[GateResult, ...] = ()
    worst: tuple[WorstElement, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    sketch: Sketch = Sketch()
    scales: ScaleFacts | None = None


@dataclass(frozen=True, slots=True)
class TensorResult:
    """Everything decided about one output tensor of one case and candidate over all dumps."""

    case_id: str
    case: Case
    family: str
    candidate: str
    tensor: str
    shape: tuple[int, ...]
    verdict: Verdict
    sides: tuple[Side, ...] = ()
    pairs: tuple[Pair, ...] = ()


@dataclass(frozen=True, slots=True)
class NotCompared:
    """A case that could not be judged for a dump, and why. `case` puts it beside its like in reports; None where the id is all there is."""

    case_id: str
    family: str
    candidate: str
    label: str
    verdict: Verdict
    reason: str
    case: Case | None = None


@dataclass(frozen=True)
class DumpInfo:
    """What identifies a dump in a report.

    platform  flat: name -> value; null where unknown
    numerics  the card of a device that was probed, as `NumericsCard.to_json` gives it; else empty
    """

    label: str
    file: str
    content_digest: str
    suite: str
    suite_digest: str
    platform: Mapping[str, Any] = field(default_factory=dict)
    numerics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GateInfo:
    """A limit of the profile used, for the Gates sheet."""

    gate: str
    metric: str
    comparison: str
    limit: str
    applies_to: str
    source: str


@dataclass(frozen=True)
class Results:
    """One comparison of N dumps: what `compare` writes to results.json and every report is written from. Holds no time.

    tensors       of many cases they may be held as text (`kept.KeptResults`): reading one makes it anew
    profile_file  the profile's path as given; "" for one that comes with the package
    candidates    a line per dump and op with several candidates: what ran how often, was filtered with which reason, crashed, or was not
                  asked for
    """

    schema: str
    producer: str
    profile: str
    gates: tuple[GateInfo, ...]
    dumps: tuple[DumpInfo, ...]
    tensors: Sequence[TensorResult]
    not_compared: tuple[NotCompared, ...]
    verdict: Verdict
    exit_code: int
    notes: tuple[str, ...] = ()
    profile_file: str = ""
    candidates: tuple[str, ...] = ()
