"""Groups of a grouped product that are moved or exchanged, by a plain loop over groups with these faults."""

import numpy as np
import pytest
from support_formulas import healthy, planted
from support_formulas_products import GROUPED, grouped
from support_ops import Known, codes_of

from accuracy_eval.formats import encode
from accuracy_eval.records import Verdict

every = pytest.mark.parametrize
MOVED = {
    "offsets one too high": "groups begin one row late",
    "offsets one too low": "groups begin one row early",
    "offsets of equal groups": "all groups have as many rows",
}
EXCHANGED = {
    "B of the group before": "rows meet the B of the group before",
    "B of the group after": "rows meet the B of the group after",
    "the first B for all": "rows meet the B of the first group",
    "the gradient of B of the group before": "the gradient of B is that of the group before",
}
SHAPES = [(6, 24, 32, 48), (5, 40, 48, 32), (9, 16, 33, 70)]


def said(known, name):
    """Groups named in each failing output of a fault, and all names of each."""
    right, found = (grouped(known.values, known.case, a) for a in (healthy, planted(*GROUPED[name])))
    for output, o in known.outputs.items():
        codes = encode(np.asarray(found[output], np.float64).reshape(o.shape), o.format)
        if (codes == encode(np.asarray(right[output], np.float64).reshape(o.shape), o.format)).all():
            continue
        side = known.judged_codes(output, codes)
        assert side.verdict is Verdict.FAIL
        yield [d.evidence["how"] for d in side.diagnoses if d.code == "wrong-group"], codes_of(side)


@every("direction", ["fwd", "bwd"])
@every("lane", ["random", "exact"])
@every("fmt", ["float32", "bfloat16", "float16"])
@every("shape", SHAPES)
@every("name", [*MOVED, *EXCHANGED])
def test_groups_that_are_moved_or_exchanged_are_named_with_how(name, shape, fmt, lane, direction):
    k = Known("grouped_gemm", shape, format=fmt, layout="nt", lane=lane, direction=direction, options={"lens": "ragged"})
    found = list(said(k, name))
    assert found or (direction == "fwd" and "gradient" in name)
    for hows, codes in found:
        assert hows == [{**MOVED, **EXCHANGED}[name]]
        assert not {"gain", "rows", "block"} & set(codes)


@every("fmt", ["float32", "bfloat16"])
def test_groups_counted_without_the_empty_ones_are_named(fmt):
    k = Known("grouped_gemm", SHAPES[0], format=fmt, layout="nt", options={"lens": "zeros"})
    assert [hows for hows, _ in said(k, "empty groups are not counted")] == [["rows meet the B of groups counted without the empty ones"]]


@every("recipe", ["tensorwise", "rowwise"])
@every("how", ["", "rows meet the B of the group before", "groups begin one row early"])
def test_groups_of_quantised_operands_are_named_too(how, recipe):
    k = Known("grouped_gemm", SHAPES[0], format="fp8_e4m3", out_format="bfloat16", layout="nt", recipe=recipe, options={"lens": "ragged"})
    v, ends = k.values, np.cumsum(k.values["group_lens"].astype(int))
    a, b = (v[n] * (v[f"{n}_scale"][..., None] if recipe == "rowwise" else v[f"{n}_scale"]) for n in "ab")
    ends[:-1] -= how.endswith("early")
    owner = np.searchsorted(ends, np.arange(len(a)), side="right")
    d = np.einsum("tk,tnk->tn", a, b[owner - how.endswith("before")])
    side = k.judged("d", d)
    assert side.verdict is (Verdict.FAIL if how else Verdict.PASS)
    assert [x.evidence["how"] for x in side.diagnoses if x.code == "wrong-group"] == ([how] if how else [])


def test_rows_of_nan_are_no_groups():
    k = Known("grouped_gemm", SHAPES[0], format="bfloat16", options={"lens": "zeros", "padding": 8})
    d = k.truth("d")
    for rows in (slice(-8, None), slice(0, None)):
        side = k.judged("d", np.where(np.isin(np.arange(len(d)), np.arange(len(d))[rows])[:, None], np.nan, d))
        assert "nan-in-actual" in codes_of(side)
        assert "wrong-group" not in codes_of(side)


@every("direction", ["fwd", "bwd"])
@every("fmt", ["float32", "bfloat16"])
@every("name", sorted(GROUPED.keys() - MOVED.keys() - EXCHANGED.keys() - {"empty groups are not counted"}))
def test_other_faults_of_groups_have_another_name_or_none(name, fmt, direction):
    for lens in ("ragged", "zeros"):
        k = Known("grouped_gemm", SHAPES[0], format=fmt, layout="nt", direction=direction, options={"lens": lens})
        for hows, _ in said(k, name):
            assert hows == []
