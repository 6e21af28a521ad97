"""Judging by a sampled reference: what it sees, where it says a fault is, and that it stays silent on healthy outputs."""

import numpy as np
import pytest
from test_compare import dump_with, lost_k, nan, right, tf32, zero

from accuracy_eval.backends.open import open_backend
from accuracy_eval.cases import make_case
from accuracy_eval.compare import compare_dumps
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.dump import dump
from accuracy_eval.formats import encode
from accuracy_eval.messages import side_message
from accuracy_eval.ops.spec import Reference
from accuracy_eval.records import Attribution, Coded, Verdict
from accuracy_eval.sampled import scoped
from accuracy_eval.suite import Suite

SHAPE = (("m", 300), ("n", 260), ("k", 512))
ROW, COLUMN = 137, 201  # neither is among the exact rows and columns of a healthy output


def case(fmt="bfloat16", **more):
    return make_case("gemm", SHAPE, format=fmt, **more)


def judged(folder, change, fmt="bfloat16", reference="sampled", **more):
    """The side of one dump whose result is passed through `change`, and its tensor."""
    (result,) = compare_dumps(dump_with(folder, "a", case(fmt), change, **more), reference=reference).tensors
    return result.sides[0], result


def element(size):
    def change(values, a, b):
        values = values.copy()
        values[ROW, COLUMN] += size
        return values

    return change


def row(values, a, b):
    values = values.copy()
    values[ROW] *= 1.05
    return values


def columns(values, a, b):
    values = values.copy()
    values[:, COLUMN : COLUMN + 7] *= 1.05
    return values


def gain(values, a, b):
    return values * 1.01


@pytest.mark.parametrize("fmt", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("input_class", ["normal", "relu", "spike", "cancellation", "outlier", "tiny"])
def test_a_healthy_output_passes_with_its_scope_and_what_it_would_have_seen(tmp_path, fmt, input_class):
    d = dump_with(tmp_path, "a", case(fmt, input_class=input_class), right)
    results = compare_dumps(d, reference="sampled")
    (side,) = results.tensors[0].sides
    assert (side.verdict, side.scope, results.exit_code) == (Verdict.PASS, "sampled", 0)
    r = side.resolution
    assert (r["exact_rows"], r["exact_columns"], r["probes"], r["standard_error"]) == (64, 64, 8, 0.5)
    assert 0 < r["element_median"] <= r["element"]
    assert r["row_95"] > 0
    assert r["row_95"] < 0.5 or (fmt, input_class) == ("float16", "tiny")  # subnormal outputs: the rounding exceeds them
    assert "1 of 1 outputs were judged by a sampled reference" in results.notes[0]


@pytest.mark.parametrize(
    ("change", "code"),
    [(lost_k, "lost-k"), (nan, "nan-in-actual"), (zero, "all-zero"), (gain, "gain"), (row, "rows"), (columns, "columns")],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_faults_fail_with_their_cause(tmp_path, change, code):
    side, _ = judged(tmp_path, change)
    assert (side.verdict, side.scope) == (Verdict.FAIL, "sampled")
    assert code in [d.code for d in side.diagnoses]


def test_places_are_those_of_the_whole_output(tmp_path):
    found = {
        change: {d.code: d.evidence for d in judged(tmp_path / change.__name__, change)[0].diagnoses} for change in (row, columns, nan)
    }
    assert found[row]["rows"] == {"first": ROW, "last": ROW}
    assert found[columns]["columns"] == {"first": COLUMN, "last": COLUMN + 6}
    assert found[nan]["nan-in-actual"] == {"index": [3, 4], "count": 1}


def test_one_wrong_element_outside_the_sample_is_found_and_named(tmp_path):
    side, result = judged(tmp_path, element(20.0))
    assert side.verdict is Verdict.FAIL
    assert side.worst[0].index == (ROW, COLUMN)
    assert side.metrics["budget_max_index"] == [ROW, COLUMN]
    first = side_message(result, side).splitlines()[0]
    assert first.startswith("FAIL gemm.m300.n260.k512.nt.bfloat16.normal.s0 output 'd' (bfloat16): error ")
    assert f"× budget at [{ROW}, {COLUMN}] (contract fp32acc, B " in first
    assert first.endswith("[scope sampled]")


@pytest.mark.parametrize("fmt", ["float32", "bfloat16"])
def test_any_element_off_by_the_stated_size_fails(tmp_path, fmt):
    size = judged(tmp_path / "healthy", right, fmt)[0].resolution["element"]
    for sign in (1, -1):
        assert judged(tmp_path / f"{sign}", element(1.01 * sign * size), fmt)[0].verdict is Verdict.FAIL


@pytest.mark.parametrize("fmt", ["float32", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1], ids=["row", "column"])
def test_nineteen_of_twenty_lines_with_an_error_of_the_stated_size_fail(tmp_path, fmt, axis):
    size = judged(tmp_path / "healthy", right, fmt)[0].resolution[("row_95", "column_95")[axis]]
    rng = np.random.default_rng(5)
    caught = 0
    for line in range(20):
        at = (7 + 11 * line, slice(None)) if axis == 0 else (slice(None), 7 + 11 * line)

        def change(values, a, b, at=at):
            values = values.copy()
            error = rng.standard_normal(values[at].shape)
            values[at] += error * (size * np.linalg.norm(values[at]) / np.linalg.norm(error))
            return values

        caught += judged(tmp_path / f"{line}", change, fmt)[0].verdict is Verdict.FAIL
    assert caught >= 19


def test_a_broken_promise_is_named_by_the_exact_lines(tmp_path):
    side, _ = judged(tmp_path, tf32, "float32")
    assert (side.verdict, side.off_contract) == (Verdict.FAIL, "tf32")


def test_a_pair_is_measured_whole_and_says_who_is_off(tmp_path):
    a, b = dump_with(tmp_path, "a", case(), element(20.0)), dump_with(tmp_path, "b", case(), right)
    (result,) = compare_dumps(a, b, reference="sampled").tensors
    (pair,) = result.pairs
    assert pair.attribution is Attribution.A_OFF
    assert (pair.metrics["count"], pair.metrics["mismatch_count"], pair.worst[0].index) == (300 * 260, 1, (ROW, COLUMN))


def test_what_one_side_shows_does_not_depend_on_the_other(tmp_path):
    a, b = dump_with(tmp_path, "a", case(), row), dump_with(tmp_path, "b", case(), right)
    (together,) = compare_dumps(a, b, reference="sampled").tensors
    (alone,) = compare_dumps(b, reference="sampled").tensors
    assert together.sides[1] == alone.sides[0]


@pytest.mark.parametrize(("gates", "stated"), [("l3", False), ("exact", True)])
def test_elements_are_stated_where_a_gate_holds_them_to_their_budget_or_code(tmp_path, gates, stated):
    size = judged(tmp_path / "healthy", right, "float32")[0].resolution["element"]
    rounded = dump_with(tmp_path, "rounded", case("float32"), right)
    side = compare_dumps(rounded, reference="sampled", gates=gates).tensors[0].sides[0]
    assert ("element" in side.resolution, "probes" in side.resolution) == (stated, stated)
    assert side.resolution["gain"] > 0
    off = dump_with(tmp_path, "off", case("float32"), element(1.01 * size))
    found = compare_dumps(off, reference="sampled", gates=gates).tensors[0].sides[0]
    assert (found.verdict is Verdict.FAIL) == stated


def test_never_written_elements_fail(tmp_path):
    side, _ = judged(tmp_path, right, notes={"never_written": {"d": 128}})
    assert (side.verdict, side.diagnoses[0].code, side.diagnoses[0].evidence) == (Verdict.FAIL, "never-written", {"count": 128})


def test_lines_that_the_reference_cannot_project_warn(tmp_path):
    with np.errstate(all="ignore"):
        d = dump_with(tmp_path, "a", case(input_class="specials"), right)
    side = compare_dumps(d, reference="sampled").tensors[0].sides[0]
    assert side.verdict is Verdict.WARN
    assert "holds NaN or Inf" in side.note
    assert side.resolution["element"] == np.inf


def reference_of(m, n, k, fmt="bfloat16"):
    """A reference that costs nothing to describe: operands of broadcast zeros."""
    zero_of = np.broadcast_to(encode(np.zeros(1), fmt), (1, 1))
    a, b = (Coded(np.broadcast_to(zero_of, shape), fmt) for shape in ((m, k), (k, n)))
    return Reference("values", fmt, (m, n), "fp32acc", lambda: iter(()), Gemm(a, b))


@pytest.mark.parametrize(
    ("mode", "shape", "sampled"),
    [
        ("auto", (8192, 8192, 8192), False),
        ("auto", (8192, 8192, 16384), False),  # 2^41 operations exactly
        ("auto", (8192, 8192, 16385), True),
        ("sampled", (65, 65, 1), True),
        ("sampled", (64, 8192, 8192), False),  # a sample would be the whole
        ("full", (1 << 15, 1 << 15, 1 << 15), False),
    ],
)
def test_the_mode_and_the_size_decide_what_is_sampled(mode, shape, sampled):
    assert (scoped(reference_of(*shape), mode).sample is not None) is sampled


def test_auto_is_the_default_and_equals_the_full_reference_on_small_cases(tmp_path):
    d = dump_with(tmp_path, "a", case(), row)
    assert compare_dumps(d) == compare_dumps(d, reference="full") == compare_dumps(d, reference="auto")


def test_the_total_error_of_a_quantised_product_is_judged_by_its_exact_rows(tmp_path):
    quantised = make_case("gemm", SHAPE, format="fp8_e4m3", recipe="rowwise")
    dump(Suite("test", "", (quantised,), {}), open_backend("reference"), tmp_path / "a.h5")
    sides = [compare_dumps(tmp_path / "a.h5", reference=mode).tensors[0].sides[0] for mode in ("sampled", "full")]
    assert [s.scope for s in sides] == ["sampled", "full"]
    assert [s.verdict for s in sides] == [Verdict.PASS, Verdict.PASS]
    assert {g.gate for g in sides[0].gates if g.passed} - {"projections"} == {g.gate for g in sides[1].gates if g.passed}
    excess = [s.metrics["excess_db"] for s in sides]
    assert excess[0] == pytest.approx(excess[1], abs=0.05)
