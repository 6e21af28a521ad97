"""Certificates of exact products on a device of torch: every single fault found and placed, no false alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accuracy_eval.backends import candidates
from accuracy_eval.backends.certificates import Certificate, certifiable
from accuracy_eval.backends.open import open_backend
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import case_id, make_case
from accuracy_eval.cli import run
from accuracy_eval.records import Case
from accuracy_eval.store import Dump
from accuracy_eval.suite import load_suite

pytestmark = pytest.mark.torch
PLUGIN = str(Path(__file__).parent / "support_faulty_gemm.py")
KINDS = [
    {"format": "bfloat16", "layout": "nt"},
    {"format": "float16", "layout": "nn"},
    {"format": "float32", "layout": "tn"},
    {"format": "float32", "layout": "tt", "options": {"alpha": 2.0, "beta": -0.5}},
    {"format": "bfloat16", "layout": "nt", "options": {"bias": True, "alpha": 0.25}},
    {"format": "float16", "layout": "nt", "out_format": "float32"},
]


@pytest.fixture(scope="module")
def backend() -> TorchBackend:
    return open_backend("cpu")  # type: ignore[return-value]


def exact(shape: str, **fields: Any) -> Case:
    m, n, k = map(int, shape.split("x"))
    return make_case("gemm", [("m", m), ("n", n), ("k", k)], lane="exact", **fields)


def made(backend: TorchBackend, case: Case) -> tuple[dict[str, Any], Certificate, Any]:
    """(operands, their certificate, the right product): torch's, which integers below 2^24 cannot round."""
    import torch

    t = dict(backend.prepare(case).tensors)
    a = t["a"] if case.layout[0] == "n" else t["a"].t()
    b = t["b"] if case.layout[1] == "n" else t["b"].t()
    options = dict(case.options)
    d = options.get("alpha", 1.0) * (a.double() @ b.double())
    if "c" in t:
        d += options["beta"] * t["c"].double()
    if "bias" in t:
        d += t["bias"].double()
    return t, Certificate(backend.torch, case, t), d.to(torch.float32 if case.out_format else t["a"].dtype)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_wrong_multiply_add_is_found_and_placed(backend: TorchBackend, kind: dict[str, Any]) -> None:
    random = np.random.default_rng(7)
    for trial in range(40):  # 6 kinds: 240 faults
        m, n, k = (int(v) for v in random.integers(1, 70, 3))
        case = exact(f"{m}x{n}x{k}", seed=trial, **kind)
        t, certificate, d = made(backend, case)
        i, j, at = (int(random.integers(size)) for size in (m, n, k))
        a = t["a"] if case.layout[0] == "n" else t["a"].t()
        b = t["b"].t() if case.layout[1] == "n" else t["b"]
        product = float(a[i, at]) * float(b[j, at])
        wrong = product + float(2 ** random.integers(0, 6)) * (1 if random.integers(2) else -1)  # one bit of the integer product
        before = float(d[i, j])
        d[i, j] = before + dict(case.options).get("alpha", 1.0) * (wrong - product)
        assert float(d[i, j]) != before
        assert certificate.check(d).wrong() == {"rows": [i], "columns": [j], "row_count": 1, "column_count": 1}


def test_every_flipped_bit_of_an_output_that_changes_its_value_is_found(backend: TorchBackend) -> None:
    case = exact("33x21x64", format="bfloat16", layout="nt")
    _, certificate, d = made(backend, case)
    codes = d.view(backend.torch.int16)
    for bit in range(16):
        i, j = bit, 20 - bit
        codes[i, j] ^= np.int16(np.uint16(1 << bit).view(np.int16))
        changed = float(d[i, j])
        codes[i, j] ^= np.int16(np.uint16(1 << bit).view(np.int16))
        if changed == float(d[i, j]):
            continue  # the sign of a zero
        codes[i, j] ^= np.int16(np.uint16(1 << bit).view(np.int16))
        found = certificate.check(d).wrong()
        codes[i, j] ^= np.int16(np.uint16(1 << bit).view(np.int16))
        assert (found["rows"], found["columns"]) == ([i], [j])


def test_errors_that_cancel_in_a_row_or_a_column_are_found(backend: TorchBackend) -> None:
    """As a swap of two elements, of two rows' pieces, or of a block's corners does it: plain sums of rows and columns stay as they are."""
    _, certificate, d = made(backend, exact("40x50x60", format="float32", layout="nt"))
    for i, j in ((3, 5), (20, 31)):
        d[i, j] += 1
    for i, j in ((3, 31), (20, 5)):
        d[i, j] -= 1
    assert certificate.check(d).wrong() == {"rows": [3, 20], "columns": [5, 31], "row_count": 2, "column_count": 2}


def test_a_thousand_right_products_raise_no_alarm(backend: TorchBackend) -> None:
    random = np.random.default_rng(11)
    for trial in range(1000):
        m, n, k = (int(v) for v in random.integers(0, 24, 3))
        _, certificate, d = made(backend, exact(f"{m}x{n}x{k}", seed=trial, **KINDS[trial % len(KINDS)]))
        assert certificate.check(d).wrong() == {}


def test_pieces_do_not_change_what_is_found(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accuracy_eval.backends.certificates.PIECE", 100)
    _, certificate, d = made(backend, exact("70x40x50", format="float32", layout="nt"))
    assert certificate.check(d).wrong() == {}
    d[69, 1] = float("nan")
    d[3, 39] += 1
    assert certificate.check(d).wrong() == {"rows": [3, 69], "columns": [1, 39], "row_count": 2, "column_count": 2}


def test_the_screen_suite_is_certified_throughout() -> None:
    cases = load_suite("screen").cases
    assert len(cases) == 28
    assert all(certifiable(c) for c in cases)
    assert not certifiable(make_case("gemm", [("m", 8), ("n", 8), ("k", 8)], format="float32", layout="nt"))


def test_a_dump_names_the_run_row_and_column_of_a_faulty_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(candidates, "_USER", {})
    out = str(tmp_path / "a.h5")
    asked = ["--op", "gemm", "--shape", "16x24x32", "--format", "float32", "--layout", "nt", "--lane", "exact", "--device", "cpu"]
    assert run(["dump", *asked, "-o", out, "--certify", "--plugin", PLUGIN]) == 1
    ident = case_id(exact("16x24x32", format="float32", layout="nt"))
    said = capsys.readouterr().out
    assert f"  wrong {ident} (second-run-off): run 2: row 5; column 7 wrong\n" in said
    assert " runs of exact products: 1 wrong\n" in said
    held = {r.candidate: r.notes.get("certificate") for r in Dump.open(out).records}
    assert held["default"] == {"runs": 2, "wrong": []}
    assert held["second-run-off"]["wrong"] == [{"run": 1, "rows": [5], "columns": [7], "row_count": 1, "column_count": 1}]
    assert run(["screen", out]) == 1
    assert f"wrong a {ident} @second-run-off d: run 2: row 5; column 7 wrong\n" in capsys.readouterr().out


def test_what_no_device_made_is_not_certified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", "smoke", "-o", str(tmp_path / "a.h5"), "--device", "reference", "--certify"]) == 2
    assert "--certify checks products where a device made them" in capsys.readouterr().err


def test_a_suite_without_an_exact_product_is_not_certified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.h5"
    assert run(["dump", "smoke", "-o", str(out), "--device", "cpu", "--op", "gemm", "--lane", "random", "--certify"]) == 2
    assert "is a product it can check" in capsys.readouterr().err
    assert not out.exists()


def test_the_runs_that_were_certified_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--op", "gemm", "--shape", "16x24x32", "--format", "float32", "--lane", "exact", "--lane", "random", "--device", "cpu"]
    assert run(["dump", *asked, "-o", str(tmp_path / "a.h5"), "--certify", "--repeats", "3"]) == 0
    assert "\n  certified 3 runs of exact products: none wrong\n" in capsys.readouterr().out
