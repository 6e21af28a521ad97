"""check(): one tensor against what it should be, from Python.

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
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from accuracy_eval.attribution import CLOSE, reported, worst_elements
from accuracy_eval.contracts import default_contract
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.diagnose import Context, diagnose, gate_cannot_fail, named, rows_of, structural
from accuracy_eval.errors import UsageError, VerdictError, unknown
from accuracy_eval.formats import FORMATS, decode, encode, get_format
from accuracy_eval.gates import Profile, load_profile
from accuracy_eval.judge import NOTHING_FINITE, judge_tensor
from accuracy_eval.measuring import side_of
from accuracy_eval.messages import side_message
from accuracy_eval.metrics.measured import Measured
from accuracy_eval.metrics.meter import measure
from accuracy_eval.metrics.registry import DERIVED, allclose_name
from accuracy_eval.ops.gemm import product_reference
from accuracy_eval.ops.on_arrays import SOURCED, codes_under, operand_errors, product_of_sources, quantize_output
from accuracy_eval.ops.registry import OPS, get_op
from accuracy_eval.ops.spec import Output, Panel, Reference, rows_and_columns
from accuracy_eval.quantize import get_recipe, layout_of, reference_scale
from accuracy_eval.records import ARRAYS, Case, Coded, Diagnosis, GateResult, OptionValue, Side, TensorResult, Verdict

if TYPE_CHECKING:
    from accuracy_eval.datapath import Explanation

_TORCH_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
ONE_STEP = "assert_close limits of the output format, or one code step everywhere"
ELEMENTWISE = ("special", "reduce")  # families whose reference follows from the arrays alone
GEMM_INPUTS = ("a", "b", "c", "bias", "a_scale", "b_scale", *SOURCED)
NARROW_SOURCE = "SNR gates of a widely used kernel library, or one code step everywhere"
NARROW_SNR_DB = {"fp8_e4m3": 25.0, "fp8_e5m2": 20.0, "fp6_e2m3": 20.0, "fp6_e3m2": 20.0, "fp4_e2m1": 10.0}


def codes(array: Any, *, format: str) -> Coded:
    """Codes of a named format as an array `check` takes. UsageError unless they are unsigned integers of the format's width."""
    fmt = get_format(format)
    found = np.asarray(array)
    if not found.dtype.isnative:
        found = found.astype(found.dtype.newbyteorder("="))
    if found.dtype != fmt.storage:
        raise UsageError(f"codes of {fmt.name}: found dtype {found.dtype}; allowed: {fmt.storage.name}, one code an element")
    return Coded(found, fmt.name)


def as_coded(array: Any, name: str = "array") -> Coded:
    """Any accepted array as codes, bit for bit: numpy, ml_dtypes, torch (any device), Coded, or numbers that become float64."""
    if isinstance(array, Coded):
        return array
    if hasattr(array, "detach") and hasattr(array, "element_size"):
        return _from_torch(array, name)
    if isinstance(array, np.ma.MaskedArray):
        raise UsageError(f"{name}: a masked array; fill it or select its elements first, the mask would be ignored")
    found = np.asarray(array)
    if not found.dtype.isnative:
        found = found.astype(found.dtype.newbyteorder("="))
    if found.dtype.name in ("int64", "bool") and (not found.size or -(1 << 31) <= int(found.min()) <= int(found.max()) < 1 << 31):
        found = found.astype(np.int32)
    if found.dtype.name not in FORMATS:
        allowed = ", ".join(n for n, f in FORMATS.items() if not f.scale_only)
        raise UsageError(f"{name}: dtype {found.dtype} is no format this program knows; allowed: {allowed}, or codes(array, format=…)")
    fmt = get_format(found.dtype.name)
    return Coded(np.ascontiguousarray(found).view(fmt.storage).reshape(found.shape), fmt.name)


def _from_torch(tensor: Any, name: str) -> Coded:
    if str(tensor.dtype) in ("torch.int64", "torch.bool"):
        return as_coded(tensor.detach().cpu().numpy(), name)
    fmt_name = str(tensor.dtype).removeprefix("torch.")
    if fmt_name not in FORMATS:
        raise UsageError(f"{name}: torch dtype {tensor.dtype} is no known format; view it as uint8 and use codes(array, format=…)")
    fmt = get_format(fmt_name)
    import sys

    torch = sys.modules["torch"]  # the caller's: nothing here imports it
    plain = tensor.detach().cpu().contiguous().view(getattr(torch, _TORCH_INTEGERS[tensor.element_size()]))
    return Coded(plain.numpy().view(fmt.storage), fmt.name)


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
    layout: str = "nn",
    inputs: Mapping[str, Any] | None = None,
    options: Mapping[str, OptionValue] | None = None,
    recipe: str | None = None,
    contract: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    gates: str = "default",
) -> Comparison:
    """Judge `actual`.

    expected     what it should be; None: the reference computed from op and inputs
    op, layout, inputs, options, recipe   what was computed; inputs by the op's operand names, as stored, with `a_scale`, `b_scale`
                 where operands are quantised, and `a_source`, `b_source` before they were (then all four errors are judged); op `quantize`
                 takes `amax`, `x`, or `x` and `x_scale`: codes are then judged under those scales; op `cast` takes options={"format": …}
    contract     what the call promises; None: the default of the operand formats
    rtol, atol   adds a gate |a - e| <= atol + rtol·|e| (the other one is 0); never removes one
    gates        profile, where op and inputs are given
    UsageError for arrays, ops or options it does not know, and when neither expected nor op with inputs is given.
    """
    a = as_coded(actual, "actual")
    e = None if expected is None else as_coded(expected, "expected")
    given = {n: as_coded(v, f"input {n!r}") for n, v in (inputs or {}).items()}
    if e is not None and get_format(a.format).kind == "int" and get_format(e.format).kind == "float":
        a = as_coded(decode(a.codes, a.format))  # expected is not to be rounded to an integer
    profile = load_profile(str(gates))
    if op is not None:
        _check_names(op, options or {}, recipe)
    tolerance = None if rtol is None and atol is None else (_number("rtol", rtol or 0.0), _number("atol", atol or 0.0))
    if tolerance and not (tolerance[0] >= 0 and tolerance[1] >= 0):
        raise UsageError(f"rtol {rtol}, atol {atol}: tolerances are 0 or more")
    if gates != "default" and not (op and given):
        raise UsageError(
            f"gates={gates!r} needs op and inputs; plain arrays are judged by the limits of their format, and by rtol and atol"
        )
    call = _Call(op or "", layout, dict(options or {}), recipe or "", given, contract)
    truth = call.reference(a) if op and given else None
    if truth is not None and truth.kind == "codes" and e is not None and e.shape == a.shape:
        # where one code is right, the caller's expectation says which: policies of overflow and ties differ between libraries
        truth = _coded_reference(e.codes if e.format == a.format else encode(decode(e.codes, e.format), a.format), a)
    if e is None and truth is None:
        raise UsageError("check needs expected, or op and inputs to compute it from")
    if e is not None and a.shape != e.shape:
        return _mismatched(a, e.shape, "shape-mismatch", call)
    if truth is not None and a.shape != call.shape(truth) and not math.prod(a.shape) == math.prod(call.shape(truth)) == 1:
        return _mismatched(a, call.shape(truth), "shape-mismatch", call)
    if truth is not None and op == "quantize" and "x" in given and truth.format != a.format:
        return _mismatched(a, truth.format, "format-mismatch", call)
    against = _measure(a, e if e is not None else _whole(cast(Reference, truth), a), tolerance)
    side, result = _judge_by_array(a, cast(Coded, e), against, call) if truth is None else _judge_by_truth(a, truth, call, profile)
    if truth is not None and truth.kind == "values" and e is not None and e.format == a.format:
        side = _with_expected(side, _judge_by_truth(e, truth, call, profile)[0])
    budgeted = {k: v for k, v in side.metrics.items() if "budget" in k or k.startswith("inner_") or k in DERIVED}
    side = replace(side, metrics={**reported(against), **budgeted})
    if tolerance:
        side = _with_tolerance(side, against, tolerance)
    return Comparison(side, replace(result, verdict=side.verdict, sides=(side,)))


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} = {value!r}; expected a number") from error


def _check_names(op: str, options: Mapping[str, OptionValue], recipe: str | None) -> None:
    """UsageError for an option the op does not have, or a recipe that does not exist: they would change nothing."""
    spec = get_op(op)
    allowed = {*spec.options, *(("format",) if op == "cast" else ())}
    for name in options:
        if name not in allowed:
            raise unknown(f"{op} option", name, allowed or ["(none)"])
    if recipe:
        get_recipe(recipe)


def _with_expected(side: Side, expected: Side) -> Side:
    """A passing side beside an expectation that is itself off: the two cannot both be meant."""
    if side.verdict is not Verdict.PASS or expected.verdict is not Verdict.FAIL:
        return side
    note = "`actual` keeps its budget around the truth computed from the inputs; `expected` does not: see what computed it"
    return replace(side, verdict=Verdict.WARN, note=note)


def _measure(a: Coded, e: Coded | Any, tolerance: tuple[float, float] | None) -> Measured:
    """Codes against codes of one format, else against the expected values; with the tolerances that gates will ask for."""
    wanted = [CLOSE[a.format]] if a.format in CLOSE else []
    wanted += [tolerance] if tolerance else []
    if isinstance(e, Coded) and e.format != a.format:
        e = decode(e.codes, e.format)
    return measure(a, e, allclose=tuple(dict.fromkeys(wanted)))


def _whole(truth: Reference, a: Coded) -> Coded | Any:
    """The reference in memory: codes, or float64 values, in the shape of `a`."""
    parts = [p.values for p in truth.panels()]
    found = (np.concatenate(parts) if parts else np.empty(0)).reshape(a.shape)
    return Coded(found, a.format) if truth.kind == "codes" else found


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
    given = {n: as_coded(v, f"input {n!r}") for n, v in inputs.items()}
    tensor = as_coded(actual, "actual")
    problem = _Call(op, layout, dict(options or {}), "", given, None).gemm(tensor).problem
    return explain_gemm(tensor, problem, unit=unit)


@dataclass(frozen=True)
class _Call:
    """What the caller says was computed."""

    op: str
    layout: str
    options: dict[str, OptionValue]
    recipe: str
    inputs: dict[str, Coded]
    stated: str | None

    @property
    def formats(self) -> tuple[str, ...]:
        return tuple(c.format for n, c in self.inputs.items() if not n.endswith(("_scale", "_source")))

    def contract(self) -> str:
        return self.stated if self.stated is not None else default_contract(self.op, self.formats[:2], self.recipe) if self.formats else ""

    def case(self, shape: tuple[tuple[str, int], ...] = (), out: str = "") -> Case:
        families = dict.fromkeys(get_format(f).family for f in self.formats[: 2 if self.op == "gemm" else 1])
        options = tuple(sorted((k, v) for k, v in self.options.items() if k != "format"))
        return Case(self.op, shape, self.layout if self.op == "gemm" else "", "+".join(families), out, self.recipe, options)

    def shape(self, truth: Reference) -> tuple[int, ...]:
        """Shape the output must have: that of x, or x without its last axis, whatever shape the op computed it in."""
        if self.op in ("gemm", "quantize") or "x" not in self.inputs or self.options.get("axis") == "first":
            return truth.shape
        x = self.inputs["x"].shape
        return x if math.prod(truth.shape) == math.prod(x) else x[:-1]

    def context(self, measured: Measured, a: Coded, expected: Any) -> Context:
        """What a diagnosis may look at."""
        case = self.case(out=get_format(str(self.options["format"])).family if "format" in self.options else "")
        return Context(
            measured, rows_of(a.codes), expected, self.op, case.layout, case.format, case.out_format, self.recipe,
            options=dict(self.options), inputs=self.inputs, contract=self.contract(), output="d" if self.op == "gemm" else "",
        )  # fmt: skip

    def reference(self, a: Coded) -> Reference | None:
        """The truth from the inputs, in the output format `a` has; None for an op whose inputs are not all there."""
        if self.op == "gemm":
            return self.gemm(a)
        if self.op == "quantize" and "amax" in self.inputs:
            amax = self.inputs["amax"]
            scale = reference_scale(decode(amax.codes, amax.format).astype(np.float32), get_recipe(self.recipe))
            return _coded_reference(scale, a)
        if self.op == "quantize":
            return self.quantize(a)[1]
        if self.op == "cast":
            return self._cast(a)
        if OPS[self.op].family not in ELEMENTWISE:
            known = ", ".join(("gemm", "quantize", "cast", *(n for n, spec in OPS.items() if spec.family in ELEMENTWISE)))
            raise UsageError(f"op {self.op}: its reference is not computed from arrays; ops that are: {known}. Give expected, or dump it.")
        operands = {"x", "y"} if self.op == "pow" else {"x"}
        if set(self.inputs) != operands:
            raise UsageError(f"op {self.op}: inputs {', '.join(self.inputs)}; expected {', '.join(sorted(operands))}")
        return self._elementwise(a)

    def gemm(self, a: Coded) -> Reference:
        for name in ("a", "b"):
            if name not in self.inputs:
                raise UsageError(f"op gemm: input {name!r} is missing; given: {', '.join(self.inputs)}")
        i = self.inputs
        extra = set(i) - set(GEMM_INPUTS)
        if extra:
            raise unknown("gemm input", sorted(extra)[0], GEMM_INPUTS)
        left, right = (decode(i[n].codes, i[n].format) if n in i else None for n in ("a_scale", "b_scale"))
        numbers = {n: _number(f"option {n}", self.options.get(n, d)) for n, d in (("alpha", 1.0), ("beta", 0.0))}
        problem = Gemm(i["a"], i["b"], self.layout, numbers["alpha"], numbers["beta"], i.get("c"), i.get("bias"), left, right)
        for name in set(SOURCED) & set(i):
            if not set(SOURCED) <= set(i) or i[name].shape != i[name[0]].shape:
                raise UsageError(
                    f"op gemm: {name} {list(i[name].shape)}; expected both {' and '.join(SOURCED)}, each in the shape of its operand"
                )
        reference = product_reference(problem, self.contract(), a.format)
        return product_of_sources(i, problem, reference) if set(SOURCED) <= set(i) else reference

    def quantize(self, a: Coded) -> tuple[Output, Reference]:
        """Which output of a quantiser `a` is, and its truth: under `x_scale`, codes are judged by the scales they stand with."""
        if set(self.inputs) - {"x", "x_scale"} or "x" not in self.inputs or not self.recipe:
            raise UsageError(
                f"op quantize: recipe {self.recipe!r}, inputs {', '.join(self.inputs)}; expected a recipe and amax, x or x and x_scale"
            )
        output, reference = quantize_output(self.inputs["x"], self.recipe, a)
        if output.name == "codes" and "x_scale" in self.inputs:
            reference = codes_under(self.inputs["x"], self.recipe, a, self.inputs["x_scale"])[0]
        return output, reference

    def output(self, a: Coded, truth: Reference) -> Output:
        """What `a` is called, and whether one code is right."""
        if self.op == "quantize" and "x" in self.inputs:
            return self.quantize(a)[0]
        return Output("d" if self.op == "gemm" else "result", truth.shape, a.format, exact=truth.kind == "codes")

    def derived(self, a: Coded) -> dict[str, Any]:
        """Errors of codes and scales that the inputs show."""
        if self.op == "quantize" and "x_scale" in self.inputs and not get_format(a.format).scale_only and a.shape == self.inputs["x"].shape:
            return dict(codes_under(self.inputs["x"], self.recipe, a, self.inputs["x_scale"])[1]) if get_format(a.format).bits <= 8 else {}
        return operand_errors(self.inputs, self.layout, self.recipe) if set(SOURCED) <= set(self.inputs) else {}

    def _cast(self, a: Coded) -> Reference:
        if "format" not in self.options or set(self.inputs) != {"x"}:
            raise UsageError('op cast: needs inputs={"x": …} and options={"format": …}')
        x, fmt = self.inputs["x"], get_format(str(self.options["format"]))
        rounded = encode(decode(x.codes, x.format), fmt, overflow=cast(Any, self.options.get("overflow")))
        return _coded_reference(rounded if a.format == fmt.name else encode(decode(rounded, fmt), a.format), a)

    def _elementwise(self, a: Coded) -> Reference | None:
        """Special functions and reductions, through their ops: operands become the shape the op has."""
        spec = OPS[self.op]
        x = self.inputs["x"]
        shape = x.shape if len(x.shape) == 2 else (1, math.prod(x.shape)) if ("m", "n") in spec.dims else (math.prod(x.shape),)
        letters = ("m", "n") if len(shape) == 2 else ("n",)
        case = self.case(tuple(zip(letters, shape, strict=True)), get_format(a.format).family)
        given = {n: Coded(c.codes.reshape(shape), c.format) for n, c in self.inputs.items()}
        contract = self.contract()
        (reference,) = spec.reference(case, given, "fnuz" if a.format.endswith("fnuz") else "ocp", contract).values()
        return reference


def _coded_reference(expected: Any, a: Coded) -> Reference:
    shape = np.shape(expected)
    rows = np.asarray(expected).reshape(rows_and_columns(shape))
    return Reference("codes", a.format, shape, "exact", lambda: iter((Panel(0, rows),)), resolution={"element": "one code"})


def _judge_by_truth(a: Coded, truth: Reference, call: _Call, profile: Profile) -> tuple[Side, TensorResult]:
    """By the gates of a profile against the truth computed from the inputs."""
    case = call.case(out=get_format(a.format).family)
    output = call.output(a, truth)
    tensor = Coded(a.codes.reshape(truth.shape), a.format)
    side = replace(side_of("actual", tensor, contract=truth.contract), derived=call.derived(a))
    result = judge_tensor(
        case, call.op, get_op(call.op).family, "", output, [side], {"actual": truth}, profile,
        inputs={"actual": {n: c for n, c in call.inputs.items() if n not in SOURCED}},
    )  # fmt: skip
    judged = result.sides[0]
    if call.op in ("quantize", "cast") and truth.kind == "codes" and judged.verdict is Verdict.FAIL:
        # the op's own case has other operands (amax) or another output format than what was handed in
        kept = np.concatenate([p.values for p in truth.panels()])
        m = measure(tensor, Coded(kept.reshape(truth.shape), a.format))
        judged = replace(judged, diagnoses=tuple(diagnose(call.context(m, tensor, rows_of(kept)))))
    return judged, result


def _judge_by_array(a: Coded, e: Coded, m: Measured, call: _Call) -> tuple[Side, TensorResult]:
    """By structure, class table and the limits of the output's format."""
    result = _close_gate(m, a)
    found = structural(Context(m))
    verdict = Verdict.PASS if result.passed and not found else Verdict.FAIL
    note = "no op and inputs: judged by structure and the output's format alone" if not call.op else ""
    if math.prod(a.shape) == 0:
        verdict = Verdict.INCONCLUSIVE
    elif verdict is Verdict.PASS and m.max_expected is None:
        verdict, note = Verdict.INCONCLUSIVE, NOTHING_FINITE
    if verdict is Verdict.FAIL:
        expected = rows_of(e.codes if e.format == a.format else decode(e.codes, e.format))
        found = diagnose(call.context(m, a, expected))
    side = Side("actual", a.format, "", verdict, "", reported(m), (result,), tuple(found), worst_elements(m, (result,)), note=note)
    case = call.case()
    return side, TensorResult(call.op or ARRAYS, case, "", "", "actual", a.shape, verdict, (side,))


def _close_gate(m: Measured, a: Coded) -> GateResult:
    """The limit that two roundings of one result keep: equal integers, a code step for narrow floats, assert_close for the others."""
    fmt = get_format(a.format)
    metrics = m.metrics
    if fmt.kind == "int" or fmt.scale_only:
        count = metrics["mismatch_count"]
        return GateResult("equal", "mismatch_count", count, "==", 0.0, count == 0, "integers, codes and scales have one right value")
    steps = metrics.get("ulp_max")
    one_step = steps is not None and abs(steps) <= 1
    if fmt.bits <= 8:
        snr, limit = metrics.get("snr_db"), NARROW_SNR_DB[fmt.family]
        passed = one_step or (snr is not None and snr > limit)
        return GateResult("narrow-snr", "snr_db", snr, ">", limit, bool(passed), NARROW_SOURCE)
    rtol, atol = CLOSE[fmt.name]
    violations = metrics[allclose_name(rtol, atol)]
    return GateResult("close", "allclose_violations", float(violations), "==", 0.0, bool(violations == 0 or one_step), ONE_STEP)


def _with_tolerance(side: Side, m: Measured, tolerance: tuple[float, float]) -> Side:
    """The caller's own tolerance as one more gate, and a word where it could not fail."""
    rtol, atol = tolerance
    count = m.metrics[allclose_name(rtol, atol)]
    name = f"tolerance(rtol={rtol:g}, atol={atol:g})"
    gate = GateResult(name, "allclose_violations", float(count), "==", 0.0, count == 0, "the caller's rtol and atol")
    blunt = gate_cannot_fail(gate, m.max_expected, rtol=rtol, atol=atol)
    more = () if blunt is None else (named("gate-cannot-fail", {"gate": blunt["gate"]}, largest=blunt["largest"]),)
    verdict = side.verdict
    if not gate.passed:
        verdict = Verdict.FAIL
    elif more and verdict is Verdict.PASS:
        verdict = Verdict.WARN
    return replace(side, gates=(*side.gates, gate), diagnoses=(*side.diagnoses, *more), verdict=verdict)


def _mismatched(a: Coded, asked: tuple[int, ...] | str, code: Literal["shape-mismatch", "format-mismatch"], call: _Call) -> Comparison:
    if isinstance(asked, str):
        wrong = named(code, found=a.format, asked=asked)
    else:
        lies = layout_of(a.shape, asked) if call.op == "quantize" else ""
        wrong = named(code, found=str(list(a.shape)) + (f" ({lies})" if lies else ""), asked=str(list(asked)))
    side = Side("actual", a.format, "", Verdict.FAIL, "", {}, (), (wrong,), note=wrong.sentence)
    return Comparison(side, TensorResult(call.op or ARRAYS, call.case(), "", "", "actual", a.shape, Verdict.FAIL, (side,)))
