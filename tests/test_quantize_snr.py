"""What a perfect kernel on quantised operands scores against the unquantised product: the floor under every total-error gate."""

from __future__ import annotations

import numpy as np
import pytest

from accuracy_eval.quantize import dequantize, quantize

K, ROWS, SEEDS = 1024, 256, 4
DISTRIBUTIONS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-1, 1, shape),
    "student_t3": lambda rng, shape: rng.standard_t(3, shape),
}
# dB of a GEMM with both operands quantised, K = 4096, simulated apart from this code
EXPECTED = {
    ("tensorwise", "fp8_e4m3"): (28.5, 28.9, 28.6),
    ("rowwise", "fp8_e4m3"): (28.5, 28.8, 28.9),
    ("rowwise_pow2", "fp8_e4m3"): (28.5, 29.5, 28.4),
    ("block1x128", "fp8_e4m3"): (28.8, 28.9, 29.9),
    ("block1x128_ue8m0", "fp8_e4m3"): (28.5, 29.5, 28.4),
    ("block128x128", "fp8_e4m3"): (28.5, 28.9, 28.7),
    ("mxfp8", "fp8_e4m3"): (27.6, 22.6, 26.2),
    ("mxfp8_rceil", "fp8_e4m3"): (28.5, 29.5, 28.4),
    ("mxfp8_ceil", "fp8_e4m3"): (28.5, 29.5, 28.4),
    ("mxfp8_even", "fp8_e4m3"): (28.1, 27.8, 27.3),
    ("mxfp8", "fp8_e5m2"): (22.3, 21.0, 22.0),
    ("rowwise", "fp8_e5m2"): (22.6, 22.9, 22.9),
    ("mxfp4", "fp4_e2m1"): (15.8, 13.1, 14.0),
    ("mxfp4_rceil", "fp4_e2m1"): (15.8, 17.1, 13.4),
    ("mxfp4_ceil", "fp4_e2m1"): (13.8, 17.1, 11.1),
    ("mxfp4_even", "fp4_e2m1"): (16.1, 17.1, 14.1),
    ("nvfp4", "fp4_e2m1"): (17.4, 16.8, 17.8),
}


@pytest.fixture(scope="module", params=list(DISTRIBUTIONS))
def problems(request):
    """(a, b, exact product) of each seed, and the place of the distribution in the table."""
    drawn = []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        a, b = (DISTRIBUTIONS[request.param](rng, (ROWS, K)).astype(np.float32) for _ in range(2))
        drawn.append((a, b, a.astype(np.float64) @ b.T.astype(np.float64)))
    return list(DISTRIBUTIONS).index(request.param), drawn


@pytest.mark.parametrize(("recipe", "element"), list(EXPECTED))
def test_gemm_snr_of_ideal_quantisation_is_that_of_the_table(problems, recipe, element):
    column, drawn = problems
    snr_db = []
    for a, b, exact in drawn:
        qa, qb = (dequantize(quantize(x.view(np.uint32), "float32", recipe, element=element)) for x in (a, b))
        snr_db.append(20 * np.log10(np.linalg.norm(exact) / np.linalg.norm(qa @ qb.T - exact)))
    # heavy tails: few elements carry the error, so seeds spread
    tolerance = 0.4 if column == 2 else 0.1
    assert np.mean(snr_db) == pytest.approx(EXPECTED[recipe, element][column], abs=tolerance)
