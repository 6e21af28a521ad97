"""report.html in a real browser: it opens from a file, sorts, filters, shows a case, and reports nothing wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from support_browser import LIMIT_MS, chromium
from support_results import (
    CPU,
    H200,
    MI300X,
    budget_gate,
    fail_result,
    gemm_case,
    gemm_results,
    hostile_results,
    id_of,
    many_results,
    pass_result,
    passing_results,
    results_of,
    special_result,
)

from accuracy_eval.records import Attribution, NotCompared, Results, Verdict, WorstElement
from accuracy_eval.report import html, write_reports

FAILING = "gemm.m512.n128.k256.nt.bfloat16.normal.s42"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


Opened = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Opened]:
    """(results, …) -> its page, open. Fails when the page logged anything or asked for anything but itself."""
    wrong: list[str] = []
    contexts = []

    def open_page(results: Results, *, forms: tuple[str, ...] = ("html",), address: str = "", **more: object) -> Page:
        write_reports(results, tmp_path, forms)
        context = browser.new_context(**more)  # type: ignore[arg-type]
        context.set_default_timeout(LIMIT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: None if "report.html" in request.url else wrong.append(request.url))
        page.goto((tmp_path / "report.html").as_uri() + address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def rows(page: Page) -> list[str]:
    """Case ids of the rows shown, in order."""
    return page.locator("#table tbody tr:not([hidden]):not(.detail) .open").all_inner_texts()


def test_page_says_verdict_sentence_and_findings_first(opened: Opened) -> None:
    page = opened(gemm_results())
    assert page.title() == "FAIL h200 vs cpu"
    assert page.locator("h1").inner_text() == "FAIL h200 vs cpu"
    expect(page.locator(".sentence")).to_have_text(
        "h200 is off in 3 of 11 comparisons of h200 and cpu; for example: h200 is off by 6.9 × its budget; cpu keeps contract fp32acc."
    )
    assert page.locator("h2").first.inner_text() == "Findings (6)"
    finding = page.locator("article").first.inner_text()
    assert "h200 is off: error 6.9 × budget at [12, 301] (contract fp32acc, B 3.1e-4; gate budget)" in finding
    assert "k-tail-missing: The last 8 of 256 products are missing in every row." in finding
    assert f"accuracy-eval compare h200.h5 cpu.h5 --case {FAILING}" in finding


def test_findings_that_say_the_same_are_one_and_a_limit_has_its_source_once(opened: Opened) -> None:
    gone = [replace(gemm_case("float32"), seed=seed) for seed in range(30)]
    skipped = tuple(NotCompared(id_of(c), "gemm", "default", "cpu", Verdict.MISSING, "not in cpu.h5", c) for c in gone)
    failed = tuple(fail_result(gemm_case("bfloat16", letters)) for letters in ("nn", "nt"))
    bad = replace(failed[1].sides[0], worst=())  # another text: no longer alike
    page = opened(results_of((failed[0], replace(failed[1], sides=(bad, failed[1].sides[1]))), skipped))
    assert page.locator("h2").first.inner_text() == "Findings (32)"
    assert page.locator("article").count() == 3
    assert [page.locator("article").nth(i).get_by_text("running-error bound").count() for i in range(2)] == [1, 0]
    alike = page.locator("article").nth(2)
    expect(alike.locator("summary")).to_have_text("and 29 more of which the same is said")
    alike.locator("summary").click()
    assert alike.locator("li").count() == 21
    expect(alike.locator("li").last).to_have_text("9 more in the table below")
    alike.locator("li a").first.click()
    expect(page.locator("tr.detail pre")).to_contain_text(f"MISSING {id_of(gone[1])} (cpu): not in cpu.h5")


def test_a_case_not_compared_names_its_dump_as_the_one_that_is_off(opened: Opened) -> None:
    page = opened(gemm_results())
    cells = page.locator("tr[data-verdict=MISSING] td").all_inner_texts()
    assert cells[2:4] == ["", "cpu"]  # tensor, who is off


def test_rows_start_with_the_worst_verdict(opened: Opened) -> None:
    page = opened(gemm_results())
    verdicts = page.locator("#table tbody tr .badge").all_inner_texts()
    order = ["FAIL", "ERROR", "INPUTS_DIFFER", "MISSING", "INCONCLUSIVE", "WARN", "PASS", "UNSUPPORTED"]
    assert verdicts == sorted(verdicts, key=order.index)
    assert len(verdicts) == 14


def test_a_click_on_a_heading_sorts_and_a_second_one_turns_round(opened: Opened) -> None:
    page = opened(gemm_results())
    heading = page.locator("th", has=page.get_by_role("button", name="case", exact=True))
    page.get_by_role("button", name="case", exact=True).click()
    up = rows(page)
    assert up[0].startswith("gemm.m512.n128.k256.nn.bfloat16")
    assert up[-1].startswith("gemm.m8192")
    assert heading.get_attribute("aria-sort") == "ascending"
    page.get_by_role("button", name="case", exact=True).click()
    assert rows(page)[0].startswith("gemm.m8192")
    assert heading.get_attribute("aria-sort") == "descending"


def test_sorting_by_the_limit_shows_the_largest_share_first(opened: Opened) -> None:
    page = opened(gemm_results())
    page.get_by_role("button", name="of its limit").click()
    shares = page.locator("#table tbody tr td.number").all_inner_texts()
    assert shares[:3] == ["6.9 ×", "1.03 ×", "83 %"]  # 25 dB over 24.2 dB is 1.03


def test_filters_choose_by_verdict_format_and_words(opened: Opened) -> None:
    page = opened(gemm_results())
    page.get_by_label("verdict").select_option("FAIL")
    expect(page.locator("#shown")).to_have_text("3 of 14 results")
    page.locator("#filters").get_by_label("format").select_option("fp8_e4m3")
    assert rows(page) == ["gemm.m512.n128.k256.nt.fp8_e4m3.row.normal.s42 (triton)"]
    page.get_by_role("button", name="reset").click()
    expect(page.locator("#shown")).to_have_text("14 results")
    page.get_by_label("text").fill("TAIL bfloat16")
    expect(page.locator("#shown")).to_have_text("1 of 14 results")
    assert rows(page) == [FAILING]


def test_an_open_case_shows_message_pictures_gates_and_metrics(opened: Opened) -> None:
    page = opened(gemm_results())
    page.get_by_role("button", name=FAILING, exact=True).click()
    detail = page.locator("tr.detail")
    expect(detail.locator("pre")).to_contain_text("actual 0x3F12 = 0.5703 (h200), expected 0x3EED = 0.4629 (cpu)")
    captions = detail.locator("figcaption").all_inner_texts()
    assert captions[0] == (
        "error map, h200 against reference: error relative to what was expected, cells of 32 × 16; "
        "largest Inf at rows 160–191, columns 96–111"
    )
    assert captions[1] == "ulp histogram, h200 against reference: 65536 elements, largest bin edge 64 ulp (214 there)"
    assert detail.locator("svg").first.locator("rect title").count() == 16 * 8
    left = [float(x) for x in detail.locator("svg").nth(1).locator("rect.bar").evaluate_all("bars => bars.map((b) => b.getAttribute('x'))")]
    assert [(b - left[0]) / (left[1] - left[0]) for b in left] == [0, 1, 2, 3, 9]  # up to 0, 1/4, 1/2, 1 and 64 ulp
    largest = detail.locator("table.largest-errors tr").evaluate_all("rows => rows.map((r) => [...r.cells].map((c) => c.textContent))")
    assert largest[0] == [
        "what", "index", "actual code", "actual", "expected code", "expected", "reference", "error", "error / ulp", "budget",
        "error / budget",
    ]  # fmt: skip
    assert largest[1] == [
        "h200 against reference",
        "[12, 301]",
        "0x3F12",
        "0.570312",
        "",
        "0.46288",
        "",
        "0.1074",
        "55",
        "3.1e-4",
        "340.256",  # (0.5703125 - 2^-9 - 0.46288) / 3.1e-4
    ]
    detail.locator("summary").click()
    assert "rel_fro" in detail.locator("details").inner_text()


def test_largest_errors_have_a_sign_and_no_empty_column(opened: Opened) -> None:
    base = fail_result(gemm_case())
    low = WorstElement((1, 2), 0x3F80, None, 1.0, 1.5, 0.5, -64.0)
    page = opened(results_of((replace(base, sides=(replace(base.sides[0], worst=(low,)),), pairs=()),)))
    page.locator(".open").click()
    largest = page.locator("table.largest-errors tr")
    expect(largest).to_have_count(2)
    assert largest.evaluate_all("rows => rows.map((r) => [...r.cells].map((c) => c.textContent))") == [
        ["what", "index", "actual code", "actual", "expected", "error", "error / ulp"],
        ["h200 against reference", "[1, 2]", "0x3F80", "1", "1.5", "-0.5", "-64"],
    ]


def test_special_functions_show_their_error_by_input(opened: Opened) -> None:
    page = opened(results_of((special_result(),)))
    page.locator(".open").click()
    expect(page.locator("tr.detail figcaption").nth(1)).to_have_text(
        "largest error by input, h200 against reference: nearest its limit for inputs [32, 64): 2.5 of 0.6 ulp"
    )


def test_a_case_with_other_k_shows_its_error_against_k(opened: Opened) -> None:
    series = []
    for k, used in ((64, 0.05), (1024, 0.2)):
        result = pass_result(gemm_case("bfloat16", "tt", (512, 128, k)))
        series.append(replace(result, sides=tuple(replace(s, gates=(budget_gate(used),)) for s in result.sides)))
    page = opened(results_of(tuple(series)))
    page.locator(".open").first.click()
    svg = page.get_by_role("img", name="Error against k of this case")
    assert svg.locator("circle title").all_text_contents() == [
        "h200, k = 64: 0.05 of its limit", "cpu, k = 64: 0.05 of its limit", "h200, k = 1024: 0.2 of its limit",
        "cpu, k = 1024: 0.2 of its limit",
    ]  # fmt: skip


def test_charts_tell_candidates_of_a_case_apart(opened: Opened) -> None:
    result = pass_result(gemm_case())
    page = opened(results_of((result, replace(result, candidate="mine", sides=result.sides[:1]))))
    page.locator("#charts").scroll_into_view_if_needed()
    caption = page.locator("#overview figcaption").first
    assert caption.locator("span span:not(.key)").all_inner_texts() == ["h200", "h200 (mine)", "cpu"]
    places = page.locator("#overview circle").evaluate_all("all => all.map((c) => c.getAttribute('fill'))")
    assert sorted(places) == ["var(--s0)", "var(--s1)", "var(--s2)"]


def test_cases_open_and_close_from_the_keyboard(opened: Opened) -> None:
    page = opened(gemm_results())
    button = page.locator(".open").first
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator("tr.detail pre")).to_be_visible()
    assert button.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Enter")
    expect(page.locator("tr.detail")).to_have_count(0)


def test_a_finding_leads_to_its_case_and_a_filter_does_not_hide_it(opened: Opened) -> None:
    page = opened(gemm_results())
    page.get_by_label("verdict").select_option("PASS")
    page.locator("article a").first.click()
    expect(page.locator("tr.detail pre")).to_contain_text(f"FAIL {FAILING}")


def test_an_address_opens_its_case(opened: Opened) -> None:
    page = opened(gemm_results(), address="#t0")
    expect(page.locator("#t0 + tr.detail pre")).to_be_visible()


def test_a_case_not_compared_says_why(opened: Opened) -> None:
    page = opened(gemm_results())
    page.get_by_label("verdict").select_option("MISSING")
    expect(page.locator("#shown")).to_have_text("1 of 14 results")
    page.locator("#table tr:not([hidden]) .open").click()
    expect(page.locator("tr.detail")).to_contain_text("the case is in h200.h5 only")
    expect(page.locator("tr.detail")).to_contain_text("next: dump the case there too")


def test_the_page_follows_the_system_to_dark_and_a_button_turns_it(opened: Opened) -> None:
    page = opened(passing_results(), color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(20, 23, 28)"
    page.get_by_role("button", name="light/dark").click()
    assert page.evaluate(ground) == "rgb(255, 255, 255)"


def test_only_the_platform_properties_that_differ_are_shown_at_first(opened: Opened) -> None:
    page = opened(gemm_results())
    assert page.locator("#platform-table").get_by_text("5e" * 32).first.is_hidden()  # one suite
    assert page.locator("#platform-table").get_by_text("cublasLt 13.0.2").is_visible()
    page.get_by_label("only what differs").uncheck()
    assert page.locator("#platform-table").get_by_text("5e" * 32).first.is_visible()


def test_what_one_dump_alone_has_is_one_line_of_what_differs(opened: Opened) -> None:
    page = opened(gemm_results())  # torch_cuda and driver_version are unknown of the CPU
    table = page.locator("#platform-table")
    assert table.locator("tr.folded th").all_inner_texts() == ["known of h200 alone"]
    assert table.locator("tr.folded summary").all_inner_texts() == ["2 properties"]
    assert table.get_by_text("torch_cuda", exact=True).is_hidden()
    table.locator("summary").click()
    assert table.locator("tr.folded li").all_inner_texts() == ["torch_cuda: 13.0", "driver_version: 580.95.05"]
    page.get_by_label("only what differs").uncheck()
    assert table.get_by_text("torch_cuda", exact=True).is_visible()
    assert table.locator("tr.folded").is_hidden()


def test_a_pair_that_is_not_comparable_says_why_in_the_table(opened: Opened) -> None:
    why = "formats float8_e4m3fn and float8_e4m3fnuz hold different numbers; --cross-format compares values"
    base = pass_result(gemm_case("fp8_e4m3"))
    pair = replace(base.pairs[0], attribution=Attribution.NOT_COMPARABLE, sentence=why)
    page = opened(results_of((replace(base, pairs=(pair,)),)))
    assert page.locator("#table tbody td").nth(5).inner_text() == why


def test_charts_are_there_without_scrolling_and_counts_say_what_they_count(opened: Opened) -> None:
    page = opened(gemm_results(), viewport={"width": 800, "height": 200})
    expect(page.locator("#overview figure").first).to_be_attached()
    expect(page.locator(".counts")).to_contain_text("counted: 11 tensors, and 3 results not compared")


CARD = {"format": "bfloat16", "out": "float32", "sentence": "matches hopper", "tree": "64 in order", "deterministic": True,
        "answers": {"alignment_bits": 25, "rounding": [1, -1], "overflow": None}}  # fmt: skip


def test_numerics_cards_stand_side_by_side_and_differences_are_marked(opened: Opened) -> None:
    other = {**CARD, "sentence": "matches cdna3", "answers": {"alignment_bits": 24, "rounding": [1, -1]}}
    dumps = (replace(H200, numerics={"formats": [CARD]}), replace(MI300X, numerics={"formats": [other]}), CPU)
    page = opened(results_of((pass_result(gemm_case()),), dumps=dumps))
    cards = page.locator("#numerics")
    row = cards.locator("tbody tr").first
    assert row.locator("th, td").all_inner_texts() == [
        "bfloat16 → float32", "matches hopper; added 64 in order", "matches cdna3; added 64 in order", "not asked",
    ]  # fmt: skip
    cards.locator("summary").click()
    assert cards.locator("tr.differs th").all_inner_texts() == ["bfloat16 → float32", "bfloat16 → float32: alignment_bits"]


def test_a_page_of_devices_that_were_not_probed_has_no_cards(opened: Opened) -> None:
    assert opened(passing_results()).locator("#numerics").count() == 0


def test_charts_open_the_case_of_a_point(opened: Opened) -> None:
    page = opened(gemm_results())
    page.locator("#charts").scroll_into_view_if_needed()
    worst = page.locator("#overview circle", has=page.locator("title", has_text="6.9 of its limit")).first
    worst.click()
    expect(page.locator("tr.detail pre")).to_contain_text(f"FAIL {FAILING}")


def test_links_lead_to_the_workbooks_beside_the_page_and_to_none_that_is_not_there(opened: Opened, tmp_path: Path) -> None:
    page = opened(gemm_results())
    assert page.locator("a[href$='.xlsx']").count() == 0
    page = opened(gemm_results(), forms=("html", "xlsx"))
    links = page.locator("#workbooks a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    assert len(links) == 3
    assert all((tmp_path / link).exists() for link in links)
    page.locator(".open").first.click()
    expect(page.locator("tr.detail a")).to_have_attribute("href", "gemm-m512.n128.k256.xlsx")


def test_rows_are_there_without_a_script(browser: Browser, tmp_path: Path) -> None:
    write_reports(gemm_results(), tmp_path, ("html",))
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    assert page.locator("#table").is_visible()
    assert page.locator("#table tbody tr").count() == 14
    context.close()


def test_hostile_text_is_shown_and_never_run(opened: Opened) -> None:
    page = opened(hostile_results())
    assert page.locator("script").count() == 4
    assert page.locator("b").count() == page.locator("article b").count() + page.locator(".counts b").count()
    text = page.inner_text("body")
    for part in ("=cmd|' /C calc'!A0", r"a\x00b\x1b[31m\x07", "<b>&\"'|`x`", r"\u202egnp.exe"):
        assert part in text
    page.locator(".open").nth(6).click()
    expect(page.locator("tr.detail pre")).to_contain_text("<b>&\"'|`x`")


def test_a_page_of_5000_cases_opens_sorts_and_filters(opened: Opened) -> None:
    page = opened(many_results(5000))
    assert page.locator("#table tbody tr").count() == 5000
    page.locator("button[data-key=share]").click()
    page.locator("#text").fill("s4999")
    expect(page.locator("#shown")).to_have_text("1 of 5000 results")
    page.locator("#table tbody tr:not([hidden]) .open").click()
    expect(page.locator("tr.detail pre")).to_contain_text("s4999")


def test_no_results_are_a_page_too(opened: Opened) -> None:
    page = opened(results_of(()))
    assert page.locator(".sentence").inner_text() == "Nothing was judged."


def test_what_does_not_fit_the_page_is_counted_on_it_and_the_worst_are_kept(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_LINES", 10)
    results = many_results(500)
    page = opened(results)
    expect(page.locator("#results")).to_contain_text("490 results are not on this page, which holds the 10 worst")
    failing = [t.case_id for t in results.tensors if t.verdict is Verdict.FAIL]
    assert rows(page) == failing[:10]
    expect(page.locator(".counts")).to_contain_text("490")
