"""Explanations of dumps: the command, and what a comparison adds. A real H200 dump is one of them."""

import json
import shutil
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from support_results import gemm_case, pass_result

from accuracy_eval.backends.base import Outcome
from accuracy_eval.backends.model import ModelBackend
from accuracy_eval.backends.open import open_backend
from accuracy_eval.backends.reference import ready
from accuracy_eval.cases import parse_case
from accuracy_eval.cli import run
from accuracy_eval.compare import compare_dumps
from accuracy_eval.datapath import gemm
from accuracy_eval.dump import dump
from accuracy_eval.explained import explain_dump, unit_of_dump
from accuracy_eval.explanations import explanations_text, wider_output
from accuracy_eval.formats import decode, encode
from accuracy_eval.records import Diagnosis, Verdict
from accuracy_eval.suite import load_suite, parse_suite

WIDE = {"op": "gemm", "shape": "48x40x256", "layout": "tn", "format": "bfloat16", "out_format": "float32"}
SUITE = parse_suite({"name": "s", "cases": [WIDE, {**WIDE, "lane": "exact"}, {"op": "exp", "shape": "64", "format": "float32"}]}, "s")
ID = "gemm.m48.n40.k256.tn.bfloat16-float32.normal.s0"


def model_dump(unit: str, path: Path, suite=SUITE) -> Path:
    dump(suite, open_backend(f"model:{unit}"), path)
    return path


@pytest.fixture
def h200(tmp_path: Path) -> Path:
    """The packaged dump of a real H200."""
    with resources.as_file(resources.files("accuracy_eval") / "data" / "demo-h200.h5") as packaged:
        return Path(shutil.copyfile(packaged, tmp_path / "h200.h5"))


class LosesK(ModelBackend):
    """A model whose products miss one k: the fault that rounding hides best."""

    def run(self, prepared, candidate, **options):
        outcome = super().run(prepared, candidate, **options)
        if prepared.case.lane != "random" or prepared.case.direction != "fwd":
            return outcome
        a, b = (np.ascontiguousarray(prepared.tensors[n].codes) for n in "ab")
        a = a if prepared.case.layout[0] == "n" else a.T
        b = b.T if prepared.case.layout[1] == "n" else b
        (result,) = outcome.results
        lost = np.zeros_like(a)
        lost[:, 7] = a[:, 7]
        d = decode(result.codes[0].result(), result.format)
        d = d - decode(gemm(self.unit, lost, b, format=prepared.tensors["a"].format), "float32")
        return Outcome((type(result)(result.name, result.format, result.shape, (ready(encode(d, result.format)),)),), 1)


def test_every_product_of_a_real_h200_is_reproduced(h200: Path) -> None:
    found = {(e.case_id, e.tensor): e.explanation for e in explain_dump(h200)}
    assert len(found) == 11
    assert {e.fraction for e in found.values()} == {1.0}
    wide = {key[0]: e for key, e in found.items() if ".float32." in key[0]}
    assert {e.status for e in wide.values()} == {"identified"}
    assert wide["gemm.m128.n96.k512.nt.float32.normal.s0"].description == "F fwd r5x8 seq"
    assert found["gemm.m128.n96.k512.nt.float16.normal.s0", "d"].description == "T16.25.23 fwd >float16"
    # a bfloat16 output of 64 products shows nothing but its own rounding
    assert found["gemm.m64.n64.k64.nt.bfloat16.normal.s0", "d"].status == "consistent, not identified"


def test_the_command_prints_what_was_found_and_says_it_in_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(model_dump("MI300X", tmp_path / "a.h5"))
    assert run(["explain", path, "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{ID} d"
    assert lines[1].startswith("  identified: TR8 fwd, 1920 of 1920 elements bit for bit, ")
    assert lines[2:] == ["1 product: 1 identified", "docs/datapath.md says how to read compositions"]
    assert run(["explain", path, "-q", "--unit", "hopper", "--json"]) == 1
    (item,) = json.loads(capsys.readouterr().out)
    assert (item["case_id"], item["explanation"]["status"]) == (ID, "unexplained")
    assert item["explanation"]["unexplained"]
    assert run(["explain", path, "-q", "--op", "exp"]) == 2
    assert "none of the chosen cases is a matrix product" in capsys.readouterr().err
    assert run(["explain", path, "-q", "--unit", "mi999"]) == 2
    assert "unknown unit 'mi999'" in capsys.readouterr().err
    assert run(["explain", path, "-q", "--case", "gemm.nothing"]) == 2


def test_a_unit_that_is_not_known_throughout_is_searched_for_among_all() -> None:
    assert unit_of_dump({"unit": "hopper"}) == "hopper"
    assert unit_of_dump({"unit": "cdna4"}) is None
    assert unit_of_dump({"unit": None}) is None
    assert unit_of_dump({"unit": "a newer one"}) is None


def test_a_product_of_integers_is_left_out_and_keeps_its_verdict(tmp_path: Path) -> None:
    suite = parse_suite({"name": "i", "cases": [{"op": "gemm", "shape": "8x8x16", "format": "int8", "recipe": "int8_rowwise"}, WIDE]}, "i")
    dump(suite, open_backend("reference"), tmp_path / "a.h5")
    assert {e.case_id for e in explain_dump(tmp_path / "a.h5")} == {ID}
    results = compare_dumps(tmp_path / "a.h5", explain=True)
    assert not results.not_compared
    assert {t.verdict for t in results.tensors} == {Verdict.PASS}
    assert results.notes[0] == "rounded-reference: exact arithmetic rounded once, nothing to explain"


def test_counts_of_explanations_use_the_words_of_the_explanations() -> None:
    tensors = [pass_result(replace(gemm_case(), seed=i)) for i in range(3)]
    status = ("identified", "consistent, not identified", "consistent, not identified")
    named = [Diagnosis("explained-by-datapath", "", {"status": s}) for s in status]
    told = [replace(t, sides=(replace(t.sides[0], diagnoses=(d,)),), pairs=()) for t, d in zip(tensors, named, strict=True)]
    assert explanations_text(told)[0] == "h200: 1 product explained (arithmetic only); 2 consistent, not identified"


def test_an_order_that_16_bits_hide_is_told_by_the_command_that_the_explanation_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    narrow = {"op": "gemm", "shape": "16x24x64", "layout": "tn", "format": "bfloat16"}
    cases = [narrow, {**narrow, "direction": "bwd"}, {**narrow, "format": "float32", "shape": "4x4x8"}]
    path = model_dump("H200", tmp_path / "a.h5", parse_suite({"name": "s", "cases": cases}, "s"))
    assert run(["explain", str(path), "-q"]) == 0
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "float32 output" in line]
    assert said.startswith("1 case of these is stored in 16 bits, whose rounding hides the order;")
    assert said in compare_dumps(path, explain=True).notes
    first, second = (part.split()[1:] for part in said.partition("example: ")[2].split(", then "))
    assert run([*first, "--device", "model:H200", "-q"]) == 0
    assert run([*second, "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "gemm.m16.n24.k64.tn.bfloat16-float32.normal.s0 d"
    assert lines[1].startswith("  identified: ")
    assert not any("float32 output" in line for line in lines)


def test_gradients_are_explained_over_their_own_contraction(tmp_path: Path) -> None:
    suite = parse_suite({"name": "b", "cases": [{"op": "gemm", "shape": "48x64x80", "format": "float32", "direction": "bwd"}]}, "b")
    found = {e.tensor: e.explanation for e in explain_dump(model_dump("A100", tmp_path / "a.h5", suite))}
    assert {name: (e.status, e.description) for name, e in found.items()} == {"da": ("identified", "F fwd"), "db": ("identified", "F fwd")}


def test_a_pair_of_identified_sides_differs_by_arithmetic_only(tmp_path: Path) -> None:
    a, b = model_dump("MI300X", tmp_path / "a.h5"), model_dump("H200", tmp_path / "b.h5")
    plain, told = compare_dumps(a, b), compare_dumps(a, b, explain=True)
    assert [t.verdict for t in told.tensors] == [t.verdict for t in plain.tensors]
    assert plain.notes == ()
    counted = len([t for t in told.tensors if t.sides[0].diagnoses])
    assert told.notes == (
        f"model-mi300x: {counted} product{'s' * (counted > 1)} explained (arithmetic only)",
        f"model-h200: {counted} product{'s' * (counted > 1)} explained (arithmetic only)",
        f"model-mi300x against model-h200, both sides: {counted} product{'s' * (counted > 1)} explained (arithmetic only)",
        "docs/datapath.md says how to read compositions",
    )
    result = next(t for t in told.tensors if t.case_id == ID)
    assert result.pairs[0].attribution == "equivalent"
    (said,) = result.pairs[0].diagnoses
    assert said.sentence == ("both sides identified: they differ by arithmetic only (model-mi300x TR8 fwd; model-h200 T16.25.23 fwd)")
    assert [d.code for d in result.sides[0].diagnoses] == ["explained-by-datapath"]
    assert result.sides[0].diagnoses[0].evidence["composition"] == "TR8 fwd"
    assert not any(d.code == "explained-by-datapath" for t in told.tensors if ".exact." in t.case_id for d in t.sides[0].diagnoses)


def test_a_healthy_mi300x_like_dump_matches_the_real_h200_and_one_that_loses_a_k_fails_unexplained(tmp_path: Path, h200: Path) -> None:
    gemms = load_suite("demo")
    dump(gemms, open_backend("model:MI300X"), tmp_path / "amd.h5")
    healthy = compare_dumps(tmp_path / "amd.h5", h200, explain=True, keep=lambda case: case.op == "gemm")
    assert {t.verdict for t in healthy.tensors} == {Verdict.PASS}
    assert {p.attribution.value for t in healthy.tensors for p in t.pairs} == {"equivalent", "identical"}
    random = [t for t in healthy.tensors if t.case.lane == "random"]
    for t in random:
        assert [d.code for d in t.pairs[0].diagnoses] == ["explained-by-datapath"]
        if t.case.format == "float32":
            assert t.pairs[0].diagnoses[0].sentence.startswith("both sides identified: ")
    # two units through one 16-bit rounding: 0.1 to 0.9 % of float16 codes differ at K = 2048, fewer below, 0.5 % of bfloat16 at most
    differing = {t.case_id: t.pairs[0].metrics["mismatch_fraction"] for t in random if t.case.format in ("float16", "bfloat16")}
    assert 0 < max(differing.values()) <= 0.009

    backend = LosesK("MI300X")
    dump(gemms, backend, tmp_path / "faulty.h5")
    faulty = compare_dumps(tmp_path / "faulty.h5", h200, explain=True, keep=lambda case: case.op == "gemm")
    for t in faulty.tensors:
        if t.case.lane == "random" and t.case.direction == "fwd":
            assert (t.verdict, t.pairs[0].attribution.value) == (Verdict.FAIL, "a_off")
            said = {d.code: d.sentence for d in t.sides[0].diagnoses}
            assert said["not-explained"] == "no known order of operations gives these bits"
            assert t.pairs[0].diagnoses == ()
        else:
            assert t.verdict is Verdict.PASS


def test_a_product_that_did_not_run_is_said_to_be_unsupported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "w.h5")
    case = ["--op", "gemm", "--shape", "8x8x16", "--format", "bfloat16", "--out-format", "float32"]
    assert run(["dump", *case, "--device", "cpu", "-q", "-o", path]) == 0
    assert run(["explain", path, "-q"]) == 2
    assert "gemm.m8.n8.k16.nt.bfloat16-float32.normal.s0 is unsupported: " in capsys.readouterr().err


def test_advice_to_widen_an_output_names_the_candidate() -> None:
    case = parse_case("gemm.m16.n16.k64.nt.bfloat16.normal.s0")
    words = "accuracy-eval dump --op gemm --shape 16x16x64 --layout nt --format bfloat16"
    assert f"{words} --out-format float32 -o wide.h5" in wider_output([(case, "default")])
    assert f"{words} --candidate mine --state graph (and --plugin FILE where a file registers it) --out-format" in wider_output(
        [(case, "mine+graph")]
    )


def test_no_float32_output_is_advised_where_the_device_gives_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "n.h5")
    assert run(["dump", "--op", "gemm", "--shape", "8x8x16", "--format", "bfloat16", "--device", "cpu", "-q", "-o", path]) == 0
    assert run(["explain", path, "-q"]) == 0
    out = capsys.readouterr().out
    assert "consistent, not identified" in out
    assert "--out-format" not in out
