"""permute and unpermute: rows go to their experts and come home weighted; order, lost tokens and weights that fail."""

from fractions import Fraction

import numpy as np
import pytest
from support_ops import Known, codes_of

from accuracy_eval.cases import make_case
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode, encode
from accuracy_eval.inputs import INPUT_CLASSES
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Coded, Verdict

every = pytest.mark.parametrize
FORMATS = ["float32", "float16", "bfloat16", "float64"]
NARROW = FORMATS[:3]
SHAPE = (24, 3, 6, 40)  # tokens, experts a token, experts, columns


def by_expert(experts):
    """(token, slot) of every row, expert by expert, token by token."""
    return [(i, j) for e in range(experts.max() + 1) for i in range(len(experts)) for j in range(experts.shape[1]) if experts[i, j] == e]


@every("op", ["permute", "unpermute"])
@every("fmt", FORMATS)
@every("direction", ["fwd", "bwd"])
@every("load", ["uniform", "skewed"])
def test_what_torch_computes_passes_for_every_input_class(op, fmt, direction, load):
    case = {"format": fmt, "direction": direction, "options": {"load": load}}
    off = [Known(op, SHAPE, input_class=c, **case).healthy() for c in INPUT_CLASSES]
    assert [o for o in off if o] == []


@every("op", ["permute", "unpermute"])
@every("fmt", FORMATS)
def test_what_torch_adds_is_exact_in_the_exact_lane(op, fmt):
    k = Known(op, (24, 16, 16, 40), format=fmt, lane="exact", direction="bwd" if op == "permute" else "fwd")
    assert k.healthy() == []


@every("load", ["uniform", "skewed"])
def test_experts_of_a_token_are_distinct_and_rows_stand_expert_by_expert(load):
    k = Known("permute", SHAPE, format="bfloat16", options={"load": load})
    experts, x = k.values["experts"].astype(int), k.values["x"]
    assert all(len(set(row)) == 3 for row in experts.tolist())
    order = by_expert(experts)
    np.testing.assert_array_equal(decode(k.truth("y"), "bfloat16"), [x[i] for i, _ in order])
    assert [order[row] for row in k.truth("place").ravel()] == [(i, j) for i in range(24) for j in range(3)]
    if load == "skewed":
        loads = np.bincount(experts.ravel(), minlength=6)
        assert loads[0] > loads[-1]


@every("fmt", NARROW)
def test_another_order_of_experts_or_tokens_fails(fmt):
    k = Known("permute", SHAPE, format=fmt)
    experts, x = k.values["experts"].astype(int), k.values["x"]
    order = by_expert(experts)
    right = np.array([x[i] for i, _ in order])
    assert k.judged("y", right).verdict is Verdict.PASS
    backwards = [x[i] for i, _ in by_expert(experts.max() - experts)]
    slots = [x[i] for j in range(3) for i in range(24)]
    unstable = right.copy()
    unstable[[0, 1]] = right[[1, 0]]  # two tokens of the first expert
    for wrong in (backwards, slots, np.roll(right, 1, 0), unstable):
        assert k.judged("y", np.array(wrong)).verdict is Verdict.FAIL
    place = k.truth("place").view(np.int32)
    assert k.judged("place", place).verdict is Verdict.PASS
    assert k.judged("place", place + 1).verdict is Verdict.FAIL
    assert k.judged("place", place[:, ::-1]).verdict is Verdict.FAIL


@every("fmt", NARROW)
def test_a_dropped_row_is_named_with_its_place(fmt):
    k = Known("permute", SHAPE, format=fmt)
    wrong = decode(k.truth("y"), fmt)
    wrong[17] = 0.0
    side = k.judged("y", wrong)
    assert (side.verdict, codes_of(side)[0]) == (Verdict.FAIL, "rows")
    assert side.diagnoses[0].evidence == {"first": 17, "last": 17}
    assert "zeros are there" in side.diagnoses[0].sentence


def home(k, *, weighted=True, lost=None, shift=0):
    """unpermute written out; `lost` a (token, slot) that is left out."""
    x, place, probs = k.values["x"], k.values["place"].astype(int), k.values["probs"]
    out = np.zeros((24, 40))
    for i in range(24):
        for j in range(3):
            if (i, j) != lost:
                out[i] += (probs[i, j] if weighted else 1.0) * x[(place[i, j] + shift) % len(x)]
    return out


@every("fmt", NARROW)
@every("lane", ["random", "exact"])
def test_rows_come_home_weighted_and_every_fault_on_the_way_fails(fmt, lane):
    k = Known("unpermute", SHAPE, format=fmt, lane=lane)
    assert k.judged("y", home(k)).verdict is Verdict.PASS
    for name, wrong in {"unweighted": home(k, weighted=False), "next row": home(k, shift=1), "twice": 2 * home(k)}.items():
        assert k.judged("y", wrong).verdict is Verdict.FAIL, name
    side = k.judged("y", home(k, lost=(11, 2)))
    assert (side.verdict, codes_of(side)[0]) == (Verdict.FAIL, "rows")
    assert side.diagnoses[0].evidence == {"first": 11, "last": 11}


@every("fmt", NARROW)
def test_products_rounded_before_they_are_added_in_any_order_keep_the_budget(fmt):
    k = Known("unpermute", (24, 16, 16, 40), format=fmt)
    x, place, probs = k.values["x"], k.values["place"].astype(int), k.values["probs"]
    for order in (range(16), range(15, -1, -1)):
        out = np.zeros((24, 40))
        for j in order:
            product = decode(encode(probs[:, j, None] * x[place[:, j]], fmt), fmt)
            out = decode(encode(out + product, fmt), fmt)
        assert k.judged("y", out).verdict is Verdict.PASS


def test_weighted_sums_and_gradients_are_exact_and_rounded_once():
    k = Known("unpermute", (5, 2, 4, 3), format="float32")
    place = k.values["place"].astype(int)
    for i in range(5):
        for c in range(3):
            terms = (Fraction(k.values["probs"][i, j]) * Fraction(k.values["x"][place[i, j], c]) for j in range(2))
            assert k.truth("y")[i, c] == float(sum(terms))
    b = Known("unpermute", (5, 2, 4, 3), format="float32", direction="bwd")
    x, probs, g, place = (b.values[n] for n in ("x", "probs", "grad_y", "place"))
    for i in range(5):
        for j in range(2):
            row = int(place[i, j])
            assert b.truth("dx")[row].tolist() == [float(Fraction(probs[i, j]) * Fraction(v)) for v in g[i]]
            assert b.truth("dprobs")[i, j] == float(sum(Fraction(a) * Fraction(v) for a, v in zip(x[row], g[i], strict=True)))


@every("fmt", NARROW)
def test_broken_gradients_fail(fmt):
    k = Known("unpermute", SHAPE, format=fmt, direction="bwd")
    x, probs, g, place = (k.values[n] for n in ("x", "probs", "grad_y", "place"))
    place = place.astype(int)
    dx, dprobs = k.truth("dx"), (g[:, None] * x[place]).sum(2)
    assert k.judged("dx", dx).verdict is Verdict.PASS
    assert k.judged("dprobs", dprobs).verdict is Verdict.PASS
    unweighted = np.empty_like(dx)
    unweighted[place.ravel()] = np.repeat(g, 3, 0)
    for wrong in (unweighted, np.roll(dx, 1, 0)):
        assert k.judged("dx", wrong).verdict is Verdict.FAIL
    for wrong in (dprobs * probs, (g[:, None] * x[place])[:, :, :-8].sum(2), np.roll(dprobs, 1, 1)):
        assert k.judged("dprobs", wrong).verdict is Verdict.FAIL


@every(
    ("shape", "options", "message"),
    [
        ((4, 3, 2, 8), {}, "k=3 experts of e=2"),
        ((4, 2, 3, 8), {"load": "none"}, "allowed: uniform, skewed"),
    ],
)
def test_what_routing_cannot_be_is_refused(shape, options, message):
    with pytest.raises(UsageError, match=message):
        make_case("permute", tuple(zip("tken", shape, strict=True)), options=options)


def test_experts_that_do_not_exist_are_refused():
    case = make_case("permute", (("t", 1), ("k", 2), ("e", 3), ("n", 2)))
    inputs = {"x": Coded(np.zeros((1, 2), np.uint32), "float32"), "experts": Coded(np.array([[0, 3]], np.uint32), "int32")}
    with pytest.raises(UsageError, match="experts 0 to 3; allowed: 0 to 2"):
        get_op("permute").reference(case, inputs, "ocp", "exact")
