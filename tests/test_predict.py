"""accuracy-eval predict: sealed outputs of a part nobody here has."""

from pathlib import Path

import pytest

from accuracy_eval.backends.open import open_backend
from accuracy_eval.cli import run
from accuracy_eval.compare import compare_dumps
from accuracy_eval.datapath import explain_gemm, predict
from accuracy_eval.dump import dump
from accuracy_eval.explained import explain_dump
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Coded, Verdict
from accuracy_eval.store import Dump
from accuracy_eval.suite import parse_suite

GEMM = ["--op", "gemm", "--shape", "32x24x64", "--format", "bfloat16", "--format", "float32"]


def test_a_sealed_prediction_is_a_dump_that_compare_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sealed, card = tmp_path / "sealed.h5", tmp_path / "card.h5"
    assert run(["predict", *GEMM, "--unit", "MI300X", "-o", str(sealed), "-q"]) == 0
    said = capsys.readouterr().out
    assert f"{sealed}: 2 of 2 cases predicted by model:MI300X\ncontent digest {Dump.open(sealed).content_digest}\n" == said
    assert run(["dump", *GEMM, "--device", "model:gfx942", "-o", str(card), "-q"]) == 0  # whoever has the part: here it obeys
    results = compare_dumps(sealed, card)
    assert {t.pairs[0].attribution.value for t in results.tensors} == {"identical"}
    assert {t.verdict for t in results.tensors} == {Verdict.PASS}
    assert run(["predict", *GEMM, "--unit", "MI300X", "-o", str(sealed), "-q"]) == 2
    assert f"{sealed} exists already; remove it, or choose another name" in capsys.readouterr().err


def test_one_case_is_counted_in_the_singular(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", *GEMM[:6], "--unit", "cdna3", "-o", str(tmp_path / "a.h5"), "-q"]) == 0
    assert "1 of 1 case predicted by model:cdna3\n" in capsys.readouterr().out


def test_what_is_not_known_is_not_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", *GEMM, "--unit", "MI350X", "-o", str(tmp_path / "a.h5"), "-q"]) == 0
    said = capsys.readouterr().out
    assert "1 of 2 cases predicted by model:MI350X\n  not predicted 1 × " in said
    assert "is not known" in said
    assert run(["predict", *GEMM[:4], "--format", "bfloat16", "--unit", "gfx1250", "-o", str(tmp_path / "b.h5"), "-q"]) == 2
    assert run(["predict", "--op", "exp", "--shape", "64", "--unit", "cdna3", "-o", str(tmp_path / "c.h5")]) == 2
    assert "no case is a matrix product; a model of a matrix unit predicts nothing else" in capsys.readouterr().err


FP8 = parse_suite(
    {
        "name": "fp8",
        "cases": [
            {"op": "gemm", "shape": "48x64x512", "layout": "nt", "format": "fp8_e4m3", "recipe": ["tensorwise", "rowwise", "block1x128"],
             "out_format": "float32", "direction": ["fwd", "bwd"]},
            {"op": "grouped_gemm", "shape": "3x32x64x256", "format": "fp8_e4m3", "recipe": "rowwise", "out_format": "float32"},
        ],
    },
    "fp8",
)  # fmt: skip


@pytest.mark.parametrize("device", ["model:hopper", "model:cdna3"])
def test_scaled_products_keep_their_contract_and_are_explained_forward_backward_and_grouped(tmp_path: Path, device: str) -> None:
    path = tmp_path / "a.h5"
    dump(FP8, open_backend(device), path)
    assert {t.verdict for t in compare_dumps(path).tensors} == {Verdict.PASS}
    found = list(explain_dump(path))
    assert len(found) == 3 * 3 + 3
    assert {(e.case_id, e.explanation.status) for e in found if e.explanation.status != "identified"} == set()
    rule = "T32.13.13" if device == "model:hopper" else "GTR16"
    assert all(rule in e.explanation.description for e in found)
    if device == "model:hopper":  # a short accumulator is promoted: contractions of 512 and 256 in pieces of 128, of 48 and 64 not
        forward = [e.explanation.description for e in found if e.tensor == "d"]
        assert all(" c128 " in text for text in forward)


def test_fast_accumulation_is_another_composition() -> None:
    case = next(c for c in FP8.cases if c.recipe == "rowwise" and c.direction == "fwd" and c.op == "gemm")
    op = get_op("gemm")
    inputs = stored_inputs(op, case, "ocp", operand_codes(op, case, "ocp"))
    assert op.products is not None
    (product,) = op.products(case, inputs, "d")
    found = {
        promoted: explain_gemm(Coded(predict(product.gemm, "H200", "float32", promoted=promoted), "float32"), product.gemm, unit="H200")
        for promoted in (False, True)
    }
    assert [(e.status, e.description) for e in found.values()] == [
        ("identified", "T32.13.13 fwd *(ab)"), ("identified", "T32.13.13 fwd c128 seq *(ab)"),
    ]  # fmt: skip
