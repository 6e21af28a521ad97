"""wrong-layout: operands that were read in another layout are named with it; nothing else is."""

import numpy as np
import pytest
from support_ops import Known, codes_of

import accuracy_eval as ae
from accuracy_eval.records import Verdict

every = pytest.mark.parametrize
SHAPES = [(48, 48, 48), (64, 24, 64), (17, 96, 96)]  # square operands: both, a, b
LAYOUTS = ("nt", "nn", "tn", "tt")


def product(values, layout):
    """a and b as stored, read in that layout."""
    a = values["a"] if layout[0] == "n" else values["a"].T
    return a @ (values["b"] if layout[1] == "n" else values["b"].T)


@every("asked", LAYOUTS)
@every("shape", SHAPES, ids=str)
@every("fmt", ["float32", "float16", "bfloat16"])
def test_the_layout_that_operands_were_read_in_is_named(asked, shape, fmt):
    k = Known("gemm", shape, format=fmt, layout=asked)
    right = product(k.values, asked)
    assert codes_of(k.judged("d", right)) in ([], ["rounding-only"])
    m, n, _ = shape
    for layout in set(LAYOUTS) - {asked}:
        a, b = (k.values[x].shape[::step] for x, step in (("a", 1 if layout[0] == "n" else -1), ("b", 1 if layout[1] == "n" else -1)))
        if a[1] != b[0] or (a[0], b[1]) != (m, n):
            continue
        side = k.judged("d", product(k.values, layout))
        assert side.verdict is Verdict.FAIL
        found = [d for d in side.diagnoses if d.code == "wrong-layout"]
        assert [d.sentence for d in found] == [f"the operands were read in layout {layout}; asked for is {asked}"]
        assert found[0].evidence == {"layout": layout}
    rows = right.copy()
    rows[: m // 2] = right[m // 2 : 2 * (m // 2)]
    for wrong in (right * 1.5, right[::-1], rows, right + 0.3, np.zeros_like(right)):
        assert "wrong-layout" not in codes_of(k.judged("d", wrong))


def test_check_names_the_layout_of_square_arrays():
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((32, 32)).astype(np.float32) for _ in range(2))
    found = ae.check(a @ b.T, op="gemm", inputs={"a": a, "b": b})
    assert [d.code for d in found.diagnoses] == ["wrong-layout"]
    assert "cause wrong-layout: the operands were read in layout nt; asked for is nn" in found.message
    assert ae.check(a @ b.T, op="gemm", layout="nt", inputs={"a": a, "b": b}).passed


def test_no_layout_is_named_where_a_symmetric_operand_leaves_two():
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal((32, 32)).astype(np.float32) for _ in range(2))
    a = a + a.T
    found = ae.check(a @ b.T, op="gemm", inputs={"a": a, "b": b})
    assert (found.verdict, [d.code for d in found.diagnoses]) == ("FAIL", [])
