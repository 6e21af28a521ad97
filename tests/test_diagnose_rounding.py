"""Ties rounded another way than to even, and block maxima of shifted blocks, by plain casts and quantisers with these faults."""

import numpy as np
import pytest
from support_ops import Known, codes_of
from support_quantised_faults import data, diagnosed, maxima, scales

from accuracy_eval.formats import decode, get_format
from accuracy_eval.records import Verdict

every = pytest.mark.parametrize
RULES = {
    "away from zero": lambda x, a, low, mid: a >= mid,
    "toward zero": lambda x, a, low, mid: a > mid,
    "up": lambda x, a, low, mid: np.where(x > 0, a >= mid, a > mid),
    "down": lambda x, a, low, mid: np.where(x < 0, a >= mid, a > mid),
}
OTHERS = {
    "even": lambda x, a, low, mid: (a > mid) | ((a == mid) & (low % 2 == 1)),
    "cut": lambda x, a, low, mid: np.zeros(a.shape, bool),
    "outward": lambda x, a, low, mid: a > mid - 0.03 * a,
}


def rounded(x, fmt, rule):
    """Codes of x in a format of 8 bits or less, by a search among its numbers; beyond the largest it saturates."""
    f = get_format(fmt)
    numbers = decode(np.arange(1 << (f.bits - 1), dtype=np.uint8), f)
    numbers = numbers[np.isfinite(numbers)]
    a = np.minimum(np.abs(x), numbers[-1])
    low = np.searchsorted(numbers, a, side="right") - 1
    high = np.minimum(low + 1, len(numbers) - 1)
    up = rule(x, a, low, (numbers[low] + numbers[high]) / 2) & (a > numbers[low])
    return (np.where(up, high, low) | (np.signbit(x) * (1 << (f.bits - 1)))).astype(np.uint8)


def ties_said(known, name, codes):
    side = known.judged_codes(name, codes)
    return side.verdict, [d.evidence["how"] for d in side.diagnoses if d.code == "ties-rounded"], codes_of(side)


@every("shape", [(32768,), (65536,), (20000,)])
@every("fmt", ["fp8_e4m3", "fp8_e5m2"])
@every("source", ["bfloat16", "float16"])
def test_a_cast_that_rounds_ties_another_way_is_named_with_the_way(source, fmt, shape):
    k = Known("cast", shape, format=source, out_format=fmt)
    out = k.outputs["y"].format
    for how, rule in RULES.items():
        verdict, said, codes = ties_said(k, "y", rounded(k.values["x"], out, rule))
        assert (verdict, said) == (Verdict.FAIL, [how])
        assert codes[0] == "ties-rounded"
    assert ties_said(k, "y", rounded(k.values["x"], out, OTHERS["even"]))[0] is Verdict.PASS
    for name in ("cut", "outward"):
        assert ties_said(k, "y", rounded(k.values["x"], out, OTHERS[name]))[:2] == (Verdict.FAIL, [])


@every("recipe", ["mxfp8", "mxfp4", "mxfp6_even", "mxfp8_2d_even"])
@every("shape", [(64, 512), (96, 160), (33, 320)])
def test_a_quantiser_that_rounds_ties_another_way_is_named_with_the_way(shape, recipe):
    k = Known("quantize", shape, format="bfloat16", recipe=recipe)
    element = k.outputs["codes"].format
    (panel,) = k.references["scale"].panels()
    rows, columns = (np.arange(n) // b for n, b in zip(shape, (32 if "2d" in recipe else 1, 32), strict=True))
    y = k.values["x"] / np.exp2(panel.values.astype(float) - 127)[np.ix_(rows, columns)]
    for how, rule in RULES.items():
        verdict, said, codes = ties_said(k, "codes", rounded(y, element, rule))
        assert (verdict, said) == (Verdict.FAIL, [how])
        assert codes == ["ties-rounded"]
    assert ties_said(k, "codes", rounded(y, element, OTHERS["even"]))[0] is Verdict.PASS
    assert ties_said(k, "codes", rounded(y, element, OTHERS["cut"]))[:2] == (Verdict.FAIL, [])


def test_ties_of_some_rows_alone_are_not_a_rule():
    k = Known("cast", (65536,), format="bfloat16", out_format="fp8_e4m3")
    x, out = k.values["x"], k.outputs["y"].format
    some = np.where(np.arange(65536) % 2, rounded(x, out, RULES["away from zero"]), rounded(x, out, OTHERS["even"]))
    assert ties_said(k, "y", some.astype(np.uint8))[:2] == (Verdict.FAIL, [])


@every("shape", [(64, 1024), (96, 640), (160, 768)])
@every("recipe", ["block1x128", "mxfp8", "mxfp4_rceil"])
@every("beyond", ["zeros", "the other end"])
def test_the_amax_of_blocks_beside_their_place_is_named_with_how_far(beyond, recipe, shape):
    codes = data(shape)
    x, width = decode(codes, "bfloat16"), 128 if "128" in recipe else 32
    right = scales(maxima(x, recipe), recipe)
    for by, said in ((1, "an element late"), (-1, "an element early"), (width // 2, f"{width // 2} elements late")):
        moved = np.roll(x, -by, axis=1)
        if beyond == "zeros":
            moved[:, slice(-by, None) if by > 0 else slice(0, -by)] = 0
        made = scales(maxima(moved, recipe), recipe)
        found = [d.evidence["part"] for d in diagnosed(codes, made, recipe) if d.code == "amax-stale"]
        assert found == [f"blocks that begin {said}"] if (made != right).sum() >= 12 else len(found) <= 1
    for by in (3, width // 2 + 1):
        found = diagnosed(codes, scales(maxima(np.roll(x, by, axis=1), recipe), recipe), recipe)
        assert "amax-stale" not in [d.code for d in found]
