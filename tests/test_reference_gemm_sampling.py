from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import support_arrays

from accuracy_eval.cpu_ref.gemm import AUTO_FLOP, Gemm, gradient, panels
from accuracy_eval.cpu_ref.projecting import projections, signs
from accuracy_eval.cpu_ref.sampling import chance_limit, full_reference, limits, sample_lines, sampled_reference
from accuracy_eval.formats import decode

coded = partial(support_arrays.coded, fmt="bfloat16")


def values_of(problem):
    return np.concatenate([p.values for p in panels(problem)])


@pytest.fixture(params=["nn", "nt", "tn", "tt"])
def problem(request):
    rng = np.random.default_rng(1)
    m, n, k = 200, 150, 64
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    layout = request.param
    return Gemm(
        coded(a if layout[0] == "n" else a.T), coded(b if layout[1] == "n" else b.T), layout, 0.5, 2.0,
        coded(rng.standard_normal((m, n))), coded(rng.standard_normal(n)), a_scale=rng.uniform(1, 2, m), b_scale=rng.uniform(1, 2, n),
    )  # fmt: skip


def test_sampled_rows_and_columns_equal_the_full_reference(problem):
    sample = sampled_reference(problem, contract="fp32acc", lines=16)
    full = next(panels(problem, contract="fp32acc", rows=256))
    assert len(sample.rows) == len(set(sample.rows.tolist())) == 16
    np.testing.assert_allclose(sample.row_panel.values, full.values[sample.rows], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(sample.column_panel.values, full.values[:, sample.columns], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(sample.row_panel.budget, full.budget[sample.rows], rtol=1e-5)


def test_projections_are_those_of_the_full_reference(problem):
    p, full = projections(problem, 4), values_of(problem)
    np.testing.assert_allclose(p.of_rows, full @ p.across, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(p.of_columns, full.T @ p.down, rtol=1e-12, atol=1e-9)
    assert (np.abs(p.of_rows - full @ p.across).max(axis=1) <= p.row_noise).all()
    assert (np.abs(p.of_columns - full.T @ p.down).max(axis=1) <= p.column_noise).all()
    assert p.row_noise.max() < 1e-10 * np.abs(full).sum(axis=1).max()


def estimates(sample, actual):
    """Estimates of ‖actual_i − reference_i‖², by the module's docstring."""
    p = sample.projections
    return np.mean((actual @ p.across - p.of_rows) ** 2, axis=1)


def test_the_row_estimate_finds_a_wrong_row_and_its_size_within_the_stated_error(problem):
    sample = sampled_reference(problem, probes=32)
    actual = values_of(problem)
    error = np.random.default_rng(2).standard_normal(problem.n)
    actual[77] += error
    estimate = estimates(sample, actual)
    assert estimate.argmax() == 77
    assert sample.projections.standard_error == 0.25
    assert abs(estimate[77] / np.sum(error**2) - 1) < 4 * 0.25
    assert np.delete(estimate, 77).max() < 1e-18


def test_the_estimate_is_unbiased_over_many_rows():
    problem = Gemm(coded(np.zeros((2000, 1))), coded(np.zeros((1, 300))))
    e = np.random.default_rng(3).standard_normal((2000, 300))
    ratio = estimates(sampled_reference(problem), e) / np.sum(e**2, axis=1)
    assert abs(ratio.mean() - 1) < 4 * 0.5 / np.sqrt(2000)
    assert abs(ratio.std() / 0.5 - 1) < 0.1


def test_the_chance_limit_solves_the_tail_bound_it_stands_for():
    for probes in (1, 8, 32):
        q = chance_limit(probes)
        # log of (q·e^(1−q))^(probes/2); 2·Q(8) = 1.2e-15
        assert probes / 2 * (math.log(q) + 1 - q) == pytest.approx(math.log(1.244192e-15), rel=1e-6)
    assert chance_limit(8) == pytest.approx(12.07, abs=0.01)


@pytest.mark.parametrize("heavy", [None, 3], ids=["even columns", "one column outside the sample a thousand times heavier"])
def test_errors_as_large_as_the_whole_budget_stay_below_the_limits_by_a_factor(heavy):
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((300, 64)), rng.standard_normal((64, 280))
    if heavy is not None:
        b[:, heavy] *= 1000
        assert heavy not in sample_lines(280)
    problem = Gemm(coded(a), coded(b))
    sample = sampled_reference(problem, contract="fp32acc")
    full = next(panels(problem, contract="fp32acc", rows=512))
    limit = limits(sample, "bfloat16")
    half_ulp = np.exp2(np.floor(np.log2(np.abs(full.values))) - 8)
    error = (full.budget + half_ulp) * rng.choice([-1, 1], full.values.shape)
    p = sample.projections
    rows = np.sqrt(np.mean((error @ p.across) ** 2, axis=1)) / limit.rows
    columns = np.sqrt(np.mean((error.T @ p.down) ** 2, axis=1)) / limit.columns
    # chance alone: sqrt(χ²/probes / q), 0.29 in the mean, of 300 lines none beyond 0.7
    assert 0.05 < np.median(rows) < 0.6
    assert 0.05 < np.median(columns) < 0.6
    assert max(rows.max(), columns.max()) < 0.9


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 8192])
def test_row_samples_are_ascending_and_hold_both_ends(count):
    rows = sample_lines(count)
    assert len(rows) == min(count, 64)
    assert (np.diff(rows) > 0).all()
    if count:
        assert rows[0] == 0
        assert rows[-1] == count - 1


def test_signs_are_balanced_and_fixed():
    x = signs(4096)
    assert abs(x.mean()) < 0.02
    assert set(np.unique(x)) == {-1.0, 1.0}
    assert np.abs(x.T @ x / 4096 - np.eye(8)).max() < 0.08
    # top bits of splitmix64 from seed 0: E220A839…, 6E789E6A…, 06C45D18…, F88BB8A8…
    assert x.reshape(-1)[1:5].tolist() == [-1.0, 1.0, 1.0, -1.0]


def test_auto_takes_the_full_reference_up_to_two_to_the_41_flop():
    small = Gemm(coded(np.zeros((1, 1))), coded(np.zeros((1, 1))))
    assert full_reference(small)
    assert AUTO_FLOP == 2**41


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_gradients_have_the_stored_shape_and_the_textbook_value(layout):
    rng = np.random.default_rng(4)
    m, n, k = 5, 6, 7
    a, b, g = rng.standard_normal((m, k)), rng.standard_normal((k, n)), rng.standard_normal((m, n))
    ca, cb = coded(a if layout[0] == "n" else a.T), coded(b if layout[1] == "n" else b.T)
    cg = coded(g)
    x, y, z = (decode(c.codes, "bfloat16") for c in (ca, cb, cg))
    x, y = x if layout[0] == "n" else x.T, y if layout[1] == "n" else y.T
    want = {"da": 0.5 * z @ y.T, "db": 0.5 * x.T @ z, "dbias": z.sum(axis=0, keepdims=True)}
    for name in want:
        (panel,) = panels(gradient(name, Gemm(ca, cb, layout, 0.5), cg), contract="fp32acc")
        transposed = {"da": layout[0], "db": layout[1], "dbias": "n"}[name] == "t"
        np.testing.assert_allclose(panel.values, want[name].T if transposed else want[name], rtol=0, atol=1e-13)
        assert (panel.budget > 0).all()
