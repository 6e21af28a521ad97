"""Attention with sinks: values and gradients by mpmath, budgets that torch's ways to compute them keep, sinks that went wrong fail."""

import itertools

import mpmath
import numpy as np
import pytest
import torch
from support_ops import Known, codes_of

from accuracy_eval.backends import attentions
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import case_id, make_case, parse_case
from accuracy_eval.compare import compare_dumps
from accuracy_eval.cpu_ref.attention import Attention, backward, forward
from accuracy_eval.dump import dump
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode
from accuracy_eval.inputs import INPUT_CLASSES
from accuracy_eval.ops.attention import scale_of
from accuracy_eval.records import Verdict
from accuracy_eval.store import Dump
from accuracy_eval.suite import parse_suite

every = pytest.mark.parametrize
FORMS = [{"causal": True}, {"window": 8}, {"scale": 0.5}]
SHAPES = [(2, 4, 4, 40, 40, 32), (1, 6, 2, 24, 24, 16)]


def known(shape=(2, 4, 2, 40, 40, 32), fmt="bfloat16", direction="fwd", layout="bhsd", input_class="normal", **options):
    options = options | {"sink": True}
    return Known("attention", shape, format=fmt, layout=layout, direction=direction, input_class=input_class, options=options)


def exact(q, k, v, sink, scale, window):
    """out and lse of one query after its keys, as mpmath numbers."""
    scores = [scale * mpmath.fsum(x * y for x, y in zip(q, key, strict=True)) for key in k[-window:]]
    weights = [mpmath.exp(x) for x in (*scores, sink)]
    total = mpmath.fsum(weights)
    out = [mpmath.fsum(w * x[c] for w, x in zip(weights, v[-window:], strict=False)) / total for c in range(len(v[0]))]
    return out, mpmath.log(total)


def test_values_and_gradients_are_those_of_exact_arithmetic():
    """Two query heads of one key head, three queries, a window of two; gradients by differences of 60 digits."""
    rng = np.random.default_rng(4)
    q, k, v, g = (rng.normal(size=(h, 3, 2)) for h in (2, 1, 1, 2))
    sink = np.array([0.7, -1.5])
    a = Attention(q[None], k[None], v[None], 0.75, False, 2, "float64", sink)
    given = np.concatenate([x.ravel() for x in (q, k, v, sink)])
    splits = np.cumsum([q.size, k.size, v.size])

    def loss(numbers):
        x, y, z = (numbers[i:j] for i, j in itertools.pairwise((0, *splits)))
        found = mpmath.mpf(0)
        for h, i in np.ndindex(2, 3):
            keys, values = ([row[2 * j : 2 * j + 2] for j in range(i + 1)] for row in (y, z))
            start = 2 * (3 * h + i)
            out, log = exact(x[start : start + 2], keys, values, numbers[splits[-1] + h], mpmath.mpf("0.75"), 2)
            outs[h, i], logs[h, i] = [float(n) for n in out], float(log)
            found += mpmath.fsum(n * mpmath.mpf(w) for n, w in zip(out, g[h, i].tolist(), strict=True))
        return found

    outs, logs = np.zeros((2, 3, 2)), np.zeros((2, 3))
    with mpmath.workdps(60):
        numbers, step = [mpmath.mpf(n) for n in given.tolist()], mpmath.mpf(10) ** -20
        slopes = []
        for n in range(len(numbers)):
            ends = [loss([x + (sign * step if m == n else 0) for m, x in enumerate(numbers)]) for sign in (1, -1)]
            slopes.append(float((ends[0] - ends[1]) / (2 * step)))
        loss(numbers)
    found = forward(a)
    np.testing.assert_allclose(found["out"].values[0], outs, rtol=1e-13)
    np.testing.assert_allclose(found["lse"].values[0], logs, rtol=1e-13)
    parts = np.split(np.array(slopes), splits)
    for (name, value), wanted in zip(backward(a, g[None]).items(), parts, strict=True):
        np.testing.assert_allclose(value.values.ravel(), wanted, rtol=1e-11, atol=1e-14, err_msg=name)


@every("fmt", ["float32", "float16", "bfloat16", "float64"])
@every("direction", ["fwd", "bwd"])
def test_what_torch_computes_passes(direction, fmt):
    for shape, form, layout in zip([*SHAPES, SHAPES[0]], FORMS, ("bhsd", "bshd", "sbhd"), strict=True):
        assert known(shape, fmt, direction, layout, **form).healthy() == []


@every("fmt", ["float32", "float16", "bfloat16"])
@every("direction", ["fwd", "bwd"])
def test_healthy_results_of_every_input_class_pass(direction, fmt):
    off = [known((1, 2, 1, 20, 20, 16), fmt, direction, input_class=c).healthy() for c in INPUT_CLASSES]
    assert [o for o in off if o] == []


def torch_operands(k):
    return [torch.from_numpy(k.values[n]) for n in ("q", "k", "v", "sink")]


def faulty(case, q, k, v, sink, fault):
    """out and lse in float64 with a fault of the sinks."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * scale_of(case)
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
    if dict(case.options).get("causal"):
        s = s.masked_fill(j > i, -torch.inf)
    sink = {"another head's": sink.roll(1), "scaled": sink * scale_of(case), "twice": sink + np.log(2)}.get(fault, sink)
    column = sink[None, :, None, None].expand(*s.shape[:3], 1)
    top = torch.cat([s, column], -1).amax(-1, keepdim=True)
    weights, more = (s - top).exp(), (column - top).exp()
    total = weights.sum(-1, keepdim=True) + (0 if fault in ("ignored", "in the maximum alone") else more)
    if fault == "ignored":
        top = s.amax(-1, keepdim=True)
        weights = (s - top).exp()
        total = weights.sum(-1, keepdim=True)
    lse = (top + total.log())[..., 0]
    return (weights / total) @ v, (s.logsumexp(-1) if fault == "in out alone" else lse)


@every("fmt", ["float32", "bfloat16"])
@every("options", [{"causal": True}, {}], ids=["causal", "plain"])
def test_sinks_that_went_wrong_fail(fmt, options):
    k = known(fmt=fmt, lse=True, **options)
    for fault in ("none", "ignored", "in the maximum alone", "another head's", "scaled", "twice"):
        verdicts = [k.judged(n, x.numpy()).verdict for n, x in zip(("out", "lse"), faulty(k.case, *torch_operands(k), fault), strict=True)]
        assert verdicts == [Verdict.PASS if fault == "none" else Verdict.FAIL] * 2, fault
    assert k.judged("lse", faulty(k.case, *torch_operands(k), "in out alone")[1].numpy()).verdict is Verdict.FAIL


@every("fmt", ["float32", "bfloat16"])
def test_wrong_gradients_of_sinks_fail(fmt):
    k = known(fmt=fmt, direction="bwd", causal=True)
    leaves = [x.requires_grad_() for x in torch_operands(k)]
    grad = torch.from_numpy(k.values["grad_out"])

    def gradients(fault):
        return torch.autograd.grad(faulty(k.case, *leaves, fault)[0], leaves, grad, allow_unused=True)

    right = gradients("none")
    for name, value in zip(("dq", "dk", "dv", "dsink"), right, strict=True):
        assert k.judged(name, value.numpy()).verdict is Verdict.PASS, name
    for fault in ("ignored", "another head's"):
        for name, value in list(zip(("dq", "dk", "dv"), gradients(fault), strict=False)):
            assert k.judged(name, value.numpy()).verdict is Verdict.FAIL, (fault, name)
    dsink = right[3]
    one_batch = torch.autograd.grad(faulty(k.case, *leaves, "none")[0][:1], leaves[3], grad[:1])[0]
    gain = 1.05 if fmt == "float32" else 1.25
    for wrong in (-dsink, dsink.roll(1), dsink * gain, one_batch, dsink * 0):
        assert k.judged("dsink", wrong.numpy()).verdict is Verdict.FAIL
    assert codes_of(k.judged("dsink", dsink.numpy() * 0))[0] == "all-zero"
    if fmt == "float32":  # two numbers in bfloat16 tell no cause
        (named,) = [d for d in k.judged("dsink", one_batch.numpy()).diagnoses if d.code == "formula-step"]
        assert named.evidence["step"] == "the gradient of a sink is of the first batch alone"


def test_each_way_to_compute_sinks_runs_or_says_why_not(tmp_path):
    table = {
        "op": "attention", "shape": "1x4x2x16x16x16", "format": ["float32", "bfloat16"], "direction": ["fwd", "bwd"],
        "options": {"sink": True, "causal": True},
    }  # fmt: skip
    lse = {**table, "direction": "fwd", "options": {"sink": True, "window": 4, "lse": True}}
    backend = TorchBackend("cpu")
    dump(parse_suite({"name": "t", "cases": [table, lse]}, "t"), backend, tmp_path / "a.h5", candidates=["all"])
    backend.close()
    records = Dump.open(tmp_path / "a.h5").records
    chosen = [r for r in records if r.case.format == "bfloat16"]
    found = {(r.case.option("lse", False), r.case.direction, r.candidate): (r.status, r.reason) for r in chosen}
    done = ("done", "")
    assert {c: found[False, "fwd", c] for c in ("default", "math", "eager")} == dict.fromkeys(("default", "math", "eager"), done)
    assert found[True, "fwd", "eager"] == done
    assert found[True, "fwd", "default"][1] == "the call that returns lse takes no window, no sink and no grouped heads"
    assert found[False, "bwd", "flex"] == ("unsupported", "needs a GPU")
    assert found[False, "bwd", "flash"][0] == "unsupported"
    assert found[False, "bwd", "flash"][1].endswith("a sink is a mask, whose gradient is wanted")
    results = compare_dumps(tmp_path / "a.h5")
    assert {t.candidate for t in results.tensors} == {"default", "math", "flash", "eager"}
    assert [t.id for t in results.tensors if t.verdict is not Verdict.PASS] == []


@every("options", [{"causal": True}, {"window": 5}, {}], ids=["causal", "window", "plain"])
def test_flex_attention_has_the_sinks_score_at_one_more_key(options, monkeypatch):
    """Forward and without a compiler, as a CPU has it; on a GPU it is compiled."""
    from torch.nn.attention import flex_attention

    monkeypatch.setattr(attentions, "_compiled", lambda torch: flex_attention.flex_attention)
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)
    k = known((1, 4, 2, 20, 20, 16), "float32", lse=True, **options)
    t = {n: torch.from_numpy(decode(c.codes, c.format)).float() for n, c in k.inputs.items()}
    found = attentions.flex(torch, k.case, t["q"], t["k"], t["v"], t["sink"])
    for name in ("out", "lse"):
        assert k.judged(name, found[name].numpy()).verdict is Verdict.PASS


def test_sinks_have_ids_and_operands_of_their_own():
    case = make_case("attention", tuple(zip("bhgstd", SHAPES[0], strict=True)), layout="bhsd", options={"sink": True}, direction="bwd")
    assert parse_case(case_id(case)) == case
    k = known(direction="bwd")
    assert (k.inputs["sink"].shape, k.outputs["dsink"].shape, list(k.outputs)) == ((4,), (4,), ["dq", "dk", "dv", "dsink"])
    with pytest.raises(UsageError, match="option sink=1"):
        make_case("attention", tuple(zip("bhgstd", SHAPES[0], strict=True)), layout="bhsd", options={"sink": 1})
