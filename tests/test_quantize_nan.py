"""Element codes of blocks that hold NaN or Inf: judged by what they mean, which under a NaN scale is NaN."""

import numpy as np
import pytest

from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import make_case
from accuracy_eval.compare import compare_dumps
from accuracy_eval.dump import dump
from accuracy_eval.formats import is_nan
from accuracy_eval.gates import load_profile
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import side_of
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Coded, Verdict
from accuracy_eval.suite import Suite

QUANTIZE = get_op("quantize")
SHAPE = (("m", 64), ("n", 128))
MX = [r for r in QUANTIZE.recipes if r.startswith("mxfp8")]


def truth_of(recipe):
    """Normal values with one NaN and one Inf."""
    case = make_case("quantize", SHAPE, format="bfloat16", recipe=recipe)
    inputs = stored_inputs(QUANTIZE, case, "ocp", operand_codes(QUANTIZE, case, "ocp"))
    inputs["x"].codes[3, 5], inputs["x"].codes[40, 100] = 0x7FC0, 0xFF80
    references = QUANTIZE.reference(case, inputs, "ocp", "exact")
    whole = {n: Coded(next(r.panels()).values.copy(), r.format) for n, r in references.items()}
    return case, references, whole


def judged(case, references, name, tensor):
    output = next(o for o in QUANTIZE.outputs(case, "ocp") if o.name == name)
    side = side_of("a", Coded(tensor.codes.reshape(output.shape), tensor.format), contract="exact")
    result = judge_tensor(Subject.of(case, output), [side], {"a": references[name]}, load_profile("default"))
    return result.sides[0]


def nan_blocks(whole, recipe):
    """Which elements have a NaN scale: MX blocks are 32 long, those of 2d recipes 32 high as well."""
    high = 32 if "2d" in recipe else 1
    scale = whole["scale"].codes.reshape(64 // high, 4)
    return np.kron(scale == 0xFF, np.ones((high, 32), bool))


@pytest.mark.parametrize("recipe", MX)
def test_element_codes_under_a_nan_scale_are_free_and_counted(recipe):
    case, references, whole = truth_of(recipe)
    free = nan_blocks(whole, recipe)
    assert free.sum() == (2 * 32 * 32 if "2d" in recipe else 2 * 32)
    codes = whole["codes"].codes.copy()
    codes[free] ^= 0x15
    side = judged(case, references, "codes", Coded(codes, whole["codes"].format))
    assert side.verdict is Verdict.PASS
    assert side.note == f"{free.sum()} of {free.size} element codes in blocks whose scale is NaN, where every code means NaN"


@pytest.mark.parametrize("recipe", MX)
def test_other_codes_and_every_scale_are_judged_exactly(recipe):
    case, references, whole = truth_of(recipe)
    codes = whole["codes"].codes.copy()
    i, j = np.argwhere(~nan_blocks(whole, recipe))[0]
    codes[i, j] ^= 1
    assert judged(case, references, "codes", Coded(codes, whole["codes"].format)).verdict is Verdict.FAIL
    scale = whole["scale"].codes.copy()
    first = tuple(np.argwhere(is_nan(scale, "float8_e8m0fnu"))[0])
    scale[first] = 0x7F
    assert judged(case, references, "scale", Coded(scale, whole["scale"].format)).verdict is Verdict.FAIL


@pytest.mark.parametrize("recipe", [*MX, "int8_rowwise", "rowwise"])
@pytest.mark.parametrize("input_class", ["specials", "normal"])
def test_the_torch_expression_keeps_the_recipe(tmp_path, recipe, input_class):
    case = make_case("quantize", SHAPE, format="bfloat16", recipe=recipe, input_class=input_class)
    cpu = TorchBackend("cpu")
    dump(Suite("test", "", (case,), {}), cpu, tmp_path / "a.h5")
    cpu.close()
    results = compare_dumps(tmp_path / "a.h5")
    verdicts = {t.tensor: t.verdict for t in results.tensors}
    assert (verdicts["scale"], verdicts["codes"]) == (Verdict.PASS, Verdict.PASS)
    assert results.exit_code == 0
