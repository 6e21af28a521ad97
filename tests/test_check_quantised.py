"""check() on arrays of quantisers and quantised products: which error is off, from what the caller holds."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from support_quantize import values_of

import accuracy_eval as ae
from accuracy_eval.errors import UsageError
from accuracy_eval.messages import failed_errors
from accuracy_eval.quantize import dequantize, quantize, swizzle_scales

X = np.random.default_rng(0).standard_normal((128, 512)).astype(ml_dtypes.bfloat16)
CODES = X.view(np.uint16)
Q = quantize(CODES, "bfloat16", "mxfp8")
SCALE = ae.codes(Q.scale, format="float8_e8m0fnu")


def check(actual, recipe="mxfp8", **inputs):
    return ae.check(actual, op="quantize", recipe=recipe, inputs={"x": X, **inputs})


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "block1x128", "mxfp8_even", "nvfp4", "int8_rowwise"])
def test_each_output_of_a_right_quantiser_passes(recipe):
    q = quantize(CODES, "bfloat16", recipe)
    for actual in (ae.codes(q.scale, format=q.scale_format), ae.codes(q.codes, format=q.format), dequantize(q)):
        assert check(actual, recipe).verdict == "PASS"


def test_fnuz_codes_are_judged_by_the_fnuz_recipe():
    q = quantize(CODES, "bfloat16", "rowwise", encoding="fnuz")
    assert check(ae.codes(q.codes, format="float8_e4m3fnuz"), "rowwise").verdict == "PASS"


@pytest.mark.parametrize("fmt", ["float32", "bfloat16"])
def test_dequantised_values_are_judged_by_their_total_error_in_the_format_they_are_held_in(fmt):
    held = dequantize(Q).astype(np.float32 if fmt == "float32" else ml_dtypes.bfloat16)
    assert check(held).metrics["excess_db"] == 0
    worse = held.copy()
    worse[5] *= 2
    c = check(worse)
    assert (c.verdict, failed_errors(c.side), c.metrics["excess_row"]) == ("FAIL", ["total"], 5)


def test_codes_under_given_scales_are_a_matter_of_conversion_alone():
    rceil = quantize(CODES, "bfloat16", "mxfp8_rceil")
    scale = ae.codes(rceil.scale, format="float8_e8m0fnu")
    c = check(ae.codes(rceil.codes, format=rceil.format), x_scale=scale)
    assert failed_errors(c.side) == ["scale"]
    assert c.metrics["conversion_mismatch_count"] == 0
    assert c.metrics["scale_mismatch_count"] == (rceil.scale != Q.scale).sum()
    wrong = Q.codes.copy()
    wrong[0, 0] ^= 1
    c = check(ae.codes(wrong, format=Q.format), x_scale=SCALE)
    assert (failed_errors(c.side), c.metrics["conversion_mismatch_count"]) == (["conversion"], 1)


@pytest.mark.parametrize(("scale", "words"), [
    (np.ascontiguousarray(Q.scale.T), "the grid is transposed"),
    (swizzle_scales(Q.scale), "32_4_4 swizzle of 128 x 4 tiles"),
    (np.pad(Q.scale[:, :15], ((0, 0), (0, 5))), ""),
])  # fmt: skip
def test_scales_in_another_layout_are_refused_by_its_name(scale, words):
    c = check(ae.codes(scale, format="float8_e8m0fnu"))
    assert [d.code for d in c.diagnoses] == ["shape-mismatch"]
    assert words in c.message
    assert "the case asks for [128, 16]" in c.message


def test_scales_of_another_format_are_refused():
    c = check(np.ones((128, 16), np.float32))
    assert [d.code for d in c.diagnoses] == ["format-mismatch"]


@pytest.mark.parametrize(
    "call", [{"inputs": {"x": X}}, {"inputs": {"amax": X, "x_scale": SCALE}, "recipe": "mxfp8"}], ids=["no-recipe", "amax-and-scale"]
)
def test_a_quantiser_needs_a_recipe_and_one_kind_of_input(call):
    with pytest.raises(UsageError, match="expected a recipe and amax, x or x and x_scale"):
        ae.check(SCALE, op="quantize", **call)


# products


def product(recipe="mxfp8", weights=""):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((n, 256)).astype(ml_dtypes.bfloat16) for n in (64, 96))
    qa, qb = (quantize(x.view(np.uint16), "bfloat16", r) for x, r in ((a, recipe), (b, weights or recipe)))
    return a, b, qa, qb


def judged(qa, qb, a, b, d, recipe):
    inputs = {"a": ae.codes(qa.codes, format=qa.format), "b": ae.codes(qb.codes, format=qb.format),
              "a_scale": ae.codes(qa.scale, format=qa.scale_format), "b_scale": ae.codes(qb.scale, format=qb.scale_format),
              "a_source": a, "b_source": b}  # fmt: skip
    return ae.check(d.astype(ml_dtypes.bfloat16), op="gemm", layout="nt", recipe=recipe, inputs=inputs)


@pytest.mark.parametrize(("recipe", "weights"), [("mxfp8", ""), ("rowwise", ""), ("tensorwise", ""), ("block1x128", "block128x128")])
def test_a_product_whose_sources_are_known_has_all_four_errors(recipe, weights):
    a, b, qa, qb = product(recipe, weights)
    d = dequantize(qa) @ dequantize(qb).T
    c = judged(qa, qb, a, b, d, recipe)
    assert c.verdict == "PASS"
    assert {g.error for g in c.gates} == {"kernel", "scale", "conversion", "total"}
    truth = values_of(a.view(np.uint16), "bfloat16").astype(float) @ values_of(b.view(np.uint16), "bfloat16").astype(float).T
    rounded = d.astype(ml_dtypes.bfloat16).astype(float)
    assert c.metrics["total_snr_db"] == pytest.approx(20 * np.log10(np.linalg.norm(truth) / np.linalg.norm(rounded - truth)))


@pytest.mark.parametrize(("what", "failed"), [("scale", ["scale"]), ("code", ["conversion"]), ("row", ["kernel", "total"])])
def test_the_error_that_is_off_is_the_one_that_fails(what, failed):
    a, b, qa, qb = product()
    if what == "scale":  # another rule on both sides, multiplied rightly
        qa = quantize(a.view(np.uint16), "bfloat16", "mxfp8_rceil")
    if what == "code":
        qa.codes[3, 4] ^= 1
    d = dequantize(qa) @ dequantize(qb).T
    if what == "row":
        d[7] *= 2
    assert failed_errors(judged(qa, qb, a, b, d, "mxfp8").side) == failed


def test_without_the_sources_the_kernel_is_all_there_is_to_judge():
    _, _, qa, qb = product()
    inputs = {n: ae.codes(c, format=f) for n, c, f in (
        ("a", qa.codes, qa.format), ("b", qb.codes, qb.format),
        ("a_scale", qa.scale, qa.scale_format), ("b_scale", qb.scale, qb.scale_format),
    )}  # fmt: skip
    d = (dequantize(qa) @ dequantize(qb).T).astype(ml_dtypes.bfloat16)
    assert {g.error for g in ae.check(d, op="gemm", layout="nt", recipe="mxfp8", inputs=inputs).gates} == {"kernel"}
