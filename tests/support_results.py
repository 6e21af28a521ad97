"""Synthetic Results for the report tests: what a comparison of two or three dumps of GEMMs looks like, good and bad, and hostile ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from accuracy_eval.records import (
    RESULTS_SCHEMA,
    Attribution,
    Case,
    Diagnosis,
    DumpInfo,
    GateInfo,
    GateResult,
    InputBin,
    NotCompared,
    Pair,
    Results,
    Side,
    Sketch,
    TensorResult,
    Verdict,
    WorstElement,
)

BUDGET_SOURCE = "running-error bound under the call's contract (docs/budgets.md)"
H200_PLATFORM = {
    "vendor": "NVIDIA",
    "device_name": "NVIDIA H200",
    "arch": "sm_90",
    "torch_version": "2.13.0+cu130",
    "torch_cuda": "13.0",
    "torch_rocm": None,
    "driver_version": "580.95.05",
    "torch_blas": "cublasLt 13.0.2",
    "python": "3.12.3",
    "flags": {"allow_tf32": False, "fp16_reduced_precision": True},
    "memory_bytes": 150754820096,
}
CPU_PLATFORM = {
    "vendor": "AMD",
    "device_name": "AMD EPYC 9534 64-Core Processor",
    "arch": "x86_64 avx2",
    "torch_version": "2.13.0+cpu",
    "torch_cuda": None,
    "torch_rocm": None,
    "driver_version": None,
    "torch_blas": "oneMKL 2024.2",
    "python": "3.12.3",
    "flags": {"allow_tf32": False, "fp16_reduced_precision": False},
    "memory_bytes": 1622000000000,
}
MI300X_PLATFORM = {
    "vendor": "AMD",
    "device_name": "AMD Instinct MI300X",
    "arch": "gfx942:sramecc+:xnack-",
    "torch_version": "2.13.0+rocm7.1",
    "torch_cuda": None,
    "torch_rocm": "7.1.0",
    "driver_version": "6.14.5",
    "torch_blas": "hipBLASLt 1.1.0",
    "python": "3.12.3",
    "flags": {"allow_tf32": False, "fp16_reduced_precision": True},
    "memory_bytes": 206141652992,
}
H200 = DumpInfo("h200", "h200.h5", "a1" * 32, "smoke", "5e" * 32, H200_PLATFORM)
CPU = DumpInfo("cpu", "cpu.h5", "b2" * 32, "smoke", "5e" * 32, CPU_PLATFORM)
MI300X = DumpInfo("mi300x", "mi300x.h5", "c3" * 32, "smoke", "5e" * 32, MI300X_PLATFORM)
GATES = (
    GateInfo("exact-lane", "mismatch_count", "==", "0", "lane: exact, coded", "every order, split and matrix unit gives the same bits"),
    GateInfo("budget", "budget_max", "<=", "1", "lane: random; exact: False", BUDGET_SOURCE),
    GateInfo("snr-e4m3", "snr_db", ">", "25", "format: fp8_e4m3", "operator tests: SNR strictly above 25 dB for E4M3"),
)

QUIET_SKETCH = Sketch(((0.0, 101), (0.25, 40000), (0.5, 25435)), ((0.0016, 0.0017), (0.0016, 0.0015)), (256, 64))
# one row of tiles is off, and one cell holds a value that is not finite
SKETCH = Sketch(
    ((0.0, 90), (0.25, 41000), (0.5, 24000), (1.0, 232), (64.0, 214)),
    tuple(tuple(0.4 if i == 3 else math.inf if (i, j) == (5, 6) else 0.0016 for j in range(8)) for i in range(16)),
    (32, 16),
)


def gemm_case(fmt: str = "bfloat16", layout: str = "nt", shape: tuple[int, int, int] = (512, 128, 256), **more: Any) -> Case:
    return Case("gemm", tuple(zip("mnk", shape, strict=True)), layout, fmt, seed=42, **more)


def id_of(case: Case) -> str:
    dims = ".".join(f"{letter}{size}" for letter, size in case.shape)
    kind = case.input_class if case.lane == "random" else case.lane
    formats = case.format + (f"-{case.out_format}" if case.out_format else "")
    return ".".join(x for x in (case.op, dims, case.layout, formats, case.recipe, kind, f"s{case.seed}") if x)


def metrics(rel_fro: float, *, budget_max: float = 0.31, mismatches: int = 0, **more: Any) -> dict[str, Any]:
    snr = math.inf if rel_fro == 0 else -20 * math.log10(rel_fro)
    return {
        "rel_fro": rel_fro,
        "max_abs": rel_fro * 40,
        "rmse": rel_fro * 16,
        "cosine": 1 - rel_fro**2 / 2,
        "snr_db": snr,
        "sym_diff": rel_fro**2,
        "max_scaled": rel_fro * 9,
        "max_rel": rel_fro * 300,
        "max_rel_index": [3, 17],
        "nonzero_where_expected_zero": 0,
        "ulp_max": 0.5 if not mismatches else 37.25,
        "ulp_mean": 0.25,
        "ulp_p50": 0.25,
        "ulp_p99": 0.49,
        "ulp_p999": 0.5,
        "mismatch_count": mismatches,
        "mismatch_fraction": mismatches / 65536,
        "bias_ulp": 0.001,
        "bias_sigma": -0.4,
        "gain": 1.00001,
        "gain_se": 2e-5,
        "budget_max": budget_max,
        "nan_actual": 0,
        "nan_expected": 0,
        "inf_actual": 0,
        "inf_expected": 0,
        **more,
    }


def budget_gate(value: float) -> GateResult:
    return GateResult("budget", "budget_max", value, "<=", 1.0, value <= 1.0, BUDGET_SOURCE)


def snr_gate(value: float) -> GateResult:
    return GateResult("snr-e4m3", "snr_db", value, ">", 25.0, value > 25.0, "operator tests: SNR strictly above 25 dB for E4M3")


def good_side(label: str, fmt: str = "bfloat16", budget_max: float = 0.31, **more: Any) -> Side:
    return Side(
        label,
        fmt,
        "d1" * 32,
        Verdict.PASS,
        "fp32acc",
        metrics(1.6e-3, budget_max=budget_max),
        (budget_gate(budget_max),),
        worst=(WorstElement((7, 90), 0x3F80, None, 1.0, 0.99871, 0.00129, 0.33, budget=0.0041),),
        resolution={"element": 3.1e-4, "row": 2.2e-3, "gain": 4e-5, "lost_k": None},
        sketch=QUIET_SKETCH,
        **more,
    )


def bad_side(label: str, fmt: str = "bfloat16") -> Side:
    return Side(
        label,
        fmt,
        "e9" * 32,
        Verdict.FAIL,
        "fp32acc",
        metrics(0.0712, budget_max=6.9, mismatches=214),
        (budget_gate(6.9),),
        (Diagnosis("k-tail-missing", "The last 8 of 256 products are missing in every row.", {"from_k": 248}),),
        (
            WorstElement((12, 301), 0x3F12, None, 0.5703125, 0.46288, 0.1074, 55.0, budget=3.1e-4),
            WorstElement((400, 5), 0xBF00, None, -0.5, -0.4101, 0.0899, 46.0, budget=3.0e-4),
        ),
        {"element": 3.1e-4, "row": 2.2e-3, "gain": 4e-5, "lost_k": None},
        sketch=SKETCH,
    )


def pass_result(case: Case, *, labels: tuple[str, str] = ("h200", "cpu"), identical: bool = False, tensor: str = "d") -> TensorResult:
    a, b = labels
    attribution = Attribution.IDENTICAL if identical else Attribution.EQUIVALENT
    sentence = f"{a} and {b} hold the same bytes." if identical else f"{a} and {b} both keep contract fp32acc; they differ by rounding."
    pair = Pair(a, b, Verdict.PASS, attribution, sentence, metrics(0.0 if identical else 2.1e-3, mismatches=0 if identical else 801))
    return TensorResult(id_of(case), case, "gemm", "default", tensor, (512, 128), Verdict.PASS, (good_side(a), good_side(b)), (pair,))


def fail_result(case: Case, *, labels: tuple[str, str] = ("h200", "cpu")) -> TensorResult:
    a, b = labels
    pair = Pair(
        a,
        b,
        Verdict.FAIL,
        Attribution.A_OFF,
        f"{a} is off by 6.9 × its budget; {b} keeps contract fp32acc.",
        metrics(0.0713, mismatches=214),
        worst=(WorstElement((12, 301), 0x3F12, 0x3EED, 0.5703125, 0.462890625, 0.1074, 37.0, reference=0.46288123),),
        diagnoses=(Diagnosis("k-tail-missing", "The last 8 of 256 products are missing in every row.", {"from_k": 248}),),
        sketch=Sketch(((0.0, 65322), (64.0, 214))),
    )
    return TensorResult(id_of(case), case, "gemm", "default", "d", (512, 128), Verdict.FAIL, (bad_side(a), good_side(b)), (pair,))


def warn_result(case: Case) -> TensorResult:
    side = replace(
        good_side("h200", budget_max=0.83),
        verdict=Verdict.WARN,
        diagnoses=(Diagnosis("nondeterministic", "3 of 10 repeats gave other bytes, all within budget.", {"count": 3}),),
    )
    base = pass_result(case)
    return replace(base, verdict=Verdict.WARN, sides=(side, base.sides[1]), pairs=(replace(base.pairs[0], verdict=Verdict.WARN),))


def nan_result(case: Case) -> TensorResult:
    """NaN in the output: metrics are NaN and infinite, the gate could not be applied."""
    gate = GateResult("budget", "budget_max", None, "<=", 1.0, None, BUDGET_SOURCE, "budget_max is undefined here")
    more = {"rmse": math.inf, "bias_sigma": -math.inf, "snr_db": -math.inf, "nan_actual": 12}
    side = Side(
        "h200",
        "float16",
        "f0" * 32,
        Verdict.FAIL,
        "fp32acc",
        metrics(math.nan, budget_max=math.nan, mismatches=12) | more,
        (gate,),
        (Diagnosis("nan-in-actual", "12 NaN where the reference is finite; the first is at [0, 64].", {"index": [0, 64], "count": 12}),),
        (
            WorstElement((0, 64), 0x7E00, None, math.nan, -12.5, math.nan, math.nan),
            WorstElement((1, 2), 0xFC00, None, -math.inf, -0.0, math.inf, math.inf),
        ),
    )
    other = good_side("cpu", "float16")
    pair = Pair(
        "h200", "cpu", Verdict.FAIL, Attribution.A_OFF, "h200 is off: 12 NaN that cpu does not have.", metrics(math.nan, mismatches=12)
    )
    return TensorResult(id_of(case), case, "gemm", "default", "d", (512, 128), Verdict.FAIL, (side, other), (pair,))


def quantised_result(case: Case) -> TensorResult:
    """Two gates, one broken, in an encoding of its own."""
    good = replace(good_side("cpu", "float8_e4m3fn"), metrics=metrics(0.026), gates=(budget_gate(0.44), snr_gate(31.7)), contract="fp8fast")
    bad = replace(
        good,
        label="h200",
        verdict=Verdict.FAIL,
        metrics=metrics(0.0616, mismatches=9000),
        gates=(budget_gate(0.97), snr_gate(24.2)),
        worst=(WorstElement((1, 1), 0x38, None, 1.0, 1.51, 0.51, 4.1),),
        diagnoses=(Diagnosis("scale-rounding-rule", "Block scales follow the floor rule, the recipe asks for even.", {"actual": "floor"}),),
    )
    pair = Pair(
        "h200", "cpu", Verdict.FAIL, Attribution.A_OFF, "h200 is off: SNR 24.2 dB, must be over 25 dB.", metrics(0.05, mismatches=8000)
    )
    return TensorResult(id_of(case), case, "gemm", "triton", "d", (512, 128), Verdict.FAIL, (bad, good), (pair,))


def special_result() -> TensorResult:
    """exp in bfloat16: one octave of inputs is beyond its limit."""
    case = Case("exp", (("n", 4096),), format="bfloat16", seed=42)
    bins = tuple(InputBin(-(2.0 ** (e + 1)), -(2.0**e), 0.5, 0.6) for e in (6, 3, 0)) + tuple(
        InputBin(2.0**e, 2.0 ** (e + 1), 2.5 if e == 5 else 0.51, 0.6) for e in (0, 3, 5)
    )
    side = replace(bad_side("h200"), contract="", sketch=replace(SKETCH, by_input=bins), diagnoses=())
    pair = Pair("h200", "cpu", Verdict.FAIL, Attribution.A_OFF, "h200 is off; cpu is right", metrics(0.07, mismatches=9))
    sides = (side, good_side("cpu"))
    return TensorResult("exp.n4096.bfloat16.normal.s42", case, "special", "default", "result", (4096,), Verdict.FAIL, sides, (pair,))


def not_compared() -> tuple[NotCompared, ...]:
    differ = gemm_case("float32", "tn")
    missing = gemm_case("float32", "tt")
    unsupported = gemm_case("fp8_e4m3", "nt", recipe="mxfp8")
    return (
        NotCompared(
            id_of(differ),
            "gemm",
            "default",
            "h200",
            Verdict.INPUTS_DIFFER,
            "input 'a': sha256 3f1c… (h200.h5) != 9be0… (cpu.h5); the dumps were made from different inputs",
            differ,
        ),
        NotCompared(id_of(missing), "gemm", "default", "cpu", Verdict.MISSING, "the case is in h200.h5 only", missing),
        NotCompared(
            id_of(unsupported),
            "gemm",
            "default",
            "h200",
            Verdict.UNSUPPORTED,
            "mxfp8 needs capability 10.0, this device has 9.0",
            unsupported,
        ),
    )


def results_of(
    tensors: tuple[TensorResult, ...], skipped: tuple[NotCompared, ...] = (), dumps: tuple[DumpInfo, ...] = (H200, CPU), **more: Any
) -> Results:
    verdicts = [t.verdict for t in tensors] + [n.verdict for n in skipped] or [Verdict.INCONCLUSIVE]
    worst = max(verdicts, key=lambda v: v.severity)
    values: Mapping[str, Any] = {
        "schema": RESULTS_SCHEMA,
        "producer": "accuracy-eval 0.1.0",
        "profile": "default",
        "gates": GATES,
        "dumps": dumps,
        "tensors": tensors,
        "not_compared": skipped,
        "verdict": worst,
        "exit_code": max(v.exit_code for v in verdicts),
        "notes": (),
        **more,
    }
    return Results(**values)


def gemm_results() -> Results:
    """H200 against CPU: float32, float16, bfloat16 and fp8, two shapes, every kind of verdict."""
    big = (8192, 8192, 8192)
    tensors = (
        *(pass_result(gemm_case(fmt, layout)) for fmt in ("float32", "bfloat16") for layout in ("nn", "tn")),
        pass_result(gemm_case("float32", "nt", lane="exact"), identical=True),
        pass_result(gemm_case("bfloat16", "nt", shape=big)),
        pass_result(gemm_case("float32", "nt", shape=big), tensor="da"),
        fail_result(gemm_case("bfloat16", "nt")),
        warn_result(gemm_case("float16", "nn")),
        nan_result(gemm_case("float16", "nt")),
        quantised_result(gemm_case("fp8_e4m3", "nt", recipe="row")),
    )
    return results_of(tensors, not_compared(), notes=("1 case has the same id in two suites; joined by id.",))


def passing_results() -> Results:
    return results_of(
        tuple(pass_result(gemm_case(fmt, layout)) for fmt in ("float32", "bfloat16", "float16") for layout in ("nn", "nt", "tn"))
    )


HOSTILE = (
    "=1+1",
    "@SUM(A1)",
    "+1",
    "-1",
    "=cmd|' /C calc'!A0",
    "a\x00b\x1b[31m\x07",
    "<b>&\"'|`x`",
    "\u202egnp.exe",
    "_x0041_",
    "\r\nx",
    "#N/A",
    "x" * 40000,
)


def hostile_results() -> Results:
    """Every string a dump or a plugin can choose, set to something that a spreadsheet, a terminal or a parser may act on."""
    tensors = []
    for i, text in enumerate(HOSTILE):
        case = replace(gemm_case(), recipe=text[:50], options=(("note", text[:50]),))
        base = fail_result(case)
        side = replace(
            base.sides[0], label=f"{text[:60]}", contract=text[:60], note=text, diagnoses=(Diagnosis(text[:50], text, {"x": text}),)
        )
        pair = replace(base.pairs[0], a=text[:60], sentence=text)
        tensors.append(
            replace(base, case_id=f"{text[:100]}{i}", candidate=text[:50], tensor=text[:50], sides=(side, base.sides[1]), pairs=(pair,))
        )
    skipped = tuple(NotCompared(t, "=fam", t, t, Verdict.ERROR, t) for t in HOSTILE)
    dumps = tuple(DumpInfo(t[:60], t, t, t, t, {"device_name": t, t[:40]: t}) for t in HOSTILE[:3])
    return results_of(tuple(tensors), skipped, dumps, producer="=1+1", profile="@x", notes=HOSTILE)


def many_results(count: int) -> Results:
    """`count` tensors of one shape, mostly PASS, one in fifty FAIL."""
    layouts, formats = ("nn", "nt", "tn", "tt"), ("float32", "bfloat16", "float16")
    tensors = []
    for i in range(count):
        case = replace(gemm_case(formats[i % 3], layouts[i % 4]), seed=i)
        tensors.append(fail_result(case) if i % 50 == 7 else pass_result(case))
    return results_of(tuple(tensors))
