"""layernorm and rmsnorm: values and gradients as float64 autograd gives them, budgets that torch keeps and broken kernels do not."""

import mpmath
import numpy as np
import pytest
import torch
from support_judging import judged, known
from support_ops import Known

from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import make_case
from accuracy_eval.cpu_ref.norms import Norm, backward
from accuracy_eval.formats import decode, encode
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Verdict

OPS = ["layernorm", "rmsnorm"]


def norm_of(op, fmt, direction, input_class="normal", shape=(24, 320)):
    case = make_case(op, tuple(zip("mn", shape, strict=True)), format=fmt, direction=direction, input_class=input_class)
    return case, *known(case)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_values_and_gradients_are_those_of_float64_autograd(op, direction):
    case, inputs, references = norm_of(op, "bfloat16", direction)
    t = {n: torch.from_numpy(decode(c.codes, c.format)) for n, c in inputs.items()}
    for name, value in get_op(op).torch(torch, case, t, {}).items():
        (panel,) = references[name].panels()
        np.testing.assert_allclose(panel.values.reshape(value.shape), value.numpy(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("fmt", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("input_class", ["normal", "outlier", "uniform"])
def test_what_torch_computes_passes(op, fmt, input_class):
    for direction in ("fwd", "bwd"):
        case, _, references = norm_of(op, fmt, direction, input_class)
        backend = TorchBackend("cpu")
        outcome = backend.run(backend.prepare(case), backend.candidates(op)[0], repeats=1)
        backend.close()
        for r in outcome.results:
            if (op, r.name) == ("layernorm", "dbias") and fmt in ("float16", "bfloat16"):
                continue  # torch's CPU adds it up in the operands' format (docs/findings.md)
            result = judged(case, r.name, r.codes[0].result(), references)
            assert result.verdict is Verdict.PASS, (direction, r.name, result.sides[0].metrics["budget_max"])


@pytest.mark.parametrize("fmt", ["float32", "bfloat16"])
def test_a_norm_without_its_mean_eps_or_last_columns_fails(fmt):
    case, inputs, references = norm_of("layernorm", fmt, "fwd")
    x, w, b = (decode(inputs[n].codes, fmt) for n in ("x", "weight", "bias"))
    x1 = x[:, :-8]
    faults = {
        "no mean": x / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * w + b,
        "n - 1": (x - x.mean(1, keepdims=True)) / x.std(axis=1, keepdims=True, ddof=32) * w + b,
        "tail": (x - x1.mean(1, keepdims=True)) / np.sqrt(x1.var(axis=1, keepdims=True) + 1e-5) * w + b,
        "no bias": (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * w,
    }
    healthy = faults["no bias"] + b
    assert judged(case, "y", encode(healthy, fmt), references).verdict is Verdict.PASS
    for name, value in faults.items():
        assert judged(case, "y", encode(value, fmt), references).verdict is Verdict.FAIL, name


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("fmt", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_healthy_gradients_of_rows_of_a_few_elements_pass(op, fmt, columns):
    """There the terms of the framework's formula cancel, overflow and vanish. dbias: docs/findings.md."""
    for input_class in ("normal", "outlier", "tiny", "huge", "codes", "wide", "specials"):
        k = Known(op, (40, columns), format=fmt, direction="bwd", input_class=input_class)
        assert [found for found in k.healthy() if found[1] != "dbias"] == []
        if input_class == "normal" and columns == 3:  # of two, dx is what rounding leaves
            right = k.truth("dx")
            assert k.judged("dx", right).verdict is Verdict.PASS
            assert k.judged("dx", right * 1.1).verdict is Verdict.FAIL
            assert k.judged("dx", -right).verdict is Verdict.FAIL


def test_terms_that_vanish_below_the_normal_numbers_leave_what_they_multiply_and_no_more():
    """x = 493143, n = 1: b = -7.9e-45 is 5.6 steps of float32's subnormals, and x is multiplied by it."""
    x, w, g = (np.array([[v]], np.float32) for v in (-493143.25, 1.31797666393393e-33, 1.4461119))
    found = backward(Norm(x.astype(float), w[0].astype(float), None, False, 1e-5, "float32"), g.astype(float))["dx"]
    r = np.float32(1) / np.sqrt(x * x + np.float32(1e-5))
    b = -(r * r * r) * (g * w * x)
    by_framework = (r * g * w + b * x).item()
    assert abs(by_framework - found.values.item()) > 1e-41
    for healthy in (by_framework, (r * g * w).item(), (b * x).item(), 0.0):  # gradual; b, or the other term, or both taken for zero
        assert abs(healthy - found.values.item()) <= found.budget.item()
    assert found.budget.item() < 10 * (r * g * w).item()


def test_inf_times_what_is_zero_but_for_its_error_is_inf_or_nan():
    x, g = np.array([[1.5], [0.5]]), np.array([[-np.inf], [1.0]])
    for grad, open_ in ((g, True), (np.array([[np.nan], [1.0]]), False), (np.array([[-np.inf], [np.nan]]), False)):
        found = backward(Norm(x, np.ones(1), np.ones(1), True, 1e-5, "float32"), grad)["dweight"]
        assert np.isnan(found.values).all()
        assert found.undetermined.tolist() == [[open_]]


def exact_dx(x, g, weight, *, centred):
    """A row's gradient in 6,000 bits, where no step of float64 operands rounds, overflows or vanishes."""
    with mpmath.workprec(6000):
        x, g, weight = ([mpmath.mpf(float(v)) for v in row] for row in (x, g, weight))
        n, mean = len(x), mpmath.fsum(x) / len(x) if centred else mpmath.mpf(0)
        r = 1 / mpmath.sqrt(mpmath.fsum((v - mean) ** 2 for v in x) / n + mpmath.mpf(1e-5))
        h, q = [(v - mean) * r for v in x], [a * b for a, b in zip(g, weight, strict=True)]
        along, level = mpmath.fsum(a * b for a, b in zip(q, h, strict=True)) / n, mpmath.fsum(q) / n if centred else 0
        return [r * (a - level - b * along) for a, b in zip(q, h, strict=True)]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("input_class", ["normal", "tiny", "huge", "wide"])
def test_float64_gradients_are_exact_within_their_budget_or_said_to_be_open(op, input_class):
    """Over the whole of float64 a step of the formula may overflow where the gradient itself does not."""
    for columns in (1, 2, 3, 8):
        k = Known(op, (12, columns), format="float64", direction="bwd", input_class=input_class)
        x, g, weight = (k.values[n] for n in ("x", "grad_y", "weight"))
        found = backward(Norm(x, weight, k.values.get("bias"), op == "layernorm", 1e-5, "float64"), g)["dx"]
        for i in range(len(x)):
            for j, exact in enumerate(exact_dx(x[i], g[i], weight, centred=op == "layernorm")):
                value, budget = found.values[i, j], found.budget[i, j]
                if np.isfinite(value):
                    assert not found.undetermined[i, j]
                    assert not np.isfinite(budget) or abs(mpmath.mpf(value) - exact) <= mpmath.mpf(budget) / 2
                else:
                    assert found.undetermined[i, j] or (np.isinf(value) and abs(exact) >= mpmath.mpf(2) ** 1023)


def test_a_gradient_that_only_inf_minus_inf_leaves_open_may_be_inf_and_one_of_a_nan_may_not():
    """g·w = −1.5e480 and mean q·h = 1.0e480 cancel to 4e242 when exact; an upstream Inf has Inf for gradient in the limit."""
    x, w, g = np.array([[-3e-306, -4.9e77]]), np.array([-3.4e149, -4.6e242]), np.array([[-9.6e-147, 3.2e237]])
    exact = exact_dx(x[0], g[0], w, centred=False)
    assert mpmath.mpf(10) ** 200 < abs(exact[1]) < mpmath.mpf(10) ** 300
    assert backward(Norm(x, w, None, False, 1e-5, "float64"), g)["dx"].undetermined.all()
    x, w = np.array([[1.0, 2.0, 4.0]]), np.ones(3)
    for upstream, open_ in ((np.inf, True), (np.nan, False)):
        found = backward(Norm(x, w, w, True, 1e-5, "float64"), np.array([[1.0, upstream, 1.0]]))["dx"]
        assert np.isnan(found.values[0, 1])
        assert found.undetermined[0, 1] == open_
