"""accuracy-eval probe, and the card inside a dump."""

import json
from pathlib import Path

import pytest
from support_fake_torch import fake_torch

from accuracy_eval.backends.open import open_backend
from accuracy_eval.backends.probing import probed
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cli import run
from accuracy_eval.dump import dump
from accuracy_eval.store import Dump
from accuracy_eval.suite import parse_suite


def test_the_card_of_a_model_names_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "--device", "model:H200", "--length", "96"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("numerics of model of hopper (sm_90): matches hopper in ")
    assert "\nbfloat16 → float32: matches hopper = blackwell\n" in text
    assert "\nfloat32 → float32, tf32: matches hopper, operands rounded to TF32 = blackwell, operands rounded to TF32\n" in text
    assert "unknown" not in text
    assert "  survivors at k = 96      1: 80, " in text
    assert "  additions at k = 64      64 in order, 16 at a time\n" in text


def test_the_card_is_json_too_and_can_be_of_one_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "--device", "model:gfx942", "--format", "fp8_e4m3", "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert [(c["format"], c["matches"]) for c in card["formats"]] == [("float8_e4m3fnuz", ["cdna3"])]
    assert card["summary"] == "matches cdna3 in 1 of 1 ways to multiply"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "reference"], "the reference is exact arithmetic rounded once: there is nothing to probe"),
        (
            ["--device", "model:cdna1", "--format", "fp8_e4m3"],
            "unknown operand format to probe 'fp8_e4m3'; allowed: bfloat16",
        ),
        (["--device", "model:mi999"], "unknown unit 'model:mi999'"),
    ],
)
def test_what_cannot_be_probed_is_one_error_and_exit_code_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_device_without_any_product_is_not_a_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "--device", "model:gfx1250"]) == 2
    assert capsys.readouterr().out == "numerics of model of gfx1250 (gfx1250): nothing to multiply with\n"


def test_a_dump_keeps_the_card(tmp_path: Path) -> None:
    suite = parse_suite({"name": "one", "cases": [{"op": "gemm", "shape": "16x16x32", "format": "bfloat16"}]}, "one")
    dump(suite, open_backend("model:A100"), tmp_path / "a.h5", probe=True)
    d = Dump.open(tmp_path / "a.h5")
    assert d.info["numerics"]["summary"] == "matches ampere in 4 of 4 ways to multiply, fused multiply-adds in order in 2"
    assert d.platform["numerics.bfloat16 → float32"] == "matches ampere = ada"


@pytest.mark.torch
@pytest.mark.parametrize(("device", "encoding"), [("mi300x", "fnuz"), ("h200", "ocp")])
def test_a_gpu_backend_probes_what_it_takes_and_lists_what_it_refuses(device: str, encoding: str) -> None:
    with fake_torch(device) as torch:
        backend = TorchBackend("cuda:0", torch=torch)
        card = probed(backend, ("float32", "fp8_e4m3"), lengths=())
        backend.close()
    names = [c.name for c in card.formats] + list(card.refused)
    assert "float32 → float32, tf32" in names
    assert any("fnuz" in name for name in names) == (encoding == "fnuz")
    assert next(c for c in card.formats if c.name == "float32 → float32").answers["integers_exact"] is True
