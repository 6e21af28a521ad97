"""Small inputs taken from the kinds of fault people report, each with the right answer.

`CASES` maps an id to a function returning a dict:
  expected, actual : arrays (or ("format", codes) for raw codes)      what is judged
  call             : keyword arguments for accuracy_eval.check
  verdict          : the verdict the tool must give
  diagnoses        : diagnosis codes that must be among those given
  numbers          : {name: (value, relative tolerance)}; names are metrics or "diagnosis.evidence" entries
  why              : one sentence

Run `python cases.py` for a listing.  numpy and ml_dtypes only.
"""

import ml_dtypes as md
import numpy as np

f4, f8 = np.float32, np.float64
e4, e4z, bf = md.float8_e4m3fn, md.float8_e4m3fnuz, md.bfloat16
R = np.random.default_rng


def fnuz_bytes_read_as_ocp():
    c = np.arange(256, dtype=np.uint8)
    return dict(
        expected=c.view(e4z).astype(f4),
        actual=c.view(e4).astype(f4),
        call={},
        verdict="FAIL",
        diagnoses=["fp8-encoding"],
        numbers={"fp8-encoding.gain": (2.0, 0)},
        why="the same bytes decoded as FNUZ and as OCP: ratio exactly 2 on 252 codes; 0x80 is NaN in FNUZ and -0 in OCP",
    )


def fp8_overflow_policy():
    nan, inf = np.nan, np.inf  # x = [1000, 448, 464, 465, -1000, inf] cast to e4m3fn by a NaN-ing and by a saturating cast
    return dict(
        expected=np.array([nan, 448, 448, nan, nan, nan], f4),
        actual=np.array([448, 448, 448, 448, -448, 448], f4),
        call=dict(op="cast", options={"format": "float8_e4m3fn"}, inputs={"x": np.array([1000, 448, 464, 465, -1000, inf], f4)}),
        verdict="FAIL",
        diagnoses=["overflow-policy"],
        numbers={"overflow-policy.count": (4, 0)},
        why="overflow policy differs at 4 of 6 elements; it is not a loss of accuracy",
    )


def cosine_cannot_see_a_gain():
    a = R(0).standard_normal((64, 64)).astype(f4)
    return dict(
        expected=a,
        actual=a * f4(0.05),
        call={},
        verdict="FAIL",
        diagnoses=["gain"],
        numbers={"cosine": (1.0, 1e-6), "rel_fro": (0.95, 1e-4), "snr_db": (0.4455, 1e-3), "gain.value": (0.05, 1e-5)},
        why="uniform gain 0.05, not a power of two",
    )


def diluted_rows():
    a = R(1).standard_normal((100, 64)).astype(f4)
    b = a.copy()
    b[:17] = 0
    return dict(
        expected=a,
        actual=b,
        call={},
        verdict="FAIL",
        diagnoses=["rows"],
        numbers={"cosine": (0.9116, 1e-3), "rows.first": (0, 0), "rows.last": (16, 0)},
        why="rows 0..16 are zero; a global cosine still says 0.91",
    )


def gate_that_cannot_fail():
    a = R(2).uniform(-3, 3, (16, 16)).astype(f4).astype(e4).astype(f4)
    return dict(
        expected=a,
        actual=np.zeros_like(a),
        call=dict(rtol=0.0, atol=32.0),
        verdict="FAIL",
        diagnoses=["all-zero", "gate-cannot-fail"],
        numbers={"rel_fro": (1.0, 0)},
        why="atol 32 is above max|expected|: every output passes it",
    )


def tiny_outputs():
    a = np.full((4, 6144), 1 / 393216, f4)
    return dict(
        expected=a,
        actual=np.zeros_like(a),
        call=dict(rtol=1e-2, atol=1e-2),
        verdict="FAIL",
        diagnoses=["all-zero"],
        numbers={"rel_fro": (1.0, 0)},
        why="an all-zero output passes allclose(1e-2, 1e-2) when outputs are tiny",
    )


def zero_in_the_reference():
    return dict(
        expected=np.array([0, 2.0], f4),
        actual=np.array([1e-30, 2.0], f4),
        call={},
        verdict=None,
        diagnoses=[],
        numbers={"max_rel": (0.0, 0), "nonzero_where_expected_zero": (1, 0)},
        why="one non-zero where the reference is 0: counted apart, never inf or NaN in the summary",
    )


def nan_swallowed():
    return dict(
        expected=np.array([1, 2, 3, 4], f4),
        actual=np.array([1, np.nan, 3, 4], f4),
        call={},
        verdict="FAIL",
        diagnoses=["nan-in-actual"],
        numbers={"nan-in-actual.index": (1, 0)},
        why="fmax of the errors is 0: NaN must be counted first",
    )


def tf32(x):
    u = np.asarray(x, f4).view(np.uint32)
    return ((u + np.uint32(0xFFF) + ((u >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)).view(f4)


def tf32_inputs():
    a, b = R(3).standard_normal((256, 256)).astype(f4), R(4).standard_normal((256, 256)).astype(f4)
    return dict(
        expected=(a.astype(f8) @ b).astype(f4),
        actual=(tf32(a).astype(f8) @ tf32(b).astype(f8)).astype(f4),
        call=dict(op="gemm", layout="nn", inputs={"a": a, "b": b}),
        verdict="FAIL",
        diagnoses=["tf32-like"],
        numbers={"rel_fro": (2.95e-4, 2e-2)},
        why="exact product of operands rounded to 10 fraction bits: TF32 is on",
    )


def k_tail_dropped():
    a, b = R(5).standard_normal((32, 96)).astype(f4), R(6).standard_normal((96, 48)).astype(f4)
    return dict(
        expected=(a.astype(f8) @ b).astype(f4),
        actual=(a[:, :64].astype(f8) @ b[:64]).astype(f4),
        call=dict(op="gemm", layout="nn", inputs={"a": a, "b": b}),
        verdict="FAIL",
        diagnoses=["k-tail-missing"],
        numbers={"rel_fro": (0.564, 5e-3), "k-tail-missing.from_k": (64, 0)},
        why="the last 32 of K=96 are missing",
    )


def scale_of_group_zero_used_for_all_of_k():
    # K = 64 ones, groups of 32, combined block scales 1 and 8
    one = np.ones((16, 64), f4)
    return dict(
        expected=np.full((16, 32), 288, f4),
        actual=np.full((16, 32), 64, f4),
        call=dict(op="gemm", layout="nt", inputs={"a": one, "b": np.ones((32, 64), f4), "a_scale": np.tile(np.array([1, 8], f4), (16, 1))}),
        verdict="FAIL",
        diagnoses=["gain"],
        numbers={"gain.value": (64 / 288, 1e-6)},
        why="uniform gain 0.2222, not a power of two: group 0's scale was used for all of K",
    )


def e8m0_rounding_rule():
    # MX FP4 block maxima; shared exponent bytes by the OCP floor rule and by ceil(log2(amax / 6))
    amax = np.array([2.7, 5.5, 1.2, 3.3, 3.9], f4)  # floor -1 0 -2 -1 -1, rceil -1 0 -2 0 0, even -1 0 -2 -1 0, ceil 0 1 -1 0 0
    byte = lambda e: (e + 127).astype(np.uint8)
    return dict(
        expected=("float8_e8m0fnu", byte(np.floor(np.log2(amax)) - 2)),
        actual=("float8_e8m0fnu", byte(np.ceil(np.log2(amax / 6)))),
        call=dict(op="quantize", recipe="mxfp4", inputs={"amax": amax}),
        verdict="FAIL",
        diagnoses=["scale-rounding-rule"],
        numbers={"mismatch_count": (2, 0)},
        why="the last two exponents are one step apart: floor against rceil, not a GEMM fault",
    )


def fp16_accumulator_overflow():
    x = np.ones(100000, np.float16)  # an fp16 running sum overflows to inf
    return dict(
        expected=np.array([1.0], f4),
        actual=np.array([f4(np.inf) / 100000], f4),
        call=dict(op="mean", inputs={"x": x}),
        verdict="FAIL",
        diagnoses=["inf-in-actual"],
        numbers={},
        why="the fp16 running sum overflows although the true value 1.0 is in range (accumulator-overflow)",
    )


def unsigned_wrap():
    return dict(
        expected=np.array([9, 14], np.uint8),
        actual=np.array([10, 10], np.uint8),
        call={},
        verdict="FAIL",
        diagnoses=[],
        numbers={"max_abs": (4, 0)},
        why="differences of unsigned codes must not wrap to 255",
    )


def ulp_across_signs():
    return dict(
        expected=np.array([2.0, 4.0, -0.0], bf),
        actual=np.array([-2.0, -4.0, 0.0], bf),
        call={},
        verdict="FAIL",
        diagnoses=[],
        numbers={"ulp_max": (33024, 0)},
        why="bf16 4 to -4 is 33024 steps (int16 arithmetic wraps to 32512); -0 and +0 are 0 steps apart",
    )


CASES = {k: v for k, v in list(globals().items()) if callable(v) and getattr(v, "__module__", None) == __name__ and k not in ("tf32",)}

if __name__ == "__main__":
    for name, make in CASES.items():
        c = make()
        print(f"{name:42s} {c['verdict'] or '-':5s} {','.join(c['diagnoses']) or '-':32s} {c['why']}")
