"""One element with its operands: enough, without this program, to compute it again."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from accuracy_eval.cli import run

CASE = "gemm.m6.n5.k11.{}.bfloat16.normal.s0"


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reproducing") / "a.h5"
    base = ["dump", "--device", "reference", "-q", "--seed", "0"]
    grid = ["--op", "gemm", "--shape", "6x5x11", "--layout", "nt", "--layout", "tn", "--format", "bfloat16", "--lane", "random"]
    assert run([*base, *grid, "-o", str(path)]) == 0
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["inspect", *arguments]) == 0
    return capsys.readouterr().out


def values(text: str, operand: str) -> list[float]:
    """The codes below an operand's line, decoded by ml_dtypes."""
    block = re.search(rf"^  {operand}\S+.*bfloat16\n((?:    .*\n?)+)", text, re.MULTILINE)
    assert block
    codes = np.array([int(c, 16) for c in re.findall(r"0x[0-9A-F]+", block[1])], np.uint16)
    return [float(v) for v in codes.view(ml_dtypes.bfloat16)]


@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_the_printed_operands_give_the_printed_sum_and_code(layout: str, dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, str(dump), "--case", CASE.format(layout), "--element", "4,2")
    a, b = values(text, "a"), values(text, "b")
    assert len(a) == len(b) == 11
    total = sum((Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), Fraction())
    stated = re.search(r"a·b +(\S+)", text)
    actual = re.search(r"actual 0x([0-9A-F]+)", text)
    assert stated
    assert actual
    assert float(stated[1]) == float(total)
    assert int(actual[1], 16) == int(np.array(float(total), ml_dtypes.bfloat16).view(np.uint16))  # the reference rounds once


def test_both_layouts_are_one_product(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [printed(capsys, str(dump), "--case", CASE.format(x), "--element", "[0, 4]") for x in ("nt", "tn")]
    assert texts[0].split("\n")[1:] == texts[1].split("\n")[1:]


def test_the_largest_products_come_with_values_and_operands_once_for_all_candidates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "c.h5")
    arguments = ["dump", "--op", "gemm", "--shape", "6x5x11", "--format", "bfloat16", "--lane", "random", "--device", "cpu"]
    assert run([*arguments, "--state", "misaligned", "-q", "-o", path, "--candidate", "default"]) == 0
    text = printed(capsys, path, "--case", CASE.format("nt"), "--element", "4,2")
    lines = text.splitlines()
    assert [re.sub(r".*\(", "(", line) for line in lines[1:3]] == ["(bfloat16, default)", "(bfloat16, default+misaligned)"]
    assert text.count("  a[4, :] bfloat16\n") == 1
    a, b = values(text, "a"), values(text, "b")
    products = sorted((Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), key=lambda p: -abs(p))
    found = re.findall(r"k = (\d+): \((\S+) = (\S+)\) · \((\S+) = (\S+)\) = (\S+)", text)
    assert len(found) == 8
    assert [abs(Fraction(float(term))) for *_, term in found] == [abs(p) for p in products[:8]]
    for k, code, x, _, y, _ in found:
        assert (float(x), float(y)) == (a[int(k)], b[int(k)])
        assert float(np.array(int(code, 16), np.uint16).view(ml_dtypes.bfloat16)) == float(x)


def test_an_elementwise_op_shows_its_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "e.h5")
    assert run(["dump", "--op", "sqrt", "--shape", "64", "--format", "bfloat16", "--device", "reference", "-q", "-o", path]) == 0
    text = printed(capsys, path, "--case", "sqrt.n64.bfloat16.normal.s0", "--element", "7")
    (x,) = values(text, "x")
    actual = re.search(r"actual 0x([0-9A-F]+)", text)
    assert actual
    assert int(actual[1], 16) == int(np.array(np.sqrt(x), ml_dtypes.bfloat16).view(np.uint16))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--element", "6,0"], r"no element \[6, 0\]; its shape is \[6, 5\]"),
        (["--element", "1"], r"no element \[1\]"),
        (["--element", "-1,0"], r"no element \[-1, 0\]"),
        (["--element", "x"], "--element x: expected whole numbers with commas between"),
        (["--element", "0,0", "--tensor", "da"], "no output 'da'; it holds d"),
    ],
)
def test_what_is_not_there_is_one_error(arguments: list[str], message: str, dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(dump), "--case", CASE.format("nt"), *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(("op", "at"), [("sum", "1"), ("softmax", "1,2")])
def test_ops_whose_elements_depend_on_whole_rows_are_refused(op: str, at: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "s.h5")
    assert run(["dump", "--op", op, "--shape", "4x8", "--format", "float32", "--device", "reference", "-q", "-o", path]) == 0
    assert run(["inspect", path, "--case", f"{op}.m4.n8.float32.normal.s0", "--element", at]) == 2
    assert "depends on more than a row" in capsys.readouterr().err
