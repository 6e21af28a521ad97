"""attention: values and gradients as float64 autograd gives them, budgets that the framework's kernels keep and broken ones do not."""

import dataclasses
import warnings
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from support_judging import judged, known

from accuracy_eval.backends import attentions
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import case_id, make_case, parse_case
from accuracy_eval.compare import compare_dumps
from accuracy_eval.compare import inputs as compare_inputs
from accuracy_eval.dump import dump
from accuracy_eval.errors import UnsupportedCase, UsageError
from accuracy_eval.formats import decode, encode
from accuracy_eval.ops import attention as ops_attention
from accuracy_eval.ops.attention import order, scale_of
from accuracy_eval.ops.registry import OPS
from accuracy_eval.records import Verdict
from accuracy_eval.store import Dump
from accuracy_eval.suite import parse_suite

SHAPES = {"square": (2, 4, 4, 40, 40, 32), "grouped": (1, 6, 2, 24, 24, 16), "rectangular": (1, 2, 2, 24, 56, 64)}
FORMS = [
    ("square", {}), ("square", {"causal": True}), ("grouped", {"causal": True}), ("rectangular", {"scale": 0.5}), ("square", {"window": 8}),
]  # fmt: skip


def case_of(shape, options, fmt, direction="fwd", layout="bhsd", input_class="normal"):
    sizes = tuple(zip("bhgstd", SHAPES[shape], strict=True))
    return make_case("attention", sizes, format=fmt, layout=layout, options=options, direction=direction, input_class=input_class)


def naive(case, t):
    """Attention written out, on bhsd float64 tensors."""
    q, k, v = t
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * scale_of(case)
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
    options = dict(case.options)
    if options.get("causal") or options.get("window"):
        s = s.masked_fill(~((j <= i) & (j > i - options.get("window", 10**6))), -torch.inf)
    return s.softmax(-1) @ v, s.logsumexp(-1)


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sbhd"])
@pytest.mark.parametrize(("shape", "options"), FORMS, ids=[f"{s}-{'-'.join(map(str, o)) or 'plain'}" for s, o in FORMS])
def test_values_and_gradients_are_those_of_float64_autograd(shape, options, layout):
    case = case_of(shape, options, "bfloat16", "bwd", layout)
    assert parse_case(case_id(case)) == case
    inputs, references = known(case)
    t = {n: torch.from_numpy(decode(c.codes, c.format)).permute(order(layout)) for n, c in inputs.items()}
    leaves = [t[n].clone().requires_grad_() for n in "qkv"]
    out, lse = naive(case, leaves)
    wanted = dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, leaves, t["grad_out"]), strict=True))
    forward = case_of(shape, {**options, "lse": True}, "bfloat16", "fwd", layout)
    _, more = known(forward)
    for name, value in {**wanted, "out": out, "lse": lse}.items():
        reference = {**references, **more}[name]
        (panel,) = reference.panels()
        mine = panel.values.reshape(reference.shape)
        mine = mine.transpose(order(layout)) if mine.ndim == 4 else mine
        np.testing.assert_allclose(mine, value.detach().numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("fmt", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize(("shape", "options"), FORMS, ids=[f"{s}-{'-'.join(map(str, o)) or 'plain'}" for s, o in FORMS])
def test_what_torch_computes_passes(shape, options, direction, fmt):
    case = case_of(shape, options, fmt, direction)
    backend = TorchBackend("cpu")
    outcome = backend.run(backend.prepare(case), backend.candidates("attention")[0], repeats=1)
    backend.close()
    _, references = known(case)
    for r in outcome.results:
        result = judged(case, r.name, r.codes[0].result(), references)
        assert result.verdict is Verdict.PASS, (r.name, result.sides[0].metrics["budget_max"])


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_the_reference_is_the_same_for_any_number_of_threads(direction, monkeypatch):
    options = {"causal": True, "lse": True} if direction == "fwd" else {"causal": True, "sink": True}
    case = make_case("attention", tuple(zip("bhgstd", (2, 6, 2, 48, 48, 32), strict=True)), format="bfloat16", layout="bshd",
                     options=options, direction=direction)  # fmt: skip
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("ACCURACY_EVAL_THREADS", threads)
        found.append({n: [(p.values.tobytes(), p.budget.tobytes()) for p in r.panels()] for n, r in known(case)[1].items()})
    assert found[0] == found[1]


def test_the_kernels_own_logsumexp_is_an_output():
    # float32: the CPU's 16-bit kernel exponentiates coarsely, which cancels in out and shows in lse (docs/findings.md)
    case = case_of("square", {"causal": True, "lse": True}, "float32")
    backend = TorchBackend("cpu")
    outcome = backend.run(backend.prepare(case), backend.candidates("attention")[0], repeats=1)
    backend.close()
    _, references = known(case)
    assert {r.name: judged(case, r.name, r.codes[0].result(), references).verdict for r in outcome.results} == {
        "out": Verdict.PASS, "lse": Verdict.PASS,
    }  # fmt: skip


@pytest.mark.parametrize("fmt", ["float32", "bfloat16"])
@pytest.mark.parametrize("input_class", ["normal", "outlier"])
def test_small_faults_of_attention_fail(fmt, input_class):
    case = case_of("square", {"causal": True}, fmt, input_class=input_class)
    inputs, references = known(case)
    t = [torch.from_numpy(decode(inputs[n].codes, fmt)) for n in "qkv"]
    healthy = naive(case, t)[0]
    assert judged(case, "out", encode(healthy.numpy(), fmt), references).verdict is Verdict.PASS
    q, k, v = t
    lost = v.clone()
    lost[:, :, 3] = 0  # one key is not multiplied
    faults = {
        "scale": naive(case, (q * 1.01 if fmt == "float32" else q * 1.1, k, v))[0],
        "lost key": naive(case, (q, k, lost))[0],
        "no mask": naive(case_of("square", {}, fmt), t)[0],
        "heads exchanged": healthy.flip(1),
        "one row": torch.cat([healthy[:, :, :7], healthy[:, :, 7:8] * 1.05, healthy[:, :, 8:]], 2),
    }
    for name, value in faults.items():
        assert judged(case, "out", encode(value.numpy(), fmt), references).verdict is Verdict.FAIL, name


def test_a_tail_of_zeros_is_named_from_its_first_element_on():
    case = make_case("attention", tuple(zip("bhgstd", (1, 1, 1, 80, 80, 64), strict=True)), format="bfloat16", layout="bhsd")
    inputs, references = known(case)
    value = naive(case, [torch.from_numpy(decode(inputs[n].codes, "bfloat16")) for n in "qkv"])[0]
    value[:, :, 64:] = 0
    (side,) = judged(case, "out", encode(value.numpy(), "bfloat16"), references).sides
    said = [d.sentence for d in side.diagnoses if d.code == "zero-tail"]
    assert said == ["the last 1024 of 5120 elements are zero, from element 4096 on"]


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((1, 3, 2, 8, 8, 4), {}, "h must be a multiple of g"),
        ((1, 2, 2, 8, 9, 4), {"causal": True}, "take s = t"),
        ((1, 2, 2, 8, 8, 4), {"window": -1}, "0 .* or more"),
        ((1, 2, 2, 8, 0, 4), {}, "t=0.*at least one key"),
        ((1, 2, 0, 8, 8, 4), {}, "g=0.*need heads of keys"),
        ((0, 0, 2, 8, 8, 0), {}, "d=0.*at least one element"),
    ],
)
def test_what_attention_cannot_be_is_refused(sizes, options, message):
    with pytest.raises(UsageError, match=message):
        make_case("attention", tuple(zip("bhgstd", sizes, strict=True)), options=options)


def test_a_pinned_kernel_runs_or_says_why_not(tmp_path):
    table = {"op": "attention", "shape": "1x2x2x16x16x16", "format": "bfloat16", "options": {"window": [0, 4]}, "direction": ["fwd", "bwd"]}
    suite = parse_suite({"name": "t", "cases": [table]}, "t")
    backend = TorchBackend("cpu")
    dump(suite, backend, tmp_path / "a.h5", candidates=["all"])
    backend.close()
    found = {
        (dict(r.case.options).get("window", 0), r.case.direction, r.candidate): (r.status, r.reason)
        for r in Dump.open(tmp_path / "a.h5").records
    }
    assert found[0, "fwd", "math"] == found[0, "bwd", "flash"] == ("done", "")
    assert found[0, "fwd", "cudnn"] == ("unsupported", "needs an NVIDIA GPU")
    results = compare_dumps(tmp_path / "a.h5")
    assert {t.candidate for t in results.tensors} == {"default", "math", "flash", "eager"}
    assert all(t.verdict is Verdict.PASS for t in results.tensors)


def test_candidates_of_a_case_share_its_operands_and_its_reference(tmp_path, monkeypatch):
    table = {"op": "attention", "shape": "1x2x2x16x16x16", "format": ["float32", "bfloat16"], "direction": ["fwd", "bwd"]}
    backend = TorchBackend("cpu")
    dump(parse_suite({"name": "t", "cases": [table]}, "t"), backend, tmp_path / "a.h5", candidates=["default", "math", "eager"])
    backend.close()
    made = []

    def counted(function, *args):
        made.append(function.__name__)
        return function(*args)

    for module, name in ((ops_attention, "forward"), (ops_attention, "backward"), (compare_inputs, "operand_codes")):
        monkeypatch.setattr(module, name, partial(counted, getattr(module, name)))
    together = compare_dumps(tmp_path / "a.h5")
    assert Counter(made) == {"operand_codes": 4, "forward": 2, "backward": 2}
    monkeypatch.setattr("accuracy_eval.compare.comparing.dealt", lambda keys, workers: [[k] for k in keys])
    made.clear()
    assert compare_dumps(tmp_path / "a.h5") == together
    assert Counter(made) == {"operand_codes": 12, "forward": 6, "backward": 6}


@pytest.mark.parametrize(
    "text", ["No available kernel. Aborting execution.", "No viable backend for scaled_dot_product_attention was found.", "Invalid backend"]
)
def test_a_kernel_that_does_not_take_the_case_is_unsupported_with_the_librarys_reasons(text, monkeypatch):
    def refuses(torch, case, t, out):
        warnings.warn("Flash attention requires head dim under 256. (Triggered internally at sdp.cpp:1.)", stacklevel=1)
        raise RuntimeError(text)

    monkeypatch.setitem(OPS, "attention", dataclasses.replace(OPS["attention"], torch=refuses))
    with pytest.raises(UnsupportedCase, match=r"^Flash attention requires head dim under 256\.$"):
        attentions.pinned(torch, case_of("square", {}, "bfloat16"), {}, {})
    silent = lambda *_: (_ for _ in ()).throw(RuntimeError(text))  # noqa: E731
    monkeypatch.setitem(OPS, "attention", dataclasses.replace(OPS["attention"], torch=silent))
    with pytest.raises(UnsupportedCase, match=r"^the kernel does not take the case, torch gives no reason \(.+\)$"):
        attentions.pinned(torch, case_of("square", {}, "bfloat16"), {}, {})
    monkeypatch.setitem(
        OPS, "attention", dataclasses.replace(OPS["attention"], torch=lambda *_: (_ for _ in ()).throw(RuntimeError("CUDA error")))
    )
    with pytest.raises(RuntimeError, match="CUDA error"):
        attentions.pinned(torch, case_of("square", {}, "bfloat16"), {}, {})
