"""Every mistake of tests/support_formulas.py fails in some usual case, and no formula without one does."""

from functools import cache

import numpy as np
import pytest
import support_formulas as formulas
import support_formulas_products as products
import support_formulas_rows as rows
from support_formulas import healthy, planted
from support_ops import Known, codes_of

from accuracy_eval.formats import encode
from accuracy_eval.records import Verdict

SMOOTHED = {"reduction": "none", "smoothing": 0.1}
ROUTED = [{"score": s, "normalised": n} for s in ("softmax", "sigmoid") for n in (False, True)]
FULL = {"bias": True, "alpha": 0.75, "output_scale": 1.25}

NORMS = [((33, 200), {"direction": d}) for d in ("fwd", "bwd")]
GROUPS = [
    ((6, 24, 32, 48), {"layout": "nt", "direction": d, "lane": lane, "options": {"lens": lens}})
    for d in ("fwd", "bwd") for lane in ("random", "exact") for lens in ("ragged", "zeros")
]  # fmt: skip

# op -> (formula, its mistakes, usual cases in small: shape, what make_case takes besides)
OPS = {
    "cross_entropy": (formulas.cross_entropy, formulas.CROSS_ENTROPY, [
        ((64, 200), {"options": {"ignored": True}, "direction": d}) for d in ("fwd", "bwd")
    ] + [((64, 8), {"options": SMOOTHED, "direction": d}) for d in ("fwd", "bwd")]),
    "softmax": (formulas.softmax_gradient, formulas.SOFTMAX_GRADIENT, [((33, 200), {"direction": "bwd"})]),
    "topk": (formulas.topk, formulas.TOPK, [((128, 4, 32), {"options": o, "direction": d}) for o in ROUTED for d in ("fwd", "bwd")]),
    "permute": (formulas.permute, formulas.PERMUTE, [((64, 4, 32, 36), {"direction": d}) for d in ("fwd", "bwd")]),
    "unpermute": (formulas.unpermute, formulas.UNPERMUTE, [((64, 4, 32, 36), {"direction": d}) for d in ("fwd", "bwd")]),
    "embedding": (formulas.embedding, formulas.EMBEDDING, [
        ((1024, 2000, 16), {"direction": "fwd"}), *(((1024, 16, 64), {"direction": "bwd", "lane": lane}) for lane in ("random", "exact")),
        ((1024, 2000, 16), {"direction": "bwd"}),
    ]),
    "layernorm": (rows.norm, rows.NORM, NORMS), "rmsnorm": (rows.norm, rows.NORM, NORMS),
    "batched_gemm": (products.batched, products.BATCHED, [((4, 24, 20, 48), {"layout": "nt", "direction": d}) for d in ("fwd", "bwd")]),
    "grouped_gemm": (products.grouped, products.GROUPED, GROUPS),
    "rope": (rows.rope, rows.ROPE, [((40, 6, 32), {"direction": d}) for d in ("fwd", "bwd")]),
}  # fmt: skip
FORMATS = ("float32", "bfloat16")
OF_LAYERNORM = (
    "no mean",
    "a mean without its last column",
    "a mean of the row before",
    "h of the operand as it is",
    "a variance about zero",
    "no mean of the gradient",
    *(name for name in rows.NORM if "bias" in name),
)  # what an RMS norm does not have
OF_RMSNORM = ("a mean that is subtracted", "a mean of the gradient, where there is none")  # what a layer norm has anyway
WITHOUT = {"layernorm": OF_RMSNORM, "rmsnorm": OF_LAYERNORM}
MISTAKES = [(op, name) for op, (_, faults, _) in OPS.items() for name in faults if name not in WITHOUT.get(op, ())]


@cache
def cases(op):
    return tuple(Known(op, shape, format=fmt, **more) for shape, more in OPS[op][2] for fmt in FORMATS)


@cache
def activated(name, fmt):
    """Random operands with all that an epilogue has; and rows of zeros without a bias, whose argument is 0 exactly."""
    given = {"normal": {"activation": name, **FULL}, "zero-rows": {"activation": name}}
    forms = {"format": fmt, "layout": "nt", "direction": "bwd"}
    return tuple(Known("gemm_epilogue", (48, 64, 96), options=o, input_class=c, **forms) for c, o in given.items())


def verdicts(known, formula, at):
    """Of the outputs that differ from those of the formula without a mistake; of all where `at` is none."""
    right, found = (formula(known.values, known.case, a) for a in (healthy, at))
    for name, output in known.outputs.items():
        values, plain = (np.broadcast_to(np.asarray(x[name], np.float64), output.shape) for x in (found, right))
        codes, same = (
            v.astype(np.int32).view(np.uint32) if output.format == "int32" else encode(v, output.format) for v in (values, plain)
        )
        if at is healthy or (codes != same).any():
            yield known.judged_codes(name, codes).verdict


@pytest.mark.parametrize("op", OPS)
def test_a_formula_without_a_mistake_passes(op):
    for known in cases(op):
        assert set(verdicts(known, OPS[op][0], healthy)) == {Verdict.PASS}, known.case


@pytest.mark.parametrize(("op", "name"), MISTAKES, ids=[f"{op}-{name}" for op, name in MISTAKES])
def test_a_mistake_fails_in_a_usual_case(op, name):
    formula, faults, _ = OPS[op]
    at = planted(*faults[name])
    assert any(Verdict.FAIL in verdicts(known, formula, at) for known in cases(op))


@pytest.mark.parametrize("name", formulas.ACTIVATIONS)
def test_the_gradient_through_an_activation_passes(name):
    for fmt in FORMATS:
        for known in activated(name, fmt):
            assert set(verdicts(known, formulas.activation_gradient, healthy)) <= {Verdict.PASS}


@pytest.mark.parametrize(("activation", "name"), formulas.ACTIVATION_GRADIENT, ids=lambda x: x)
def test_a_wrong_gradient_through_an_activation_fails(activation, name):
    at = planted(*formulas.ACTIVATION_GRADIENT[activation, name])
    known = [k for fmt in FORMATS for k in activated(activation, fmt)]
    assert any(Verdict.FAIL in verdicts(k, formulas.activation_gradient, at) for k in known)


STEPS = {
    **rows.NAMED,
    ("no smoothing", "cross_entropy", "dx"): "the label smoothing is missing",
    ("smoothing over n - 1", "cross_entropy", "dx"): "the label smoothing is over 7 classes, not 8",
    ("smoothing over n - 1", "cross_entropy", "loss"): "the label smoothing is over 7 classes, not 8",
    ("no share for the target", "cross_entropy", "loss"): "the target has no share of the label smoothing",
    ("ignored rows keep a gradient", "cross_entropy", "dx"): "rows to ignore count",
    ("a mean over all rows", "cross_entropy", "dx"): "the mean is over all 64 rows, not 48",
    ("a sum for a mean", "cross_entropy", "loss"): "the sum is not divided by the rows",
    ("the target of the row before", "cross_entropy", "dx"): "targets are those of the row before",
    ("no dot", "softmax", "dx"): "Σ grad · softmax is not subtracted",
    ("the dot added", "softmax", "dx"): "Σ grad · softmax is added",
    ("a mean of the gradient for the dot", "softmax", "dx"): "the mean of grad is subtracted, not Σ grad · softmax",
    ("the gradient of log_softmax", "softmax", "dx"): "it is the gradient of log_softmax",
}


@pytest.mark.parametrize(("name", "op", "output"), STEPS, ids=lambda x: x)
def test_a_step_that_is_left_out_or_exchanged_is_named(name, op, output):
    formula, faults, _ = OPS[op]
    steps = set()
    for known in cases(op):
        if output in known.outputs:
            found = formula(known.values, known.case, planted(*faults[name]))[output]
            side = known.judged(output, np.broadcast_to(np.asarray(found, np.float64), known.outputs[output].shape))
            steps |= {d.evidence["step"] for d in side.diagnoses if d.code == "formula-step"}
            assert side.verdict is Verdict.PASS or "truncation-bias" not in codes_of(side)
    assert steps == {STEPS[name, op, output]}


ALIKE = rows.ALIKE | {"ignored rows count"}


@pytest.mark.parametrize("op", ["layernorm", "rmsnorm", "rope", "cross_entropy", "softmax"])
def test_no_other_mistake_is_taken_for_a_step(op):
    formula, faults, _ = OPS[op]
    for name in faults.keys() - {named for named, *_ in STEPS} - ALIKE:
        for known in cases(op):
            with np.errstate(divide="ignore"):
                results = formula(known.values, known.case, planted(*faults[name]))
            for output, found in results.items():
                side = known.judged(output, np.broadcast_to(np.asarray(found, np.float64), known.outputs[output].shape))
                assert not {"formula-step", "wrong-index"} & set(codes_of(side)), (name, output, known.case.format)
