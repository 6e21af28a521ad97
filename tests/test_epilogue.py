"""gemm_epilogue: values and gradients as float64 autograd gives them, budgets that healthy kernels keep and broken ones do not."""

import numpy as np
import pytest
import torch
from support_judging import judged, known

from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import make_case
from accuracy_eval.cpu_ref.epilogue import ACTIVATIONS, Epilogue, epilogue_panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode, encode
from accuracy_eval.ops.epilogue import expression
from accuracy_eval.records import Coded, Verdict

SHAPE = (("m", 24), ("n", 16), ("k", 64))
FORMS = [
    {"activation": "none", "bias": True, "output_scale": 1.25, "alpha": 0.75},
    {"activation": "relu", "bias": True},
    {"activation": "gelu-tanh", "bias": True, "alpha": 0.5},
    {"activation": "gelu-erf", "bias": True, "residual": True},
    {"activation": "silu", "residual": True, "output_scale": 1.25},
    {"activation": "gelu-tanh", "gated": True},
    {"activation": "silu", "gated": True, "bias": True, "residual": True, "alpha": 0.75, "output_scale": 1.25},
]


def case_of(form, fmt, direction, layout="nn"):
    return make_case("gemm_epilogue", SHAPE, format=fmt, layout=layout, options=form, direction=direction)


@pytest.mark.parametrize("layout", ["nt", "tn"])
@pytest.mark.parametrize("form", FORMS, ids=lambda f: "-".join(map(str, f.values())))
def test_values_and_gradients_are_those_of_float64_autograd(form, layout):
    for direction in ("fwd", "bwd"):
        case = case_of(form, "bfloat16", direction, layout)
        inputs, references = known(case)
        t = {n: torch.from_numpy(decode(c.codes, c.format)) for n, c in inputs.items()}
        if direction == "fwd":
            wanted = {"y": expression(torch, case, t)}
        else:
            leaves = {n: t[n].requires_grad_() for n in ("a", "b", "bias") if n in t}
            if form.get("residual"):
                leaves["residual"] = torch.zeros_like(t["grad_y"], requires_grad=True)
            found = torch.autograd.grad(expression(torch, case, leaves), list(leaves.values()), t["grad_y"])
            wanted = {f"d{n}": g for n, g in zip(leaves, found, strict=True)}
        assert set(wanted) == set(references)
        for name, value in wanted.items():
            mine = np.concatenate([p.values for p in references[name].panels()]).reshape(value.shape)
            np.testing.assert_allclose(mine, value.detach().numpy(), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("fmt", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("form", FORMS, ids=lambda f: "-".join(map(str, f.values())))
def test_what_torch_computes_step_by_step_passes(form, fmt, direction):
    case = case_of(form, fmt, direction)
    backend = TorchBackend("cpu")
    prepared = backend.prepare(case)
    outcome = backend.run(prepared, backend.candidates(case.op)[0], repeats=1)
    _, references = known(case)
    for r in outcome.results:
        result = judged(case, r.name, r.codes[0].result(), references)
        assert result.verdict in (Verdict.PASS, Verdict.WARN), (r.name, result.sides[0].metrics["budget_max"])
    backend.close()


def rounded(form, fmt, changed):
    """The result of another epilogue than the case's, correctly rounded, judged by the case's reference."""
    case = case_of(form, fmt, "fwd")
    inputs, references = known(case)
    problem = Gemm(
        inputs["a"], inputs["b"], "nn", changed.pop("alpha", form.get("alpha", 1.0)), bias=changed.pop("bias", inputs.get("bias"))
    )
    steps = {"activation": form["activation"], "gated": form.get("gated", False), "residual": inputs.get("residual"),
             "output_scale": form.get("output_scale", 1.0)} | changed  # fmt: skip
    values = np.concatenate([p.values for p in epilogue_panels(problem, Epilogue(**steps))])
    return judged(case, "y", encode(values, fmt), references)


@pytest.mark.parametrize(
    ("form", "changed"),
    [
        (FORMS[0], {"bias": None}),
        (FORMS[0], {"output_scale": 1.0}),
        (FORMS[0], {"alpha": 1.0}),
        (FORMS[1], {"activation": "none"}),
        (FORMS[3], {"residual": None}),
        (FORMS[3], {"activation": "silu"}),
        (FORMS[5], {"activation": "silu"}),
    ],
    ids=["bias", "output-scale", "alpha", "relu", "residual", "silu-for-gelu", "swiglu-for-geglu"],
)
def test_a_step_left_out_or_exchanged_fails(form, changed):
    for fmt in ("float32", "bfloat16"):
        assert rounded(form, fmt, dict(changed)).verdict is Verdict.FAIL


def test_the_two_kinds_of_gelu_are_told_apart_in_float32():
    assert rounded(FORMS[2], "float32", {}).verdict is Verdict.PASS
    assert rounded(FORMS[2], "float32", {"activation": "gelu-erf"}).verdict is Verdict.FAIL


@pytest.mark.parametrize("name", [n for n, a in ACTIVATIONS.items() if a.lowest is not None])
def test_the_minimum_of_an_activation_is_where_the_table_says(name):
    f = ACTIVATIONS[name]
    around = f.of(np.array([f.lowest - 1e-4, f.lowest, f.lowest + 1e-4]))
    assert around[1] < min(around[0], around[2])
    assert np.diff(f.of(np.linspace(f.lowest, 5, 1000))).min() > 0
    assert np.diff(f.of(np.linspace(-5, f.lowest, 1000))).max() < 0


def test_what_an_epilogue_cannot_be_is_refused():
    a, b = Coded(np.zeros((2, 4), np.uint32), "float32"), Coded(np.zeros((4, 3), np.uint32), "float32")
    with pytest.raises(UsageError, match="halves the product's columns; found 3"):
        list(epilogue_panels(Gemm(a, b), Epilogue(gated=True)))
    with pytest.raises(UsageError, match=r"residual has the shape of the result, \(2, 3\); found \(3, 2\)"):
        list(epilogue_panels(Gemm(a, b), Epilogue(residual=Coded(np.zeros((3, 2), np.uint32), "float32"))))
    with pytest.raises(UsageError, match="unknown activation 'mish'"):
        Epilogue("mish")
    with pytest.raises(UsageError, match="output_scale 0.0: it divides the result"):
        Epilogue(output_scale=0.0)


@pytest.mark.parametrize("fmt", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("activation", ["silu", "gelu-tanh", "relu"])
def test_a_row_of_a_gradient_that_is_a_percent_off_fails(activation, fmt):
    case = make_case(
        "gemm_epilogue", (("m", 40), ("n", 64), ("k", 96)), format=fmt, layout="nn", direction="bwd",
        options={"activation": activation, "bias": True},
    )  # fmt: skip
    backend = TorchBackend("cpu")
    outcome = backend.run(backend.prepare(case), backend.candidates(case.op)[0], repeats=1)
    _, references = known(case)
    for r in outcome.results:
        codes = r.codes[0].result()
        assert judged(case, r.name, codes, references).verdict is Verdict.PASS
        values = decode(codes, r.format)
        values[7 if values.ndim == 2 else slice(None)] *= 1.01
        assert judged(case, r.name, encode(values, r.format), references).verdict is Verdict.FAIL, r.name
    backend.close()


@pytest.mark.parametrize("fmt", ["float32", "bfloat16"])
def test_a_saturated_gelu_has_the_slope_of_its_branch(fmt):
    """Where |T| is huge, tanh is ±1 and the slope exactly 0 or 1, whatever T² is: no gradient but that of the branch passes."""
    case = make_case(
        "gemm_epilogue", (("m", 16), ("n", 24), ("k", 32)), format=fmt, layout="nn", direction="bwd", input_class="huge",
        options={"activation": "gelu-tanh"},
    )  # fmt: skip
    inputs, references = known(case)
    a, b, g = (decode(inputs[n].codes, fmt) for n in ("a", "b", "grad_y"))
    product = a @ b
    assert np.median(np.abs(product)) > 1e6
    right = g * (product > 0)
    assert judged(case, "da", encode(right @ b.T, fmt), references).verdict is Verdict.PASS
    for wrong in (right / 2, right * 2, -right, g, right * 0):
        assert judged(case, "da", encode(wrong @ b.T, fmt), references).verdict is Verdict.FAIL
