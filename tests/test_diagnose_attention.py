"""Causes in attention: a wrong scale, mask, number of keys or head of K and V is named with its evidence; healthy outputs have none."""

import hashlib
import math

import numpy as np
import pytest
from support_ops import Known, codes_of

from accuracy_eval.inputs import INPUT_CLASSES
from accuracy_eval.records import Verdict

every = pytest.mark.parametrize
CODES = {"softmax-scale", "wrong-mask", "keys-missing", "wrong-kv-head", "wrong-sink"}
# outputs of an H200 (torch 2.11, cuDNN 9.19, 2026-11-30): attention.b1.h2.g2.s48.t48.d32.bshd.float16.window=8 of that class
H200_MASKED = {
    "huge": "dbbe1ee36adb7c04fd7d6db99f6f895294eab17f2686b11e780525f243669b50",
    "wide": "661ac62e83305a8d165fc7f32f28f213f2cf468e7c866d4f2088dbbfa10b5bd9",
}
LAYOUTS = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "sbhd": (1, 2, 0, 3)}  # where b, h, s, d lie; each is its own inverse but the last
BACK = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "sbhd": (2, 0, 1, 3)}


def attention(v, scale, seen, heads, hidden=-np.inf):
    """All outputs by the formula, float64, of bhsd operands: seen [s, t], heads[i] the head of K and V of query head i."""
    q, k, x = v["q"], v["k"][:, heads], v["v"][:, heads]
    scores = scale * q @ k.swapaxes(2, 3) + np.where(seen, 0.0, hidden)
    top = scores.max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        e = np.where(np.isfinite(top), np.exp(scores - top), 0.0)
        p = e / np.where(np.isfinite(top), e.sum(-1, keepdims=True), 1.0)
        found = {"out": p @ x, "lse": (top + np.log(e.sum(-1, keepdims=True)))[..., 0] if np.isfinite(top).all() else None}
    if "grad_out" in v:
        g = v["grad_out"]
        ds = p * (g @ x.swapaxes(2, 3) - (g * found["out"]).sum(-1, keepdims=True))
        shared = np.arange(v["k"].shape[1])[:, None] == np.array(heads)
        found["dq"] = scale * ds @ k
        found["dk"], found["dv"] = (np.einsum("gh,bhtd->bgtd", shared, y) for y in (scale * ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ g))
    return found


def places(dims):
    return np.arange(dims["s"])[:, None], np.arange(dims["t"])[None, :]


class Asked:
    """A case and what its operands give, as asked for or with one thing changed."""

    def __init__(self, shape, fmt="bfloat16", layout="bhsd", direction="fwd", input_class="normal", **options):
        more = {"format": fmt, "layout": layout, "direction": direction, "input_class": input_class}
        self.known = Known("attention", shape, **more, options=options | ({"lse": True} if direction == "fwd" else {}))
        self.values = {n: x.transpose(LAYOUTS[layout]) for n, x in self.known.values.items()}
        self.layout, dims = layout, self.known.case.dims
        i, j = places(dims)
        seen = np.ones((dims["s"], dims["t"]), bool)
        if options.get("causal") or options.get("window"):
            seen = (j <= i) & (j > i - options.get("window", 10**6))
        heads = [h // (dims["h"] // dims["g"]) for h in range(dims["h"])]
        self.right = {"scale": options.get("scale") or 1 / math.sqrt(dims["d"]), "seen": seen, "heads": heads}

    def said(self, name, **changed):
        """Verdict and attention's diagnoses of one output."""
        value = attention(self.values, **(self.right | changed))[name]
        side = self.known.judged(name, value if name == "lse" else value.transpose(BACK[self.layout]))
        return side, [d for d in side.diagnoses if d.code in CODES]

    def outputs(self):
        return list(self.known.outputs)


SHAPES = [(2, 4, 2, 40, 40, 32), (1, 6, 3, 70, 70, 64), (1, 8, 4, 33, 33, 48)]
FORMATS = ["float32", "float16", "bfloat16"]
DIRECTIONS = ["fwd", "bwd"]


@every("direction", DIRECTIONS)
@every("fmt", FORMATS)
@every(("shape", "layout"), list(zip(SHAPES, LAYOUTS, strict=True)))
def test_a_wrong_scale_is_named_with_its_value(shape, layout, fmt, direction):
    a, d = Asked(shape, fmt, layout, direction), shape[-1]
    wrong = {
        1 / d: "1/d", 1.0: "no scale", 1.4426950408889634 / math.sqrt(d): "log2 e twice",
        0.6931471805599453 / math.sqrt(d): "base 2 in place of e: log2 e is missing",
    }  # fmt: skip
    for name in a.outputs():
        assert a.said(name)[1] == []
        for value, what in wrong.items():
            side, found = a.said(name, scale=value)
            assert side.verdict is Verdict.FAIL
            assert [x.code for x in found] == ["softmax-scale"], (name, what, codes_of(side))
            assert found[0].evidence["value"] == pytest.approx(value, rel=1e-12)
            assert f"({what}); asked for is" in found[0].sentence
        assert a.said(name, scale=0.8 / math.sqrt(d))[1] == []


MASKS = [
    ({"causal": True}, lambda i, j: j <= i + 1, "up to i + 1", "up to i"),
    ({"causal": True}, lambda i, j: j <= i - 1, "up to i − 1", "up to i"),
    ({"causal": True}, lambda i, j: j >= 0, "all", "up to i"),
    ({"window": 9}, lambda i, j: (j <= i) & (j >= i - 9), "i − 9 … i", "i − 8 … i"),
    ({"window": 9}, lambda i, j: (j <= i) & (j >= i - 7), "i − 7 … i", "i − 8 … i"),
    ({"window": 9}, lambda i, j: (j <= i + 1) & (j >= i - 7), "i − 7 … i + 1", "i − 8 … i"),
    ({"window": 9}, lambda i, j: j <= i, "up to i", "i − 8 … i"),
    ({"window": 9}, lambda i, j: abs(i - j) <= 8, "i − 8 … i + 8", "i − 8 … i"),
    ({}, lambda i, j: j <= i, "up to i", "all"),
]


@every("direction", DIRECTIONS)
@every(("shape", "layout", "fmt"), list(zip(SHAPES, LAYOUTS, FORMATS, strict=True)))
@every(("options", "seen", "mask", "asked"), MASKS, ids=[f"{m}-for-{a}".replace(" ", "") for _, _, m, a in MASKS])
def test_a_mask_that_is_shifted_left_out_or_not_asked_for_is_named(options, seen, mask, asked, shape, layout, fmt, direction):
    a = Asked(shape, fmt, layout, direction, **options)
    for name in a.outputs():
        if name == "lse" and mask == "up to i − 1":
            continue  # the first query sees no key: its lse is that of nothing
        assert a.said(name)[1] == []
        side, found = a.said(name, seen=np.broadcast_to(seen(*places(a.known.case.dims)), a.right["seen"].shape))
        assert side.verdict is Verdict.FAIL
        assert [x.sentence for x in found] == [f"a query i sees the keys {mask}; it should see {asked}"], (name, codes_of(side))
        assert found[0].evidence == {"mask": mask}


@every("fmt", FORMATS)
@every(
    ("shape", "last", "mask"),
    [((1, 4, 2, 24, 56, 32), 0, "up to i"), ((1, 4, 2, 24, 56, 32), 32, "up to i + 32"), ((1, 2, 1, 60, 44, 32), -16, "up to i − 16")],
)
def test_a_mask_nobody_asked_for_is_named_with_the_corner_it_starts_in(shape, last, mask, fmt):
    a = Asked(shape, fmt)
    i, j = places(a.known.case.dims)
    found = a.said("out", seen=j <= i + last)[1]
    assert [x.evidence for x in found] == [{"mask": mask}]


@every("direction", DIRECTIONS)
@every(
    ("shape", "from_key", "fmt"),
    [
        ((2, 4, 2, 40, 40, 32), 39, "float32"),
        ((1, 6, 3, 70, 70, 64), 64, "float16"),
        ((1, 2, 2, 50, 150, 32), 128, "bfloat16"),
        ((1, 2, 2, 96, 96, 64), 64, "bfloat16"),
    ],
)
@every("causal", [False, True])
def test_keys_that_are_left_out_at_the_end_are_named_from_the_first_of_them(causal, shape, from_key, fmt, direction):
    if causal and shape[3] != shape[4]:
        shape = (*shape[:3], shape[4], *shape[4:])
    a = Asked(shape, fmt, direction=direction, causal=causal)
    for name in a.outputs():
        side, found = a.said(name, seen=a.right["seen"] & (np.arange(shape[4]) < from_key))
        assert [x.sentence for x in found] == [f"keys from {from_key} of {shape[4]} on are left out"], (name, codes_of(side))
        assert found[0].evidence == {"from_key": from_key}


SHARED = {
    "query head h takes head h mod 4": [0, 1, 2, 3, 0, 1, 2, 3],
    "every query head takes the next one's": [1, 1, 2, 2, 3, 3, 0, 0],
    "every query head takes that of the one before": [3, 3, 0, 0, 1, 1, 2, 2],
    "query heads take them from the last to the first": [3, 3, 2, 2, 1, 1, 0, 0],
}


@every("direction", DIRECTIONS)
@every("how", SHARED)
def test_query_heads_that_take_keys_and_values_of_other_heads_are_named_with_how(how, direction):
    for shape, layout, fmt in zip([(2, 8, 4, 40, 40, 32), (1, 8, 4, 33, 65, 48), (1, 8, 4, 70, 20, 64)], LAYOUTS, FORMATS, strict=True):
        a = Asked(shape, fmt, layout, direction)
        for name in a.outputs():
            side, found = a.said(name, heads=SHARED[how])
            assert [x.sentence for x in found] == [f"K and V are those of other heads: {how}"], (name, codes_of(side))
            assert found[0].evidence == {"how": how}
        assert a.said("out" if direction == "fwd" else "dq", heads=[0, 0, 2, 1, 3, 2, 1, 3])[1] == []


@every("fmt", FORMATS)
@every("options", [{}, {"causal": True}, {"window": 8}], ids=["plain", "causal", "window"])
def test_other_faults_are_not_taken_for_these(fmt, options):
    a = Asked((1, 4, 2, 48, 48, 32), fmt, **options)
    right = attention(a.values, **a.right)["out"]
    lost = a.right["seen"].copy()
    lost[:, 17] = False
    few = np.where(np.arange(48)[:, None] % 2, a.right["seen"], a.right["seen"] & (np.arange(48) < 32) | (np.arange(48) < 1))
    values = {
        "one key": attention(a.values, **(a.right | {"seen": lost}))["out"],
        "a tail, every second row": attention(a.values, **(a.right | {"seen": few}))["out"],
        "a factor": right * 1.25,
        "a row": np.where(np.arange(48)[:, None] == 30, right * 1.5, right),
        "a head": right * np.array([1, 1, 1, 0.5])[:, None, None],
        "heads exchanged": right[:, ::-1],
        "zeros": right * 0,
        "noise": right + np.random.default_rng(7).normal(size=right.shape),
    }
    for what, value in values.items():
        side = a.known.judged("out", value)
        assert side.verdict is Verdict.FAIL
        assert not CODES & set(codes_of(side)), what


@every("input_class", H200_MASKED)
def test_an_h200_sees_hidden_keys_by_a_mask_of_65504(input_class):
    """docs/findings.md. Scores lie so far apart that it hides nothing: the sampled queries see all keys."""
    a = Asked((1, 2, 2, 48, 48, 32), "float16", "bshd", input_class=input_class, window=8)
    out = attention(a.values, **a.right, hidden=-65504.0)["out"].transpose(BACK["bshd"]).astype(np.float16)
    assert hashlib.sha256(np.ascontiguousarray(out).tobytes()).hexdigest() == H200_MASKED[input_class]
    assert a.known.judged("out", out.astype(np.float64)).verdict is Verdict.FAIL
    assert [(d.code, d.evidence) for d in a.said("out", hidden=-65504.0)[1]] == [("wrong-mask", {"mask": "all"})]
    assert a.said("out")[0].verdict is Verdict.PASS


SINKS = {
    None: (32**-0.5, lambda s: s),
    "softmax-scale": (1 / 32, lambda s: s),
    "a head's sink has no part in the softmax": (32**-0.5, lambda s: s - np.inf),
    "a head's sink is scaled as scores are": (32**-0.5, lambda s: s * 32**-0.5),
}


@every("causal", [False, True])
@every("fmt", FORMATS)
def test_a_sink_that_is_left_out_or_scaled_is_named_and_else_stays_where_it_is(causal, fmt):
    k = Known("attention", (1, 4, 2, 40, 40, 32), format=fmt, layout="bhsd", options={"sink": True, "causal": causal, "lse": True})
    q, key, v = (np.repeat(k.values[n], 1 if n == "q" else 2, axis=1) for n in "qkv")
    seen = np.tril(np.ones((40, 40), bool)) if causal else np.ones((40, 40), bool)
    for said, (scale, change) in SINKS.items():
        e = np.where(seen, np.exp(scale * q @ key.swapaxes(2, 3)), 0.0)
        total = e.sum(-1, keepdims=True) + np.exp(change(k.values["sink"]))[None, :, None, None]
        for name, value in (("out", e @ v / total), ("lse", np.log(total)[..., 0])):
            found = [d for d in k.judged(name, value).diagnoses if d.code in CODES]
            assert [d.sentence if d.code == "wrong-sink" else d.code for d in found] == ([said] if said else []), (name, said)


@every("scales", ["tensor", "head", "block"])
def test_causes_of_attention_on_8_bit_codes_are_named(scales):
    options = {"scales": scales, "causal": True, "lse": True}
    k = Known("attention_fp8", (1, 4, 2, 128, 128, 64), format="fp8_e4m3", recipe="tensorwise", layout="bhsd", options=options)
    v = {}
    for n in "qkv":
        factor = np.repeat(k.values[f"{n}_scale"], 128, axis=2) if scales == "block" else k.values[f"{n}_scale"]
        v[n] = k.values[n] * factor.reshape(factor.shape + (1,) * (4 - factor.ndim) * bool(factor.ndim))
    i, j = np.arange(128)[:, None], np.arange(128)[None, :]
    right = {"scale": 0.125, "seen": j <= i, "heads": [0, 0, 1, 1]}
    changes = {
        "softmax-scale": {"scale": 1 / 64}, "wrong-mask": {"seen": j <= i + 1}, "keys-missing": {"seen": (j <= i) & (j < 64)},
        "wrong-kv-head": {"heads": [0, 1, 0, 1]},
    }  # fmt: skip
    for name in ("out", "lse"):
        assert k.judged(name, attention(v, **right)[name]).verdict is Verdict.PASS
        for code, changed in changes.items():
            assert [x for x in codes_of(k.judged(name, attention(v, **(right | changed))[name])) if x in CODES] == [code], (name, code)


@every("direction", DIRECTIONS)
def test_what_the_framework_computes_of_any_input_has_no_cause(direction):
    for input_class in INPUT_CLASSES:
        more = {"input_class": input_class, "direction": direction, "options": {"causal": True}}
        k = Known("attention", (1, 4, 2, 24, 24, 16), format="bfloat16", layout="bshd", **more)
        for name, codes in k.computed().items():
            assert not CODES & set(codes_of(k.judged_codes(name, codes))), (input_class, name)


def test_a_long_tensor_is_named_from_a_sample_of_its_heads_and_queries():
    a = Asked((1, 16, 8, 320, 320, 16), layout="bshd", causal=True)
    seen = np.tri(320, k=1, dtype=bool)
    assert [x.evidence for x in a.said("out", seen=seen)[1]] == [{"mask": "up to i + 1"}]
    seen[160:] = np.tri(320, dtype=bool)[160:]
    assert a.said("out", seen=seen)[1] == []  # half the queries see what they should


STEPS = {
    "δ = Σ grad_out · out is not subtracted": lambda delta: 0 * delta,
    "δ = Σ grad_out · out is added": lambda delta: -delta,
    "δ = Σ grad_out · out is that of the query before": lambda delta: np.roll(delta, 1, axis=2),
}


@pytest.mark.parametrize("fmt", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["bhsd", "sbhd"])
def test_what_is_subtracted_from_the_gradient_of_weights_is_named_where_it_is_wrong(fmt, layout):
    k = Known("attention", (2, 4, 2, 40, 40, 16), format=fmt, layout=layout, direction="bwd", options={"causal": True})
    q, key, v, g = (k.values[n].transpose([layout.index(x) for x in "bhsd"]) for n in ("q", "k", "v", "grad_out"))
    key, v = (np.repeat(x, 2, axis=1) for x in (key, v))
    e = np.where(np.tri(40, dtype=bool), np.exp(q @ key.swapaxes(2, 3) / 4), 0.0)
    p, back = e / e.sum(axis=3, keepdims=True), ["bhsd".index(x) for x in layout]
    dp = g @ v.swapaxes(2, 3)
    delta = (p * dp).sum(axis=3, keepdims=True)

    def added(x):
        return (x[:, 0::2] + x[:, 1::2]).transpose(back)

    for step, change in {"": lambda delta: delta, **STEPS}.items():
        ds = p * (dp - change(delta)) / 4
        for name, value in {"dq": (ds @ key).transpose(back), "dk": added(ds.swapaxes(2, 3) @ q)}.items():
            found = [d.evidence["step"] for d in k.judged(name, value).diagnoses if d.code == "formula-step"]
            assert found == ([step] if step else []), (name, step)
    first = (p.swapaxes(2, 3) @ g)[:, 0::2].transpose(back)
    assert [d.evidence.get("step") for d in k.judged("dv", first).diagnoses] == [
        "gradients of the heads that share one of K and V are those of the first alone"
    ]
