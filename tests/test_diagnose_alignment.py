"""misaligned-read: operands that were read some elements early are named with how many; nothing else is."""

import numpy as np
import pytest
from support_ops import Known, codes_of

from accuracy_eval.records import Verdict

every = pytest.mark.parametrize


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(v):
    k, x = (np.repeat(v[n], v["q"].shape[1] // v["k"].shape[1], axis=1) for n in "kv")
    return softmax(v["q"] @ k.transpose(0, 1, 3, 2) / np.sqrt(v["q"].shape[3])) @ x


def attention_dv(v):
    return softmax(v["q"] @ v["k"].transpose(0, 1, 3, 2) / np.sqrt(v["q"].shape[3])).transpose(0, 1, 3, 2) @ v["grad_out"]


def rms_norm(v):
    return v["x"] / np.sqrt((v["x"] ** 2).mean(1, keepdims=True) + 1e-5) * v["weight"]


HEADS = [(1, 4, 2, 32, 32, 32), (2, 2, 2, 24, 40, 64), (1, 3, 1, 17, 17, 48)]
ALIKE = [(1, 4, 4, 32, 32, 32), (2, 2, 2, 24, 40, 64), (1, 3, 3, 17, 17, 48)]
ROWS = [(16, 64), (33, 100), (5, 515)]
OPS = [
    ("attention", HEADS, "fwd", {"layout": "bhsd"}, "out", attention),
    ("attention", ALIKE, "bwd", {"layout": "bhsd"}, "dv", attention_dv),
    ("rmsnorm", ROWS, "fwd", {}, "y", rms_norm),
    ("softmax", ROWS, "fwd", {}, "result", lambda v: softmax(v["x"])),
    ("gemm", [(16, 24, 64), (33, 17, 50), (40, 40, 40)], "fwd", {"layout": "nn"}, "d", lambda v: v["a"] @ v["b"]),
]


def early(values, n):
    return {name: np.concatenate([np.zeros_like(x[..., :n]), x[..., :-n]], axis=-1) for name, x in values.items()}


@every(
    ("op", "shape", "direction", "more", "output", "result"),
    [pytest.param(op, shape, *rest, id=f"{op}-{rest[0]}-{shape}") for op, shapes, *rest in OPS for shape in shapes],
)
@every("fmt", ["float32", "float16", "bfloat16"])
def test_operands_that_were_read_early_are_named_and_other_results_are_not(op, shape, direction, more, output, result, fmt):
    k = Known(op, shape, format=fmt, direction=direction, input_class="misaligned", **more)
    assert codes_of(k.judged(output, result(k.values))) in ([], ["rounding-only"])
    for n in (1, 2, 3):
        side = k.judged(output, result(early(k.values, n)))
        found = [d for d in side.diagnoses if d.code == "misaligned-read"]
        assert (side.verdict, [d.evidence for d in found]) == (Verdict.FAIL, [{"elements": n}])
        assert found[0].sentence == f"operands were read {n} elements before they begin: an address was rounded down"
    turned = {name: np.roll(x, 3, axis=-1) for name, x in k.values.items()}
    late = {name: np.concatenate([x[..., 3:], np.zeros_like(x[..., :3])], axis=-1) for name, x in k.values.items()}
    first = next(iter(k.values))
    others = [turned, late, early(k.values, 5)] + ([{**k.values, first: early(k.values, 3)[first]}] if len(k.values) > 1 else [])
    for wrong in others:
        assert "misaligned-read" not in codes_of(k.judged(output, result(wrong)))
    elsewhere = Known(op, shape, format=fmt, direction=direction, **more)
    assert "misaligned-read" not in codes_of(elsewhere.judged(output, result(early(elsewhere.values, 3))))


@every(
    ("causal", "worst"),
    [
        (False, {(0, 0, 18, 8): 0.60693359375, (0, 1, 30, 30): 1.03125, (0, 1, 20, 24): -0.216796875, (0, 2, 10, 10): 0.66650390625}),
        (True, {(0, 1, 2, 26): 1.2939453125, (0, 0, 0, 18): -1.5234375, (0, 3, 1, 8): -1.13671875, (0, 2, 0, 4): 1.458984375}),
    ],
)
def test_what_an_h200_gave_for_attention_off_alignment_is_named(causal, worst):
    options = {"causal": True} if causal else {}
    k = Known("attention", (1, 4, 2, 32, 32, 32), format="float16", layout="bhsd", input_class="misaligned", options=options)
    moved = early(k.values, 3)
    keys, values = (np.repeat(moved[n], 2, axis=1) for n in "kv")
    scores = moved["q"] @ keys.transpose(0, 1, 3, 2) / np.sqrt(32)
    out = softmax(np.where(np.tril(np.ones((32, 32), bool)), scores, -np.inf) if causal else scores) @ values
    assert all(abs(out[at] - value) < 5e-4 for at, value in worst.items())  # torch 2.11, cuDNN 9.19
    side = k.judged("out", out)
    assert codes_of(side)[0] == "misaligned-read"
    assert side.metrics["budget_max"] == pytest.approx(23356 if causal else 4113, rel=0.01)
