"""Gates on many elements together: rows, columns and 128 × 128 tiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
import support_units as units

from accuracy_eval.cases import make_case
from accuracy_eval.cpu_ref.gemm import Gemm, panels
from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.gates import load_profile
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import side_of
from accuracy_eval.messages import result_message
from accuracy_eval.metrics.aggregates import LIMIT, AggregateMeter
from accuracy_eval.metrics.registry import AGGREGATES
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Output, Panel, Reference
from accuracy_eval.records import Case, Coded, TensorResult, Verdict
from accuracy_eval.resolution import ResolutionMeter

FP64 = get_format("float64")


def product(k: int = 64, m: int = 40, n: int = 36, fmt: str = "float32") -> tuple[Gemm, Panel]:
    a, b = units.operands("normal", max(m, n), k, fmt, seed=k)
    problem = Gemm(Coded(a[:m], fmt), Coded(b[:n], fmt), "nt")
    (p,) = panels(problem, contract="fp32acc", out_format=fmt)
    return problem, Panel(0, p.values, p.budget, p.typical)


def judged(problem: Gemm, panel: Panel, codes: np.ndarray, fmt: str = "float32") -> TensorResult:
    m, n = panel.values.shape
    case = Case("gemm", (("m", m), ("n", n), ("k", problem.k)), "nt", fmt, "", "", (), "normal", "random", "fwd", 0)
    reference = Reference("values", fmt, (m, n), "fp32acc", lambda: iter((panel,)), problem)
    side = side_of("mine", Coded(codes, fmt), contract="fp32acc")
    return judge_tensor(Subject(case, Output("d", (m, n), fmt), "gemm", "gemm"), [side], {"mine": reference}, load_profile("default"))


def uses(actual: np.ndarray, values: np.ndarray, typical: np.ndarray, *, height: int = 1 << 20):
    meter = AggregateMeter(*values.shape, FP64)
    for first in range(0, len(values), height):
        part = slice(first, first + height)
        meter.update(first, encode(actual[part], FP64), values[part], typical[part])
    return meter.result()


@pytest.mark.parametrize("unit", units.HEALTHY, ids=lambda u: u.name.replace(" ", "-"))
def test_rows_and_columns_of_healthy_units_stay_far_below_their_limit(unit):
    for kind in units.KINDS:
        fmt = unit.formats[0]
        a, b = units.operands(kind, 33, 100, fmt, seed=3)
        (p,) = panels(Gemm(Coded(a, fmt), Coded(b, fmt), "nt"), contract=unit.contract)
        found = uses(units.pairs(unit.run, a, b, fmt), p.values, p.typical)
        assert max(found.row[1], found.column[1], found.tile[1]) <= 0.45, kind


def test_the_use_of_a_line_is_the_root_mean_square_of_its_elements_uses():
    values, typical = np.full((40, 200), 1.0), np.full((40, 200), 0.25)
    actual = values.copy()
    actual[7, :100] += 0.5  # two typical budgets in half of a row, the first 100 columns of which lie in tile 0
    actual[:, 190] -= 0.25
    found = uses(actual, values, typical)
    assert found.row == (7, pytest.approx(math.sqrt((100 * 4 + 1) / 200), rel=1e-12))
    assert found.column == (190, pytest.approx(1.0, rel=1e-12))
    assert found.tile == ((0, 0), pytest.approx(math.sqrt(100 * 4 / (40 * 128)), rel=1e-12))


def test_the_height_of_panels_changes_nothing():
    rng = np.random.default_rng(0)
    values, typical = rng.standard_normal((300, 150)), rng.random((300, 150)) + 0.1
    actual = values + rng.standard_normal((300, 150)) * 0.1
    whole, parts = uses(actual, values, typical), uses(actual, values, typical, height=100)
    assert parts.row == whole.row
    assert parts.tile == whole.tile
    assert parts.column == (whole.column[0], pytest.approx(whole.column[1], rel=1e-13))


@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_a_correctly_rounded_output_uses_nothing_and_one_step_uses_the_rest(fmt):
    f = get_format(fmt)
    codes = np.array([c for c in range(1 << (f.bits - 1)) if np.isfinite(decode(np.array([c], f.storage), f)[0])], f.storage)
    values = decode(codes, f)
    rng = np.random.default_rng(2)
    low, high = values[:-2], values[1:-1]
    truth = low + (high - low) * rng.uniform(0.01, 0.49, low.size)
    meter = AggregateMeter(1, low.size, f)
    meter.update(0, codes[None, :-2], truth[None], np.ones((1, low.size)))
    assert meter.result().row == (0, 0.0)
    meter = AggregateMeter(1, low.size, f)
    meter.update(0, codes[None, 1:-1], truth[None], np.ones((1, low.size)))
    # the code above begins half way between the two
    want = math.sqrt(np.mean(np.square((low + high) / 2 - truth)))
    assert meter.result().row == (0, pytest.approx(want, rel=1e-12))


def test_elements_that_are_not_finite_are_left_to_the_class_table():
    values, typical = np.ones((1, 40)), np.ones((1, 40))
    actual = values.copy()
    actual[0, :3] = np.nan, np.inf, -np.inf
    assert uses(actual, values, typical).row == (0, 0.0)
    actual[0, :9] = np.nan
    assert uses(actual, values, typical).row is None  # 31 are left


@pytest.mark.parametrize("k", [64, 1000])
@pytest.mark.parametrize(("gate", "where"), [("rows", (slice(7, 8), slice(None))), ("columns", (slice(None), slice(7, 8)))])
def test_a_line_whose_every_element_keeps_its_budget_fails_together(k, gate, where):
    problem, panel = product(k)
    actual = panel.values.copy()
    signs = np.random.default_rng(1).choice([-1.0, 1.0], actual.shape)
    actual[where] += 0.6 * (signs * panel.budget)[where]
    result = judged(problem, panel, encode(actual, "float32"))
    (side,) = result.sides
    assert side.verdict is Verdict.FAIL
    assert [g.gate for g in side.gates if g.passed is False] == [gate]
    assert f"{gate[:-1]} 7 uses" in result_message(result)
    assert "rounding-only" not in [d.code for d in side.diagnoses]


@pytest.mark.parametrize(
    ("op", "shape"),
    [("batched_gemm", (("b", 3), ("m", 20), ("n", 40), ("k", 64))), ("grouped_gemm", (("g", 3), ("m", 60), ("n", 40), ("k", 64)))],
)
def test_a_row_of_a_batched_or_grouped_product_is_judged_as_a_whole_too(op, shape):
    case, spec = make_case(op, shape, format="float32"), get_op(op)
    inputs = stored_inputs(spec, case, "ocp", operand_codes(spec, case, "ocp"))
    (output,) = spec.outputs(case, "ocp")
    reference = spec.reference(case, inputs, "ocp", "fp32acc")[output.name]
    held = list(reference.panels())
    values, budget = (np.concatenate([getattr(p, name) for p in held]) for name in ("values", "budget"))
    values[7] += 0.6 * budget[7]
    side = side_of("mine", Coded(encode(values, output.format).reshape(output.shape), output.format), contract="fp32acc")
    (found,) = judge_tensor(Subject.of(case, output, ""), [side], {"mine": reference}, load_profile("default")).sides
    assert [g.gate for g in found.gates if g.passed is False] == ["rows"]
    assert found.metrics["row_budget_index"] == 7


def test_a_tile_is_caught_in_rows_too_long_to_show_it():
    problem, panel = product(16, 128, 2048)
    actual = panel.values.copy()
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (128, 128))
    actual[:, 256:384] += 0.5 * signs * panel.budget[:, 256:384]
    broken = {g.gate for g in judged(problem, panel, encode(actual, "float32")).sides[0].gates if g.passed is False}
    assert "tiles" in broken
    assert broken <= {"tiles", "columns"}


def test_short_lines_have_no_gate():
    problem, panel = product(64, 31, 5)
    gates = {g.gate for g in judged(problem, panel, encode(panel.values, "float32")).sides[0].gates}
    assert gates == {"budget", "tiles"}
    assert {g.limit for g in load_profile("default").gates if g.metric in AGGREGATES} == {LIMIT}


def test_the_typical_budget_keeps_the_systematic_error_and_a_quarter_of_the_random_one():
    _, panel = product(64)
    # K = 64 of either sign: the random walk leads
    assert 0.25 < (panel.typical / panel.budget).min() < (panel.typical / panel.budget).max() < 0.7
    one = Coded(encode(np.ones((1, 4096)), "float32"), "float32")
    (p,) = panels(Gemm(one, one, "nt"), contract="fp32acc")
    assert p.typical[0, 0] > 0.85 * p.budget[0, 0]  # equal products err alike


# --- resolution


def meter_of(problem: Gemm, panel: Panel, fmt: str):
    meter, plain = (ResolutionMeter(problem.n, fmt, problem) for _ in range(2))
    meter.update(0, panel.values, panel.budget, panel.typical)
    plain.update(0, panel.values, panel.budget)
    return meter.result(), plain.result()


def test_many_elements_together_sharpen_what_a_pass_would_have_caught():
    problem, panel = product(64, 128, 64)
    sharp, plain = meter_of(problem, panel, "float32")
    assert sharp.row < plain.row
    assert sharp.column < 0.9 * plain.column
    assert sharp.row_95 < 0.7 * plain.row_95
    assert math.isnan(plain.tile)
    rng = np.random.default_rng(5)
    for line in (np.s_[3:4, :], np.s_[:, 9:10], np.s_[:, :]):
        size = {(1, 64): sharp.row, (128, 1): sharp.column}.get(panel.values[line].shape, sharp.tile)
        error = rng.standard_normal(panel.values[line].shape)
        error *= 1.01 * size * np.linalg.norm(panel.values[line]) / np.linalg.norm(error)
        actual = panel.values.copy()
        actual[line] += error
        assert judged(problem, panel, encode(actual, "float32")).sides[0].verdict is Verdict.FAIL


def test_a_lost_product_that_no_element_shows_is_seen_in_its_row():
    k = 64
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((40, k)), rng.standard_normal((40, k))
    a[:, 5], b[:, 5] = 4e-3, 4e-3  # one product about 0.4 of an element's budget, everywhere
    problem = Gemm(Coded(encode(a, "float32"), "float32"), Coded(encode(b, "float32"), "float32"), "nt")
    (p,) = panels(problem, contract="fp32acc")
    panel = Panel(0, p.values, p.budget, p.typical)
    sharp, plain = meter_of(problem, panel, "float32")
    assert (plain.k_seen, plain.k_unseen) == (k - 1, 5)
    assert (sharp.k_seen, sharp.k_unseen) == (k, None)
    lost = problem.a_values(slice(0, 40), slice(5, 6)) @ problem.b_values(slice(5, 6), slice(0, 40))
    (side,) = judged(problem, panel, encode(panel.values - lost, "float32")).sides
    assert side.verdict is Verdict.FAIL
    assert "budget" not in {g.gate for g in side.gates if g.passed is False}


@pytest.mark.parametrize("fmt", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("k", [64, 512])
def test_the_gain_that_a_pass_names_fails_and_a_little_less_passes(k, fmt):
    problem, panel = product(k, 96, 80, fmt)
    size = meter_of(problem, panel, fmt)[0].gain_95
    rounded = decode(encode(panel.values, fmt), fmt)
    for sign in (1, -1):
        above, below = (encode(rounded * (1 + sign * g), fmt) for g in (1.15 * size, 0.85 * size))
        assert judged(problem, panel, above, fmt).sides[0].verdict is Verdict.FAIL
        assert judged(problem, panel, below, fmt).sides[0].verdict is not Verdict.FAIL


def test_the_row_that_uses_most_decides_the_gain_of_a_float32_output():
    problem, panel = product(64, 96, 80)
    sharp, plain = meter_of(problem, panel, "float32")
    assert sharp.gain_95 < 0.9 * plain.gain_95
