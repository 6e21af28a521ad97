"""topk: experts in order of their scores, their weights and the gradient; ties defined, wrong choices that fail."""

import mpmath
import numpy as np
import pytest
from support_ops import Known

from accuracy_eval.cases import make_case
from accuracy_eval.cpu_ref.routing import Routing, best
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode, encode
from accuracy_eval.inputs import INPUT_CLASSES
from accuracy_eval.records import Verdict

every = pytest.mark.parametrize
FORMS = [{"score": s, "normalised": n} for s in ("softmax", "sigmoid") for n in (False, True)]
NARROW = ["float32", "float16", "bfloat16"]
NAN = float("nan")


@every("options", FORMS, ids=lambda o: f"{o['score']}-{o['normalised']}")
@every("fmt", [*NARROW, "float64"])
@every("direction", ["fwd", "bwd"])
def test_what_torch_computes_passes_for_every_input_class(options, fmt, direction):
    off = [Known("topk", (12, 6, 64), format=fmt, direction=direction, options=options, input_class=c).healthy() for c in INPUT_CLASSES]
    assert [o for o in off if o] == []


@every("fmt", [*NARROW, "float64"])
@every("score", ["softmax", "sigmoid"])
@every("experts", [8, 256])
def test_torch_chooses_the_one_right_answer_of_the_exact_lane(fmt, score, experts):
    k = Known("topk", (50, 8, experts), format=fmt, lane="exact", options={"score": score})
    assert k.healthy() == []
    x = k.values["x"]
    assert all(len(set(row)) == experts for row in x.tolist())
    wanted = [sorted(range(experts), key=row.__getitem__, reverse=True)[:8] for row in x.tolist()]
    assert k.truth("indices").tolist() == wanted


@every(
    ("row", "wanted"),
    [
        ([1.0, 3.0, 2.0], [1, 2, 0]),
        ([2.0, 2.0, 5.0, 2.0], [2, 0, 1, 3]),
        ([0.0, -0.0, 1.0], [2, 0, 1]),
        ([1.0, NAN, float("inf"), NAN], [1, 3, 2, 0]),
        ([-float("inf"), 0.0], [1, 0]),
    ],
)
def test_order_is_by_value_then_by_number_with_nan_first(row, wanted):
    assert best(np.array([row]), len(row)).tolist() == [wanted]


def exact(row, chosen, grad, score, normalised):
    """Weights and the gradient as 50-digit numbers: dx[j] = Σ grad·∂w/∂x[j] by the definition's derivative."""
    with mpmath.workdps(50):
        v = [mpmath.mpf(a) for a in row]
        total = mpmath.fsum(mpmath.exp(a) for a in v)
        s = [mpmath.exp(a) / total if score == "softmax" else 1 / (1 + mpmath.exp(-a)) for a in v]
        # ds[i]/dx[j]
        slope = (lambda i, j: s[i] * ((i == j) - s[j])) if score == "softmax" else (lambda i, j: s[i] * (1 - s[i]) * (i == j))
        sum_ = mpmath.fsum(s[i] for i in chosen)
        w = [s[i] / sum_ if normalised else s[i] for i in chosen]
        dx = []
        for j in range(len(v)):
            ds = [slope(i, j) for i in chosen]
            dw = [(d - a * mpmath.fsum(ds)) / sum_ for d, a in zip(ds, w, strict=True)] if normalised else ds
            dx.append(mpmath.fsum(mpmath.mpf(g) * d for g, d in zip(grad, dw, strict=True)))
        return [float(a) for a in w], [float(d) for d in dx]


@every("options", FORMS, ids=lambda o: f"{o['score']}-{o['normalised']}")
def test_weights_and_gradients_are_those_of_exact_arithmetic(options):
    rng = np.random.default_rng(4)
    x, grad = rng.normal(size=(3, 12)) * 2, rng.normal(size=(3, 4))
    chosen = best(x, 4)
    a = Routing(x, options["score"], options["normalised"], "float32")
    for i in range(3):
        w, dx = exact(x[i].tolist(), chosen[i].tolist(), grad[i].tolist(), **options)
        np.testing.assert_allclose(a.weights(chosen)[0][i], w, rtol=1e-13)
        np.testing.assert_allclose(a.gradient(chosen, grad)[0][i], dx, rtol=1e-11, atol=1e-15)


@every("fmt", NARROW)
@every("lane", ["random", "exact"])
def test_wrong_choices_fail(fmt, lane):
    k = Known("topk", (40, 4, 32), format=fmt, lane=lane)
    right = k.truth("indices").astype(int)
    assert k.judged("indices", right).verdict is Verdict.PASS
    x = k.values["x"]
    smallest = np.argsort(x, axis=1)[:, :4]
    second = best(x, 5)[:, 1:]
    one = right.copy()
    one[7, 3] = best(x, 32)[7, 20]
    twice = right.copy()
    twice[:, 1] = twice[:, 0]
    faults = {
        "next": (right + 1) % 32,
        "smallest": smallest,
        "the first lost": second,
        "one": one,
        "twice": twice,
        "turned": right[:, ::-1],
    }
    for name, wrong in faults.items():
        assert k.judged("indices", wrong).verdict is Verdict.FAIL, name
    found = k.judged("indices", one).diagnoses[0]
    assert (found.code, found.evidence) == ("rows", {"first": 7, "last": 7})


def test_equal_logits_may_be_chosen_in_either_order_but_nobody_twice():
    k = Known("topk", (8, 3, 16), format="bfloat16", input_class="spike")  # one logit of 100, 0.5 everywhere else
    right = k.truth("indices").astype(int)
    assert k.judged("indices", right).verdict is Verdict.PASS
    others = np.tile([9, 4, 14], (8, 1))
    spiked = np.flatnonzero((k.values["x"] == 100).any(axis=1))
    others[spiked] = right[spiked]
    side = k.judged("indices", others)
    assert side.verdict in (Verdict.PASS, Verdict.WARN)
    assert "cannot tell apart" in side.note
    assert k.judged("indices", np.tile([9, 9, 14], (8, 1))).verdict is Verdict.FAIL
    assert k.judged("indices", np.tile([9, 4, 16], (8, 1))).verdict is Verdict.FAIL


@every("fmt", NARROW)
def test_weights_of_scores_rounded_to_16_bits_or_of_the_wrong_sum_fail(fmt):
    k = Known("topk", (40, 4, 64), format=fmt, options={"normalised": True})
    x, chosen = k.values["x"], k.truth("indices").astype(int)
    p = np.exp(x - x.max(1, keepdims=True))
    p = np.take_along_axis(p / p.sum(1, keepdims=True), chosen, axis=1)
    assert k.judged("weights", p / p.sum(1, keepdims=True)).verdict is Verdict.PASS
    narrow = decode(encode(p, "bfloat16"), "bfloat16")
    for wrong in (p, p / p[:, :-1].sum(1, keepdims=True), narrow / narrow.sum(1, keepdims=True), (p / p.sum(1, keepdims=True))[:, ::-1]):
        assert k.judged("weights", wrong).verdict is Verdict.FAIL


@every("fmt", NARROW)
def test_gradients_that_miss_a_part_of_the_softmax_fail(fmt):
    k = Known("topk", (16, 4, 32), format=fmt, direction="bwd")
    right = k.truth("dx")
    chosen = k.values["indices"].astype(int)
    hit = np.zeros_like(right)
    np.put_along_axis(hit, chosen, 1.0, axis=1)
    assert k.judged("dx", right).verdict is Verdict.PASS
    for wrong in (right * hit, np.roll(right, 1, axis=1), right * 1.05):
        assert k.judged("dx", wrong).verdict is Verdict.FAIL


@every(
    ("shape", "more", "message"),
    [
        ((4, 5, 4), {}, "k=5 experts of e=4"),
        ((4, 2, 4), {"options": {"score": "relu"}}, "allowed: softmax, sigmoid"),
        ((4, 2, 4), {"lane": "exact", "direction": "bwd"}, "forward only"),
        ((4, 2, 600), {"lane": "exact"}, "at most 512"),
    ],
)
def test_what_a_router_cannot_be_is_refused(shape, more, message):
    with pytest.raises(UsageError, match=message):
        make_case("topk", tuple(zip("tke", shape, strict=True)), **more)
