"""The first sheet of every workbook: one printed page with the verdict, who is off, how much, why, and what to run next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accuracy_eval import messages
from accuracy_eval.records import DumpInfo, Results
from accuracy_eval.report.counts import counts_sentence
from accuracy_eval.report.findings import Finding, alike, findings
from accuracy_eval.report.rows import case_words, shape_text
from accuracy_eval.report.sheets.columns import verdict_cell
from accuracy_eval.report.sheets.registry import Sheet
from accuracy_eval.report.styles import HEADER, INSET, INSET_HEADER, PLAIN, WRAP, Cell, Style
from accuracy_eval.report.summaries import attribution_sentence, dump_summaries, pair_summaries
from accuracy_eval.report.volumes import Volume
from accuracy_eval.report.workbook import Book, Page

MAX_FINDINGS = 8  # more do not fit on a page one can read
MAX_LISTED = 14  # workbooks named on the summary's overview
MAX_DUMPS = 8
MAX_PAIRS = 10
MAX_NOTES = 5
WIDTHS = (16, 44, 19, 46, 38)  # A4 landscape


def overview(book: Book, results: Results, part: Volume, sheets: Mapping[str, Sheet]) -> None:
    """The first sheet of a workbook; prints on one page."""
    page = book.page("Overview", WIDTHS)
    _head(page, results, part)
    found = findings(part.only(results))
    _findings(page, found, short=True)
    _dumps(page, results, part)
    page.gap()
    _heads(page, "Sheets")
    for name, sheet in sheets.items():
        page.text(Cell(name, PLAIN, f"#{name}"), Cell(sheet.says))
    page.text(
        Cell("All workbooks", PLAIN, "summary.xlsx"), Cell("summary.xlsx: findings of all shapes, matrix of platforms, one flat table")
    )


def summary_overview(book: Book, results: Results, whole: Volume, parts: Sequence[Volume], sheets: Mapping[str, Sheet]) -> None:
    """The first sheet of summary.xlsx; prints on one page."""
    page = book.page("Overview", WIDTHS)
    _head(page, results, whole)
    _findings(page, findings(results), short=False)
    _dumps(page, results, whole)
    if 1 < len(results.dumps) <= MAX_DUMPS:
        page.gap()
        _heads(page, "Pairs", "actual against expected", "who is off", "all", "example")
        for s in list(pair_summaries(results.tensors).values())[:MAX_PAIRS]:
            counts = ", ".join(f"{n} {who}" for who, n in s.attributions.most_common(4))
            names = f"{s.a} against {s.b}"
            page.line(verdict_cell(s.verdict), *(Cell(_cut(t, 150), INSET) for t in (names, s.named, counts, s.example.sentence)))
    page.gap()
    _heads(page, "Workbooks", "file")
    ordered = sorted(parts, key=lambda p: -p.verdict.severity)
    for p in ordered[:MAX_LISTED]:
        page.line(verdict_cell(p.verdict), Cell(p.file, INSET, p.file), Cell(""), Cell(counts_sentence(p.counts), INSET))
    if len(ordered) > MAX_LISTED:
        page.text("", Cell(f"{len(ordered) - MAX_LISTED} more: sheet Workbooks", PLAIN, "#Workbooks"))
    page.gap()
    _heads(page, "Sheets")
    for name, text in (
        ("Findings", "everything a person has to look at, the worst verdict first, with the command that repeats it"),
        ("Workbooks", "all files of this report"),
        ("Matrix", "dump against dump: worst verdict and who is off"),
        ("All", "one flat row per verdict with every metric: filter it, or put a pivot table on it"),
        *((name, sheet.says) for name, sheet in sheets.items()),
    ):
        page.text(Cell(name, PLAIN, f"#{name}"), Cell(text))


def _head(page: Page, results: Results, part: Volume) -> None:
    labels = " vs ".join(messages.visible(d.label) for d in results.dumps)
    page.line(Cell(_cut(f"{part.title or 'Summary'}: {labels}", 90), Style(bold=True, size=16)))
    page.text(verdict_cell(part.verdict), Cell(_cut(attribution_sentence(part.tensors)), Style(wrap=True, bold=True, size=11)))
    page.text("Counts", Cell(f"{counts_sentence(part.counts)} (tensors, and results not compared)"))
    found = findings(part.only(results))
    if found:
        steps = [*map(_cut, next((f.steps for f in found if f.steps), ()))]
        steps += [f"(the first finding's; those of all {len(found)}: summary.xlsx, sheet Findings)"] if len(found) > 1 else []
        page.text("Run next", Cell("\n".join(steps), Style(mono=True, wrap=True)))
    else:
        page.text("Resolution", Cell(_resolution(part), WRAP))
    gates = f"profile {results.profile}; every limit with its source on sheet Gates"
    page.text("Limits", Cell(gates, PLAIN, "#Gates"))
    for note in results.notes[:MAX_NOTES]:
        page.text("Note", Cell(_cut(note, 300), WRAP))
    page.gap()


def _heads(page: Page, *titles: str) -> None:
    """A line of titles across the page."""
    lead, *others = titles
    blank = [Cell(None, HEADER)] * (len(WIDTHS) - len(titles))
    page.line(Cell(lead, HEADER), *(Cell(t, INSET_HEADER) for t in others), *blank)


def _resolution(part: Volume) -> str:
    """What a PASS would have noticed, for a workbook without findings."""
    sides = [s for t in part.tensors for s in t.sides if messages.side_resolution(s)]
    if not sides:
        return "no resolution was recorded"
    side = next((s for s in sides if s.resolution), sides[0])
    whose = f"{messages.visible(side.label)} {messages.visible(side.format)}"
    return f"smallest faults that would have failed, for {whose}: {messages.side_resolution(side)}"


def _findings(page: Page, found: Sequence[Finding], *, short: bool) -> None:
    """The worst, those that say the same together, each limit's source once."""
    _heads(page, "Findings", "case and tensor", "who is off", "how much, against which limit", "cause")
    seeds = len({f.row.case.seed for f in found if f.row.case}) > 1
    groups = alike(found)
    for f, *others in groups[:MAX_FINDINGS]:
        more = f"\nand {len(others)} more" if others else ""
        page.line(
            verdict_cell(f.verdict),
            Cell(_cut(case_title(f, whole=not short, seed=seeds), 140) + more, INSET),
            Cell(_cut(f.who, 80), INSET),
            Cell(_cut(f.what, 300), INSET),
            Cell(_clauses(f.cause, 300), INSET),
        )
    if not found:
        page.text("", Cell("none: every tensor kept its limits"))
    left = sum(map(len, groups[MAX_FINDINGS:]))
    if left:
        where = "Verdict" if short else "Findings"
        page.text("", Cell(f"{left} more: sheet {where}", PLAIN, f"#{where}"))
    sources = {f.row.gate.gate: f.source for f, *_ in groups[:MAX_FINDINGS] if f.row.gate is not None and f.source}
    for i, (gate, source) in enumerate(sources.items()):
        page.text("" if i else "Limits from", Cell(_cut(f"gate {gate}: {source}", 300), WRAP))


def case_title(f: Finding, *, whole: bool, seed: bool = False) -> str:
    """A finding's case in words; `whole`: with op and shape, which all findings of a workbook share; `seed`: findings differ in it."""
    case = f.row.case
    lead = [case.op, shape_text(case)] if case and whole else []
    head = " ".join([*lead, *case_words(case, seed=seed)]) if case else f.case_id
    return messages.of_candidate(f"{head}{', ' + f.tensor if f.tensor else ''}", f.candidate)


def _dumps(page: Page, results: Results, part: Volume) -> None:
    page.gap()
    _heads(page, "Dumps", "device", "file", "software", "against the reference")
    sides = dump_summaries(part.tensors)
    for dump in results.dumps[:MAX_DUMPS]:
        counts = sides.get(dump.label)
        page.line(
            Cell(_cut(dump.label, 60), Style(bold=True, wrap=True)),
            Cell(_cut(device_name(dump), 100), INSET),
            Cell(_cut(dump.file, 100), INSET),
            Cell(_cut(software(dump), 150), INSET),
            Cell(counts_sentence(counts) if counts else "not judged", INSET),
        )
    if len(results.dumps) > MAX_DUMPS:
        page.text("", Cell(f"{len(results.dumps) - MAX_DUMPS} more: sheet Platforms", PLAIN, "#Platforms"))


_SOFTWARE = (
    ("torch_version", "torch"),
    ("torch_cuda", "CUDA"),
    ("torch_rocm", "ROCm"),
    ("torch_hip", "HIP"),
    ("driver_version", "driver"),
    ("numpy_version", "numpy"),
)


def device_name(dump: DumpInfo) -> str:
    """The device as its platform record names it, with its architecture."""
    name, arch = str(dump.platform.get("device_name") or "unknown device"), dump.platform.get("arch")
    return f"{name} ({arch})" if arch and str(arch) not in name else name


def software(dump: DumpInfo) -> str:
    """Versions that matter most, in one line."""
    return ", ".join(f"{title} {dump.platform[key]}" for key, title in _SOFTWARE if dump.platform.get(key) is not None)


def _cut(text: str, size: int = 600) -> str:
    text = messages.visible(text)
    return text if len(text) <= size else f"{text[:size]}…"


def _clauses(text: str, size: int) -> str:
    """As many whole clauses as fit."""
    text = messages.visible(text)
    if len(text) <= size or "; " not in text[:size]:
        return _cut(text, size)
    return f"{text[:size].rpartition('; ')[0]}; …"
