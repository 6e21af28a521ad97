"""Operands midway between two numbers of the format they are rounded to: what they are, and which roundings show on them alone."""

import ml_dtypes
import numpy as np
import pytest
from support_ops import Known
from support_quantize import TABLES, magnitudes, plain_quantise, round_to_element

from accuracy_eval.cases import make_case
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import concrete, decode, get_format
from accuracy_eval.inputs.midway import midway
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import validate
from accuracy_eval.quantize import get_recipe
from accuracy_eval.records import Verdict

every = pytest.mark.parametrize
DTYPES = TABLES | {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32, "float64": np.float64}
CASTS = [
    ("float64", "float32"), ("float32", "bfloat16"), ("float32", "float16"), ("float16", "bfloat16"),
    *((source, target) for source in ("float32", "bfloat16", "float16") for target in ("fp8_e4m3", "fp8_e5m2")),
]  # fmt: skip


def neighbours(x, target):
    """The numbers of `target` around each |x| [n]: below or equal, above."""
    near = np.abs(x).astype(DTYPES[target])
    bits = near.view(f"u{near.dtype.itemsize}")
    low = bits - (near.astype(np.float64) > np.abs(x))
    return (code.astype(bits.dtype).view(DTYPES[target]).astype(np.float64) for code in (low, low + 1))


@every(("source", "target"), [(source, concrete(target).name) for source, target in CASTS])
def test_elements_are_midway_or_one_step_beside(source, target):
    codes = midway("cast", (4096,), source, target, 3)
    x = codes.view(DTYPES[source]).astype(np.float64)
    inner = np.abs(x) < 0.9 * min(get_format(target).max, get_format(source).max)
    low, high = neighbours(x[inner], target)
    middle = (low + high) / 2
    magnitude = codes[inner] & get_format(source).storage.type(get_format(source).magnitude_mask)
    step = magnitude.astype(np.int64) - middle.astype(DTYPES[source]).view(codes.dtype).astype(np.int64)
    assert set(step) == {-1, 0, 1}
    assert 0.4 < (step == 0).mean() < 0.6
    assert len(set(low)) > 1000 or len(set(low)) >= 0.9 * len(magnitudes(target))
    assert 0.4 < np.signbit(x).mean() < 0.6


def cast(source, target, lane):
    known = Known("cast", (4096,), format=source, out_format=target, lane=lane)
    return known, known.values["x"].astype(DTYPES[source])


def half_away(x, shift):
    """Codes of float32 x cut to its upper bits after half a step is added: what kernels do by (bits + half) >> shift."""
    return ((x.view(np.uint32) + np.uint32(1 << (shift - 1))) >> np.uint32(shift)).astype(np.uint16)


@every(("source", "target"), CASTS)
def test_a_correct_cast_passes(source, target):
    known, x = cast(source, target, "exact")
    fmt = known.outputs["y"].format
    top = get_format(fmt).max
    with np.errstate(over="ignore"):
        right = (np.clip(x.astype(np.float64), -top, top).astype(x.dtype) if fmt.startswith("float8") else x).astype(DTYPES[fmt])
    assert known.judged_codes("y", right.view(f"u{right.dtype.itemsize}")).verdict is Verdict.PASS


def test_half_a_step_added_and_cut_off_fails_on_ties_alone():
    verdicts = {}
    for lane in ("random", "exact"):
        known, x = cast("float32", "bfloat16", lane)
        verdicts[lane] = known.judged_codes("y", half_away(x, 16)).verdict
    assert verdicts == {"random": Verdict.PASS, "exact": Verdict.FAIL}


@every(("source", "target", "through"), [
    ("float64", "float16", np.float32), ("float64", "bfloat16", np.float32), ("float32", "fp8_e5m2", ml_dtypes.bfloat16),
    ("float32", "fp8_e4m3", np.float16),
])  # fmt: skip
def test_a_rounding_before_the_last_fails(source, target, through):
    known, x = cast(source, target, "exact")
    fmt = known.outputs["y"].format
    top = get_format(fmt).max
    clipped = np.clip(x, -top, top) if fmt.startswith("float8") else x
    with np.errstate(over="ignore"):
        twice = clipped.astype(through).astype(DTYPES[fmt])
    assert known.judged_codes("y", twice.view(f"u{twice.dtype.itemsize}")).verdict is Verdict.FAIL


@every(("source", "target"), [("bfloat16", "float16"), ("bfloat16", "float32"), ("fp8_e4m3", "bfloat16")])
def test_formats_without_ties_between_them_are_refused(source, target):
    with pytest.raises(UsageError, match="the exact lane is for casts to fewer fraction bits"):
        validate(get_op("cast"), make_case("cast", (("n", 8),), format=source, out_format=target, lane="exact"))


RECIPES = {
    "tensorwise": "float8_e4m3fn", "rowwise": "float8_e4m3fn", "block1x128": "float8_e4m3fn", "mxfp8": "float8_e4m3fn",
    "mxfp8_even": "float8_e4m3fn", "int8_rowwise": "int8", "mxfp4": "float4_e2m1fn", "nvfp4": "float4_e2m1fn",
}  # fmt: skip


def away(x, element, top):
    """Codes of x with ties away from zero: of the float next above |x| with ties to even."""
    return round_to_element(np.copysign(np.nextafter(np.abs(x), np.inf), x), element, top)


def down(x, element, top):
    """Ties toward zero."""
    return round_to_element(np.copysign(np.nextafter(np.abs(x), 0), x), element, top)


@every("recipe", RECIPES)
@every("fmt", ["bfloat16", "float16", "float32"])
def test_a_quantiser_that_rounds_ties_to_even_passes_and_others_fail(recipe, fmt):
    known, r, element = Known("quantize", (33, 200), format=fmt, recipe=recipe, lane="exact"), get_recipe(recipe), RECIPES[recipe]
    x = known.values["x"].astype(np.float32)
    plain = plain_quantise(x, r.block, r.rule, element, floor=r.floor)
    rows, columns = (extent or size for extent, size in zip(r.block, x.shape, strict=True))
    scale = plain.scale[np.ix_(np.arange(33) // rows, np.arange(200) // columns)].astype(np.float64) * plain.global_scale
    top = r.largest(get_format(element))
    assert known.judged_codes("codes", plain.codes).verdict is Verdict.PASS
    for wrong in (away, down):
        codes = wrong(x.astype(np.float64) / scale, element, top)
        assert known.judged_codes("codes", codes).verdict is Verdict.FAIL


def test_a_tie_of_nvfp4_does_not_show_on_random_operands():
    verdicts = {}
    for lane in ("random", "exact"):
        known = Known("quantize", (64, 256), format="bfloat16", recipe="nvfp4", lane=lane)
        x = known.values["x"].astype(np.float32)
        plain = plain_quantise(x, (1, 16), "nvfp4", "float4_e2m1fn")
        codes = away(x.astype(np.float64) / (np.repeat(plain.scale, 16, axis=1) * plain.global_scale), "float4_e2m1fn", 6.0)
        verdicts[lane] = known.judged_codes("codes", codes).verdict
    assert verdicts == {"random": Verdict.PASS, "exact": Verdict.FAIL}


def test_both_encodings_quantise_the_same_operands():
    spec, case = get_op("quantize"), make_case("quantize", (("m", 8), ("n", 64)), format="bfloat16", recipe="tensorwise", lane="exact")
    ocp, fnuz = (spec.own_codes(case, encoding)["x"] for encoding in ("ocp", "fnuz"))
    assert (ocp == fnuz).all()
    assert decode(ocp, "bfloat16").max() == 448.0
