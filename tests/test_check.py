"""check(): the kinds of fault people report, each with its verdict, causes and numbers; and what plain arrays are held to."""

import ml_dtypes
import numpy as np
import pytest
from support_cases import CASES

import accuracy_eval as ae
from accuracy_eval.errors import UsageError, VerdictError

ONES = np.ones((2, 2))


def as_input(x):
    return ae.codes(x[1], format=x[0]) if isinstance(x, tuple) else x


def found(c, name):
    if "." not in name:
        return c.metrics[name]
    code, key = name.split(".")
    return next(d for d in c.diagnoses if d.code == code).evidence[key]


@pytest.mark.parametrize("name", CASES)
def test_a_reported_fault_gets_its_verdict_causes_and_numbers(name):
    case = CASES[name]()
    c = ae.check(as_input(case["actual"]), as_input(case["expected"]), **case["call"])
    if case["verdict"] is not None:
        assert c.verdict == case["verdict"], c.message
    named = [d.code for d in c.diagnoses]
    assert set(case["diagnoses"]) <= set(named), (named, c.message)
    for number, (value, tolerance) in case["numbers"].items():
        assert found(c, number) == pytest.approx(value, rel=tolerance, abs=0), number


def test_the_reference_is_computed_when_nothing_is_expected():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((40, 96), (24, 96)))
    d = (a.astype(np.float64) @ b.T.astype(np.float64)).astype(np.float32)
    c = ae.check(d, op="gemm", layout="nt", inputs={"a": a, "b": b})
    assert (c.verdict, c.contract, c.passed) == ("PASS", "fp32acc", True)
    c.raise_for_verdict()
    d[3, 5] += 1e-3
    c = ae.check(d, op="gemm", layout="nt", inputs={"a": a, "b": b})
    assert c.verdict == "FAIL"
    assert c.message.startswith("FAIL gemm output 'd' (float32): error ")
    assert "at [3, 5]" in c.message
    with pytest.raises(VerdictError, match=r"at \[3, 5\]"):
        c.raise_for_verdict()


def test_a_layout_that_does_not_fit_is_met_with_those_that_do_and_c_without_beta_with_beta():
    a, b, c = np.ones((3, 4), np.float32), np.ones((5, 4), np.float32), np.ones((3, 5), np.float32)
    with pytest.raises(UsageError, match=r"with layout nn contract 4 with 5; layout nt fits"):
        ae.check(a @ b.T, op="gemm", inputs={"a": a, "b": b})
    with pytest.raises(UsageError, match=r"with layout nn contract 3 with 5; layout tt fits"):
        ae.check(a @ b.T, op="gemm", inputs={"a": a.T.copy(), "b": b})
    with pytest.raises(UsageError, match=r'input c has no part in the result without beta; pass options=\{"beta": 1.0\}'):
        ae.check(a @ b.T + c, op="gemm", layout="nt", inputs={"a": a, "b": b, "c": c})
    given = {"op": "gemm", "layout": "nt", "inputs": {"a": a, "b": b, "c": c}}
    assert ae.check(a @ b.T + c, options={"beta": 1.0}, **given).passed
    assert ae.check(a @ b.T, options={"beta": 0.0}, **given).passed


def test_alpha_beta_bias_and_scales_reach_the_reference():
    rng = np.random.default_rng(1)
    a, b, bias = (rng.standard_normal(s).astype(np.float32) for s in ((8, 32), (32, 16), (16,)))
    scale = np.float32([0.5])
    truth = 1.5 * (0.5 * a.astype(np.float64)) @ b.astype(np.float64) + bias
    call = {"op": "gemm", "layout": "nn", "inputs": {"a": a, "b": b, "bias": bias, "a_scale": scale}, "options": {"alpha": 1.5}}
    assert ae.check(truth.astype(np.float32), **call).verdict == "PASS"
    assert ae.check((truth - bias).astype(np.float32), **call).verdict == "FAIL"


def test_a_stated_contract_is_the_one_that_decides():
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    narrow = [(x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64) for x in (a, b)]
    d = (narrow[0] @ narrow[1]).astype(np.float32)
    assert ae.check(d, op="gemm", inputs={"a": a, "b": b}).verdict == "FAIL"
    assert ae.check(d, op="gemm", inputs={"a": a, "b": b}, contract="tf32").verdict == "PASS"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_one_rounding_step_passes_and_a_gain_of_two_fails(dtype):
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = np.random.default_rng(3).standard_normal(400).astype(kind)
    codes = x.view(f"u{kind.itemsize}") + 1
    stepped = codes.astype(f"u{kind.itemsize}").view(kind)
    assert ae.check(stepped, x).verdict == "PASS"
    assert ae.check((x.astype(np.float64) * 2).astype(kind), x).verdict == "FAIL"


def test_torch_tensors_are_taken_as_they_are():
    import torch

    x = torch.arange(12, dtype=torch.float32).reshape(3, 4).to(torch.bfloat16)
    assert ae.check(x.t().contiguous().t(), x).verdict == "PASS"
    assert ae.check(x, x.float()).verdict == "PASS"
    low = x.float().to(torch.float8_e4m3fn)
    assert ae.check(low, low.clone()).metrics["mismatch_count"] == 0


def test_a_gate_of_the_callers_is_added_and_removes_none():
    x = np.ones(8, np.float32)
    assert ae.check(x * np.float32(1.5), x, rtol=10.0).verdict == "FAIL"
    tight = ae.check(x + np.float32(5e-7), x, rtol=1e-9)
    assert tight.verdict == "FAIL"
    assert tight.gates[-1].gate == "tolerance(rtol=1e-09, atol=0)"


def test_shapes_that_differ_fail_with_both():
    c = ae.check(np.ones((2, 3)), np.ones((3, 2)))
    assert (c.verdict, c.diagnoses[0].code) == ("FAIL", "shape-mismatch")
    assert "[2, 3]" in c.message
    assert "[3, 2]" in c.message


def test_a_product_of_another_shape_fails_even_with_as_many_elements():
    a, b = np.ones((6, 8)), np.ones((8, 4))
    for shape in ((4, 6), (24,), (3, 8)):
        c = ae.check(np.full(shape, 8.0), op="gemm", inputs={"a": a, "b": b})
        assert (c.verdict, c.diagnoses[0].code) == ("FAIL", "shape-mismatch")


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (0,), (5,)], ids=str)
@pytest.mark.parametrize("op", ["gemm", "exp", "cast", "sum"])
def test_a_result_of_another_size_is_a_shape_mismatch_for_every_op(op, shape):
    x = np.ones((2, 3), np.float32)
    inputs = {"a": x, "b": x.T} if op == "gemm" else {"x": x}
    c = ae.check(np.ones(shape, np.float32), op=op, inputs=inputs, options={"format": "float32"} if op == "cast" else {})
    assert (c.verdict, c.diagnoses[0].code) == ("FAIL", "shape-mismatch")


@pytest.mark.parametrize(("kind", "name"), [(np.nan, "NaN"), (np.inf, "Inf")])
def test_an_expected_nan_or_inf_that_the_output_has_not_is_told_with_its_index(kind, name):
    e = np.ones((4, 5), np.float32)
    e[2, 3] = e[3, 0] = kind
    found = ae.check(np.ones((4, 5), np.float32), e)
    assert found.message.splitlines()[0].endswith(f"2 of 20 expected elements are {name} where the output is not, the first at [2, 3]")
    assert found.diagnoses[0].evidence == {"index": [2, 3], "count": 2}


def test_the_message_names_the_element_that_breaks_its_budget_not_the_largest_error():
    a = np.diag([1.0, 1.0, 1.0, 1000.0]).astype(np.float32)
    d = a @ a.T
    d[0, 0], d[3, 3] = 1.5, d[3, 3] + 16
    c = ae.check(d, op="gemm", layout="nt", inputs={"a": a, "b": a})
    assert c.metrics["budget_max_index"] == [0, 0]
    assert "at [0, 0]" in c.message.splitlines()[0]
    assert "PASS" in repr(ae.check(a, a))


def test_float64_products_of_any_range_have_their_true_value():
    a, b = np.array([[0.0, 1.0], [1.0, 1.0]]), np.array([[1e300, 1.0], [1e-300, 2.0]])
    right = a @ b
    assert ae.check(right, op="gemm", inputs={"a": a, "b": b}).verdict == "PASS"
    flushed = right.copy()
    flushed[0, 0] = 0.0
    assert ae.check(flushed, op="gemm", inputs={"a": a, "b": b}).verdict == "FAIL"
    tiny = ae.check(np.array([[1e-160]]), op="gemm", inputs={"a": np.array([[0.0, 1.0]]), "b": np.array([[1e160], [1e-160]])})
    assert tiny.metrics["max_abs"] == 0.0


def test_byte_order_and_range_of_arrays_do_not_change_what_they_mean():
    x = np.array([1.0, 2.0])
    assert ae.check(x.astype(">f8"), x).verdict == "PASS"
    assert ae.check(x.astype(">f8"), 4 * x).verdict == "FAIL"
    with pytest.raises(UsageError, match="dtype int64 is no format"):
        ae.check(np.array([-(2**63), 7]), np.array([0, 7]))
    with pytest.raises(UsageError, match="a masked array"):
        ae.check(np.ma.masked_array([1.0, 2.0], [True, False]), x)
    with pytest.raises(UsageError, match="a Seeded is no array of numbers"):
        ae.check(ae.seeded((2, 2)), np.zeros((2, 2), np.float32))
    assert ae.check([1, 2, 3], [1.4, 2.4, 3.4]).verdict == "FAIL"


def test_an_expectation_that_is_itself_off_is_not_passed_over():
    a, b = (np.random.default_rng(6).standard_normal((8, 8)).astype(np.float32) for _ in range(2))
    good = (a.astype(np.float64) @ b).astype(np.float32)
    c = ae.check(good, 2 * good, op="gemm", inputs={"a": a, "b": b})
    assert c.verdict == "WARN"
    assert "`expected` does not" in c.message


def test_reductions_over_nan_and_inf_are_judged():
    x = np.array([[np.nan, 1, 2], [np.inf, 1, 2], [0, 1, 2]], np.float32)
    for op in ("sum", "mean", "max", "logsumexp", "softmax"):
        with np.errstate(invalid="ignore"):
            m = x.astype(np.float64)
            e = np.exp(m - m.max(1, keepdims=True))
            truth = {
                "sum": m.sum(1), "mean": m.mean(1), "max": m.max(1), "logsumexp": m.max(1) + np.log(e.sum(1)),
                "softmax": e / e.sum(1, keepdims=True),
            }[op]  # fmt: skip
        truth = np.where(np.isinf(x.max(1)) & (op == "logsumexp"), np.inf, truth) if truth.ndim == 1 else truth
        assert ae.check(truth.astype(np.float32), op=op, inputs={"x": x}).verdict == "PASS", op


def test_a_tolerance_that_zeros_would_pass_warns():
    x = np.ones(4, np.float32)
    c = ae.check(x, x, rtol=1.0)
    assert (c.verdict, c.diagnoses[-1].code) == ("WARN", "gate-cannot-fail")


def test_empty_arrays_are_inconclusive():
    c = ae.check(np.ones((0, 3)), np.ones((0, 3)))
    assert (c.verdict, c.passed, [d.code for d in c.diagnoses]) == ("INCONCLUSIVE", False, ["empty"])
    a, b = np.ones((0, 5), np.float32), np.ones((5, 4), np.float32)
    c = ae.check(np.ones((0, 4), np.float32), op="gemm", inputs={"a": a, "b": b})
    assert (c.verdict, [d.code for d in c.diagnoses]) == ("INCONCLUSIVE", ["empty"])


def zeros(shapes, **more):
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()} | more


ATTENTION = {"q": (0, 2, 4, 8), "k": (0, 1, 6, 8), "v": (0, 1, 6, 8)}
NO_HEADS = {"q": (2, 0, 4, 8), "k": (2, 1, 6, 8), "v": (2, 1, 6, 8), "grad_out": (2, 0, 4, 8)}
NO_ROWS = {"a": (0, 8), "b": (8, 4)}
GROUPS = zeros({"a": (0, 8), "b": (2, 8, 4)}, group_lens=np.zeros(2, np.int32))
ROWLESS = {"x": (0, 8)}
EMPTY = {
    **{op: (op, (0,), zeros(ROWLESS), "") for op in ("sum", "mean", "max", "norm", "logsumexp")},
    "softmax": ("softmax", (0, 8), zeros(ROWLESS), ""),
    "cubes": ("exp", (2, 0, 3), zeros({"x": (2, 0, 3)}), ""),
    "product": ("gemm", (0, 4), zeros(NO_ROWS), ""),
    "epilogue": ("gemm_epilogue", (0, 4), zeros(NO_ROWS), ""),
    "epilogue's gradient": ("gemm_epilogue", (0, 8), zeros({**NO_ROWS, "grad_y": (0, 4)}), "da"),
    "groups": ("grouped_gemm", (0, 4), GROUPS, ""),
    "groups' gradient": ("grouped_gemm", (0, 8), GROUPS | zeros({"grad_d": (0, 4)}), "da"),
    "no group": ("grouped_gemm", (0, 4), zeros({"a": (0, 8), "b": (0, 8, 4)}, group_lens=np.zeros(0, np.int32)), ""),
    "attention": ("attention", (0, 2, 4, 8), zeros(ATTENTION), ""),
    "attention's gradient": ("attention", (0, 1, 6, 8), zeros({**ATTENTION, "grad_out": (0, 2, 4, 8)}), "dk"),
    "no head": ("attention", (2, 0, 4, 8), zeros(NO_HEADS), "dq"),
    "sent": ("all_to_all", (8, 0), zeros({"x": (8, 0)}), ""),
}
ALL_ZERO = {
    "epilogue": ("gemm_epilogue", (8, 4), zeros({**NO_ROWS, "grad_y": (0, 4)}), "db"),
    "groups": ("grouped_gemm", (2, 8, 4), GROUPS | zeros({"grad_d": (0, 4)}), "db"),
    "no head": ("attention", (2, 1, 6, 8), zeros(NO_HEADS), "dk"),
    "no batch": ("attention", (2,), zeros({**ATTENTION, "grad_out": (0, 2, 4, 8), "sink": (2,)}), "dsink"),
}


def checked(actual, op, inputs, output):
    layout = "bhsd" if op == "attention" else "nn"
    options = {"sink": True} if "sink" in inputs else {}
    return ae.check(actual, op=op, layout=layout, inputs=inputs, options=options, output=output)


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_result_of_an_op_is_inconclusive(name):
    op, shape, inputs, output = EMPTY[name]
    c = checked(np.zeros(shape, np.float32), op, inputs, output)
    assert (c.verdict, [d.code for d in c.diagnoses]) == ("INCONCLUSIVE", ["empty"])


@pytest.mark.parametrize("name", ALL_ZERO)
def test_a_gradient_that_nothing_reaches_is_zero(name):
    op, shape, inputs, output = ALL_ZERO[name]
    assert checked(np.zeros(shape, np.float32), op, inputs, output).verdict == "PASS"
    assert checked(np.full(shape, 1e-30, np.float32), op, inputs, output).verdict == "FAIL"


@pytest.mark.parametrize(("op", "shape"), [("sum", (8,)), ("max", (8,)), ("softmax", (8, 1)), ("exp", (8, 1))])
def test_rows_of_one_element_are_reduced_to_a_vector_and_kept_by_other_ops(op, shape):
    x = np.zeros((8, 1), np.float32)
    other = (8, 1) if shape == (8,) else (8,)
    right = np.full(shape, float(op in ("softmax", "exp")), np.float32)
    assert ae.check(right, op=op, inputs={"x": x}).passed
    assert [d.code for d in ae.check(right.reshape(other), op=op, inputs={"x": x}).diagnoses] == ["shape-mismatch"]


def test_sizes_of_groups_do_not_follow_from_the_number_of_all_rows():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((4052, 3), np.float32), rng.standard_normal((2, 3, 2), np.float32)  # 4052 is 4 · 1013
    d = (a.astype(np.float64) @ b[1]).astype(np.float32)
    lens = np.array([0, 4052], np.int32)
    assert ae.check(d, op="grouped_gemm", inputs={"a": a, "b": b, "group_lens": lens}).passed


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.float8_e4m3fn])
def test_beside_zeros_nothing_passes_that_is_more_than_a_rounding_away(dtype):
    zeros, step = np.zeros(8, dtype), ml_dtypes.finfo(dtype).smallest_subnormal
    assert ae.check(zeros, zeros).passed
    assert ae.check(np.full(8, step), zeros).passed
    c = ae.check(np.full(8, 2 * step, dtype), zeros, atol=1.0)
    assert (c.verdict, c.metrics["max_abs"]) == ("FAIL", float(2 * step))
    assert "zero-reference" in [d.code for d in c.diagnoses]


def test_every_op_is_judged_by_its_own_truth_gradients_too():
    rng = np.random.default_rng(9)
    q, k, v, g = rng.standard_normal((4, 2, 12, 16))  # two heads, one batch
    p = np.exp(q @ k.transpose(0, 2, 1) / 4)
    p /= p.sum(-1, keepdims=True)
    dp = p * (g @ v.transpose(0, 2, 1) - (p * (g @ v.transpose(0, 2, 1))).sum(-1, keepdims=True))
    right = {"dq": dp @ k / 4, "dk": dp.transpose(0, 2, 1) @ q / 4, "dv": p.transpose(0, 2, 1) @ g}
    call = {"op": "attention", "layout": "bhsd", "inputs": {"q": q[None], "k": k[None], "v": v[None]}}
    assert ae.check((p @ v)[None], **call).passed
    assert [d.code for d in ae.check((p @ v)[None] * 1.01, **call).diagnoses] == ["gain"]
    call["inputs"]["grad_out"] = g[None]
    for name, gradient in right.items():
        assert ae.check(gradient[None], output=name, **call).verdict == "PASS", name
    assert ae.check(right["dv"][None], output="dk", **call).verdict == "FAIL"
    with pytest.raises(UsageError, match=r"its outputs are dq .*, dk .*, dv .*; say which it is with output="):
        ae.check(right["dk"][None], **call)


def test_gradients_of_a_product_are_judged_as_the_product_is():
    rng = np.random.default_rng(11)
    a, b, g = (rng.standard_normal(s).astype(np.float32) for s in ((16, 40), (24, 40), (16, 24)))
    call = {"op": "gemm", "layout": "nt", "inputs": {"a": a, "b": b, "grad_d": g}}
    da = g.astype(np.float64) @ b
    assert ae.check(da.astype(np.float32), **call).verdict == "PASS"
    assert ae.check((g.T.astype(np.float64) @ a).astype(np.float32), **call).verdict == "PASS"  # db by its shape
    c = ae.check((da - np.outer(g[:, 7], b[7])).astype(np.float32), **call)
    assert (c.verdict, c.diagnoses[0].code) == ("FAIL", "lost-k")
    with pytest.raises(UsageError, match=r"gradients of op gemm: found grad_d \[24, 16\] float32; expected grad_d \[16, 24\] float32"):
        ae.check(da, **{**call, "inputs": {"a": a, "b": b, "grad_d": np.ascontiguousarray(g.T)}})


@pytest.mark.parametrize("lens", [(30, 0, 35), (20, 20, 20), (0, 0, 0), (70, 0, 0)])
def test_groups_of_any_lengths_are_judged_by_the_products_of_their_rows(lens):
    rng = np.random.default_rng(10)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((70, 48), (3, 32, 48)))
    ends = np.cumsum((0, *lens))
    d = np.zeros((70, 32))
    for i in range(3):
        d[ends[i] : ends[i + 1]] = a[ends[i] : ends[i + 1]].astype(np.float64) @ b[i].T
    call = {"op": "grouped_gemm", "layout": "nt", "inputs": {"a": a, "b": b, "group_lens": np.array(lens)}}
    assert ae.check(d.astype(np.float32), **call).verdict == "PASS"
    at = 30 if lens[0] == 30 else 0
    d[at : at + 3] = a[at : at + 3].astype(np.float64) @ b[1].T  # three rows of another group's matrix
    assert ae.check(d.astype(np.float32), **call).verdict == "FAIL"
    call["inputs"]["group_lens"] = np.array([40, 40, 40])
    with pytest.raises(UsageError, match="group_lens 40, 40, 40; expected lengths that add up to the 70 rows of a, or less"):
        ae.check(d.astype(np.float32), **call)


def test_plain_arrays_that_pass_say_what_would_have_failed():
    ones = np.ones((4, 8), np.float32)
    stated = ae.check(ones, ones).side.resolution
    assert stated["element"] == pytest.approx(1e-5 + 1.3e-6 + 2.0**-24, rel=1e-6)  # atol, rtol·|e|, half an ulp above 1
    for off, verdict in ((0.98, "PASS"), (1.02, "FAIL")):
        actual = ones.copy()
        actual[2, 3] += off * stated["element"]
        assert ae.check(actual, ones).verdict == verdict
        assert ae.check((ones * (1 + off * stated["gain"])).astype(np.float32), ones).verdict == verdict
    assert "would have failed: element 1.14e-5" in ae.check(ones, ones).message
    assert ae.check(np.arange(3), np.arange(3)).side.resolution == {"element": "one code"}
    narrow = ae.codes(np.arange(40, 60, dtype=np.uint8), format="float8_e4m3fn")
    assert ae.check(narrow, narrow).side.resolution == {}  # a step of every code would pass


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_where_nothing_finite_is_expected_nothing_passes(special):
    x = np.full((4, 40), special, np.float32)
    d = np.full((4, 4), special, np.float32)
    for c in (
        ae.check(x, x),
        ae.check(x, op="exp", inputs={"x": x}),
        ae.check(d, op="gemm", inputs={"a": x, "b": np.ones((40, 4), np.float32)}),
    ):
        assert c.verdict == "INCONCLUSIVE"
        assert "no expected element is finite" in c.message
    assert ae.check(np.ones_like(x), x).verdict == "FAIL"


def test_special_functions_and_reductions_are_judged_by_their_limits():
    x = np.linspace(-3, 3, 101, dtype=np.float32)
    assert ae.check(np.exp(x), op="exp", inputs={"x": x}).verdict == "PASS"
    assert ae.check(np.exp(x) * np.float32(1 + 1e-6), op="exp", inputs={"x": x}).verdict == "FAIL"
    rows = np.random.default_rng(4).standard_normal((5, 200)).astype(np.float32)
    assert ae.check(rows.sum(axis=1), op="sum", inputs={"x": rows}).verdict == "PASS"
    assert ae.check(rows[:, :-1].sum(axis=1), op="sum", inputs={"x": rows}).verdict == "FAIL"


def test_an_output_is_explained_by_the_unit_that_made_it():
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((40, 64), (24, 64)))
    bf16 = [x.view(np.uint32) >> 16 for x in (a, b)]
    operands = [ae.codes(x.astype(np.uint16), format="bfloat16") for x in bf16]
    made = ae.datapath.gemm("hopper", operands[0].codes, operands[1].codes, format="bfloat16", out="float32")
    e = ae.explain(ae.codes(made, format="float32"), layout="nt", inputs={"a": operands[0], "b": operands[1]}, unit="sm_90")
    assert (e.fraction, e.status, e.description) == (1.0, "identified", "T16.25.23 fwd")
    made[3, 3] ^= 1
    assert ae.explain(ae.codes(made, format="float32"), layout="nt", inputs={"a": operands[0], "b": operands[1]}, unit="sm_90").fraction < 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"op": "exp", "inputs": {"x": ONES}}, "unknown op to explain 'exp'; allowed: gemm"),
        ({"inputs": {"a": ONES}}, "op gemm: input 'b' is missing"),
        ({"inputs": {"a": ONES, "b": ONES}, "options": {"alfa": 2.0}}, "unknown gemm option 'alfa'"),
    ],
)
def test_what_cannot_be_explained_is_one_clear_error(call, message):
    with pytest.raises(UsageError, match=message):
        ae.explain(ONES, **call)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"actual": np.ones(2)}, "check needs expected, or op and inputs"),
        ({"actual": np.ones(2, complex), "expected": np.ones(2)}, "actual: dtype complex128 is no format"),
        ({"actual": np.ones(2), "expected": np.ones(2), "op": "conv"}, "unknown op 'conv'"),
        ({"actual": ONES, "op": "gemm", "inputs": {"a": ONES}}, "input 'b' is missing"),
        (
            {"actual": np.ones((2, 2)), "op": "gemm", "inputs": {"a": np.ones((2, 2)), "b": np.ones((2, 2)), "z": np.ones(1)}},
            "unknown gemm input 'z'",
        ),
        ({"actual": np.ones(2), "expected": np.ones(2), "atol": -1.0}, "tolerances are 0 or more"),
        ({"actual": np.ones(2), "expected": np.ones(2), "gates": "nonsense"}, "unknown gates profile 'nonsense'"),
        ({"actual": np.ones(2), "expected": np.ones(2), "gates": "exact"}, "gates='exact' needs op and inputs"),
        ({"actual": np.ones(2), "op": "exp", "inputs": {"x": np.ones(2)}, "options": {"alfa": 2.0}}, "unknown exp option 'alfa'"),
        ({"actual": np.ones(2), "op": "cast", "inputs": {"x": np.ones(2)}}, "op cast: needs"),
        (
            {"actual": ONES, "op": "gemm", "inputs": {"a": ONES, "b": ONES}, "options": {"alpha": "x"}},
            "option alpha = 'x'; expected a number",
        ),
        ({"actual": ONES, "expected": ONES, "rtol": "tight"}, "rtol = 'tight'; expected a number"),
        ({"actual": ONES, "op": "gemm", "inputs": {"a": ONES, "b": ONES}, "gates": None}, "unknown gates profile 'None'"),
        ({"actual": ONES, "op": "rmsnorm", "inputs": {"x": ONES}}, r"found x \[2, 2\] float64; expected x .*, weight"),
        ({"actual": ONES, "op": "attention", "inputs": {"x": ONES}}, "op attention needs layout=, one of bhsd, bshd, sbhd"),
        ({"actual": ONES, "op": "silu", "inputs": {"x": np.ones(4, np.float32), "grad_y": np.ones(4, np.float32)}}, "silu direction 'bwd'"),
        ({"actual": ONES, "expected": ONES, "output": "dk"}, "output='dk' says which of several results"),
        ({"actual": ONES, "op": "batched_gemm", "recipe": "mxfp8", "inputs": {"a": ONES}}, "op batched_gemm with recipe mxfp8"),
        ({"actual": ONES, "op": "pow", "inputs": {"x": ONES}}, "op pow: inputs x; expected x, y"),
        (
            {"actual": ONES, "op": "gemm", "inputs": {"a": ONES, "b": ONES, "a_source": ONES}},
            "a_source .* expected both a_source and b_source",
        ),
    ],
)
def test_what_cannot_be_checked_is_one_clear_error(call, message):
    with pytest.raises(UsageError, match=message):
        ae.check(**call)


def test_codes_of_the_wrong_width_are_refused():
    with pytest.raises(UsageError, match="found dtype uint16; allowed: uint8"):
        ae.codes(np.zeros(2, np.uint16), format="float8_e4m3fnuz")


@pytest.mark.parametrize(("m", "k"), [(0, 8), (3, 0)])
def test_a_product_of_nothing_says_nothing_that_it_has_not_measured(m, k):
    """Neither an empty line of expectations, nor a gain of zeros."""
    a, b = np.zeros((m, k), np.float32), np.zeros((4, k), np.float32)
    c = ae.check(np.zeros((m, 4), np.float32), op="gemm", layout="nt", inputs={"a": a, "b": b})
    assert c.verdict == ("PASS" if m else "INCONCLUSIVE")
    assert "gain " not in c.message
    assert all(line.split(":", 1)[-1].strip() for line in c.message.splitlines() if line.startswith("  "))
