"""cross_entropy: losses and gradients as mpmath gives them, budgets that the framework keeps, broken kernels that fail."""

import math

import ml_dtypes
import mpmath
import numpy as np
import pytest
import torch
from support_ops import Known, codes_of

import accuracy_eval as ae
from accuracy_eval.cases import case_id, make_case, parse_case
from accuracy_eval.cpu_ref.loss import Logits, gradient, losses
from accuracy_eval.errors import UsageError
from accuracy_eval.inputs import INPUT_CLASSES
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Coded, Verdict

every = pytest.mark.parametrize
FORMS = [{}, {"reduction": "none"}, {"reduction": "sum", "smoothing": 0.1}, {"smoothing": 0.1, "ignored": True}]
NARROW = ["float32", "float16", "bfloat16"]


def exact(x, target, smoothing):
    """Loss and gradient of one row as 60-digit numbers."""
    with mpmath.workdps(60):
        v = [mpmath.mpf(a) for a in x.tolist()]
        log = mpmath.log(mpmath.fsum(mpmath.exp(a) for a in v))
        loss = log - (1 - mpmath.mpf(smoothing)) * v[target] - mpmath.mpf(smoothing) * mpmath.fsum(v) / len(v)
        label = [(1 - mpmath.mpf(smoothing)) * (j == target) + mpmath.mpf(smoothing) / len(v) for j in range(len(v))]
        return float(loss), [float(mpmath.exp(a - log) - q) for a, q in zip(v, label, strict=True)]


@every("smoothing", [0.0, 0.1])
@every("scale", [1.0, 30.0, 1e-3])
def test_losses_and_gradients_are_those_of_exact_arithmetic(smoothing, scale):
    x = np.random.default_rng(1).normal(size=(6, 40)) * scale
    target = np.array([0, 39, 7, -100, int(x[4].argmax()), 3])
    a = Logits(x, target, smoothing, "float32")
    found, slopes = losses(a)[0], gradient(a, np.full(6, 2.5))[0]
    for i in np.flatnonzero(target >= 0):
        loss, slope = exact(x[i], int(target[i]), smoothing)
        assert found[i] == pytest.approx(loss, rel=1e-13)
        np.testing.assert_allclose(slopes[i], np.multiply(slope, 2.5), rtol=1e-12, atol=1e-15)
    assert (found[3], slopes[3].any()) == (0.0, False)


def test_a_loss_that_is_almost_nothing_keeps_its_digits():
    a = Logits(np.array([[0.0, 60.0]]), np.array([1]), 0.0, "float64")
    assert losses(a)[0][0] == pytest.approx(float(mpmath.log1p(mpmath.exp(-60))), rel=1e-14)


@every("options", FORMS, ids=str)
@every("fmt", [*NARROW, "float64"])
@every("direction", ["fwd", "bwd"])
def test_what_torch_computes_passes_for_every_input_class(options, fmt, direction):
    off = [
        Known("cross_entropy", (6, 67), format=fmt, direction=direction, options=options, input_class=c).healthy() for c in INPUT_CLASSES
    ]
    assert [o for o in off if o] == []


@every("fmt", NARROW)
@every("shape", [(1500, 33), (20, 5000)])
def test_many_rows_and_many_classes_keep_their_budgets(fmt, shape):
    for direction in ("fwd", "bwd"):
        for input_class in ("normal", "uniform", "spike"):
            assert Known("cross_entropy", shape, format=fmt, direction=direction, input_class=input_class).healthy() == []


@every("fmt", ["float32", "bfloat16"])
def test_smoothing_over_a_whole_vocabulary_keeps_its_budget(fmt):
    for direction in ("fwd", "bwd"):
        assert Known("cross_entropy", (16, 32000), format=fmt, direction=direction, options={"smoothing": 0.1}).healthy() == []


def plain(k, *, target=None):
    """Losses and the gradient of the mean, by the definition in float64."""
    x, t = k.values["x"], k.values["target"].astype(int) if target is None else target
    rows = np.arange(len(x))
    p = np.exp(x - x.max(1, keepdims=True))
    total = p.sum(1)
    p = p / total[:, None]
    return np.log(total) + x.max(1) - x[rows, t], p - (np.arange(x.shape[1]) == t[:, None]), p


@every("fmt", NARROW)
def test_losses_of_the_next_class_or_without_the_maximum_fail(fmt):
    k = Known("cross_entropy", (32, 100), format=fmt, options={"reduction": "none"})
    t = k.values["target"].astype(int)
    right = plain(k)[0]
    assert k.judged("loss", right).verdict is Verdict.PASS
    x = k.values["x"]
    for wrong in (plain(k, target=(t + 1) % 100)[0], right - x.max(1), right + 0.1, np.log(np.exp(x[:, 64:]).sum(1)) - x[np.arange(32), t]):
        assert k.judged("loss", wrong).verdict is Verdict.FAIL


def test_an_exponential_without_the_maximum_subtracted_is_inf_where_a_number_is_right():
    k = Known("cross_entropy", (8, 100), format="float32", input_class="spike", options={"reduction": "none"})
    x, t = k.values["x"].astype(np.float32), k.values["target"].astype(int)
    with np.errstate(over="ignore"):
        wrong = np.log(np.exp(x).sum(1)) - x[np.arange(8), t]
    side = k.judged("loss", wrong)
    assert (side.verdict, codes_of(side)[0]) == (Verdict.FAIL, "inf-in-actual")


@every("fmt", NARROW)
@every("rows", [5, 64])
def test_a_gradient_without_one_over_n_is_named(fmt, rows):
    k = Known("cross_entropy", (rows, 120), format=fmt, direction="bwd")
    right = plain(k)[1] * k.values["grad_loss"] / rows
    assert k.judged("dx", right).verdict is Verdict.PASS
    side = k.judged("dx", right * rows)
    assert (side.verdict, codes_of(side)) == (Verdict.FAIL, ["formula-step"])
    assert side.diagnoses[0].evidence["step"] == "the sum is not divided by the rows"


@every("fmt", NARROW)
def test_broken_gradients_fail(fmt):
    k = Known("cross_entropy", (32, 120), format=fmt, direction="bwd")
    t, g = k.values["target"].astype(int), k.values["grad_loss"] / 32
    _, right, p = plain(k)
    assert k.judged("dx", right * g).verdict is Verdict.PASS
    one_row = right.copy()
    one_row[7] = p[7]
    faults = {"no label": p, "next class": plain(k, target=(t + 1) % 120)[1], "one row": one_row, "no softmax": right - p}
    for name, wrong in faults.items():
        assert k.judged("dx", wrong * g).verdict is Verdict.FAIL, name
    assert codes_of(k.judged("dx", np.where(np.arange(32)[:, None] == 7, 0.0, right) * g))[0] == "rows"


@every("fmt", ["float32", "bfloat16"])
@every("input_class", ["huge", "wide"])
@every("ignored", [False, True])
def test_where_only_the_largest_count_their_gradient_is_certain(fmt, input_class, ignored):
    """Logits of 1e30 and more: the softmax is 0 but for the largest (equal ones share it), whatever a step of the log-probabilities is."""
    options = {"reduction": "none", "ignored": ignored}
    k = Known("cross_entropy", (16, 33), format=fmt, direction="bwd", input_class=input_class, options=options)
    x, t, g = k.values["x"], k.values["target"].astype(int)[:, None], k.values["grad_loss"][:, None]
    columns = np.arange(33)
    largest = x == x.max(1, keepdims=True)
    p = largest / largest.sum(1, keepdims=True)
    right = g * (t >= 0) * (p - (columns == t))
    assert k.judged("dx", right).verdict is Verdict.PASS
    for wrong in (right / 2, -right, right * 0, right + 7, g * p):
        assert k.judged("dx", wrong).verdict is Verdict.FAIL


def test_an_ignored_row_that_gets_a_gradient_fails():
    k = Known("cross_entropy", (16, 50), format="float32", direction="bwd", options={"ignored": True})
    t = k.values["target"].astype(int)
    assert (t == -100).sum() == 4
    p = plain(k, target=np.maximum(t, 0))[1] * k.values["grad_loss"] / 12
    right = np.where(t[:, None] < 0, 0.0, p)
    assert k.judged("dx", right).verdict is Verdict.PASS
    assert k.judged("dx", p).verdict is Verdict.FAIL
    (found,) = k.judged("dx", right * 12 / 16).diagnoses
    assert found.evidence["step"] == "the mean is over all 16 rows, not 12"


def test_the_mean_of_all_rows_is_not_that_of_those_that_count():
    k = Known("cross_entropy", (16, 50), format="bfloat16", options={"ignored": True})
    t = k.values["target"].astype(int)
    rows = plain(k, target=np.maximum(t, 0))[0][t >= 0]
    assert k.judged("loss", rows.mean()).verdict is Verdict.PASS
    assert k.judged("loss", rows.sum() / 16).verdict is Verdict.FAIL


@every("reduction", ["mean", "sum"])
def test_a_mean_over_no_row_is_zero_or_nan_and_a_sum_is_zero(reduction):
    x = torch.randn(4, 7, generator=torch.Generator().manual_seed(3))
    inputs = {"x": x, "target": torch.full((4,), -100, dtype=torch.int32)}
    whole = torch.nn.functional.cross_entropy
    losses_of = {
        "torch": lambda x, t: whole(x, t.long(), reduction=reduction),  # 0/0 for the mean
        "zero": lambda x, t: whole(x, t.long(), reduction="sum"),
        "nan": lambda x, t: whole(x, t.long(), reduction="sum") * math.nan,
        "inf": lambda x, t: whole(x, t.long(), reduction="sum") + math.inf,
        "one": lambda x, t: whole(x, t.long(), reduction="sum") + 1.0,
    }
    failed = set()
    for name, loss in losses_of.items():
        found = ae.verify(loss, reference="cross_entropy", inputs=inputs, options={"reduction": reduction}, device="cpu", repeats=1)
        if found.comparisons["loss"].verdict not in (Verdict.PASS, Verdict.WARN):
            failed.add(name)
    assert failed == ({"inf", "one"} if reduction == "mean" else {"nan", "inf", "one"})


def test_classes_that_do_not_exist_are_refused():
    case = make_case("cross_entropy", (("m", 2), ("n", 5)))
    assert parse_case(case_id(case)) == case
    inputs = {"x": Coded(np.zeros((2, 5), np.uint32), "float32"), "target": Coded(np.array([1, 5], np.uint32), "int32")}
    with pytest.raises(UsageError, match="target holds 5; allowed: 0 to 4, and -100"):
        get_op("cross_entropy").reference(case, inputs, "ocp", "fp32acc")
    for options, message in (({"reduction": "max"}, "allowed: mean, sum, none"), ({"smoothing": 1.0}, "up to but not including 1")):
        with pytest.raises(UsageError, match=message):
            make_case("cross_entropy", (("m", 2), ("n", 5)), options=options)


@every("fmt", NARROW)
def test_smoothing_over_one_class_less_fails_where_classes_are_few(fmt):
    options = {"smoothing": 0.1, "reduction": "none"}
    found = {d: Known("cross_entropy", (64, 8), format=fmt, direction=d, options=options) for d in ("fwd", "bwd")}
    x, target, rows = found["fwd"].values["x"], found["fwd"].values["target"].astype(int), np.arange(64)
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    for classes, verdict in ((8, Verdict.PASS), (7, Verdict.FAIL)):
        label = np.full(p.shape, 0.1 / classes)
        label[rows, target] = 0.9 + (0.1 / 8 if classes == 8 else 0.0)
        assert found["fwd"].judged("loss", -(label * np.log(p)).sum(1)).verdict is verdict
        assert found["bwd"].judged("dx", (p - label) * found["bwd"].values["grad_loss"][:, None]).verdict is verdict


@every("fmt", ["float16", "bfloat16"])
@every("reduction", ["none", "mean"])
def test_smoothing_over_one_class_less_shows_in_all_elements_together(fmt, reduction):
    options = {"smoothing": 0.1} | ({"reduction": "none"} if reduction == "none" else {})
    k = Known("cross_entropy", (96, 64), format=fmt, direction="bwd", options=options)
    x, target = k.values["x"], k.values["target"].astype(int)
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    hit = np.arange(64) == target[:, None]
    g = k.values["grad_loss"][:, None] if reduction == "none" else k.values["grad_loss"] / len(x)
    for classes, verdict in ((64, Verdict.PASS), (63, Verdict.FAIL)):
        label = np.where(hit, 0.9 + (0.1 / 64 if classes == 64 else 0.0), 0.1 / classes)
        side = k.judged("dx", (p - label) * g)
        assert side.verdict is verdict
        assert side.metrics["weights_factor"] < 0.2
        assert (side.metrics["smoothing_factor"] > 1) is (classes == 63)
    assert k.judged_codes("dx", k.computed()["dx"]).metrics["smoothing_factor"] < 0.2


@every("fmt", ["float16", "bfloat16"])
@every("shape", [(256, 8), (64, 200), (1024, 2)])
@every("options", FORMS, ids=str)
def test_what_gradients_share_is_within_what_steps_of_torch_allow(fmt, shape, options):
    for input_class in ("normal", "absmax", "outlier", "heavy-tailed", "relu", "zero-rows"):
        k = Known("cross_entropy", shape, format=fmt, direction="bwd", input_class=input_class, options=options)
        metrics = k.judged_codes("dx", k.computed()["dx"]).metrics
        assert max(metrics.get("weights_factor", 0), metrics.get("smoothing_factor", 0)) < 0.5, input_class


@every("fmt", ["float16", "bfloat16"])
@every("input_class", ["normal", "uniform", "absmax", "outlier", "heavy-tailed", "relu", "zero-rows"])
@every("stored", ["nothing", "L", "log", "L-of-log", "all"])
def test_what_gradients_share_is_within_what_stored_steps_leave(fmt, input_class, stored):
    k = Known("cross_entropy", (64, 400), format=fmt, direction="bwd", input_class=input_class, options={"reduction": "none"})

    def kept(values):
        return values.astype(ml_dtypes.bfloat16 if fmt == "bfloat16" else np.float16).astype(np.float64)

    x, hit = k.values["x"], np.arange(400) == k.values["target"][:, None]
    top = x.max(1, keepdims=True)
    log = np.log(np.exp(x - top).sum(1, keepdims=True))
    log = {"nothing": top + log, "L": kept(top + log), "log": top + kept(log)}.get(stored, kept(top + kept(log)))
    p = kept(np.exp(kept(x - log))) if stored == "all" else np.exp(x - log)
    side = k.judged("dx", k.values["grad_loss"][:, None] * (p - hit))
    assert side.metrics.get("weights_factor", 0.0) < 0.1


@every("fmt", ["float16", "bfloat16"])
def test_probabilities_that_are_all_a_little_off_fail(fmt):
    k = Known("cross_entropy", (64, 400), format=fmt, direction="bwd", options={"reduction": "none"})
    x, target = k.values["x"], k.values["target"].astype(int)
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    hit, g = np.arange(400) == target[:, None], k.values["grad_loss"][:, None]
    assert k.judged_codes("dx", k.computed()["dx"]).verdict is Verdict.PASS
    for factor, verdict in ((1.0, Verdict.PASS), (1.02, Verdict.FAIL), (0.98, Verdict.FAIL)):
        assert k.judged("dx", (np.where(hit, p, p * factor) - hit) * g).verdict is verdict
