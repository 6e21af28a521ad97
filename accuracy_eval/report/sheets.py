"""The table sheets of the workbooks: which columns and rows each holds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from accuracy_eval import messages
from accuracy_eval.metrics.registry import KNOWN
from accuracy_eval.records import GateResult, Results, Side, Verdict
from accuracy_eval.report.findings import PairSummary, counts_sentence, dump_summaries, findings, pair_summaries
from accuracy_eval.report.pictures import picture_sheet_names, picture_sheets, subject_title
from accuracy_eval.report.platforms import Fact, numerics_facts, platform_facts
from accuracy_eval.report.rows import (
    COLUMNS,
    MARGIN_FORMAT,
    Row,
    dimension_letters,
    findings_first,
    margin_format,
    metric_format,
    metric_names,
    reproduce,
    reproduce_element,
    tensor_rows,
)
from accuracy_eval.report.scales import scale_agreements
from accuracy_eval.report.styles import CODE, MARK, PLAIN, WRAP, Cell, Style, TableColumn
from accuracy_eval.report.volumes import Volume
from accuracy_eval.report.workbook import Book

SHEETS = {
    "Verdict": "a row per tensor and dump, and per tensor and pair of dumps: who is off, every gate's value, limit and margin",
    "Metrics": "every metric of the same rows, as numbers",
    "Worst elements": "where the largest errors are: index, codes, values, the truth, distance in ulp",
    "Pictures": "error maps, histograms in ulp and, for special functions, errors by input",
    "Histograms": "how many elements are off by how many ulp",
    "By input": "special functions: the largest error by octave of the input",
    "Scales": "scale factors by recipe: how many are the same bytes, and which rounding rule each side follows",
    "Platforms": "machines and software side by side; what differs is marked",
    "Numerics": "what each probed device's products are made of",
    "Gates": "the limits in force, where each comes from, how often it was applied and broken",
    "Not compared": "cases left out, each with its reason",
    "Definitions": "what each metric means, its unit and which way is better",
}
QUIET_WORST = 1  # elements listed for a row that passed; a finding gets all it has
_COLUMN = {c.name: c for c in COLUMNS}
# what tells one row of a workbook from another; its op and shape are in its name
_KEYS = ("format", "out_format", "layout", "recipe", "lane", "input_class", "direction", "options", "seed", "candidate", "tensor")
_TITLES = {
    "who": "who is off",
    "expected": "against",
    "input_class": "inputs",
    "tensor_format": "codes",
    "causes": "cause",
    "gate_margin": "margin",
    "gate_source": "limit from",
    "out_format": "output",
    "off_contract": "keeps instead",
    "resolution": "would have failed from",
    "expectation": "expected and seen",
    "case_id": "case",
}
_WIDTHS = {
    "reason": 64,
    "gate_margin": 18,
    "explanation": 60,
    "gate_source": 45,
    "resolution": 40,
    "expectation": 40,
    "case_id": 58,
    "sha256": 20,
}


def table_names(results: Results, part: Volume) -> list[str]:
    """Names of the table sheets a volume needs, in order."""
    needless = set() if part.tensors else {"Verdict", "Metrics", "Worst elements", "Definitions"}
    if not _probed(results):
        needless.add("Numerics")
    if not part.skipped:
        needless.add("Not compared")
    needless |= {"Pictures", "Histograms", "By input"} - set(picture_sheet_names(part.tensors))
    if not scale_agreements(part.tensors):
        needless.add("Scales")
    return [name for name in SHEETS if name not in needless]


def summary_tables(results: Results) -> list[str]:
    """Names of the table sheets that summary.xlsx has too."""
    needless = set() if _probed(results) else {"Numerics"}
    if not scale_agreements(results.tensors):
        needless.add("Scales")
    return [name for name in ("Scales", "Platforms", "Numerics", "Gates", "Not compared", "Definitions") if name not in needless]


def _probed(results: Results) -> bool:
    return any(d.numerics for d in results.dumps)


@functools.cache
def verdict_cell(verdict: Verdict) -> Cell:
    return Cell(str(verdict), Style(verdict=verdict))


def verdict_sheet(book: Book, results: Results, part: Volume) -> None:
    rows = findings_first(replace(part.only(results), not_compared=()))
    # what a printed page has room for comes first
    lead = ["who", "actual", "expected", "reason", "causes", "gate_margin", *_used(rows, _KEYS), "contract"]
    lead += _used(rows, ("off_contract", "scope"))
    tail = [*_used(rows, ("errors_failed", "errors", "scales")), "gate_source", "resolution", "attribution", "case_id"]
    gates = _gates_of(rows)
    columns = [_VERDICT, *(replace(_column(n), bar=n == "gate_margin") for n in lead)]
    for name, metric, comparison in gates:
        style = Style(metric_format(metric))
        columns += [TableColumn(f"{name} ({metric})", style), TableColumn(f"{name} limit {comparison}", style)]
        columns.append(TableColumn(f"{name} margin", Style(MARGIN_FORMAT), 18, bar=True))
    columns += [*map(_column, tail), TableColumn("command", CODE, 40)]
    note = (
        f"{part.title}: who is off and by how much. "
        "margin: distance from the limit in its units (bar: up to 100 %), negative or “× beyond” is beyond it."
    )
    book.table("Verdict", columns, (_verdict_row(results, row, lead, gates, tail) for row in rows), note=note, freeze=4)


def _verdict_row(results: Results, row: Row, lead: Sequence[str], gates: Sequence[tuple[str, str, str]], tail: Sequence[str]) -> list[Any]:
    by_name = {g.gate: g for g in row.gates}
    cells: list[Any] = [verdict_cell(row.verdict), *(_margin_cell(row.gate) if n == "gate_margin" else _COLUMN[n].get(row) for n in lead)]
    for name, metric, _ in gates:
        cells += _gate_cells(by_name.get(name), metric)
    return [*cells, *(_COLUMN[n].get(row) for n in tail), reproduce(results, row.holder.case_id)]


def _gate_cells(gate: GateResult | None, metric: str) -> list[Any]:
    if gate is None:
        return [None, None, None]
    if gate.passed is None:
        return [Cell("not applied", Style(right=True, mark=True)), gate.limit, None]
    if gate.passed:
        return [gate.value, gate.limit, gate.margin]
    return [Cell(gate.value, _broken(metric_format(metric))), gate.limit, _margin_cell(gate)]


def _margin_cell(gate: GateResult | None) -> Any:
    if gate is None or gate.passed is not False:
        return gate and gate.margin
    return Cell(gate.margin, _broken(margin_format(gate.margin)))


@functools.cache
def _broken(number_format: str) -> Style:
    return Style(number_format, verdict=Verdict.FAIL)


def metric_sheet(book: Book, results: Results, part: Volume) -> None:
    rows = findings_first(replace(part.only(results), not_compared=()))
    lead = ["actual", "expected", *_used(rows, _KEYS)]
    names = metric_names(rows)
    columns = [_VERDICT, *map(_column, lead), *map(_metric_column, names)]
    data = ([verdict_cell(row.verdict), *(_COLUMN[n].get(row) for n in lead), *_metric_cells(row.flat, names)] for row in rows)
    note = f"{part.title}: every metric. Against the reference in real numbers, dump against dump by codes; ulp of the output format."
    book.table("Metrics", columns, data, note=note, freeze=3)


def worst_sheet(book: Book, results: Results, part: Volume) -> None:
    rows = findings_first(replace(part.only(results), not_compared=()))
    tail = ["actual", "expected", *_used(rows, _KEYS), "case_id"]
    real = Style("0.000000E+00;-0.000000E+00;0")
    columns = [
        _VERDICT,
        TableColumn("what", PLAIN, 60),
        TableColumn("rank", Style("0")),
        TableColumn("index"),
        TableColumn("actual code", CODE),
        TableColumn("actual value", real),
        TableColumn("expected code", CODE),
        TableColumn("expected value", real),
        TableColumn("reference value", real),
        TableColumn("error", Style("0.00E+00;-0.00E+00;0")),
        TableColumn("error / ulp", Style("0.00")),
        TableColumn("budget", Style("0.00E+00")),
        TableColumn("error / budget", Style("0.00E+00")),
        TableColumn("operands", CODE, 50),
        *map(_column, tail),
    ]
    data = []
    for row in rows:
        shown = row.worst if row.verdict is not Verdict.PASS else row.worst[:QUIET_WORST]
        for rank, e in enumerate(shown, 1):
            reference = e.expected if isinstance(row.subject, Side) else e.reference
            data.append(
                [
                    verdict_cell(row.verdict),
                    subject_title(row),
                    rank,
                    messages.index_text(e.index),
                    messages.code_text(e.actual_code, row.format),
                    e.actual,
                    messages.code_text(e.expected_code, row.format),
                    e.expected,
                    reference,
                    e.signed_error,
                    Cell(e.ulp, _ulp_style(e.ulp)),
                    e.budget,
                    e.of_budget,
                    reproduce_element(results, row, e.index) if rank == 1 and row.verdict is not Verdict.PASS else None,
                    *(_COLUMN[n].get(row) for n in tail),
                ]
            )
    note = f"{part.title}: of every finding the element that broke its limit, then the others by size of error; of what passed the largest."
    book.table("Worst elements", columns, data, note=note, freeze=2)


def _ulp_style(ulp: float | None) -> Style:
    size = abs(ulp or 0.0)
    return Style("0.00" if size < 100 else "#,##0" if size < 1e9 else "0.00E+00")


def scale_sheet(book: Book, results: Results, part: Volume) -> None:
    count = Style("#,##0")
    columns = [
        TableColumn("recipe"), TableColumn("actual"), TableColumn("against"), TableColumn("tensors", count), TableColumn("scales", count),
        TableColumn("differ", count), TableColumn("largest relative difference", Style("0.00E+00")), TableColumn("rule"),
        TableColumn("expected rule"), TableColumn("what differs", PLAIN, 70),
    ]  # fmt: skip
    data = [
        [r.recipe, r.actual, r.expected, r.tensors, r.scales, Cell(r.differing, Style("#,##0", mark=True)) if r.differing else 0,
         r.max_rel, r.rule, r.expected_rule, Cell(r.sentence, MARK) if r.sentence else ""]
        for r in scale_agreements(part.tensors)
    ]  # fmt: skip
    book.table("Scales", columns, data, note="Scale factors by recipe: bytes that differ, and by which rounding rule.", freeze=3)


def platform_sheet(book: Book, results: Results, part: Volume) -> None:
    """One row per property, one column per dump; a row whose values differ says so and is marked."""
    note = "What each dump was made on, as far as any of them knows it. Filter the first column to see the differences."
    _fact_table(book, results, "Platforms", "property", platform_facts(results.dumps), note)


def numerics_sheet(book: Book, results: Results, part: Volume) -> None:
    """One row per way to multiply, then per answer, one column per dump."""
    sentences, answers = numerics_facts(results.dumps)
    note = "Numerics cards: what each probed device's products are made of. First a sentence per way to multiply, then every answer."
    _fact_table(book, results, "Numerics", "products of", [*sentences, *answers], note)


def _fact_table(book: Book, results: Results, name: str, title: str, facts: Sequence[Fact], note: str) -> None:
    data = []
    for fact in facts:
        style = Style(wrap=True, mark=fact.differs, left=True)
        mark = Cell("differs" if fact.differs else "same", MARK if fact.differs else PLAIN)
        data.append([mark, fact.name, *(Cell("unknown" if v is None else v, style) for v in fact.values)])
    width = max(22.0, min(46.0, 110 / max(len(results.dumps), 1)))
    labels = [TableColumn(messages.visible(d.label), WRAP, width) for d in results.dumps]
    book.table(name, [TableColumn("differs"), TableColumn(title, WRAP, 30), *labels], data, note=note, freeze=2)


def gate_sheet(book: Book, results: Results, part: Volume) -> None:
    """The profile's limits, and what became of each in this workbook."""
    used: dict[str, list[GateResult]] = {}
    for result in part.tensors:
        for row in tensor_rows(result):
            for gate in row.gates:
                used.setdefault(gate.gate, []).append(gate)
    data = []
    known = {g.gate for g in results.gates}
    for info in results.gates:
        data.append(
            [
                info.gate,
                info.metric,
                info.comparison,
                _number(info.limit),
                info.applies_to,
                *_gate_counts(used.get(info.gate, ())),
                info.source,
            ]
        )
    for name, gates in used.items():  # a user's rtol and atol, or what fails under every profile
        if name not in known:
            g = gates[0]
            data.append([name, g.metric, g.comparison, g.limit, "", *_gate_counts(gates), g.source])
    columns = [
        TableColumn("gate", BOLD),
        TableColumn("metric"),
        TableColumn("comparison", Style(center=True)),
        TableColumn("limit", Style(right=True)),
        TableColumn("applies to", WRAP, 34),
        TableColumn("applied", _COUNT),
        TableColumn("broken", _COUNT),
        TableColumn("not applicable", _COUNT),
        TableColumn("least margin", Style(MARGIN_FORMAT), 20),  # "76,235 × beyond" and longer
        TableColumn("limit from", WRAP, 60),
    ]
    note = f"Profile {messages.visible(results.profile)}. Every limit has a source; a gate that could not be applied never counts as kept."
    book.table("Gates", columns, data, note=note)


def _gate_counts(gates: Sequence[GateResult]) -> list[Any]:
    broken = sum(g.passed is False for g in gates)
    least = min((g.margin for g in gates if g.margin is not None), default=None)
    shown = Cell(broken, replace(_COUNT, verdict=Verdict.FAIL)) if broken else broken
    return [sum(g.passed is not None for g in gates), shown, sum(g.passed is None for g in gates), Cell(least, Style(margin_format(least)))]


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def skipped_sheet(book: Book, results: Results, part: Volume) -> None:
    items = sorted(part.skipped, key=lambda n: -n.verdict.severity)
    columns = [_VERDICT, TableColumn("dump"), TableColumn("candidate"), TableColumn("reason", WRAP, 90), TableColumn("case", PLAIN, 58)]
    data = ([verdict_cell(n.verdict), n.label, n.candidate, n.reason, n.case_id] for n in items)
    book.table(
        "Not compared", columns, data, note="Left out of the comparison. UNSUPPORTED is counted and allowed; the others are not a pass."
    )


def definition_sheet(book: Book, results: Results, part: Volume) -> None:
    names = set(metric_names(row for result in part.tensors for row in tensor_rows(result)))
    columns = [TableColumn("metric", BOLD), TableColumn("unit"), TableColumn("better"), TableColumn("definition", WRAP, 110)]
    data = [[m.name, m.unit, m.better, m.definition] for m in KNOWN.values() if m.name in names]
    note = "a is actual, e expected, d = a - e; sums run over the elements that are finite on both sides."
    book.table("Definitions", columns, data, note=note)


# Pictures writes the sheets of its numbers too: Histograms and By input
TABLES: dict[str, Callable[[Book, Results, Volume], None]] = {
    "Verdict": verdict_sheet,
    "Metrics": metric_sheet,
    "Worst elements": worst_sheet,
    "Pictures": lambda book, results, part: picture_sheets(book, part.tensors),
    "Scales": scale_sheet,
    "Platforms": platform_sheet,
    "Numerics": numerics_sheet,
    "Gates": gate_sheet,
    "Not compared": skipped_sheet,
    "Definitions": definition_sheet,
}


# sheets of summary.xlsx alone


def finding_sheet(book: Book, results: Results, files: Mapping[int, str]) -> None:
    columns = [
        _VERDICT,
        TableColumn("case", WRAP, 40),
        TableColumn("tensor", WRAP, 12),
        TableColumn("who is off", WRAP, 18),
        TableColumn("how much, against which limit", WRAP, 46),
        TableColumn("cause", WRAP, 40),
        TableColumn("run next", Style(mono=True, wrap=True), 48),
        TableColumn("limit from", PLAIN, 60),
        TableColumn("candidate"),
        TableColumn("workbook", PLAIN, 30),
    ]
    data = []
    for f in findings(results):
        file = files.get(id(f.row.result or f.row.subject), "")
        texts = (f.case_id, f.tensor, f.who, f.what, f.cause, "\n".join(f.steps), f.source, f.candidate)
        data.append([verdict_cell(f.verdict), *texts, Cell(file, PLAIN, file and f"{file}#Verdict")])
    book.table("Findings", columns, data, note="Everything a person has to look at, the worst first.", freeze=2)


def workbook_sheet(book: Book, parts: Iterable[Volume]) -> None:
    ordered = sorted(parts, key=lambda p: -p.verdict.severity)
    columns = [_VERDICT, TableColumn("workbook"), TableColumn("family"), TableColumn("shape"), TableColumn("tensors", _COUNT)]
    columns += [TableColumn("not compared", _COUNT), TableColumn("verdicts", PLAIN, 60)]
    data = []
    for p in ordered:
        counts = counts_sentence(p.counts)
        data.append([verdict_cell(p.verdict), Cell(p.file, PLAIN, p.file), p.family, p.shape, len(p.tensors), len(p.skipped), counts])
    book.table("Workbooks", columns, data, note="One workbook per op family and shape.", freeze=2)


def matrix_sheet(book: Book, results: Results) -> None:
    """Dump against dump: the worst verdict and who is off there; the first column is each dump against the reference."""
    labels = [d.label for d in results.dumps]
    pairs, sides = pair_summaries(results.tensors), dump_summaries(results.tensors)
    data = []
    for a in labels:
        counts = sides.get(a)
        worst = max(counts, key=lambda v: v.severity) if counts else None
        cells: list[Any] = [Cell(a, BOLD), _matrix_cell(worst, counts_sentence(counts) if counts else "not judged")]
        for b in labels:
            s = pairs.get((a, b)) or pairs.get((b, a))
            cells.append(_pair_cell(s) if s and a != b else "—" if a == b else "not compared")
        data.append(cells)
    columns = [TableColumn("dump", WRAP, 24), TableColumn("against the reference", WRAP, 34)]
    columns += [TableColumn(messages.visible(b), WRAP, 34) for b in labels]
    note = "Worst verdict of every pair of dumps, who is off there, and how often each answer came."
    book.table("Matrix", columns, data, note=note)


def _pair_cell(s: PairSummary) -> Cell:
    return _matrix_cell(s.verdict, f"{s.named}\n({s.answers})")


def _matrix_cell(verdict: Verdict | None, text: str) -> Cell:
    return Cell(f"{verdict}: {text}" if verdict else text, Style(verdict=verdict, wrap=True))


def flat_sheet(book: Book, results: Results, files: Mapping[int, str]) -> None:
    """One flat row per verdict, header in the first row: made for filters, pivot tables and data frames."""
    rows = findings_first(results)
    letters, names = dimension_letters(rows), metric_names(rows)
    columns = [TableColumn(c.name, Style(c.number_format), _WIDTHS.get(c.name)) for c in COLUMNS if c.name != "verdict"]
    columns = [replace(_VERDICT, title="verdict"), *columns, *(TableColumn(d, Style("0")) for d in letters)]
    columns += [*map(_metric_column, names), TableColumn("workbook", PLAIN, 30)]
    data = []
    for row in rows:
        dims = row.case.dims if row.case else {}
        file = files.get(id(row.result or row.subject), "")
        cells = [verdict_cell(row.verdict), *(c.get(row) for c in COLUMNS if c.name != "verdict"), *(dims.get(d) for d in letters)]
        data.append([*cells, *_metric_cells(row.flat, names), Cell(file, PLAIN, file and f"{file}#Verdict")])
    book.table("All", columns, data)


BOLD = Style(bold=True)
_COUNT = Style("#,##0")
_VERDICT = TableColumn("verdict", Style(verdict=Verdict.PASS), 16)


def _column(name: str) -> TableColumn:
    return TableColumn(_TITLES.get(name, name), Style(_COLUMN[name].number_format), _WIDTHS.get(name))


def _metric_column(name: str) -> TableColumn:
    return TableColumn(name, Style(metric_format(name)))


def _metric_cells(table: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """Values of the metrics, whole distances in ulp shown without decimals."""
    return [Cell(v, _COUNT) if n.startswith("ulp") and _whole(v) else v for n, v in ((n, table.get(n)) for n in names)]


def _whole(value: Any) -> bool:
    return isinstance(value, int | float) and float(value).is_integer()


_USUAL = {"direction": "fwd", "candidate": "default", "lane": "random", "scope": "full"}


def _used(rows: Sequence[Row], names: Iterable[str]) -> list[str]:
    """The columns that hold anything but the usual value; a seed that all rows share tells nothing."""
    used = []
    for name in names:
        values = {_COLUMN[name].get(row) for row in rows} - {None, ""}
        if values - {_USUAL.get(name)} and not (name == "seed" and len(values) == 1):
            used.append(name)
    return used


def _gates_of(rows: Iterable[Row]) -> list[tuple[str, str, str]]:
    """(name, metric, comparison) of every gate, in order of first appearance."""
    return list({g.gate: (g.gate, g.metric, g.comparison) for row in rows for g in row.gates}.values())
