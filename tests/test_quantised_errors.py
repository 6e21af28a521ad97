"""The four errors by name: whether the scale, the conversion, the kernel or only the whole is off, from dumps whose faults are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from accuracy_eval.backends.reference import ReferenceBackend
from accuracy_eval.cases import case_id, make_case
from accuracy_eval.compare import compare_dumps
from accuracy_eval.diagnose import CODES
from accuracy_eval.digests import sha256_codes
from accuracy_eval.dump import dump
from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.messages import errors_text, failed_errors, side_message
from accuracy_eval.ops.operands import operand_codes
from accuracy_eval.ops.registry import get_op
from accuracy_eval.quantize import quantize
from accuracy_eval.records import Attribution, CaseRecord, ScaleFacts, TensorRecord, Verdict
from accuracy_eval.store import Dump, write_part
from accuracy_eval.suite import Suite

SHAPE = (("m", 160), ("n", 416))
RECIPES = ("tensorwise", "rowwise", "block1x128", "mxfp8", "mxfp8_2d_even", "mxfp4_rceil", "nvfp4", "int8_rowwise")


def case_of(recipe, shape=SHAPE, **more):
    return make_case("quantize", shape, format="bfloat16", recipe=recipe, **more)


def dump_of(folder, label, case, change=lambda q: q, *, encoding="ocp"):
    """A dump of one quantised operand after `change` of {"scale", "codes", "global_scale"}."""
    spec = get_op("quantize")
    x = operand_codes(spec, case, encoding)["x"]
    q = quantize(x, "bfloat16", case.recipe, encoding=encoding)
    made = {"scale": q.scale.copy(), "codes": q.codes.copy()}
    if q.global_scale is not None:
        made["global_scale"] = q.global_scale.copy()
    made = change(made)
    outputs = {o.name: o for o in spec.outputs(case, encoding)}
    tensors = [TensorRecord("x", "source", "bfloat16", x.shape, sha256_codes(x))]
    tensors += [TensorRecord(n, "output", outputs[n].format, c.shape, sha256_codes(c)) for n, c in made.items()]
    record = CaseRecord(case_id(case), case, "default", "done", "", tuple(tensors), "exact", 1, dict.fromkeys(made, 1))
    write_part(folder / label, record, made, info={"suite": "s", "suite_digest": "d"}, platform={"label": label, "fp8_encoding": encoding})
    return folder / label


def judged(folder, case, change, **more):
    """The judged side of each tensor, by name."""
    return {t.tensor: t.sides[0] for t in compare_dumps(dump_of(folder, "me", case, change, **more)).tensors}


def one_code(made):
    made["codes"][3, 5] ^= 1
    return made


def one_scale_doubled(made):
    scale = made["scale"]
    step = {1: 1 if scale.max() > 0x7E else 8, 4: 1 << 23}[scale.itemsize]  # E8M0: one; E4M3: the exponent's lowest bit
    scale.reshape(-1)[scale.size // 2] += step
    return made


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_right_quantiser_has_no_error_and_the_ideal_snr(tmp_path, recipe):
    found = judged(tmp_path, case_of(recipe), lambda made: made)
    assert {s.verdict for s in found.values()} == {Verdict.PASS}
    assert set(found) == {"scale", "codes", "values"} | ({"global_scale"} if recipe == "nvfp4" else set())
    values = found["values"].metrics
    assert (values["scale_mismatch_count"], values["conversion_mismatch_count"]) == (0, 0)
    assert values["total_snr_db"] == values["ideal_snr_db"]
    assert (values["excess_db"], values["excess_row_db"]) == (0, 0)


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_wrong_code_is_a_conversion_error_alone(tmp_path, recipe):
    found = judged(tmp_path, case_of(recipe), one_code)
    assert {n: s.verdict for n, s in found.items() if n != "global_scale"} == {
        "scale": Verdict.PASS, "codes": Verdict.FAIL, "values": Verdict.FAIL,
    }  # fmt: skip
    assert failed_errors(found["codes"]) == ["conversion"]
    assert failed_errors(found["values"])[0] == "conversion"
    assert found["codes"].metrics["conversion_mismatch_count"] == 1


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r != "tensorwise"])
def test_a_scale_twice_as_large_with_codes_to_match_is_a_scale_error_and_no_conversion_error(tmp_path, recipe):
    case = case_of(recipe)
    x = operand_codes(get_op("quantize"), case, "ocp")["x"]

    def consistent(made):
        made = one_scale_doubled(made)
        whole = float(made["global_scale"].view(np.float32)) if "global_scale" in made else None
        return {**made, "codes": quantize(x, "bfloat16", recipe, scale=made["scale"], global_scale=whole).codes}

    found = judged(tmp_path, case, consistent)
    assert [found[n].verdict for n in ("scale", "codes", "values")] == [Verdict.FAIL] * 3
    for name in ("scale", "codes", "values"):
        assert "conversion" not in failed_errors(found[name]), name
        assert failed_errors(found[name])[0] == "scale", name
    assert found["codes"].metrics["conversion_mismatch_count"] == 0


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r != "tensorwise"])
def test_a_scale_twice_as_large_beside_the_old_codes_is_every_error_there_is(tmp_path, recipe):
    found = judged(tmp_path, case_of(recipe), one_scale_doubled)
    assert failed_errors(found["values"]) == ["conversion", "scale", "total"]
    assert found["values"].metrics["excess_row_db"] > 0.3


def test_another_rounding_rule_is_named_with_its_steps_and_costs_no_conversion_error(tmp_path):
    case = case_of("mxfp8")
    x = operand_codes(get_op("quantize"), case, "ocp")["x"]

    def rceil(made):
        q = quantize(x, "bfloat16", "mxfp8_rceil")
        return {"scale": q.scale, "codes": q.codes}

    ours = quantize(x, "bfloat16", "mxfp8").scale.astype(int)
    theirs = quantize(x, "bfloat16", "mxfp8_rceil").scale.astype(int)
    more = int((theirs != ours).sum())
    assert more
    found = judged(tmp_path, case, rceil)
    assert found["scale"].scales == ScaleFacts("rceil", "floor", ((0, ours.size - more), (1, more)), 0, 0, 1.0)
    assert [d.code for d in found["scale"].diagnoses] == ["scale-rounding-rule"]
    assert failed_errors(found["values"]) == ["scale"]
    assert found["values"].metrics["excess_db"] < 0  # it saturates nothing
    assert f"  scales: exponent 0 ({ours.size - more}), +1 ({more}); at most 1 of itself apart; rule rceil, expected floor" in side_message(
        next(t for t in compare_dumps(tmp_path / "me").tensors if t.tensor == "scale"), found["scale"]
    )


def divided(x, made, scale):
    """x over these scales, along blocks of its last axis, in float64."""
    held = np.ldexp(1.0, scale.astype(int) - 127)
    if "global_scale" in made:
        held = decode(scale, "float8_e4m3fn") * float(made["global_scale"].view(np.float32))
    return x / np.repeat(held, x.shape[1] // scale.shape[1], axis=1)


def remade(fmt, by=0, axis=1, where=slice(None)):
    """The change that quantises columns `where` with the scales `by` blocks before."""

    def change(made, x):
        codes = encode(divided(x, made, np.roll(made["scale"], by, axis=axis)), fmt, overflow="saturate")
        made["codes"][:, where] = codes[:, where]
        return made

    return change


def of_codes(change):
    return lambda made, x: {**made, "codes": change(made["codes"])}


def of_scales(change):
    return lambda made, x: {**made, "scale": np.ascontiguousarray(change(made["scale"]))}


def cut_int8(made, x):
    made["codes"] = np.trunc(x / made["scale"].view(np.float32)[:, None]).astype(np.int8).view(np.uint8)
    return made


E4M3, E2M1, FP6 = "float8_e4m3fn", "float4_e2m1fn", "float6_e2m3fn"
# what is done -> recipe, change, tensor that it is named on, (diagnosis, words of its sentence) or none
NAMED = {
    "right": ("mxfp8", remade(E4M3), "codes", None),
    "right, of four bits": ("nvfp4", remade(E2M1), "codes", None),
    "the last of a block by the next scale": (
        "mxfp8", remade(E4M3, -1, where=slice(31, 415, 32)), "codes",
        ("scale-index", "the last element of a block met the scale of the next block"),
    ),
    "the first of a block by the scale before": (
        "nvfp4", remade(E2M1, 1, where=slice(16, None, 16)), "codes",
        ("scale-index", "the first element of a block met the scale of the previous"),
    ),
    "blocks by the next scale": ("mxfp6", remade(FP6, -1), "codes", ("scale-index", ": elements of a block met the scale of the next")),
    "rows by the scales before": ("mxfp4_rceil", remade(E2M1, 1, axis=0), "codes", ("scale-index", "of the previous row of scales")),
    "halves of bytes exchanged": (
        "mxfp4_rceil", of_codes(lambda c: c[:, np.arange(c.shape[1]) ^ 1]), "codes",
        ("formula-step", "the two elements of every byte are exchanged"),
    ),
    "the largest code read as the next": ("nvfp4", of_codes(lambda c: np.where(c & 7 == 7, c - 1, c)), "codes", None),
    "integers cut": ("int8_rowwise", cut_int8, "codes", ("truncation-bias", "one step too near to zero")),
    "integers by the scale of another row": (
        "int8_rowwise", lambda made, x: {**made, "codes": cut_int8({**made, "scale": np.roll(made["scale"], 1)}, x)["codes"]},
        "codes", None,
    ),
    "the last row of scales lost": ("block128x128", of_scales(lambda s: np.concatenate([s[:1], 0 * s[1:]])), "scale", None),
    "the sign lost": ("mxfp8", of_codes(lambda c: c & 0x7F), "codes", None),
}  # fmt: skip
CLASSES = {"the largest code read as the next": "uniform"}  # more than a fifth of the codes are the largest


@pytest.mark.parametrize("name", NAMED)
def test_what_a_quantiser_did_is_named_where_it_is_sure_and_else_is_not(tmp_path, name):
    recipe, change, tensor, wanted = NAMED[name]
    case = case_of(recipe, input_class=CLASSES.get(name, "normal"))
    x = decode(operand_codes(get_op("quantize"), case, "ocp")["x"], "bfloat16")
    side = judged(tmp_path, case, lambda made: change(made, x))[tensor]
    assert side.verdict is (Verdict.PASS if name.startswith("right") else Verdict.FAIL)
    causes = [d for d in side.diagnoses if CODES[d.code].rank == "cause"]
    assert [d.code for d in causes] == ([wanted[0]] if wanted else [])
    assert wanted is None or wanted[1] in causes[0].sentence


def test_two_dumps_of_different_rules_are_compared_scale_by_scale(tmp_path):
    case = case_of("mxfp8_even")
    x = operand_codes(get_op("quantize"), case, "ocp")["x"]

    def by(recipe):
        q = quantize(x, "bfloat16", recipe)
        return lambda made: {"scale": q.scale, "codes": q.codes}

    a, b = dump_of(tmp_path, "a", case, by("mxfp8_even")), dump_of(tmp_path, "b", case, by("mxfp8_ceil"))
    scale, _, values = compare_dumps(a, b).tensors
    (pair,) = scale.pairs
    assert (pair.attribution, pair.scales.rule, pair.scales.expected_rule) == (Attribution.B_OFF, "even", "ceil")
    assert sum(n for _, n in pair.scales.steps) == scale.shape[0] * scale.shape[1]
    assert [s for s, _ in pair.scales.steps] == [-1, 0]
    assert [p.attribution for p in values.pairs] == [Attribution.B_OFF]


def test_values_of_equal_bytes_are_not_compared_a_second_time(tmp_path):
    case = case_of("mxfp8")
    _, _, values = compare_dumps(dump_of(tmp_path, "a", case), dump_of(tmp_path, "b", case)).tensors
    assert (values.tensor, values.verdict, values.pairs) == ("values", Verdict.PASS, ())


def test_a_fnuz_and_an_ocp_quantiser_are_each_right_and_compared_by_value_on_request(tmp_path):
    case = case_of("rowwise")
    a, b = dump_of(tmp_path, "a", case, encoding="fnuz"), dump_of(tmp_path, "b", case)
    for cross, attribution in ((False, Attribution.NOT_COMPARABLE), (True, Attribution.EQUIVALENT)):
        results = compare_dumps(a, b, cross_format=cross)
        values = next(t for t in results.tensors if t.tensor == "values")
        assert [s.verdict for s in values.sides] == [Verdict.PASS] * 2
        assert values.pairs[0].attribution is attribution
    assert 0.01 < values.pairs[0].metrics["rel_fro"] < 0.06  # two different roundings of e4m3


def test_the_message_names_each_error_with_its_own_verdict(tmp_path):
    side = judged(tmp_path, case_of("mxfp8"), one_code)["values"]
    snr, ideal = (f"{side.metrics[n]:.4g} dB" for n in ("total_snr_db", "ideal_snr_db"))
    text = errors_text(side)
    assert text.startswith(f"conversion 1 wrong codes FAIL, scale 0 wrong scales, total {snr} (ideal {ideal}, excess ")


@pytest.mark.parametrize(("recipe", "share"), [("mxfp8", 0.05), ("mxfp8_rceil", 0.0)])
def test_saturated_elements_are_counted_on_both_sides(tmp_path, recipe, share):
    case = case_of(recipe, (("m", 64), ("n", 1024)), input_class="uniform")
    found = judged(tmp_path, case, lambda made: made)["codes"].metrics
    codes = quantize(operand_codes(get_op("quantize"), case, "ocp")["x"], "bfloat16", recipe).codes
    count = int(((codes & 0x7F) == get_format("float8_e4m3fn").max_code).sum())
    assert found["saturated_actual"] == found["saturated_expected"] == count
    assert count / codes.size >= share


def test_profiles_that_say_nothing_about_values_judge_scales_and_codes_alone(tmp_path):
    dumped = dump_of(tmp_path, "me", case_of("rowwise"))
    for profile in ("turbo", "l3"):
        results = compare_dumps(dumped, gates=profile)
        assert {t.tensor: t.verdict for t in results.tensors} == {"scale": Verdict.PASS, "codes": Verdict.PASS}


# products of quantised operands


def product_dump(folder, case, change):
    """A dump of a product by the reference, its result passed through `change` (values [m, n]) and rounded once more."""
    suite = Suite("s", "", (case,), {})
    dump(suite, ReferenceBackend(), folder / "right.h5", repeats=1)
    opened = Dump.open(folder / "right.h5")
    with opened.kept_open():
        (record,) = opened.records
        d = next(t for t in record.tensors if t.role == "output")
        wrong = encode(change(decode(np.array(opened.view(record, d)), d.format)), d.format)
    tensors = tuple(replace(t, sha256=sha256_codes(wrong), path="") if t == d else t for t in record.tensors)
    write_part(folder / "me", replace(record, tensors=tensors), {d.name: wrong}, info={"suite": "s", "suite_digest": "d"},
               platform={"label": "me"})  # fmt: skip
    return folder / "me"


PRODUCTS = [("fp8_e4m3", "rowwise"), ("fp8_e4m3", "block1x128"), ("fp8_e4m3", "mxfp8"), ("fp4_e2m1", "nvfp4"), ("int8", "int8_rowwise")]


def gemm_case(fmt, recipe, **more):
    return make_case("gemm", (("m", 64), ("n", 96), ("k", 256)), format=fmt, recipe=recipe, out_format="bfloat16", **more)


@pytest.mark.parametrize(("fmt", "recipe"), PRODUCTS)
def test_a_right_product_has_four_errors_within_their_limits(tmp_path, fmt, recipe):
    side = compare_dumps(product_dump(tmp_path, gemm_case(fmt, recipe), lambda d: d)).tensors[0].sides[0]
    assert side.verdict is Verdict.PASS
    assert all(g.passed for g in side.gates)
    by_gate = {g.gate: g.error for g in side.gates}
    assert set(by_gate.values()) == {"kernel", "scale", "conversion", "total"}
    named = {"budget": "kernel", "scale": "scale", "conversion": "conversion", "excess": "total", "excess-row": "total"}
    assert {gate: by_gate[gate] for gate in named} == named
    assert side.metrics["total_snr_db"] == pytest.approx(side.metrics["ideal_snr_db"], abs=1e-9)
    words = errors_text(side).split(", ")
    assert [w.split()[0] for w in words[:4]] == ["conversion", "scale", "kernel", "total"]


@pytest.mark.parametrize(("fmt", "recipe"), PRODUCTS)
@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_row_under_the_wrong_scale_is_a_kernel_error_that_the_total_shows(tmp_path, fmt, recipe, factor):
    def row(d):
        d = d.copy()
        d[17] *= factor
        return d

    side = compare_dumps(product_dump(tmp_path, gemm_case(fmt, recipe), row)).tensors[0].sides[0]
    assert failed_errors(side)[:1] == ["kernel"]
    assert side.metrics["excess_row"] == 17
    assert "total" in failed_errors(side)
    assert "kernel error" in side_message(compare_dumps(tmp_path / "me").tensors[0], side).splitlines()[0]


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_gradients_have_their_total_error_too(tmp_path, direction):
    case = gemm_case("fp8_e4m3", "rowwise", direction=direction)
    dump(Suite("s", "", (case,), {}), ReferenceBackend(), tmp_path / "right.h5", repeats=1)
    for t in compare_dumps(tmp_path / "right.h5").tensors:
        snr = t.sides[0].metrics["total_snr_db"]
        assert 26 < snr < 30, t.tensor  # e4m3 rowwise on normal data: 28.5 dB


def test_an_unquantised_product_has_one_error_that_needs_no_name(tmp_path):
    case = make_case("gemm", (("m", 64), ("n", 96), ("k", 256)), format="bfloat16")
    side = compare_dumps(product_dump(tmp_path, case, lambda d: 2 * d)).tensors[0].sides[0]
    assert {g.error for g in side.gates} == {""}
    assert errors_text(side) == ""
    assert failed_errors(side) == []
