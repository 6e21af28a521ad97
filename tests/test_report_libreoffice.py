"""Another spreadsheet program opens the workbooks, shows what they say and prints the overview on one page."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support_results import gemm_results, hostile_results

from accuracy_eval.report import write_reports

MISSING = "soffice and pdftotext are needed to look at workbooks with another program: apt-get install libreoffice-calc poppler-utils"


def convert(workbook: Path, form: str, folder: Path) -> Path:
    """The workbook as LibreOffice converts it, in a profile of its own: two may run at once."""
    soffice = shutil.which("soffice")
    if soffice is None or shutil.which("pdftotext") is None:
        pytest.fail(MISSING)
    profile = (folder / "profile").as_uri()
    command = [soffice, f"-env:UserInstallation={profile}", "--headless", "--convert-to", form, "--outdir", str(folder), str(workbook)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    made = folder / f"{workbook.stem}.{form.split(':')[0]}"
    assert made.exists(), done.stdout + done.stderr
    return made


def pages(pdf: Path) -> list[str]:
    text = subprocess.run(["pdftotext", "-layout", str(pdf), "-"], capture_output=True, text=True, check=True).stdout
    return text.split("\f")


@pytest.mark.parametrize("name", ["gemm-m512.n128.k256.xlsx", "summary.xlsx"])
def test_printed_overview_fits_one_page_and_holds_the_verdict(name: str, tmp_path: Path) -> None:
    write_reports(gemm_results(), tmp_path, ("xlsx",))
    found = pages(convert(tmp_path / name, "pdf", tmp_path))
    first = re.sub(r"\s+", " ", found[0])
    assert "FAIL h200 is off in 3 of" in first
    assert "error 6.9 × budget at [12, 301]" in first
    assert "accuracy-eval compare h200.h5 cpu.h5 --case gemm.m512.n128.k256.nt.bfloat16.normal.s42" in first
    assert re.search(r"Overview 1 ?/ ?\d", first)
    assert not re.search("Overview", found[1])
    assert "###" not in "".join(found)  # a number wider than its column


def test_every_sheet_of_a_workbook_is_one_page_wide(tmp_path: Path) -> None:
    write_reports(gemm_results(), tmp_path, ("xlsx",))
    found = pages(convert(tmp_path / "gemm-m512.n128.k256.xlsx", "pdf", tmp_path))
    assert len([p for p in found if p.strip()]) == 12  # ten sheets, the pictures on three pages


def test_hostile_text_is_neither_run_nor_decoded(tmp_path: Path) -> None:
    write_reports(hostile_results(), tmp_path, ("xlsx",))
    first = pages(convert(tmp_path / "gemm-m512.n128.k256.xlsx", "pdf", tmp_path))
    text = re.sub(r"\s+", " ", " ".join(first))
    for part in ("=1+1", "@SUM(A1)", "=cmd|' /C calc'!A0", r"a\x00b\x1b[31m\x07", "_x0041_", "#N/A"):
        assert part in text
    assert "Err:" not in text
