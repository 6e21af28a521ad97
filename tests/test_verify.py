"""verify(): functions as users write them, forward and backward, right and wrong."""

import ml_dtypes
import numpy as np
import pytest
import torch

import accuracy_eval as ae
from accuracy_eval.errors import UsageError, VerdictError
from accuracy_eval.inputs import generate

GEMM = {"a": ae.seeded((24, 96), "bfloat16"), "b": ae.seeded((96, 16), "bfloat16")}


class WrongGradient(torch.autograd.Function):
    """A product whose gradient of b misses the last quarter of the rows."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        rows = a.shape[0] * 3 // 4
        return g @ b.t(), a[:rows].t() @ g[:rows]


@pytest.mark.parametrize("dtype", [torch.bfloat16, ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16), "bf16"])
def test_a_seeded_input_takes_dtypes_as_well_as_names(dtype):
    assert ae.seeded((2, 3), dtype) == ae.seeded((2, 3), "bfloat16")


def test_a_product_is_judged_by_the_budget_of_its_op_forward_and_backward():
    v = ae.verify(torch.matmul, reference="gemm", inputs=GEMM)
    assert {n: c.verdict for n, c in v.comparisons.items()} == {"d": "PASS", "da": "PASS", "db": "PASS"}
    assert v.passed
    assert v.comparisons["d"].contract == "fp32acc"
    assert v.message.splitlines()[0].startswith("PASS gemm.m24.n16.k96.nn.bfloat16.normal.s0 output 'd' (bfloat16): error")
    v.raise_for_verdict()


def test_a_wrong_gradient_fails_with_its_cause_though_the_forward_pass_is_right():
    v = ae.verify(WrongGradient.apply, reference="gemm", inputs=GEMM)
    assert {n: c.verdict for n, c in v.comparisons.items()} == {"d": "PASS", "da": "PASS", "db": "FAIL"}
    assert "k-tail-missing" in [d.code for d in v.comparisons["db"].diagnoses]
    assert v.comparisons["db"].diagnoses[0].evidence["from_k"] == 18
    assert v.message.startswith("FAIL gemm.m24.n16.k96.nn.bfloat16.normal.bwd.s0 output 'db'")
    with pytest.raises(VerdictError, match="output 'db'"):
        v.raise_for_verdict()
    assert ae.verify(WrongGradient.apply, reference="gemm", inputs=GEMM, grad=False).passed


@pytest.mark.parametrize("ends", [(24, 24, 66), (10, 40, 66)])
def test_a_grouped_product_is_verified_on_the_lengths_it_is_called_with(ends):
    lens = torch.tensor([24, 0, 42], dtype=torch.int32)

    def grouped(a, b, group_lens):
        parts = [a[first:end] @ b[i].T for i, (first, end) in enumerate(zip((0, *ends), ends, strict=False))]
        return torch.cat(parts)

    inputs = {"a": ae.seeded((66, 48)), "b": ae.seeded((3, 32, 48)), "group_lens": lens}
    found = ae.verify(grouped, reference="grouped_gemm", layout="nt", inputs=inputs)
    assert list(found.comparisons) == ["d", "da", "db"]
    assert found.passed is (ends == (24, 24, 66))


def test_layouts_options_and_given_tensors_reach_the_reference():
    a, b, bias = torch.randn(96, 24), torch.randn(16, 96), torch.randn(16)

    def layer(a, b, bias):
        return torch.addmm(bias, a.t(), b.t(), alpha=0.5)

    call = {"reference": "gemm", "inputs": {"a": a, "b": b, "bias": bias}, "layout": "tt", "grad": False}
    assert ae.verify(layer, options={"alpha": 0.5, "bias": True}, **call).passed
    assert not ae.verify(layer, options={"bias": True}, **call).passed


def test_a_gated_epilogue_finds_its_sizes_and_the_exchanged_halves():
    inputs = {"a": ae.seeded((8, 64)), "b": ae.seeded((64, 48))}
    options = {"activation": "silu", "gated": True}

    def swiglu(a, b):
        gate, up = (a @ b).chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    def exchanged(a, b):
        up, gate = (a @ b).chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    assert ae.verify(swiglu, reference="gemm_epilogue", inputs=inputs, options=options).passed
    v = ae.verify(exchanged, reference="gemm_epilogue", inputs=inputs, options=options)
    assert v.comparisons["y"].diagnoses[0].sentence == "gate and up projections are exchanged"


def test_a_function_is_judged_by_a_function_in_float64_with_gradients():
    def norm(x, w):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True)) * w).to(x.dtype)

    seen = []

    def reference(x, w):
        seen.append((x.dtype, str(x.device)))
        return x / x.square().mean(-1, keepdim=True).sqrt() * w

    inputs = {"x": ae.seeded((16, 80), "bfloat16", "outlier"), "w": ae.seeded((80,), "bfloat16")}
    v = ae.verify(norm, reference=reference, inputs=inputs)
    assert set(v.comparisons) == {"output", "dx", "dw"}
    assert v.passed
    assert seen[0] == (torch.float64, "cpu")
    doubled = ae.verify(lambda x, w: 2 * norm(x, w), reference=reference, inputs=inputs)
    assert "gain" in [d.code for d in doubled.comparisons["output"].diagnoses]


def test_a_function_judged_by_a_function_states_the_smallest_fault_that_its_tolerances_would_have_seen():
    x = torch.linspace(-3, 3, 256).reshape(16, 16)

    def off_by(size):
        """The largest element, e^3 = 20.1, is wrong."""
        changed = torch.zeros_like(x).index_put((torch.tensor(15), torch.tensor(15)), torch.tensor(size))
        return ae.verify(lambda x: x.exp() + changed, reference=torch.exp, inputs={"x": x}).comparisons["output"]

    right = off_by(0.0)
    stated = right.side.resolution["element"]
    assert stated == pytest.approx(1e-4 + 1e-4 * np.exp(3), rel=1e-3)  # assert_close(rtol 1e-4, atol 1e-4) at the largest element
    assert f"would have failed: element {stated:.3g}, row " in right.message
    assert [off_by(f * stated).verdict for f in (0.99, 1.01)] == ["PASS", "FAIL"]


def test_the_gate_is_that_of_the_recipe_not_of_the_output_format():
    def through_e4m3(a, b):
        return (a.to(torch.float8_e4m3fn).float() @ b.to(torch.float8_e4m3fn).float()).to(torch.bfloat16)

    call = {"reference": torch.matmul, "inputs": GEMM, "grad": False}
    plain = ae.verify(through_e4m3, **call)
    assert (plain.passed, plain.comparisons["output"].gates[0].gate) == (False, "allclose-16-bit")
    quantised = ae.verify(through_e4m3, recipe="tensorwise", **call)
    assert (quantised.passed, quantised.comparisons["output"].gates[0].gate) == (True, "snr-e4m3")


def test_outputs_have_names_and_integers_no_gradient():
    def pair(x, index):
        return {"rows": x[index], "total": x.sum(1)}

    inputs = {"x": ae.seeded((12, 8)), "index": torch.tensor([3, 1, 1])}
    v = ae.verify(pair, reference=pair, inputs=inputs)
    assert set(v.comparisons) == {"rows", "total", "dx"}
    assert v.passed
    with pytest.raises(UsageError, match="returned output; expected rows, total"):
        ae.verify(pair, reference=lambda x, index: {"output": x}, inputs=inputs)


def test_runs_that_differ_are_a_warning_and_each_is_judged():
    calls = []

    def unsteady(a, b):
        calls.append(1)
        d = a @ b
        if len(calls) % 2:
            d[3, 5] += 100
        return d

    v = ae.verify(unsteady, reference="gemm", inputs=GEMM, grad=False)
    assert v.comparisons["d"].verdict == "FAIL"
    assert v.comparisons["d"].diagnoses[0].code == "nondeterministic"


def test_a_function_that_changes_its_inputs_fails_and_the_callers_tensors_stay():
    x = torch.ones(4, 4)

    def inplace(x):
        return x.mul_(2)

    v = ae.verify(inplace, reference=lambda x: x * 2, inputs={"x": x}, grad=False)
    assert not v.passed
    assert v.message.startswith("FAIL: the function changed its input 'x' in place")
    assert x.eq(1).all()


def test_a_function_that_changes_an_input_in_place_fails_with_gradients_too():
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    v = ae.verify(lambda x: x.mul_(2), reference=lambda x: x.mul_(2), inputs={"x": x}, device="cpu")
    assert (v.passed, v.verdict, v.changed) == (False, "FAIL", ("x",))
    assert {n: c.verdict for n, c in v.comparisons.items()} == {"output": "PASS", "dx": "PASS"}  # 2x and 2 times the gradient

    def without_gradient(x):
        y = x.square()
        x.mul_(2)  # the gradient of the square needs x as it was
        return y

    with pytest.raises(UsageError, match=r"changed its input 'x' in place, and has no gradient: .*; pass grad=False"):
        ae.verify(without_gradient, reference=torch.square, inputs={"x": x}, device="cpu")


def test_outputs_without_a_gradient_are_one_message_that_says_what_to_pass():
    call = {"reference": torch.square, "inputs": {"x": ae.seeded((4, 6))}, "device": "cpu"}
    with pytest.raises(UsageError, match=r"^the function's output output is detached: .*; pass grad=False to judge the outputs alone$"):
        ae.verify(lambda x: x.square().detach(), **call)
    assert ae.verify(lambda x: x.square().detach(), grad=False, **call).passed
    with pytest.raises(UsageError, match="^the reference's output output is detached"):
        ae.verify(torch.square, **{**call, "reference": lambda x: x.square().detach()})


def test_tensors_made_in_inference_mode_are_verified_with_gradients():
    with torch.inference_mode():
        x = torch.arange(12.0).reshape(3, 4)
    assert ae.verify(torch.square, reference=torch.square, inputs={"x": x}, device="cpu").passed


def test_gradients_of_a_module_do_not_add_up_over_runs():
    torch.manual_seed(0)
    layer = torch.nn.Linear(32, 8)
    double = torch.nn.Linear(32, 8).double()
    double.load_state_dict({k: v.double() for k, v in layer.state_dict().items()})
    v = ae.verify(layer, reference=double, inputs={"x": ae.seeded((5, 32))}, repeats=3)
    assert v.passed
    assert layer.weight.grad is None


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"a": ae.seeded((4, 8)), "b": ae.seeded((7, 3))},
            r"found a \[4, 8\] float32, b \[7, 3\] float32; expected a \[4, 8\] float32, b \[8, 3\]",
        ),
        ({"a": ae.seeded((4, 8))}, r"inputs of op gemm: found a \[4, 8\] float32; expected a, b"),
        ({"a": ae.seeded((4, 8)), "b": ae.seeded((8, 3), "bfloat16")}, r"b \[8, 3\] bfloat16; expected .* b \[8, 3\] float32"),
    ],
    ids=["sizes", "missing", "formats"],
)
def test_inputs_that_do_not_fit_the_op_are_refused(inputs, message):
    with pytest.raises(UsageError, match=message):
        ae.verify(torch.matmul, reference="gemm", inputs=inputs)


def test_what_is_no_tensor_and_unknown_names_are_refused():
    with pytest.raises(UsageError, match="unknown input class 'odd'"):
        ae.seeded((2,), "float32", "odd")
    with pytest.raises(UsageError, match="the function's output output is a float; expected a torch tensor"):
        ae.verify(lambda x: 1.0, reference=lambda x: x, inputs={"x": ae.seeded((2,))})
    with pytest.raises(UsageError, match="returned 2 tensors; expected d"):
        ae.verify(lambda a, b: (a, b), reference="gemm", inputs=GEMM)


@pytest.mark.parametrize("reference", ["gemm", torch.matmul], ids=["op", "function"])
def test_seeded_operands_do_not_depend_on_the_name_of_what_is_verified(reference):
    seen = []

    def product(a, b):
        seen.append([a.detach().clone(), b.detach().clone()])
        return a @ b

    def renamed(a, b):
        return product(a, b)

    class Kernel:
        def __call__(self, a, b):
            return product(a, b)

    for fn in (product, renamed, lambda a, b: product(a, b), Kernel()):
        assert ae.verify(fn, reference=reference, inputs=GEMM, grad=False, repeats=1, device="cpu").passed
    stream = reference if isinstance(reference, str) else "function"
    wanted = [generate(stream, n, x.shape, "normal", 0, "bfloat16") for n, x in GEMM.items()]
    for operands in seen:
        for found, codes in zip(operands, wanted, strict=True):
            np.testing.assert_array_equal(found.view(torch.uint16).numpy(), codes)


def test_the_case_says_class_and_seed_of_its_inputs():
    def case_of(first, second, seed):
        inputs = {"a": ae.seeded((4, 8), "float32", first), "b": ae.seeded((8, 3), "float32", second)}
        found = ae.verify(torch.matmul, reference="gemm", inputs=inputs, seed=seed, device="cpu").comparisons
        return [found[n].result for n in ("d", "da")]

    ids = [r.case_id for r in case_of("outlier", "outlier", 7)]
    assert ids == ["gemm.m4.n3.k8.nn.float32.outlier.s7", "gemm.m4.n3.k8.nn.float32.outlier.bwd.s7"]
    mixed = case_of("normal", "outlier", 0)[0]
    assert mixed.case_id == "gemm.m4.n3.k8.nn.float32.a-normal+b-outlier.s0"
    assert mixed.case.input_class == "outlier"


def test_a_verdict_and_its_diagnoses_are_those_of_every_output():
    good = ae.verify(torch.matmul, reference="gemm", inputs=GEMM)
    assert (good.verdict, good.diagnoses) == ("PASS", ())
    bad = ae.verify(WrongGradient.apply, reference="gemm", inputs=GEMM)
    assert bad.verdict == "FAIL"
    assert bad.diagnoses == bad.comparisons["db"].diagnoses
    assert "k-tail-missing" in [d.code for d in bad.diagnoses]
    nothing = ae.verify(lambda x: {}, reference=lambda x: {}, inputs={"x": ae.seeded((2,))}, grad=False)
    assert (nothing.verdict, nothing.passed) == ("INCONCLUSIVE", False)


def test_seeded_operands_are_those_of_every_machine():
    x = ae.seeded((3, 5), "bfloat16")
    first = ae.verify(lambda x: x.clone(), reference=lambda x: x, inputs={"x": x}, grad=False)
    assert first.comparisons["output"].metrics["mismatch_count"] == 0
    codes = x.codes("function", "x", 0).codes

    np.testing.assert_array_equal(codes, generate("function", "x", (3, 5), "normal", 0, "bfloat16"))


@pytest.mark.parametrize(("causal", "swapped", "passes"), [(True, False, True), (False, False, False), (True, True, False)])
def test_attention_with_shared_heads_and_rope_find_their_sizes(causal, swapped, passes):
    inputs = {n: ae.seeded((1, heads, 24, 16), "float32") for n, heads in (("q", 4), ("k", 2), ("v", 2))}

    def attend(q, k, v):
        k, v = (x.repeat(1, 2, 1, 1) if swapped else x.repeat_interleave(2, 1) for x in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    found = ae.verify(attend, reference="attention", inputs=inputs, layout="bhsd", options={"causal": True})
    assert found.passed is passes
    assert list(found.comparisons) == ["out", "dq", "dk", "dv"]


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_is_verified_and_the_other_pairing_fails(interleaved):
    inputs = {"x": ae.seeded((8, 3, 16)), "cos": ae.seeded((8, 8)), "sin": ae.seeded((8, 8))}

    def turn(x, cos, sin):
        first, second = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
        turned = first * cos[:, None] - second * sin[:, None], second * cos[:, None] + first * sin[:, None]
        return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)

    assert ae.verify(turn, reference="rope", inputs=inputs, grad=False).passed is not interleaved


def test_a_layout_that_the_op_has_not_is_named_and_one_it_needs_is_asked_for():
    with pytest.raises(UsageError, match="unknown layout of op attention 'nn'"):
        ae.verify(torch.add, reference="attention", layout="nn", inputs={n: ae.seeded((1, 2, 4, 8)) for n in "qkv"})
    heads = {n: ae.seeded((2, 6 if n == "q" else 4, 4, 8)) for n in "qkv"}  # bhsd would have 6 heads share 4
    needed = r'op attention needs layout=, one of bhsd, bshd, sbhd; these inputs fit layout="bshd"$'
    with pytest.raises(UsageError, match=needed):
        ae.verify(torch.add, reference="attention", inputs=heads)


@pytest.mark.parametrize(
    ("op", "shapes", "asked", "advice"),
    [
        ("gemm", {"a": (4, 8), "b": (5, 8)}, {}, 'pass layout="nt"'),
        ("gemm", {"a": (8, 4), "b": (8, 5)}, {"layout": "nt"}, 'pass layout="tn"'),
        ("gemm", {"a": (4, 8), "b": (8, 5), "bias": (5,)}, {}, 'pass options={"bias": True}'),
        ("gemm", {"a": (4, 8), "b": (8, 5), "c": (4, 5)}, {}, 'pass options={"beta": 1.0}'),
        ("gemm", {"a": (4, 8), "b": (5, 8), "bias": (5,)}, {}, 'pass layout="nt" and options={"bias": True}'),
        (
            "gemm_epilogue",
            {"a": (4, 8), "b": (5, 8), "bias": (5,), "residual": (4, 5)},
            {},
            'pass layout="nt" and options={"bias": True, "residual": True}',
        ),
        ("gemm", {"a": (4, 8), "b": (7, 5)}, {}, None),
        ("rmsnorm", {"x": (2, 4, 8), "weight": (8,)}, {}, "pass x of 2 dimensions, not 3: reshape it"),
        ("layernorm", {"x": (4, 8), "weight": (8,)}, {}, None),
    ],
)
def test_operands_that_do_not_fit_are_met_with_what_to_pass(op, shapes, asked, advice):
    inputs = {n: ae.seeded(shape) for n, shape in shapes.items()}
    with pytest.raises(UsageError) as raised:
        ae.verify(torch.add, reference=op, inputs=inputs, **asked)
    assert str(raised.value).partition("; pass")[1:] == (("; pass", advice.removeprefix("pass")) if advice else ("", ""))


def test_the_message_of_outputs_that_pass_is_two_lines_each_and_limits_stand_once():
    good = ae.verify(torch.matmul, reference="gemm", inputs=GEMM)
    lines = good.message.split("\n")
    assert [line.split(":")[0].split(" ")[0] or line.split(":")[0] for line in lines] == ["PASS", "  would have failed"] * 3
    bad = ae.verify(lambda a, b: a @ b * 1.5, reference="gemm", inputs=GEMM)
    text = bad.message
    assert text.count("  limit budget_max <= 1:") == 1
    assert text.count("  cause gain: ") == 3
    assert all(c.message.count("  limit budget_max <= 1:") == 1 for c in bad.comparisons.values())  # the whole is there


@pytest.mark.parametrize("normalised", [True, False])
def test_a_router_whose_k_no_input_shows_is_verified_with_its_gradient(normalised):
    def router(x):
        weights, experts = torch.topk(x.softmax(-1), 4)
        return {"indices": experts.int(), "weights": weights / weights.sum(-1, keepdim=True) if normalised else weights}

    x = ae.seeded((16, 40))
    v = ae.verify(router, reference="topk", inputs={"x": x}, options={"k": 4, "normalised": True}, device="cpu")
    assert v.passed is normalised
    assert set(v.comparisons) == {"indices", "weights", "dx"}
    with pytest.raises(UsageError, match=r"inputs of op topk: found x \[16, 40\] float32; expected x; and option k, which no input shows"):
        ae.verify(router, reference="topk", inputs={"x": x}, device="cpu")


def test_a_loss_added_up_instead_of_averaged_is_named():
    def loss(x, target):
        return torch.nn.functional.cross_entropy(x, target.long(), reduction="sum")

    given = {"x": torch.randn(16, 40, generator=torch.Generator().manual_seed(1)), "target": torch.arange(16)}
    v = ae.verify(loss, reference="cross_entropy", inputs=given, device="cpu")
    assert not v.passed
    assert {d.sentence for c in v.comparisons.values() for d in c.diagnoses} == {"the sum is not divided by the rows"}
    assert ae.verify(loss, reference="cross_entropy", inputs=given, options={"reduction": "sum"}, device="cpu").passed


TOKENS, CHOSEN, EXPERTS, WIDTH = 24, 3, 5, 32
TABLE = torch.stack([torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(i))[:CHOSEN] for i in range(TOKENS)]).int()
ORDER = torch.argsort(TABLE.flatten().long(), stable=True)
PLACE = torch.argsort(ORDER).view(TABLE.shape).int()  # of each token with each of its experts


def permuted(fault=""):
    """Tokens gathered by expert, with a backward pass written by hand."""

    class Permute(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, experts):
            ctx.mark_non_differentiable(place := PLACE.clone())
            return x[ORDER // CHOSEN], place

        @staticmethod
        def backward(ctx, g, _):
            slots = list(range(CHOSEN))[: CHOSEN - 1 if fault == "an expert lost" else CHOSEN]
            rows = g.roll(1, 0) if fault == "rows shifted" else g
            found = sum(rows[PLACE[:, j].long()].float() for j in slots)
            return (found / CHOSEN if fault == "a mean" else found).to(g.dtype), None

    return Permute.apply


def unpermuted(fault=""):
    """Rows of experts brought home, weighted and added, with a backward pass written by hand."""

    class Unpermute(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, probs, place):
            ctx.save_for_backward(x, probs)
            return (x[PLACE.long()].float() * probs.float()[:, :, None]).sum(1).to(x.dtype)

        @staticmethod
        def backward(ctx, g):
            x, probs = ctx.saved_tensors
            weights = torch.ones_like(probs) if fault == "no weights" else probs.roll(1, 1) if fault == "another's weights" else probs
            dx = torch.zeros_like(x)
            dx[PLACE.flatten().long()] = (g[:, None] * weights[:, :, None]).view(-1, x.shape[1])
            dprobs = (x[PLACE.long()].float() * g.float()[:, None])[..., : -4 if fault == "a tail lost" else None].sum(2)
            return dx, dprobs.to(x.dtype), None

    return Unpermute.apply


@pytest.mark.parametrize("fmt", ["float32", "bfloat16"])
def test_gradients_of_experts_that_lose_a_part_or_a_weight_fail(fmt):
    tokens, rows, probs = (ae.seeded(s, fmt) for s in ((TOKENS, WIDTH), (TOKENS * CHOSEN, WIDTH), (TOKENS, CHOSEN)))
    gathered = {"reference": "permute", "inputs": {"x": tokens, "experts": TABLE}, "options": {"e": EXPERTS}}
    home = {"reference": "unpermute", "inputs": {"x": rows, "probs": probs, "place": PLACE}, "options": {"e": EXPERTS}}

    def failing(fn, call):
        return {n for n, c in ae.verify(fn, **call).comparisons.items() if c.verdict == "FAIL"}

    for fault in ("", "an expert lost", "rows shifted", "a mean"):
        assert failing(permuted(fault), gathered) == ({"dx"} if fault else set()), fault
    wrong = {"": set(), "no weights": {"dx"}, "another's weights": {"dx"}, "a tail lost": {"dprobs"}}
    for fault, outputs in wrong.items():
        assert failing(unpermuted(fault), home) == outputs, fault
