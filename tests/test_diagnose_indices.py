"""wrong-index: every index one off, or counted from the other end, is named with its operand; nothing else is."""

import numpy as np
import pytest
from support_ops import Known, codes_of

from accuracy_eval.records import Verdict

every = pytest.mark.parametrize
NARROW = ["float32", "float16", "bfloat16"]


def lookup(k, ids):
    return "y", k.values["weight"][ids]


def scatter(k, ids):
    out = np.zeros((k.case.dims["v"], k.case.dims["n"]))
    np.add.at(out, ids, k.values["grad_y"])
    return "dweight", out


def losses(k, target):
    x = k.values["x"]
    return "loss", np.log(np.exp(x).sum(1)) - x[np.arange(len(x)), target]


def slopes(k, target):
    p = np.exp(k.values["x"])
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(p)), target] -= 1
    return "dx", p * k.values["grad_loss"] / len(p)


def gathered(k, experts):
    rows = [(e, i) for i in range(len(experts)) for e in experts[i]]
    return "y", np.array([k.values["x"][i] for _, i in sorted(rows)])


def home(k, place):
    return "y", (k.values["probs"][:, :, None] * k.values["x"][place]).sum(1)


# op, shapes, direction, options, operand, one more than its largest index, the result from indices
OPS = {
    "lookup": ("embedding", [(40, 30, 8), (65, 100, 33), (9, 12, 70)], "fwd", {}, "ids", "v", lookup),
    "scatter": ("embedding", [(200, 30, 8), (65, 100, 33), (90, 12, 70)], "bwd", {}, "ids", "v", scatter),
    "loss": ("cross_entropy", [(32, 100), (65, 300), (200, 20)], "fwd", {"reduction": "none"}, "target", "n", losses),
    "gradient": ("cross_entropy", [(32, 100), (65, 300), (200, 20)], "bwd", {}, "target", "n", slopes),
    "gather": ("permute", [(24, 3, 8, 40), (33, 2, 16, 9), (50, 4, 5, 16)], "fwd", {}, "experts", "e", gathered),
    "home": ("unpermute", [(24, 3, 8, 40), (33, 2, 16, 9), (50, 4, 5, 16)], "fwd", {}, "place", "tk", home),
}
CASES = [pytest.param(*row[:1], shape, *row[2:], id=f"{name}-{shape}") for name, row in OPS.items() for shape in row[1]]
CHANGES = {
    "one too high": lambda i, below: np.minimum(i + 1, below - 1),
    "one too low": lambda i, below: np.maximum(i - 1, 0),
    "counted from the last": lambda i, below: below - 1 - i,
}


@every(("op", "shape", "direction", "options", "operand", "letters", "result"), CASES)
@every("fmt", NARROW)
def test_indices_used_in_another_way_are_named_and_healthy_or_other_results_are_not(
    op, shape, direction, options, operand, letters, result, fmt
):
    k = Known(op, shape, format=fmt, direction=direction, options=options)
    right = k.values[operand].astype(int)
    below = np.prod([k.case.dims[d] for d in letters])
    name, value = result(k, right)
    assert codes_of(k.judged(name, value)) in ([], ["rounding-only"])
    for how, change in CHANGES.items():
        if (op, how[:3]) == ("permute", "one"):
            continue  # all experts one higher are in the same order
        side = k.judged(name, result(k, change(right, below))[1])
        found = [d for d in side.diagnoses if d.code == "wrong-index"]
        assert [d.sentence for d in found] == [f"indices of operand {operand} are used {how}"]
        assert (side.verdict, found[0].evidence) == (Verdict.FAIL, {"operand": operand})
    for wrong in ((right + 2) % below, np.where(np.arange(right.size).reshape(right.shape) % 2, right, (right + 1) % below)):
        if op != "permute":
            side = k.judged(name, result(k, wrong)[1])
            assert side.verdict is Verdict.FAIL
            assert "wrong-index" not in codes_of(side)
