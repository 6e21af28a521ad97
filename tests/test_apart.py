"""What two outputs may be apart where no reference judges them: the budgets of both sides, and nothing passes that was not checked."""

import math
import re

import numpy as np
import pytest
import support_units as units
from test_compare import SHAPE, dump_with, right

from accuracy_eval import apart
from accuracy_eval.apart import Apart
from accuracy_eval.cases import make_case
from accuracy_eval.compare import compare_dumps
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.sampling import sample_lines
from accuracy_eval.formats import decode, encode
from accuracy_eval.gates import load_profile
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import side_of
from accuracy_eval.ops.gemm import product_reference
from accuracy_eval.ops.spec import Output
from accuracy_eval.records import Attribution, Case, Coded, TensorResult, Verdict


def product(m: int = 40, n: int = 36, k: int = 64, fmt: str = "bfloat16") -> Gemm:
    a, b = units.operands("normal", max(m, n), k, fmt, seed=k)
    return Gemm(Coded(a[:m], fmt), Coded(b[:n], fmt), "nt")


def truth(problem: Gemm) -> np.ndarray:
    return problem.a_values(slice(0, problem.m), slice(0, problem.k)) @ problem.b_values(slice(0, problem.k), slice(0, problem.n))


def judged(
    problem: Gemm,
    a: np.ndarray,
    b: np.ndarray,
    out: str = "float32",
    contracts: tuple[str, str] = ("fp32acc", "fp32acc"),
    known: bool = True,
) -> TensorResult:
    """Two results, values rounded once to `out`, judged against each other alone; `known`: the operands are."""
    shape = (problem.m, problem.n)
    case = Case("gemm", (("m", problem.m), ("n", problem.n), ("k", problem.k)), "nt", "bfloat16", out, "", (), "normal", "random", "fwd", 0)
    sides = [side_of(label, Coded(encode(v, out), out), contract=c) for label, v, c in zip("ab", (a, b), contracts, strict=True)]
    references = {s.label: product_reference(problem, s.contract, out) for s in sides}
    limits = Apart(dict.fromkeys("ab", "ocp"), references) if known else None
    return judge_tensor(Subject(case, Output("d", shape, out), "case", "gemm"), sides, {}, load_profile("default"), apart=limits)


def verdict_of(result: TensorResult) -> tuple[Verdict, Attribution]:
    assert {s.verdict for s in result.sides} == {Verdict.INCONCLUSIVE}  # nobody passes by itself
    return result.verdict, result.pairs[0].attribution


@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float32"])
def test_noise_of_one_percent_between_two_dumps_fails(tmp_path, fmt):
    def noisy(values, a, b):
        return values * (1 + 0.01 * np.random.default_rng(3).standard_normal(values.shape))

    case = make_case("gemm", SHAPE, format=fmt)
    dumps = [dump_with(tmp_path, name, case, change) for name, change in (("a", right), ("b", noisy))]
    (result,) = compare_dumps(*dumps, reference="none").tensors
    assert verdict_of(result) == (Verdict.FAIL, Attribution.UNDETERMINED)
    assert re.match(r"\d+ of 6144 elements are further apart than both budgets allow: [\d.e]+ × at", result.pairs[0].sentence)


@pytest.mark.parametrize("out", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("unit", [u for u in units.HEALTHY if "bfloat16" in u.formats], ids=lambda u: u.name.replace(" ", "-"))
def test_two_healthy_units_are_near_enough_whatever_the_data(unit, out):
    for kind in units.KINDS:
        a, b = units.operands(kind, 40, 96, "bfloat16", seed=7)
        problem = Gemm(Coded(a, "bfloat16"), Coded(b, "bfloat16"), "nt")
        result = judged(problem, units.pairs(unit.run, a, b, "bfloat16"), truth(problem), out)
        assert result.verdict is Verdict.PASS, (kind, result.pairs[0].sentence)


def test_the_sum_of_both_budgets_is_what_may_lie_between():
    problem = product()
    (panel,) = product_reference(problem, "fp32acc", "float32").panels()
    most = 2 * panel.budget[3, 4]
    for share, expected in ((0.95, Verdict.PASS), (1.1, Verdict.FAIL)):
        other = panel.values.copy()
        other[3, 4] += share * most
        result = judged(problem, panel.values, other)
        assert result.verdict is expected
        assert "at [3, 4]" in result.pairs[0].sentence


def test_a_looser_promise_of_one_side_widens_what_may_lie_between():
    problem = product(fmt="float32")
    values = truth(problem)
    cut = [
        decode(encode(x, "tfloat32"), "tfloat32")
        for x in (problem.a_values(slice(0, 40), slice(0, 64)).T, problem.b_values(slice(0, 64), slice(0, 36)))
    ]
    tf32 = cut[0].T @ cut[1]
    assert judged(problem, tf32, values).verdict is Verdict.FAIL
    assert judged(problem, tf32, values, contracts=("tf32", "fp32acc")).verdict is Verdict.PASS


def test_an_infinity_beside_the_largest_number_is_near_where_both_budgets_span_the_threshold():
    a, b = encode(np.array([[255.875, 4.0]]), "float16"), encode(np.array([[256.0, 4.0]]), "float16")  # 65520 is where Inf begins
    problem = Gemm(Coded(a, "float16"), Coded(b, "float16"), "nt")
    for first, second in ((65504.0, math.inf), (math.inf, 65504.0)):
        assert judged(problem, np.array([[first]]), np.array([[second]]), "float16").verdict is Verdict.PASS
    assert judged(problem, np.array([[60000.0]]), np.array([[math.inf]]), "float16").verdict is Verdict.FAIL


def test_what_no_operands_limit_could_not_be_checked():
    problem = product()
    values = truth(problem)
    near = judged(problem, values, values * (1 + 2e-6), known=False)
    assert verdict_of(near) == (Verdict.INCONCLUSIVE, Attribution.UNDETERMINED)
    assert near.pairs[0].sentence.startswith("could not check: no operands say how far apart these may be; relative difference 2e-6")
    far = judged(problem, values, values * 1.1, known=False)
    assert far.verdict is Verdict.FAIL


def test_companions_of_integers_must_be_equal(tmp_path):
    def one_more(values, a, b):
        values = values.copy()
        values[5, 6] += 1
        return values

    case = make_case("gemm", SHAPE, format="bfloat16", lane="exact")
    dumps = [dump_with(tmp_path, name, case, change) for name, change in (("a", right), ("b", one_more))]
    (result,) = compare_dumps(*dumps, reference="none").tensors
    assert result.verdict is Verdict.FAIL
    assert result.pairs[0].sentence.startswith("1 elements differ; every order of these sums gives the same bits")


# --- large products


@pytest.fixture
def sampled(monkeypatch):
    monkeypatch.setattr(apart, "FULL_FLOP", 0)
    return product(200, 150, 32)


@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_a_large_product_is_checked_on_some_lines_and_says_so(sampled, out):
    values = truth(sampled)
    result = judged(sampled, values, values.astype(np.float32) * np.float32(1 + 1e-7), out)
    assert result.verdict is Verdict.PASS
    seen = 64 * (200 + 150)
    assert result.pairs[0].sentence.startswith(f"sampled: {seen} elements of 64 rows and 64 columns are as near as both budgets allow")


@pytest.mark.parametrize("axis", [0, 1], ids=["row", "column"])
def test_a_line_outside_the_sample_is_seen_by_its_norm(sampled, axis):
    values = truth(sampled)
    left = np.setdiff1d(np.arange(values.shape[axis]), sample_lines(values.shape[axis]))
    others = np.setdiff1d(np.arange(values.shape[1 - axis]), sample_lines(values.shape[1 - axis]))
    spoilt = values.copy()
    spoilt[(left[0], others) if axis == 0 else (others, left[0])] *= 1.001
    result = judged(sampled, values, spoilt)
    assert result.verdict is Verdict.FAIL
    assert f"1 {('row', 'column')[axis]} (first: {left[0]})" in result.pairs[0].sentence


def test_an_element_of_a_sampled_line_fails_by_its_budget(sampled):
    values = truth(sampled)
    spoilt = values.copy()
    spoilt[sample_lines(200)[5], 77] += 1e-3
    result = judged(sampled, values, spoilt)
    assert result.verdict is Verdict.FAIL
    assert f"at [{sample_lines(200)[5]}, 77]" in result.pairs[0].sentence
