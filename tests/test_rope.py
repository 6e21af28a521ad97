"""rope: values of the definition, budgets that model code keeps, faults found."""

import numpy as np
import pytest
import torch
from support_judging import judged, known

from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import make_case
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode, encode
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Coded, Verdict

SPEC = get_op("rope")


def rope_of(fmt, direction):
    case = make_case("rope", (("s", 20), ("h", 3), ("d", 32)), format=fmt, direction=direction)
    return case, *known(case)


def test_pairs_turn_as_complex_numbers_and_the_gradient_turns_back():
    for direction, name, sign in (("fwd", "x", 1), ("bwd", "grad_y", -1)):
        case, inputs, references = rope_of("bfloat16", direction)
        x, cos, sin = (decode(inputs[n].codes, "bfloat16") for n in (name, "cos", "sin"))
        turned = (x[..., :16] + 1j * x[..., 16:]) * (cos + sign * 1j * sin)[:, None]
        wanted = np.concatenate([turned.real, turned.imag], 2)
        (reference,) = references.values()
        (panel,) = reference.panels()
        np.testing.assert_allclose(panel.values.reshape(wanted.shape), wanted, rtol=0, atol=1e-13)
        t = {n: torch.from_numpy(decode(c.codes, c.format)) for n, c in inputs.items()}
        (given,) = SPEC.torch(torch, case, t, {}).values()
        np.testing.assert_allclose(given.numpy(), wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("fmt", SPEC.formats)
@pytest.mark.parametrize("direction", SPEC.directions)
def test_subnormal_products_may_be_rounded_to_the_subnormal_grid(fmt, direction):
    case = make_case("rope", (("s", 24), ("h", 3), ("d", 32)), format=fmt, direction=direction, input_class="subnormal")
    inputs = stored_inputs(SPEC, case, "ocp", operand_codes(SPEC, case, "ocp"))
    inputs |= {n: Coded(encode(np.full(inputs[n].shape, v), fmt), fmt) for n, v in (("cos", 0.6), ("sin", 0.8))}
    references = SPEC.reference(case, inputs, "ocp", SPEC.contract(case))
    (name,) = references
    x, cos, sin = (decode(inputs[n].codes, fmt) for n in ("x" if direction == "fwd" else "grad_y", "cos", "sin"))
    cos, sin = cos[:, None], sin[:, None] if direction == "fwd" else -sin[:, None]

    def rounded(values):
        return decode(encode(values, fmt), fmt)

    a, b = x[..., :16], x[..., 16:]
    found = np.concatenate([rounded(a * cos) - rounded(b * sin), rounded(b * cos) + rounded(a * sin)], 2)
    assert judged(case, name, encode(found, fmt), references).verdict is Verdict.PASS


@pytest.mark.parametrize("fmt", SPEC.formats)
@pytest.mark.parametrize("direction", SPEC.directions)
def test_model_code_passes_and_faults_fail(fmt, direction):
    case, _, references = rope_of(fmt, direction)
    backend = TorchBackend("cpu")
    outcome = backend.run(backend.prepare(case), backend.candidates("rope")[0], repeats=1)
    backend.close()
    (result,) = outcome.results
    codes = result.codes[0].result()
    assert judged(case, result.name, codes, references).verdict is Verdict.PASS
    values = decode(codes, fmt)
    shifted = np.roll(values, 1, axis=0)  # the angles of the position before
    halves = np.concatenate([values[..., 16:], values[..., :16]], 2)
    for wrong in (shifted, halves, values * 1.05):
        assert judged(case, result.name, encode(wrong, fmt), references).verdict is Verdict.FAIL


def test_an_odd_head_dimension_is_refused():
    with pytest.raises(UsageError, match="d=7 is odd"):
        make_case("rope", (("s", 2), ("h", 2), ("d", 7)))
