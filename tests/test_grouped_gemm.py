"""grouped_gemm: groups of rows, empty ones and rows behind the last among them, against products group by group."""

import numpy as np
import pytest
from test_gemm_recipes import values

from accuracy_eval.backends import candidates
from accuracy_eval.backends.reference import ReferenceBackend
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import case_id, make_case, parse_case
from accuracy_eval.compare import compare_dumps
from accuracy_eval.dump import dump
from accuracy_eval.errors import UsageError
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import OPS
from accuracy_eval.quantize import RECIPES
from accuracy_eval.records import Attribution, Verdict
from accuracy_eval.store import Dump
from accuracy_eval.suite import parse_suite

SPEC = OPS["grouped_gemm"]
SHAPE = (("g", 4), ("m", 24), ("n", 32), ("k", 48))
RAGGED = {"lens": "zeros", "padding": 8}


def case_of(**more):
    more.setdefault("format", "bfloat16")
    return make_case("grouped_gemm", more.pop("shape", SHAPE), **more)


def parts_of(case, encoding="ocp"):
    inputs = stored_inputs(SPEC, case, encoding, operand_codes(SPEC, case, encoding))
    references = SPEC.reference(case, inputs, encoding, SPEC.contract(case))
    return inputs, references


def whole(reference):
    panels = list(reference.panels())
    firsts = [p.first_row for p in panels]
    assert firsts == [sum(len(p.values) for p in panels[:i]) for i in range(len(panels))]
    return np.concatenate([p.values for p in panels]).reshape(reference.shape)


def bounds(inputs):
    ends = np.cumsum(inputs["group_lens"].codes.astype(np.int64))
    return list(zip([0, *ends[:-1]], ends, strict=True))


def test_lengths_add_up_and_every_third_group_is_empty_where_asked():
    lens = operand_codes(SPEC, case_of(options={"lens": "zeros"}, shape=(("g", 8), ("m", 48), ("n", 16), ("k", 16))), "ocp")["group_lens"]
    assert lens.sum() == 8 * 48
    assert (lens[[1, 4, 7]] == 0).all()
    assert len(set(lens.tolist())) > 4
    units = operand_codes(SPEC, case_of(options={"lens": "ragged", "align": 16}, shape=(("g", 8), ("m", 48), ("n", 16), ("k", 16))), "ocp")
    assert (units["group_lens"] % 16 == 0).all()
    assert units["group_lens"].sum() == 8 * 48


@pytest.mark.parametrize("layout", ["nt", "nn"])
@pytest.mark.parametrize("options", [{}, {"lens": "ragged"}, RAGGED])
def test_the_truth_is_a_product_a_group_and_zero_where_no_group_reaches(layout, options):
    inputs, references = parts_of(case_of(layout=layout, options=options))
    a, b = values(inputs["a"]), values(inputs["b"])
    found = whole(references["d"])
    for g, (start, stop) in enumerate(bounds(inputs)):
        expected = a[start:stop] @ (b[g].T if layout == "nt" else b[g])
        np.testing.assert_allclose(found[start:stop], expected, rtol=1e-13, atol=1e-13)
    assert (found[96:] == 0).all()
    assert np.isnan(a[96:]).all()


@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_gradients_have_the_groups_of_the_result_and_empty_groups_give_zero_weights_gradients(layout):
    inputs, references = parts_of(case_of(layout=layout, options=RAGGED, direction="bwd"))
    a, b, grad = (values(inputs[n]) for n in ("a", "b", "grad_d"))
    da, db = whole(references["da"]), whole(references["db"])
    empty = 0
    for g, (start, stop) in enumerate(bounds(inputs)):
        weights = b[g] if layout == "nt" else b[g].T
        np.testing.assert_allclose(da[start:stop], grad[start:stop] @ weights, rtol=1e-13, atol=1e-13)
        expected = grad[start:stop].T @ a[start:stop] if stop > start else np.zeros((32, 48))
        np.testing.assert_allclose(db[g], expected if layout == "nt" else expected.T, rtol=1e-13, atol=1e-13)
        empty += stop == start
    assert empty >= 1
    budgets = {name: np.concatenate([p.budget for p in r.panels()]) for name, r in references.items()}
    assert (budgets["db"].reshape(db.shape)[1] == 0).all()
    assert (budgets["db"].reshape(db.shape)[0] > 0).all()


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "hybrid", "block1x128", "mxfp8_training", "nvfp4", "mxfp4", "int8_rowwise"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_quantised_groups_are_products_near_the_unquantised_ones(recipe, direction, layout):
    case = case_of(format=RECIPES[recipe].element, recipe=recipe, direction=direction, layout=layout, options={**RAGGED, "align": 8})
    inputs, references = parts_of(case)
    for reference in references.values():
        exact = whole(reference)
        before = np.concatenate([p.values for p in reference.unquantised()]).reshape(reference.shape)
        assert np.isfinite(exact).all()
        noise = np.linalg.norm(exact - before) / np.linalg.norm(before)
        assert 0.003 < noise < 0.25  # int8 0.7 %, e2m1 15 to 20 %
    assert inputs["a_source"].format == "bfloat16"


def test_factors_along_the_rows_of_groups_are_quantised_group_by_group():
    inputs, references = parts_of(case_of(format="fp8_e4m3", recipe="rowwise", direction="bwd", options=RAGGED))
    codes, scale = values(inputs["grad_d_t"]), values(inputs["grad_d_t_scale"])
    other, other_scale = values(inputs["a_t"]), values(inputs["a_t_scale"])
    grad = values(inputs["grad_d_source"])
    assert (codes.shape, scale.shape) == ((32, 96), (4, 32))
    db = whole(references["db"])
    for g, (start, stop) in enumerate(bounds(inputs)):
        left, right = codes[:, start:stop] * scale[g][:, None], other[:, start:stop] * other_scale[g][:, None]
        np.testing.assert_allclose(db[g], left @ right.T, rtol=1e-12, atol=1e-12)
        if stop > start:
            np.testing.assert_allclose(scale[g], np.abs(grad[start:stop]).max(axis=0) / 448, rtol=1e-6)


SUITE = parse_suite(
    {
        "name": "grouped",
        "cases": [
            {"op": "grouped_gemm", "shape": "4x24x32x48", "format": ["bfloat16", "float16", "float32"], "layout": ["nt", "nn"],
             "direction": ["fwd", "bwd"], "lane": ["random", "exact"], "options": {"lens": ["ragged", "zeros"], "padding": [0, 8]}},
            {"op": "grouped_gemm", "shape": "4x32x32x64", "format": "fp8_e4m3", "recipe": ["tensorwise", "rowwise"],
             "direction": ["fwd", "bwd"], "lane": ["random", "exact"]},
        ],
    },
    "grouped",
)  # fmt: skip


@pytest.fixture
def cpu():
    backend = TorchBackend("cpu")
    yield backend
    backend.close()


def test_torchs_cpu_keeps_the_contract_in_every_group_and_equals_the_reference_on_integers(tmp_path, cpu):
    summary = dump(SUITE, cpu, tmp_path / "cpu.h5")
    assert not summary.errors
    assert not summary.never_written
    dump(SUITE, ReferenceBackend(), tmp_path / "r.h5")
    results = compare_dumps(tmp_path / "cpu.h5", tmp_path / "r.h5")
    assert results.exit_code == 0, [(t.case_id, t.tensor) for t in results.tensors if t.verdict is not Verdict.PASS]
    exact = [t.pairs[0].attribution for t in results.tensors if t.case.lane == "exact" and len(t.sides) == 2]
    assert len(exact) > 30
    assert set(exact) == {Attribution.IDENTICAL}
    reasons = {r.reason.partition(" with")[0] for r in Dump.open(tmp_path / "cpu.h5").records if r.status == "unsupported"}
    assert reasons == {"torch._scaled_grouped_mm: Could not run 'aten::_scaled_grouped_mm'"}


def kernel(change):
    def run(case, tensors, out):
        import torch

        d, start = out["d"], 0
        for g, length in enumerate(tensors["group_lens"].tolist()):
            rows = slice(start, start + length)
            d[rows] = tensors["a"][rows] @ tensors["b"][g].t()
            start += length
        change(torch, d, start, tensors)

    return run


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lambda torch, d, end, t: None, Verdict.PASS),  # the padding stays untouched
        (lambda torch, d, end, t: d[end:].zero_(), Verdict.PASS),
        (lambda torch, d, end, t: d[end + 3].fill_(1.0), Verdict.FAIL),
        (lambda torch, d, end, t: d[end:].copy_(t["a"][end:] @ t["b"][0].t()), Verdict.FAIL),  # NaN reaches the padding
        (lambda torch, d, end, t: d[:end].add_(t["a"][end:].sum()), Verdict.FAIL),  # … and the rows of groups
    ],
)
def test_padding_must_be_zero_or_untouched_and_reach_nothing(tmp_path, monkeypatch, cpu, change, verdict):
    monkeypatch.setattr(candidates, "_USER", {})
    candidates.candidate("grouped_gemm", name="mine")(kernel(change))
    table = {"op": "grouped_gemm", "shape": "4x24x32x48", "format": "bfloat16", "options": RAGGED}
    dump(parse_suite({"name": "one", "cases": [table]}, "one"), cpu, tmp_path / "a.h5", candidates=["mine"])
    (result,) = compare_dumps(tmp_path / "a.h5").tensors
    assert result.verdict is verdict


def test_a_row_of_a_group_that_is_never_written_fails(tmp_path, monkeypatch, cpu):
    monkeypatch.setattr(candidates, "_USER", {})

    def skips(case, tensors, out):
        kernel(lambda *_: None)(case, tensors, kept := {"d": out["d"].clone()})
        out["d"][1:] = kept["d"][1:]

    candidates.candidate("grouped_gemm", name="skips")(skips)
    table = {"op": "grouped_gemm", "shape": "4x24x32x48", "format": "bfloat16", "options": RAGGED}
    summary = dump(parse_suite({"name": "one", "cases": [table]}, "one"), cpu, tmp_path / "a.h5", candidates=["skips"])
    assert len(summary.never_written) == 1
    (result,) = compare_dumps(tmp_path / "a.h5").tensors
    assert result.sides[0].diagnoses[0].evidence["count"] == 32


def test_a_product_of_the_wrong_group_fails_on_integers(tmp_path, monkeypatch, cpu):
    monkeypatch.setattr(candidates, "_USER", {})

    def shifted(case, tensors, out):
        kernel(lambda *_: None)(case, {**tensors, "b": tensors["b"].roll(1, 0)}, out)

    candidates.candidate("grouped_gemm", name="shifted")(shifted)
    table = {"op": "grouped_gemm", "shape": "4x24x32x48", "format": "bfloat16", "lane": "exact"}
    dump(parse_suite({"name": "one", "cases": [table]}, "one"), cpu, tmp_path / "a.h5", candidates=["shifted"])
    (result,) = compare_dumps(tmp_path / "a.h5").tensors
    assert result.verdict is Verdict.FAIL
    assert result.sides[0].metrics["mismatch_fraction"] > 0.5


def test_the_id_states_groups_lengths_and_padding():
    case = case_of(format="fp8_e4m3", recipe="rowwise", options={**RAGGED, "align": 8}, direction="bwd", layout="nn", seed=3)
    assert case_id(case) == "grouped_gemm.g4.m24.n32.k48.nn.fp8_e4m3.rowwise.align=8.lens=zeros.padding=8.normal.bwd.s3"
    assert parse_case(case_id(case)) == case


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"options": {"lens": "odd"}}, "allowed: equal, ragged, zeros"),
        ({"options": {"align": 0}}, "align is at least 1"),
        ({"options": {"align": 7}}, "cannot be cut in units of align=7"),
        ({"input_class": "misaligned"}, "the rows of groups lie next to each other"),
        ({"format": "fp8_e4m3"}, "need a recipe"),
        ({"out_format": "float32"}, "operands' own format"),
        ({"options": {"source": "float16"}}, "belongs to quantised products"),
        ({"recipe": "rowwise", "format": "fp8_e4m3", "out_format": "fp8_e4m3"}, "float of 16 bits or more"),
        ({"recipe": "mxfp4_training", "format": "fp4_e2m1", "direction": "bwd"}, "rotates 16 rows at a time backward: 24 must"),
    ],
)
def test_what_no_grouped_product_is_gets_refused(more, message):
    with pytest.raises(UsageError, match=message):
        case_of(**more)


def test_an_output_in_another_format_than_the_source_is_the_product_rounded_once(tmp_path):
    case = case_of(format="fp8_e4m3", recipe="rowwise", out_format="float16")
    suite = parse_suite({"name": "one", "cases": [{"op": "grouped_gemm", "shape": "4x24x32x48", "format": "fp8_e4m3",
                                                  "recipe": "rowwise", "out_format": "float16"}]}, "one")  # fmt: skip
    dump(suite, ReferenceBackend(), tmp_path / "r.h5")
    d = Dump.open(tmp_path / "r.h5")
    found = d.read(d.records[0], "d").view(np.float16)
    assert (found == whole(parts_of(case)[1]["d"]).astype(np.float16)).all()


@pytest.mark.parametrize(
    ("op", "shape", "case", "gate"),
    [
        ("gemm", "128x96x256", {"format": "fp8_e4m3", "recipe": ["tensorwise", "rowwise", "block1x128", "block1x128_both"]}, "snr-e4m3"),
        ("gemm", "128x96x256", {"format": "fp8_e4m3", "recipe": "mxfp8_training"}, "snr-e4m3"),
        ("gemm", "128x96x256", {"format": ["fp8_e5m2", "fp8_e5m2+fp8_e4m3"], "recipe": ["tensorwise", "rowwise"]}, "snr-e5m2"),
        ("gemm", "128x96x256", {"format": "fp8_e4m3", "recipe": "hybrid"}, "snr-hybrid"),
        ("gemm", "128x96x256", {"format": "fp4_e2m1", "recipe": ["mxfp4_training", "nvfp4"]}, "snr-fp4"),
        ("grouped_gemm", "3x64x96x256", {"format": "fp8_e4m3", "recipe": ["tensorwise", "rowwise"]}, "snr-e4m3"),
        ("grouped_gemm", "3x64x96x256", {"format": "fp4_e2m1", "recipe": ["mxfp4_training", "nvfp4"]}, "snr-grouped-fp4"),
        ("grouped_gemm", "3x64x96x256", {"format": "bfloat16"}, "snr-grouped-bfloat16"),
        ("grouped_gemm", "3x64x96x256", {"format": "float16"}, "snr-grouped-float16"),
    ],
)
def test_every_family_has_its_turbo_gate_which_the_ideal_result_passes(tmp_path, op, shape, case, gate):
    table = {"op": op, "shape": shape, "direction": ["fwd", "bwd"], **case}
    if "fp8_e5m2+fp8_e4m3" in case["format"]:
        table["direction"] = "fwd"
    dump(parse_suite({"name": "one", "cases": [table]}, "one"), ReferenceBackend(), tmp_path / "r.h5")
    results = compare_dumps(tmp_path / "r.h5", gates="turbo")
    assert results.exit_code == 0, [(t.case_id, t.tensor, t.sides[0].gates) for t in results.tensors if t.verdict is Verdict.FAIL]
    assert {gate in {g.gate for g in t.sides[0].gates if g.passed} for t in results.tensors} == {True}
