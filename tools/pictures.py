"""Renders the pictures under docs/pictures: `python tools/pictures.py`, where the dev extras and the system packages of the tests are.

Reports of planted faults and of reports/example are opened in a headless Chromium and in LibreOffice, and photographed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from PIL import Image  # noqa: E402
from playwright.sync_api import Page  # noqa: E402
from support_browser import chromium  # noqa: E402
from support_planted import planted_results  # noqa: E402
from test_report_libreoffice import convert  # noqa: E402

from accuracy_eval.report import load_results, write_reports  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
WIDE = {"width": 1200, "height": 760}


def page_of(path: Path, page: Page) -> None:
    page.goto(path.as_uri())
    page.add_style_tag(content="#filters { position: static !important }")


def open_case(page: Page, number: int) -> None:
    page.evaluate(f"document.querySelector('#t{number} .open').click()")
    page.wait_for_selector(f"#t{number} + tr.detail pre")


def part(page: Page, selector: str, height: int, name: str) -> None:
    """The upper part of an element."""
    page.evaluate("scrollTo(0, 0)")
    box = page.locator(selector).bounding_box()
    assert box is not None
    page.screenshot(path=PICTURES / name, full_page=True, clip={**box, "height": height})  # type: ignore[typeddict-item]


def small(picture: Path) -> None:
    """The picture with a palette of 128 colours: a third of the bytes, and no difference to see."""
    with Image.open(picture) as image:
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(picture, optimize=True)


def sheets(workbook: Path, folder: Path, wanted: dict[str, str], dpi: int = 80) -> None:
    """The first page of each wanted sheet (footer name → picture name) as a PNG."""
    pdf = convert(workbook, "pdf", folder)
    text = subprocess.run(["pdftotext", "-layout", str(pdf), "-"], capture_output=True, text=True, check=True).stdout
    left = dict(wanted)
    for number, body in enumerate(text.split("\f"), 1):
        footer = body.strip().split("\n")[-1]
        for sheet in list(left):
            if footer.startswith(sheet):
                command = ["pdftoppm", "-png", "-singlefile", "-r", str(dpi), "-f", str(number), "-l", str(number)]
                cut = ["-x", "0", "-y", "30", "-W", "1000", "-H", "110"] if sheet == "Matrix" else []  # the rest of that page is empty
                subprocess.run([*command, *cut, str(pdf), str(PICTURES / left.pop(sheet))], check=True)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        planted = Path(scratch) / "planted"
        write_reports(planted_results().results, planted, ("xlsx", "html"))
        example = Path(scratch) / "example"
        write_reports(load_results(ROOT / "reports" / "example"), example, ("xlsx", "html"))
        page = browser.new_page(viewport=WIDE)  # type: ignore[arg-type]
        page_of(planted / "report.html", page)
        page.screenshot(path=PICTURES / "report-findings.png")
        part(page, "#results", 560, "report-table.png")
        open_case(page, 3)
        part(page, "#t3 + tr.detail", 880, "report-case.png")
        dark = browser.new_page(viewport=WIDE, color_scheme="dark")  # type: ignore[arg-type]
        page_of(example / "report.html", dark)
        dark.locator("#charts").scroll_into_view_if_needed()
        dark.wait_for_selector("#overview svg")
        dark.locator("#charts").screenshot(path=PICTURES / "report-charts-dark.png")
        sheets(planted / "gemm-m96.n64.k128.xlsx", planted, {"Overview": "workbook-overview", "Pictures": "workbook-pictures"})
        sheets(example / "summary.xlsx", example, {"Overview": "summary-overview", "Matrix": "summary-matrix"})
    for picture in sorted(PICTURES.glob("*.png")):
        small(picture)
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
