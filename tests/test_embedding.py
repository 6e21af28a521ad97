"""embedding: lookups are copies; gradients are sums of repeated rows in any order, and every repeat shows."""

from fractions import Fraction

import numpy as np
import pytest
from support_ops import Known, codes_of

from accuracy_eval.cases import make_case
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.inputs import INPUT_CLASSES
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Coded, Verdict

every = pytest.mark.parametrize
FORMATS = ["float32", "float16", "bfloat16", "float64"]
NARROW = FORMATS[:3]


def gradient(k, ids=None, rows=None, fmt="float64", order=None):
    """The rows added one after another, each sum rounded to `fmt`."""
    ids = k.values["ids"].astype(int) if ids is None else ids
    rows = k.values["grad_y"] if rows is None else rows
    out = np.zeros((k.case.dims["v"], k.case.dims["n"]))
    for t in range(len(ids)) if order is None else order:
        out[ids[t]] = decode(encode(out[ids[t]] + rows[t], fmt), fmt)
    return out


@every("fmt", FORMATS)
@every("direction", ["fwd", "bwd"])
@every("ids", ["skewed", "uniform", "one"])
def test_what_torch_computes_passes_for_every_input_class(fmt, direction, ids):
    case = {"format": fmt, "direction": direction, "options": {"ids": ids}}
    off = [Known("embedding", (40, 23, 12), input_class=c, **case).healthy() for c in INPUT_CLASSES]
    assert [o for o in off if o] == []


@every("fmt", FORMATS)
def test_gradients_are_exact_sums_rounded_once(fmt):
    k = Known("embedding", (60, 9, 5), format=fmt, direction="bwd")
    ids, rows = k.values["ids"].astype(int), k.values["grad_y"]
    wanted = [[float(sum((Fraction(v) for v in rows[ids == i, c]), Fraction(0))) for c in range(5)] for i in range(9)]
    assert k.truth("dweight").tolist() == wanted


@every("fmt", NARROW)
@every("input_class", ["normal", "relu", "uniform", "cancellation"])
def test_rows_added_in_any_order_and_format_keep_the_budget(fmt, input_class):
    k = Known("embedding", (400, 7, 6), format=fmt, direction="bwd", input_class=input_class)
    shuffled = np.random.default_rng(0).permutation(400)
    for order in (range(400), range(399, -1, -1), shuffled):
        assert k.judged("dweight", gradient(k, fmt=fmt, order=order)).verdict is Verdict.PASS
    assert k.judged("dweight", gradient(k, fmt="float32")).verdict is Verdict.PASS


@every("fmt", NARROW)
@every("lane", ["random", "exact"])
def test_a_lost_repeat_fails_and_its_row_is_named(fmt, lane):
    k = Known("embedding", (300, 60, 64), format=fmt, direction="bwd", lane=lane, options={"ids": "uniform"})
    ids = k.values["ids"].astype(int)
    word = ids[50]
    assert (ids == word).sum() > 1
    kept = np.arange(300) != 50
    side = k.judged("dweight", gradient(k, ids[kept], k.values["grad_y"][kept]))
    assert side.verdict is Verdict.FAIL
    assert codes_of(side)[0] == "rows"
    assert side.diagnoses[0].evidence == {"first": word, "last": word}


@every("fmt", NARROW)
def test_gradients_that_overwrite_or_go_to_the_next_word_fail(fmt):
    k = Known("embedding", (300, 60, 64), format=fmt, direction="bwd")
    ids = k.values["ids"].astype(int)
    last = np.zeros((60, 64))
    last[ids] = k.values["grad_y"]
    assert k.judged("dweight", gradient(k)).verdict is Verdict.PASS
    for wrong in (last, gradient(k, (ids + 1) % 60), gradient(k, np.maximum(ids - 1, 0))):
        assert k.judged("dweight", wrong).verdict is Verdict.FAIL


@every("fmt", FORMATS)
@every("repeats", [1, 40, 3000])
def test_exact_summands_stay_integers_of_the_format_and_every_repeat_shows(fmt, repeats):
    k = Known("embedding", (repeats, 1, 16), format=fmt, direction="bwd", lane="exact", options={"ids": "one"})
    rows = k.values["grad_y"]
    assert np.abs(rows).sum(0).max() <= 2 ** (get_format(fmt).fraction_bits + 1)
    assert (rows != 0).any(axis=1).all()
    assert k.judged("dweight", rows.sum(0)).verdict is Verdict.PASS
    for t in {0, repeats // 2, repeats - 1}:
        assert k.judged("dweight", rows.sum(0) - rows[t]).verdict is Verdict.FAIL
    assert k.healthy() == []


@every("fmt", NARROW)
def test_a_lookup_of_the_next_row_fails(fmt):
    k = Known("embedding", (50, 20, 8), format=fmt)
    ids, weight = k.values["ids"].astype(int), k.values["weight"]
    assert k.judged("y", weight[ids]).verdict is Verdict.PASS
    assert k.judged("y", weight[(ids + 1) % 20]).verdict is Verdict.FAIL
    one = weight[ids]
    one[9, 3] = np.nextafter(one[9, 3], 9) if fmt == "float64" else one[9, 3] * 1.01
    assert k.judged("y", one).verdict is Verdict.FAIL


def test_ids_beyond_the_table_are_refused():
    case = make_case("embedding", (("t", 2), ("v", 5), ("n", 3)))
    inputs = {"weight": Coded(np.zeros((5, 3), np.uint32), "float32"), "ids": Coded(np.array([1, 5], np.uint32), "int32")}
    with pytest.raises(UsageError, match="ids 1 to 5; allowed: 0 to 4"):
        get_op("embedding").reference(case, inputs, "ocp", "exact")
    with pytest.raises(UsageError, match="allowed: skewed, uniform, one"):
        make_case("embedding", (("t", 2), ("v", 5), ("n", 3)), options={"ids": "all"})
