"""attention_fp8: kernels emulated in numpy keep their budgets in both encodings, whatever their blocks; broken ones fail."""

import math
from fractions import Fraction

import ml_dtypes
import mpmath
import numpy as np
import pytest
from support_ops import Known, codes_of

from accuracy_eval.cases import make_case
from accuracy_eval.cpu_ref.attention import Attention, Narrow, factors, forward
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode
from accuracy_eval.gates import load_profile
from accuracy_eval.inputs import INPUT_CLASSES
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import side_of
from accuracy_eval.ops.attention import scale_of
from accuracy_eval.ops.attention_fp8 import ATTENTION_FP8
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.records import Coded, Verdict

every = pytest.mark.parametrize
FORMS = [{}, {"causal": True, "scales": "head", "p_scale": 240.0}, {"scales": "block", "window": 16}]
EIGHT_BITS = {"ocp": ml_dtypes.float8_e4m3fn, "fnuz": ml_dtypes.float8_e4m3fnuz}


def known(shape=(1, 4, 2, 128, 128, 64), layout="bhsd", input_class="normal", **options):
    fields = {"format": "fp8_e4m3", "recipe": "tensorwise", "layout": layout, "input_class": input_class}
    return Known("attention_fp8", shape, **fields, options=options)


def operands(inputs):
    """q, k, v of layout bhsd as numbers, scales by token included."""
    for n in "qkv":
        codes, scale = (decode(inputs[x].codes, inputs[x].format) for x in (n, f"{n}_scale"))
        if scale.ndim == 3:
            scale = np.repeat(scale, 128, axis=2)
        yield codes * scale.reshape(scale.shape + (1,) * (4 - scale.ndim)) if scale.ndim else codes * scale


def truncated_sums(a, b):
    """a·b in 14 bits: 32 products at a time, running sums and products cut at 2^-13 of the larger."""
    total = np.zeros((*a.shape[:3], b.shape[3]))
    for first in range(0, a.shape[3], 32):
        part = a[..., first : first + 32] @ b[:, :, first : first + 32]
        unit = np.exp2(np.floor(np.log2(np.maximum(np.maximum(np.abs(total), np.abs(part)), 1e-30))) - 13)
        total = np.trunc(np.trunc(total / unit) + np.trunc(part / unit)) * unit
    return total.astype(np.float32)


def kernel(
    case, q, k, v, *, block, encoding="ocp", p_scale=1.0, eight_bits=True, sum_of_rounded=False, late_rescale=True, product=np.matmul
):
    """What a fused kernel does: blocks of keys, a running maximum, weights in 8 bits relative to it."""
    options, dtype = dict(case.options), EIGHT_BITS[encoding]
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    s = product(q, k.swapaxes(2, 3)).astype(np.float32) * np.float32(scale_of(case))
    i, j = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None, :]
    if options.get("causal") or options.get("window"):
        s = np.where((j <= i) & (j > i - options.get("window", 10**6)), s, -np.inf)
    top = np.full((*s.shape[:3], 1), -np.inf, np.float32)
    out, total = np.zeros((*s.shape[:3], v.shape[3]), np.float32), np.zeros_like(top)
    for first in range(0, s.shape[3], block):
        part = s[..., first : first + block]
        found = np.maximum(top, part.max(axis=3, keepdims=True))
        with np.errstate(invalid="ignore"):
            kept = np.where(found == -np.inf, 0, np.exp(top - found)) if late_rescale else 1.0
            w = np.where(part == -np.inf, 0, np.exp(part - found))
        rounded = (w * p_scale).astype(dtype).astype(np.float32) / p_scale if eight_bits else w
        out = out * kept + product(rounded, v[:, :, first : first + block].astype(np.float32))
        total = total * kept + (rounded if sum_of_rounded else w).sum(axis=3, keepdims=True)
        top = found
    return out / total, (top + np.log(total))[..., 0]


def test_values_are_those_of_exact_arithmetic_on_codes_and_scales():
    k = known((1, 2, 1, 3, 3, 4), causal=True, scales="head", lse=True)
    q, key, v = operands(k.inputs)
    for h in range(2):
        for i in range(3):
            dots = [
                sum(Fraction(x) * Fraction(y) for x, y in zip(q[0, h, i].tolist(), r, strict=True)) for r in key[0, 0, : i + 1].tolist()
            ]
            with mpmath.workdps(40):
                weights = [mpmath.exp(mpmath.mpf(d.numerator) / d.denominator / 2) for d in dots]  # 1/√4
                total = mpmath.fsum(weights)
                wanted = [
                    float(mpmath.fsum(w * c for w, c in zip(weights, col, strict=True)) / total) for col in v[0, 0, : i + 1].T.tolist()
                ]
                np.testing.assert_allclose(k.truth("out")[0, h, i], wanted, rtol=1e-13)
                assert k.truth("lse")[0, h, i] == pytest.approx(float(mpmath.log(total)), rel=1e-13)


@every("options", FORMS, ids=["tensor", "head", "block"])
@every("sum_of_rounded", [False, True], ids=["sum", "sum of rounded"])
def test_kernels_of_any_block_keep_their_budgets(options, sum_of_rounded):
    for input_class in ("normal", "outlier", "relu", "integers"):
        k = known(input_class=input_class, lse=True, **options)
        q, key, v = operands(k.inputs)
        for block in (16, 64, 128):
            found = kernel(k.case, q, key, v, block=block, p_scale=options.get("p_scale", 1.0), sum_of_rounded=sum_of_rounded)
            for name, values in zip(("out", "lse"), found, strict=True):
                side = k.judged(name, values)
                assert side.verdict is Verdict.PASS, (input_class, block, name, side.metrics["budget_max"])


@every("options", FORMS, ids=["tensor", "head", "block"])
def test_what_torch_computes_passes_for_every_input_class(options):
    layouts = ("bhsd", "bshd", "sbhd")
    off = [known((1, 4, 2, 128, 128, 32), layouts[i % 3], c, lse=True, **options).healthy() for i, c in enumerate(INPUT_CLASSES)]
    assert [o for o in off if o] == []


def test_an_fnuz_part_has_codes_of_its_own_and_is_judged_by_them():
    case = make_case("attention_fp8", tuple(zip("bhgstd", (1, 2, 2, 64, 64, 32), strict=True)), format="fp8_e4m3", recipe="tensorwise")
    inputs = stored_inputs(ATTENTION_FP8, case, "fnuz", operand_codes(ATTENTION_FP8, case, "fnuz"))
    assert {inputs[n].format for n in "qkv"} == {"float8_e4m3fnuz"}
    reference = ATTENTION_FP8.reference(case, inputs, "fnuz", "fp32acc")["out"]  # what gfx942 adds in
    output = ATTENTION_FP8.outputs(case, "fnuz")[0]
    right = kernel(case, *operands(inputs), block=32, encoding="fnuz")[0]
    in_ocp = kernel(case, *operands({n: Coded(c.codes, c.format.removesuffix("uz")) for n, c in inputs.items()}), block=32)[0]
    for out, verdict in ((right, Verdict.PASS), (in_ocp, Verdict.FAIL)):
        codes = out.astype(ml_dtypes.bfloat16).view(np.uint16)
        side = side_of("me", Coded(codes, output.format), contract=reference.contract)
        result = judge_tensor(Subject.of(case, output), [side], {"me": reference}, load_profile("default"))
        assert result.sides[0].verdict is verdict


@every("options", FORMS[:2], ids=["tensor", "head"])
def test_broken_kernels_fail(options):
    k = known(lse=True, **options)
    q, key, v = operands(k.inputs)
    scale = decode(k.inputs["v_scale"].codes, "float32")
    lost = v.copy()
    lost[:, :, 40:44] = 0
    three_bits = kernel(k.case, q, key, v, block=128, eight_bits=False)[0]
    e5m2 = dict(EIGHT_BITS, ocp=ml_dtypes.float8_e5m2)
    healthy, lse = kernel(k.case, q, key, v, block=64)
    assert [k.judged(n, x).verdict for n, x in (("out", healthy), ("lse", lse))] == [Verdict.PASS] * 2
    faults = {
        "scale of v ignored": healthy / scale.mean(),
        "a maximum that is found late": kernel(k.case, q, key, v, block=16, late_rescale=False)[0],
        "four keys lost": kernel(k.case, q, key, lost, block=64)[0],
        "heads exchanged": healthy[:, ::-1],
        "4 % of gain": healthy * 1.04,
        "one row": np.where(np.arange(128)[:, None] == 77, healthy * 1.2, healthy),
        "scale of q of another tensor": kernel(k.case, q * 1.3, key, v, block=64)[0],
    }
    assert {n for n, x in faults.items() if k.judged("out", x).verdict is not Verdict.FAIL} == set()
    assert k.judged("lse", lse + 0.02).verdict is Verdict.FAIL
    assert k.judged("out", three_bits).verdict is Verdict.PASS  # better than promised
    EIGHT_BITS.update(e5m2)
    try:
        coarse = kernel(k.case, q, key, v, block=64)[0]
    finally:
        EIGHT_BITS.update(ocp=ml_dtypes.float8_e4m3fn)
    assert k.judged("out", coarse).verdict is Verdict.FAIL  # weights with two bits of fraction
    assert "gain" in codes_of(k.judged("out", healthy * 2))


@every("input_class", ["normal", "outlier"])
@every("scales", ["tensor", "head"])
def test_the_scale_of_another_operand_or_head_fails(scales, input_class):
    k = known(input_class=input_class, scales=scales)
    q, key, v = operands(k.inputs)
    own = {n: decode(k.inputs[f"{n}_scale"].codes, "float32").reshape(1, -1, 1, 1) for n in "qkv"}

    def out(**used):
        moved = {n: x * (used.get(n, own[n]) / own[n]) for n, x in zip("qkv", (q, key, v), strict=True)}
        return k.judged("out", kernel(k.case, moved["q"], moved["k"], moved["v"], block=64)[0]).verdict

    assert out() is Verdict.PASS
    faults = {"q for v": {"v": own["q"][:, : own["v"].shape[1]]}, "k for v": {"v": own["k"]}, "v for k": {"k": own["v"]}}
    if scales == "head":
        faults |= {f"{n} of another head": {n: own[n][:, ::-1]} for n in "qkv"}
    assert {n for n, used in faults.items() if out(**used) is not Verdict.FAIL} == set()


@every("options", [*FORMS[:2], {"causal": True}, {"window": 16}, {"scales": "head", "p_scale": 100.3}], ids=str)
def test_a_factor_that_a_head_shares_is_told_from_roundings(options):
    """Twice what blocks of any length, sums of rounded weights, 14-bit sums and a p_scale that is rounded itself come to is allowed."""
    for input_class in ("normal", "uniform", "relu", "outlier", "cancellation"):
        k = known(input_class=input_class, **options)
        q, key, v = operands(k.inputs)

        def judged(q, v, key=key, k=k, factor=1.0, **how):
            return k.judged("out", factor * kernel(k.case, q, key, v, p_scale=options.get("p_scale", 1.0), **how)[0])

        for how in ({"block": 16}, {"block": 64, "sum_of_rounded": True}, {"block": 128, "product": truncated_sums}):
            side = judged(q, v, **how)
            assert side.verdict is Verdict.PASS
            assert max(side.metrics["values_factor"], side.metrics["scores_factor"]) < 0.5
        if options.get("p_scale") == 100.3:  # 104 in 8 bits: weights of 1 are 3.7 % larger
            continue
        if input_class in ("normal", "uniform", "relu"):
            side = judged(q, v, factor=np.array([1, 1.03, 1, 1])[:, None, None], block=64)
            assert "head-values" in [g.gate for g in side.gates if g.passed is False]
            assert side.metrics["values_factor_index"] == [0, 1]
            assert side.diagnoses == ()
        if input_class == "normal":
            side = judged(q * 1.03, v, block=64)
            assert "head-scores" in [g.gate for g in side.gates if g.passed is False]


@every("input_class", ["absmax", "tiny", "uniform"])
def test_weights_that_round_alike_are_no_factor(input_class):
    """Scores of a few hundredths: every weight lies within a step or two of 1, however many keys there are."""
    k = known((1, 2, 2, 64, 1024, 32), input_class=input_class)
    q, key, v = operands(k.inputs)
    for how in ({"block": 64}, {"block": 1024, "sum_of_rounded": True}):
        out = k.judged("out", kernel(k.case, q, key, v, **how)[0])
        assert max(out.metrics["values_factor"], out.metrics["scores_factor"]) < 0.5


def test_a_factor_may_be_eight_deviations_of_independent_roundings():
    """Of 256 keys of weights between 1/2 and 1, each but the largest off by up to half a step of e4m3 there, 2^-5."""
    rng = np.random.default_rng(0)
    s, t, d = 32, 256, 16
    q, k, v = rng.uniform(0.5, 1, (1, 1, s, 1)), rng.uniform(-np.log(2), 0, (1, 1, t, 1)), rng.normal(0, 1, (1, 1, t, d))
    problem = Attention(q, k, v, 1.0, False, 0, "float32", narrow=Narrow("float8_e4m3fn", 1.0, 2.0**-23, 4))
    exact = forward(problem)["out"].values[0, 0]
    allowed = 0.02 / factors(problem, 1.02 * exact[None, None], "float32")["values"].use
    weights = np.exp(q[0, 0] @ k[0, 0].T)
    largest = weights == weights.max(axis=1, keepdims=True)
    fits = []
    for _ in range(400):
        drawn = weights + np.where(largest, 0, rng.uniform(-(2.0**-5), 2.0**-5, (s, t)))
        moved = drawn @ v[0, 0] / weights.sum(axis=1, keepdims=True)
        fits.append(np.vdot(moved, exact) / np.vdot(exact, exact) - 1)
    assert 8 * np.std(fits) < allowed < 30 * np.std(fits)  # weights may lie at the bottom of their binades, gain 2^-8, and round alike


def test_the_limit_of_lines_is_twice_the_error_of_an_emulation():
    k = known((1, 2, 2, 256, 256, 64))
    q, key, v = operands(k.inputs)
    error = kernel(k.case, q, key, v, block=64)[0] - k.truth("out")
    uses = []
    for factor in (1, 4):
        side = k.judged("out", k.truth("out") + factor * error)
        uses.append((side.verdict, side.metrics["tile_budget"]))
    assert uses[0][0] is Verdict.PASS
    assert 0.7 / 3 < uses[0][1] < 0.7 / 1.8
    assert uses[1][0] is Verdict.FAIL


@every(("keys", "most"), [(1, math.log(16 / 15)), (100, 8 / 16 / math.sqrt(3 * 100))])
def test_lse_may_be_of_a_sum_of_rounded_weights(keys, most):
    """Equal weights: each loses a sixteenth at most, all of them together no more, and many of them 8 standard deviations."""
    zeros = np.zeros((1, 1, keys, 1))
    narrow = Narrow("float8_e4m3fn", 1.0, 2.0**-23, 4)
    found = forward(Attention(np.ones((1, 1, 1, 1)), zeros, zeros, 1.0, False, 0, "float32", narrow=narrow))["lse"]
    assert found.budget.item() == pytest.approx(most, rel=0.001)


def test_weights_far_below_the_largest_are_coarse_by_the_scale_of_the_weights():
    q, k, v = np.array([[[[1.0]]]]), np.array([[[[0.0], [-6.0]]]]), np.array([[[[0.0], [64.0]]]])  # e^-6 = 0.0025

    def budget(p_scale):
        narrow = Narrow("float8_e4m3fn", p_scale, 2.0**-23, 4)
        return forward(Attention(q, k, v, 1.0, False, 0, "float32", narrow=narrow))["out"].budget.item()

    first, p = 1 / (1 + math.exp(-6)), math.exp(-6) / (1 + math.exp(-6))
    for scale, half in ((1.0, first * 2.0**-10), (240.0, p * 2.0**-4)):  # half the smallest subnormal; half a step of its own
        of_the_sum = math.hypot(first * 2.0**-4, half) * 64 * p
        assert budget(scale) == pytest.approx(8 * math.hypot(half * 64, of_the_sum) / math.sqrt(3), rel=0.001)


@every(
    ("sizes", "options", "message"),
    [
        ((1, 2, 2, 8, 8, 4), {"scales": "row"}, "allowed: tensor, head, block"),
        ((1, 2, 2, 130, 130, 4), {"scales": "block"}, "needs whole blocks"),
        ((1, 2, 2, 8, 8, 4), {"p_scale": 448.0}, "up to 240"),
        ((1, 3, 2, 8, 8, 4), {}, "h must be a multiple of g"),
    ],
)
def test_what_it_cannot_be_is_refused(sizes, options, message):
    with pytest.raises(UsageError, match=message):
        make_case("attention_fp8", tuple(zip("bhgstd", sizes, strict=True)), format="fp8_e4m3", recipe="tensorwise", options=options)
