"""gemm with recipes: what is multiplied, what it must give, and what torch's CPU and the reference make of it."""

import types

import ml_dtypes
import numpy as np
import pytest
import torch

from accuracy_eval.backends.reference import ReferenceBackend
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import case_id, make_case, parse_case
from accuracy_eval.compare import compare_dumps
from accuracy_eval.cpu_ref.gemm import panels as problem_panels
from accuracy_eval.dump import dump
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode, get_format
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.quantised import GEMM_RECIPES, problem
from accuracy_eval.ops.registry import OPS
from accuracy_eval.ops.scaled import Scaled, blocked_v1
from accuracy_eval.quantize import RECIPES
from accuracy_eval.records import Attribution, Coded, Verdict
from accuracy_eval.store import Dump
from accuracy_eval.suite import parse_suite

GEMM = OPS["gemm"]
SHAPE = (("m", 48), ("n", 64), ("k", 160))
DTYPES = {
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz, "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu, "float8_ue4m3": ml_dtypes.float8_e4m3fn,
    "float6_e2m3fn": ml_dtypes.float6_e2m3fn, "float6_e3m2fn": ml_dtypes.float6_e3m2fn, "float4_e2m1fn": ml_dtypes.float4_e2m1fn,
    "int8": np.int8, "float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16,
}  # fmt: skip


def case_of(recipe, **more):
    more.setdefault("format", RECIPES[recipe].element)
    return make_case("gemm", more.pop("shape", SHAPE), recipe=recipe, **more)


def inputs_of(case, encoding="ocp"):
    return stored_inputs(GEMM, case, encoding, operand_codes(GEMM, case, encoding))


def values(coded):
    """Values by ml_dtypes, not by the project's own tables."""
    return coded.codes.view(DTYPES[coded.format]).astype(np.float64)


def dequantised(inputs, name, block):
    """Factor `name` [rows, contraction] with every element times the scale of its block, by indexing."""
    codes, scale = values(inputs[name]), values(inputs[f"{name}_scale"])
    if f"{name}_global" in inputs:
        scale = scale * values(inputs[f"{name}_global"])
    if scale.ndim == 0:
        return codes * scale
    if scale.ndim == 1:
        return codes * scale[:, None]
    rows, columns = np.indices(codes.shape)
    return codes * scale[rows // block[0], columns // block[1]]


def truth_of(case, output):
    reference = GEMM.reference(case, inputs_of(case), "ocp", GEMM.contract(case))[output]
    return np.concatenate([p.values for p in reference.panels()])


def unquantised_of(case, output):
    reference = GEMM.reference(case, inputs_of(case), "ocp", GEMM.contract(case))[output]
    return np.concatenate([p.values for p in reference.unquantised()])


@pytest.mark.parametrize("recipe", GEMM_RECIPES)
def test_the_truth_is_the_product_of_stored_codes_and_scales(recipe):
    case = case_of(recipe)
    inputs, row = inputs_of(case), RECIPES[recipe]
    weights = RECIPES[row.weights] if row.weights else row
    a, b = dequantised(inputs, "a", row.block), dequantised(inputs, "b", weights.block)
    np.testing.assert_allclose(truth_of(case, "d"), a @ b.T, rtol=1e-12, atol=1e-12)
    unquantised = values(inputs["a_source"]) @ values(inputs["b_source"]).T
    np.testing.assert_allclose(unquantised_of(case, "d"), unquantised, rtol=1e-12, atol=1e-12)
    if recipe != "unit":
        noise = np.linalg.norm(a @ b.T - unquantised) / np.linalg.norm(unquantised)
        assert 0.003 < noise < 0.3  # int8 loses 0.7 %, e2m1 up to 20 %


@pytest.mark.parametrize("recipe", GEMM_RECIPES)
@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_gradients_are_products_of_factors_quantised_along_their_contraction(recipe, layout):
    case = case_of(recipe, direction="bwd", layout=layout)
    inputs, row = inputs_of(case), RECIPES[recipe]
    weights, turned = (RECIPES[name] if name else row for name in (row.weights, row.transposed))
    grad, b_t = dequantised(inputs, "grad_d", row.block), dequantised(inputs, "b_t", weights.block)
    grad_t, a_t = dequantised(inputs, "grad_d_t", turned.block), dequantised(inputs, "a_t", turned.block)
    da, db = grad @ b_t.T, grad_t @ a_t.T
    np.testing.assert_allclose(truth_of(case, "da"), da if layout[0] == "n" else da.T, rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(truth_of(case, "db"), db if layout[1] == "t" else db.T, rtol=1e-12, atol=1e-10)
    if recipe == "unit":
        return
    source = {n: values(inputs[f"{n}_source"]) for n in ("a", "b", "grad_d")}
    products = {
        "da": (da, source["grad_d"] @ source["b"], layout[0] == "t"),
        "db": (db, source["grad_d"].T @ source["a"], layout[1] == "n"),
    }
    for name, (found, expected, turned) in products.items():
        np.testing.assert_allclose(unquantised_of(case, name), expected.T if turned else expected, rtol=1e-12, atol=1e-12)
        assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 0.3


def test_rowwise_weights_of_a_backward_product_are_quantised_twice_and_blocks_once():
    case = case_of("rowwise", direction="bwd")
    inputs = inputs_of(case)
    forward = inputs_of(case_of("rowwise"))
    once = dequantised(forward, "b", RECIPES["rowwise"].block).astype(ml_dtypes.bfloat16).astype(np.float32)
    scale = np.float32(448) / np.abs(once).max(axis=0)
    codes = (once.T * scale[:, None]).astype(ml_dtypes.float8_e4m3fn)
    assert (inputs["b_t"].codes == codes.view(np.uint8)).all()
    square = inputs_of(case_of("block1x128", direction="bwd")), inputs_of(case_of("block1x128"))
    assert (square[0]["b_t"].codes == square[1]["b"].codes.T).all()
    assert (square[0]["b_t_scale"].codes == square[1]["b_scale"].codes.T).all()


def test_a_sum_of_integers_that_is_zero_is_zero_whatever_its_scales():
    a = [78, -25, 84, -36, -10, 52, 89, -20, -127, -29, 90, 83, -81, 43, 123, 1]
    b = [-99, 2, 10, -78, -70, 68, -59, -63, 29, 120, 93, -71, -36, 116, 6, -77]
    assert np.dot(a, b) == 0
    codes = np.array([a], np.int8).view(np.uint8), np.array([b] * 16, np.int8).view(np.uint8)
    sides = {"a": codes[0], "b": codes[1]}
    inputs = {n: Coded(c, "int8") for n, c in sides.items()}
    scale = np.array([0.1], np.float32), np.linspace(0.3, 0.7, 16, dtype=np.float32)
    inputs |= {f"{n}_scale": Coded(s.view(np.uint32), "float32") for n, s in zip("ab", scale, strict=True)}
    inside = (codes[0].view(np.int8) * scale[0].astype(np.float64)) @ (codes[1].view(np.int8) * scale[1].astype(np.float64)[:, None]).T
    assert np.count_nonzero(inside) > 10  # what scaling first would leave
    case = case_of("int8_rowwise", shape=(("m", 1), ("n", 16), ("k", 16)))
    (panel,) = problem_panels(problem(case, inputs, "d"), contract="int32acc")
    assert (panel.values == 0).all()


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_budgets_of_scaled_products_grow_with_the_scales(layout):
    case = case_of("rowwise", layout=layout)
    inputs = inputs_of(case)
    budget = np.concatenate([p.budget for p in problem_panels(problem(case, inputs, "d"), contract="fp8fast")])
    rows = np.ldexp(1.0, np.arange(48) % 5)
    scaled = inputs["a_scale"].codes.view(np.float32) * rows.astype(np.float32)
    inputs = {**inputs, "a_scale": Coded(scaled.view(np.uint32), "float32")}
    grown = np.concatenate([p.budget for p in problem_panels(problem(case, inputs, "d"), contract="fp8fast")])
    np.testing.assert_allclose(grown, budget * rows[:, None], rtol=1e-12)


def test_hybrid_gradients_are_e5m2_and_its_forward_operands_e4m3():
    inputs = inputs_of(case_of("hybrid", direction="bwd"), "fnuz")
    assert {n: c.format for n, c in inputs.items() if n in ("grad_d", "grad_d_t", "a_t", "b_t")} == {
        "grad_d": "float8_e5m2fnuz", "grad_d_t": "float8_e5m2fnuz", "a_t": "float8_e4m3fnuz", "b_t": "float8_e4m3fnuz",
    }  # fmt: skip


def test_an_id_names_the_element_family_the_recipe_and_the_format_of_the_source():
    case = case_of("rowwise", format="float8_e4m3fnuz", options={"source": "float16"}, out_format="float32", direction="bwd")
    assert case_id(case) == "gemm.m48.n64.k160.nt.fp8_e4m3-float32.rowwise.source=float16.normal.bwd.s0"
    assert parse_case(case_id(case)) == case


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"format": "bfloat16"}, "recipe rowwise quantises to fp8_e4m3"),
        ({"recipe": "", "format": "fp8_e4m3"}, "fp8_e4m3 operands need a recipe"),
        ({"recipe": "hybrid", "format": "fp8_e5m2"}, "hybrid is fp8_e4m3 forward, fp8_e5m2 for gradients"),
        ({"recipe": "nvfp4", "format": "fp8_e4m3"}, "recipe nvfp4 cannot carry float8_e4m3fn"),
        ({"format": "fp8_e4m3+fp8_e5m2", "direction": "bwd"}, "say nothing about the gradient's"),
        ({"options": {"source": "float64"}}, "allowed: float32, bfloat16, float16"),
        ({"options": {"result_scale": 0.5}}, "result_scale scales an 8-bit float output"),
        ({"out_format": "fp8_e4m3", "direction": "bwd"}, "8-bit outputs are forward only"),
        ({"options": {"alpha": 2.0}}, "a recipe and alpha, beta, C or bias together"),
        ({"recipe": "", "format": "bfloat16", "options": {"source": "float16"}}, "belong to quantised products"),
        (
            {"recipe": "mxfp4_training", "format": "fp4_e2m1", "direction": "bwd", "shape": (("m", 40), ("n", 64), ("k", 64))},
            "backward: 40 must be",
        ),
    ],
)
def test_what_no_quantised_product_is_gets_refused(more, message):
    given = {"recipe": "rowwise", "format": "fp8_e4m3", "shape": SHAPE, **more}
    with pytest.raises(UsageError, match=message):
        make_case("gemm", given.pop("shape"), **given)


SUITE = parse_suite(
    {
        "name": "recipes",
        "cases": [
            {"op": "gemm", "shape": "48x64x160", "format": "fp8_e4m3", "direction": ["fwd", "bwd"], "lane": ["random", "exact"],
             "recipe": ["tensorwise", "rowwise", "unit", "hybrid", "block1x128", "mxfp8_training"], "layout": ["nt", "tn"]},
            {"op": "gemm", "shape": "48x64x160", "format": ["fp8_e5m2", "fp8_e5m2+fp8_e4m3"], "recipe": ["tensorwise", "rowwise"]},
            {"op": "gemm", "shape": "48x64x160", "format": "fp8_e4m3", "recipe": "tensorwise", "lane": ["random", "exact"],
             "out_format": ["float32", "float16", "fp8_e4m3"]},
            {"op": "gemm", "shape": ["48x64x160", "256x512x1024"], "format": "int8", "recipe": "int8_rowwise", "lane": ["random", "exact"],
             "direction": ["fwd", "bwd"], "out_format": ["bfloat16", "float32"]},
            {"op": "gemm", "shape": "48x64x160", "format": "fp4_e2m1", "recipe": ["nvfp4", "mxfp4_training"], "direction": ["fwd", "bwd"]},
            {"op": "gemm", "shape": "48x64x160", "format": "fp6_e3m2", "recipe": "mxfp6", "lane": ["random", "exact"]},
        ],
    },
    "recipes",
)  # fmt: skip


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """The suite on torch's CPU and on the reference, in either encoding."""
    folder = tmp_path_factory.mktemp("recipes")
    backend = TorchBackend("cpu")
    summary = dump(SUITE, backend, folder / "cpu.h5")
    backend.close()
    assert not summary.errors
    for encoding in ("ocp", "fnuz"):
        dump(SUITE, ReferenceBackend(encoding), folder / f"{encoding}.h5")
    return folder


def test_torchs_cpu_multiplies_codes_and_scales_within_the_contract_by_every_candidate(dumps):
    results = compare_dumps(dumps / "cpu.h5", dumps / "ocp.h5")
    assert results.exit_code == 0, [(t.case_id, t.candidate, t.verdict) for t in results.tensors if t.verdict is not Verdict.PASS]
    tensorwise = [t for t in results.tensors if t.case.recipe == "tensorwise" and t.case.format == "fp8_e4m3"]
    assert {(t.candidate, t.sides[0].contract) for t in tensorwise} == {("default", "fp8promoted"), ("fast_accum", "fp8fast")}
    exact = [t for t in results.tensors if t.case.lane == "exact" and len(t.sides) == 2]
    assert len(exact) > 20
    assert {t.pairs[0].attribution for t in exact} == {Attribution.IDENTICAL}


def test_recipes_that_torchs_cpu_lacks_are_unsupported_in_its_own_words(dumps):
    records = {(r.case.recipe, r.candidate): r for r in Dump.open(dumps / "cpu.h5").records if r.status == "unsupported"}
    assert records["block1x128", "default"].reason.startswith("torch.nn.functional.scaled_mm: Invalid scaling configuration")
    assert records["block1x128", "scaled_mm_v1"].reason.startswith("torch._scaled_mm: Invalid scaling configuration")
    assert records["mxfp8_training", "default"].reason == "torch.nn.functional.scaled_mm: CPU does not support swizzle."
    assert records["mxfp6", "default"].reason == "torch has no 6-bit float operands"
    assert {r for r, _ in records} == {"block1x128", "mxfp8_training", "mxfp4_training", "nvfp4", "mxfp6"}


@pytest.mark.parametrize("sides", [("1x128", "128x128"), ("128x128", "1x128")], ids="-".join)
@pytest.mark.parametrize("k", [128, 256, 512, 640, 768])
def test_rows_of_128x128_scales_start_at_multiples_of_16_bytes(sides, k):
    """cuBLAS, scaling factors layouts: L = ceil(K/128) scales of a row of blocks, rows L4 = 4·ceil(L/4) apart; 1x128: [rows, L], rows next
    to each other. B's are handed over transposed, as B is."""
    taken = {}
    torch_like = types.SimpleNamespace(
        nn=torch.nn, empty_strided=torch.empty_strided,
        _scaled_mm=lambda a, b, scale_a, scale_b, out_dtype: taken.update(a=scale_a, b=scale_b.t()),
    )  # fmt: skip
    blocks, rows = -(-k // 128), 640
    scales = {}
    for name, side in zip("ab", sides, strict=True):
        scale = torch.arange(1.0, (rows if side == "1x128" else 5) * blocks + 1).reshape(-1, blocks)
        recipe = RECIPES["block1x128" if side == "1x128" else "block128x128"]
        scales[name] = Scaled(torch.zeros(rows, k), scale, recipe, get_format("float8_e4m3fn"))
    blocked_v1(torch_like, scales["a"], scales["b"], torch.bfloat16)
    for name, side in zip("ab", sides, strict=True):
        assert torch.equal(taken[name], scales[name].scale)
        assert taken[name].stride() == ((1, rows) if side == "1x128" else ({1: 4, 2: 4, 4: 4, 5: 8, 6: 8}[blocks], 1))


def test_a_record_holds_the_digests_of_sources_codes_and_scales(dumps):
    record = Dump.open(dumps / "cpu.h5").record("gemm.m48.n64.k160.nt.fp8_e4m3.block1x128.normal.bwd.s0")
    found = {(t.role, t.name): (t.format, t.shape) for t in record.tensors}
    assert found["source", "a"] == ("bfloat16", (48, 160))
    assert found["input", "a_t"] == ("float8_e4m3fn", (160, 48))
    assert found["input", "a_t_scale"] == ("float32", (160, 1))
    assert found["input", "grad_d_t_scale"] == ("float32", (64, 1))


def test_encodings_share_a_case_and_are_judged_by_their_own_codes(dumps):
    results = compare_dumps(dumps / "ocp.h5", dumps / "fnuz.h5")
    assert results.exit_code == 0
    by_id = {(t.case_id, t.tensor): t for t in results.tensors}
    fp8 = by_id["gemm.m48.n64.k160.nt.fp8_e4m3.rowwise.normal.s0", "d"]
    assert fp8.pairs[0].attribution is Attribution.NOT_COMPARABLE
    assert fp8.sides[0].metrics["max_abs"] != fp8.sides[1].metrics["max_abs"]
    fp4 = by_id["gemm.m48.n64.k160.nt.fp4_e2m1.nvfp4.normal.s0", "d"]
    assert fp4.pairs[0].attribution is Attribution.IDENTICAL


def test_codes_of_another_quantiser_are_other_inputs(tmp_path, monkeypatch):
    suite = parse_suite({"name": "one", "cases": [{"op": "gemm", "shape": "8x16x32", "format": "fp8_e4m3", "recipe": "rowwise"}]}, "one")
    dump(suite, ReferenceBackend(), tmp_path / "a.h5")
    from accuracy_eval.ops import quantised

    def flipped(case, factor, sources, encoding, compiled, wanted=quantised.quantise_factor):
        q = wanted(case, factor, sources, encoding, compiled)
        q.codes[3, 4] ^= 1
        return q

    monkeypatch.setattr(quantised, "quantise_factor", flipped)
    dump(suite, ReferenceBackend(), tmp_path / "b.h5")
    monkeypatch.undo()
    (other,) = compare_dumps(tmp_path / "a.h5", tmp_path / "b.h5").not_compared
    assert other.verdict is Verdict.INPUTS_DIFFER
    assert "input 'a'" in other.reason


def test_an_8_bit_output_is_the_product_rounded_once(dumps):
    d = Dump.open(dumps / "ocp.h5")
    record = d.record("gemm.m48.n64.k160.nt.fp8_e4m3-fp8_e4m3.tensorwise.normal.s0")
    found = d.read(record, "d").view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    assert (found == truth_of(record.case, "d").astype(ml_dtypes.float8_e4m3fn).astype(np.float64)).all()
    assert decode(d.read(record, "d"), "float8_e4m3fn").shape == (48, 64)
