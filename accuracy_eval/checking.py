"""check() and explain(): one tensor against what it should be, from Python.

    import accuracy_eval as ae
    c = ae.check(actual, expected)                                             # structure, class table, the output format's own limits
    c = ae.check(actual, op="gemm", layout="nt", inputs={"a": A, "b": B})      # the reference is computed from the inputs
    c.verdict, c.metrics, c.diagnoses, c.message

With op and inputs the error budget of the call's contract decides. Arrays are numpy (ml_dtypes included), torch tensors of any device,
or `codes(uint_array, format="float8_e4m3fnuz")`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from accuracy_eval.arrays import as_coded
from accuracy_eval.attribution import reported, worst_elements
from accuracy_eval.calls import Call, number
from accuracy_eval.closeness import Tolerance, format_gate, format_resolution, tolerances, with_tolerance
from accuracy_eval.diagnose import Context, diagnose, named, rows_of, structural
from accuracy_eval.errors import UsageError, VerdictError, unknown
from accuracy_eval.fitting import PRODUCT_LAYOUT, truth_of
from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.gates import Profile, load_profile
from accuracy_eval.judge import NOTHING_FINITE, Subject, judge_tensor, misfit
from accuracy_eval.measuring import side_of
from accuracy_eval.messages import side_message
from accuracy_eval.metrics.measured import Measured
from accuracy_eval.metrics.meter import measure
from accuracy_eval.metrics.registry import DERIVED
from accuracy_eval.ops.on_arrays import SOURCED, one_code_truth
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Reference
from accuracy_eval.quantize import layout_of
from accuracy_eval.records import ARRAYS, Coded, Diagnosis, GateResult, OptionValue, Side, TensorResult, Verdict

if TYPE_CHECKING:
    from accuracy_eval.datapath import Explanation


@dataclass(frozen=True)
class Comparison:
    """What `check` found.

    verdict     "PASS", "WARN", "FAIL", "INCONCLUSIVE"
    metrics     every registered metric by name: against `expected` where it was given, else against the computed reference
    diagnoses   named causes, the most telling first
    gates       every limit applied, with value and source
    contract    what the call was taken to promise; "" where no contract applies
    side        the record behind all of it
    """

    side: Side
    result: TensorResult

    def __repr__(self) -> str:
        return f"<Comparison {self.message}>"

    @property
    def verdict(self) -> str:
        return str(self.side.verdict)

    @property
    def passed(self) -> bool:
        return self.side.verdict in (Verdict.PASS, Verdict.WARN)

    @property
    def metrics(self) -> Mapping[str, Any]:
        return self.side.metrics

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        return self.side.diagnoses

    @property
    def gates(self) -> tuple[GateResult, ...]:
        return self.side.gates

    @property
    def contract(self) -> str:
        return self.side.contract

    @property
    def message(self) -> str:
        """The whole text a person reads."""
        return side_message(self.result, self.side)

    def raise_for_verdict(self) -> None:
        """VerdictError with the message unless the comparison passed."""
        if not self.passed:
            raise VerdictError(self.message)


def check(
    actual: Any,
    expected: Any = None,
    *,
    op: str | None = None,
    layout: str = PRODUCT_LAYOUT,
    inputs: Mapping[str, Any] | None = None,
    options: Mapping[str, OptionValue] | None = None,
    recipe: str | None = None,
    contract: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    gates: str = "default",
    output: str = "",
) -> Comparison:
    """Judge `actual`.

    expected     what it should be; None: the reference computed from op and inputs
    op, layout, inputs, options, recipe   what was computed; inputs by the op's operand names, as stored, with `a_scale`, `b_scale`
                 where operands are quantised, and `a_source`, `b_source` before they were (then all four errors are judged); op `quantize`
                 takes `amax`, `x`, or `x` and `x_scale`: codes are then judged under those scales; op `cast` takes options={"format": …};
                 with an upstream gradient, as `grad_d`, `actual` is a gradient
    contract     what the call promises; None: the default of the operand formats
    rtol, atol   adds a gate |a - e| <= atol + rtol·|e| (the other one is 0); never removes one
    gates        profile, where op and inputs are given
    output       which output or gradient of the op `actual` is, as "dk": needed where several have its shape
    UsageError for arrays, ops, options or inputs it does not know, and when neither expected nor op with inputs is given.
    """
    a, e = _coded(actual, expected)
    profile = load_profile(str(gates))
    call = Call.described(op=op, layout=layout, inputs=inputs, options=options, recipe=recipe, contract=contract)
    tolerance = _tolerance(rtol, atol)
    referenced = bool(call.op and call.inputs)
    if gates != "default" and not referenced:
        raise UsageError(
            f"gates={gates!r} needs op and inputs; plain arrays are judged by the limits of their format, and by rtol and atol"
        )
    if output and not (referenced and not call.plain):
        raise UsageError(f"output={output!r} says which of several results of an op; pass op and inputs of one that has several")
    truth = _truth(call, a, e) if referenced and call.plain else None
    wrong = _mismatch(a, e, truth, call)
    if wrong is not None:
        side = Side("actual", a.format, "", Verdict.FAIL, diagnoses=(wrong,), note=wrong.sentence)
        return Comparison(side, _of_arrays(call, a, side))
    if referenced and not call.plain:
        return _of_op(a, e, call, output, profile, tolerance)
    if truth is not None:
        m = _measured(a, e if e is not None else _whole(truth, a), tolerance)
        side, result = _judged_by_truth(a, truth, call, profile)
        if truth.kind == "values" and e is not None and e.format == a.format:
            side = _beside_expected(side, _judged_by_truth(e, truth, call, profile)[0])
    elif e is not None:
        m = _measured(a, e, tolerance)
        side = _judged_by_format(a, e, m, call)
        result = _of_arrays(call, a, side)
    else:
        raise UsageError("check needs expected, or op and inputs to compute it from")
    side = _with_metrics(side, m, tolerance)
    return Comparison(side, replace(result, verdict=side.verdict, sides=(side,)))


def _coded(actual: Any, expected: Any) -> tuple[Coded, Coded | None]:
    a = as_coded(actual, "actual")
    e = None if expected is None else as_coded(expected, "expected")
    if e is not None and get_format(a.format).kind == "int" and get_format(e.format).kind == "float":
        a = as_coded(decode(a.codes, a.format))  # expected is not to be rounded to an integer
    return a, e


def _truth(call: Call, a: Coded, e: Coded | None) -> Reference:
    """Computed from the inputs; where one code is right the caller's expectation says which: policies of overflow and ties differ between
    libraries."""
    truth = call.truth(a)
    if truth.kind != "codes" or e is None or e.shape != a.shape:
        return truth
    return one_code_truth(e.codes if e.format == a.format else encode(decode(e.codes, e.format), a.format), a.format)


def _of_op(a: Coded, e: Coded | None, call: Call, output: str, profile: Profile, tolerance: Tolerance | None) -> Comparison:
    """By the gates of a profile against the truth that the op has for these operands, as its cases are judged."""
    layout = "" if call.layout == PRODUCT_LAYOUT and call.layout not in get_op(call.op).layouts else call.layout
    if call.recipe:
        raise UsageError(f"op {call.op} with recipe {call.recipe}: its operands are quantised by a dump alone; give expected without op")
    truth = truth_of(call.op, a, call.inputs, layout, call.options, call.stated or "", output)
    shape = truth.subject.output.shape
    if math.prod(shape) == math.prod(a.shape) == 1:
        a, e = Coded(a.codes.reshape(shape), a.format), e and Coded(e.codes.reshape(shape), e.format)
    subject = replace(truth.subject, name=call.op)
    side = side_of("actual", a, contract=truth.reference.contract)
    result = judge_tensor(subject, [side], {"actual": truth.reference}, profile, inputs={"actual": dict(truth.inputs)})
    judged = result.sides[0]
    if misfit(side, subject.output) is None:
        judged = _with_metrics(judged, _measured(a, e if e is not None else _whole(truth.reference, a), tolerance), tolerance)
    return Comparison(judged, replace(result, verdict=judged.verdict, sides=(judged,)))


def _with_metrics(side: Side, m: Measured, tolerance: Tolerance | None) -> Side:
    """With every metric of `m`; what only the judge of a reference finds stays."""
    budgeted = {k: v for k, v in side.metrics.items() if "budget" in k or k.startswith("inner_") or k in DERIVED}
    side = replace(side, metrics={**reported(m), **budgeted})
    return with_tolerance(side, m, tolerance) if tolerance else side


def explain(
    actual: Any,
    *,
    op: str = "gemm",
    layout: str = "nn",
    inputs: Mapping[str, Any],
    options: Mapping[str, OptionValue] | None = None,
    unit: str | None = None,
) -> Explanation:
    """Which order of operations in which matrix unit gives exactly these bits.

    actual, inputs, options  as in `check`: a float32, float64 or 16-bit GEMM output and its operands (scales included)
    unit                     only that unit's arithmetic ("sm_90", "hopper", "MI300X", …); None tries all
    The result's fraction is 1 where every element is reproduced; status says whether that identifies the composition or is only
    consistent with it. It changes no verdict. UsageError for an op other than gemm or inputs that are not there.
    """
    from accuracy_eval.datapath import explain_gemm

    if op != "gemm":
        raise unknown("op to explain", op, ("gemm",))
    call = Call.described(op=op, layout=layout, inputs=inputs, options=options)
    return explain_gemm(as_coded(actual, "actual"), call.product(), unit=unit)


def _tolerance(rtol: float | None, atol: float | None) -> Tolerance | None:
    if rtol is None and atol is None:
        return None
    found = number("rtol", rtol or 0.0), number("atol", atol or 0.0)
    if not all(t >= 0 for t in found):
        raise UsageError(f"rtol {rtol}, atol {atol}: tolerances are 0 or more")
    return found


def _mismatch(a: Coded, e: Coded | None, truth: Reference | None, call: Call) -> Diagnosis | None:
    """A shape or format other than what was asked for: nothing can be measured then."""
    asked = e.shape if e is not None else a.shape
    if truth is not None and asked == a.shape:
        shape = call.output_shape(truth)
        asked = a.shape if math.prod(a.shape) == math.prod(shape) == 1 else shape
    if asked != a.shape:
        lies = layout_of(a.shape, asked) if call.op == "quantize" else ""
        return named("shape-mismatch", found=str(list(a.shape)) + (f" ({lies})" if lies else ""), asked=str(list(asked)))
    if truth is not None and call.op == "quantize" and "x" in call.inputs and truth.format != a.format:
        return named("format-mismatch", found=a.format, asked=truth.format)
    return None


def _measured(a: Coded, e: Any, tolerance: Tolerance | None) -> Measured:
    """Codes against codes of one format, else against the expected values; with the tolerances that gates will ask for."""
    if isinstance(e, Coded) and e.format != a.format:
        e = decode(e.codes, e.format)
    return measure(a, e, allclose=tolerances(a.format, tolerance))


def _whole(truth: Reference, a: Coded) -> Coded | Any:
    """The reference in memory: codes, or float64 values, in the shape of `a`."""
    parts = [p.values for p in truth.panels()]
    found = (np.concatenate(parts) if parts else np.empty(0)).reshape(a.shape)
    return Coded(found, a.format) if truth.kind == "codes" else found


def _judged_by_truth(a: Coded, truth: Reference, call: Call, profile: Profile) -> tuple[Side, TensorResult]:
    """By the gates of a profile against the truth computed from the inputs."""
    case = call.case(out_format=get_format(a.format).family)
    output = call.output(a, truth)
    tensor = Coded(a.codes.reshape(truth.shape), a.format)
    side = replace(side_of("actual", tensor, contract=truth.contract), derived=call.operand_mismatches(a))
    inputs = {n: c for n, c in call.inputs.items() if n not in SOURCED}
    subject = Subject(case, output, call.op, get_op(call.op).family)
    result = judge_tensor(subject, [side], {"actual": truth}, profile, inputs={"actual": inputs})
    judged = result.sides[0]
    if call.op in ("quantize", "cast") and truth.kind == "codes" and judged.verdict is Verdict.FAIL:
        # the op's own case has other operands (amax) or another output format than what was handed in
        kept = np.concatenate([p.values for p in truth.panels()])
        m = measure(tensor, Coded(kept.reshape(truth.shape), a.format))
        judged = replace(judged, diagnoses=tuple(diagnose(_context(m, tensor, kept, call))))
    return judged, result


def _beside_expected(side: Side, expected: Side) -> Side:
    """A passing side beside an expectation that is itself off: the two cannot both be meant."""
    if side.verdict is not Verdict.PASS or expected.verdict is not Verdict.FAIL:
        return side
    note = "`actual` keeps its budget around the truth computed from the inputs; `expected` does not: see what computed it"
    return replace(side, verdict=Verdict.WARN, note=note)


def _judged_by_format(a: Coded, e: Coded, m: Measured, call: Call) -> Side:
    """By structure, class table and the limits of the output's format."""
    if math.prod(a.shape) == 0:
        empty = named("empty")
        return Side("actual", a.format, "", Verdict.INCONCLUSIVE, metrics=reported(m), diagnoses=(empty,), note=empty.sentence)
    gate = format_gate(m, a.format)
    found = structural(Context(m))
    verdict = Verdict.PASS if gate.passed and not found else Verdict.FAIL
    note = "no op and inputs: judged by structure and the output's format alone" if not call.op else ""
    if verdict is Verdict.PASS and m.max_expected is None:
        verdict, note = Verdict.INCONCLUSIVE, NOTHING_FINITE
    seen: Mapping[str, Any] = {}
    if verdict is Verdict.FAIL:
        found = diagnose(_context(m, a, e.codes if e.format == a.format else decode(e.codes, e.format), call))
    elif m.max_expected is not None:
        seen = format_resolution(gate, a.format, m.max_expected)
    worst = worst_elements(m, (gate,))
    return Side("actual", a.format, "", verdict, "", reported(m), (gate,), tuple(found), worst, note=note, resolution=seen)


def _context(m: Measured, a: Coded, expected: Any, call: Call) -> Context:
    """What a diagnosis may look at; `expected` as codes of the format of `a`, or as float64 values."""
    case = call.case(out_format=get_format(str(call.options["format"])).family if "format" in call.options else "")
    return Context(
        m, rows_of(a.codes), rows_of(expected), case.op, case.layout, case.format, case.out_format, case.recipe,
        options=call.options, inputs=call.inputs, contract=call.contract, output="d" if call.op == "gemm" else "",
    )  # fmt: skip


def _of_arrays(call: Call, a: Coded, side: Side) -> TensorResult:
    """The result of a side that no case of a suite made."""
    return TensorResult(call.op or ARRAYS, call.case(), "", "", "actual", a.shape, side.verdict, (side,))
