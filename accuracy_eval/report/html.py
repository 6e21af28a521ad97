"""report.html: one page with everything in it: findings first, a table to sort and filter, pictures of each case. No network, no time.

The page is a Jinja template with its style and script put inside. Rows are plain table rows. What opens below a row is one line of JSON a
tensor, all of them compressed (a tenth of the size) and unpacked when the first case is opened: a page of thousands of cases opens at once.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from accuracy_eval import messages
from accuracy_eval.json_data import to_json
from accuracy_eval.metrics.registry import KNOWN
from accuracy_eval.ops.spec import rows_and_columns
from accuracy_eval.records import Attribution, GateResult, NotCompared, Results, Side, TensorResult, Verdict
from accuracy_eval.report.counts import ORDER, counted_sentence, counts_sentence, total
from accuracy_eval.report.findings import alike, findings, is_command, next_steps, who
from accuracy_eval.report.platforms import lacking_facts, numerics_facts, platform_facts
from accuracy_eval.report.rows import Row, by_maker, metric_names, of_budget, shape_text, share_of_limit, tensor_rows
from accuracy_eval.report.summaries import attribution_sentence, dump_summaries, pair_summaries
from accuracy_eval.report.volumes import SUMMARY, volumes

NAME = "report.html"
MAX_FINDINGS = 40  # written out at the top, those that say the same as one; all are in the table
MAX_ALIKE = 20  # further cases named of which a finding says the same
MAX_LINES = 10_000  # of the table, the worst first: beyond, a browser takes too long; the page says how many are left out
QUIET_WORST = 3  # elements shown of what passed


@dataclass(frozen=True)
class Line:
    """One row of the table: a tensor, or a case not compared.

    share       the part of its limit that the nearest or worst gate uses; Inf where a broken limit has no parts
    share_text  the same in words, or the value
    """

    item: TensorResult | NotCompared
    rows: tuple[Row, ...]
    who: str
    cause: str
    share: float | None
    share_text: str
    workbook: str

    @property
    def verdict(self) -> Verdict:
        return self.item.verdict

    @property
    def tensor(self) -> str:
        return messages.visible(self.item.tensor) if isinstance(self.item, TensorResult) else ""

    @property
    def facts(self) -> dict[str, str]:
        """What the filters choose by."""
        case = self.item.case
        values = (case.op, case.format, case.lane, shape_text(case)) if case else (self.item.family, "", "", "")
        return dict(zip(("op", "format", "lane", "shape"), map(messages.visible, values), strict=True))

    @property
    def share_key(self) -> str:
        """What the table sorts by, as JavaScript reads it."""
        return "" if self.share is None else "Infinity" if math.isinf(self.share) else repr(self.share)


def write(results: Results, folder: Path) -> list[Path]:
    """Write report.html into `folder`; it links to the workbooks that lie there or in the folder above, where reports are published."""
    path = folder / NAME
    parts = [p for p in volumes(results) if _beside(folder, p.file)]
    files = {id(item): p.file for p in parts for item in (*p.tensors, *p.skipped)}
    lines = list(itertools.islice(_lines(results, files), MAX_LINES))
    found = findings(results)
    groups = alike(found)
    labels = [d.label for d in results.dumps]
    places = {id(line.item): i for i, line in enumerate(lines)}
    template = environment().get_template("report.html.j2")
    page = template.render(
        results=results,
        title=" vs ".join(map(messages.visible, labels)),
        sentence=attribution_sentence(results.tensors),
        counts=[(v, n) for v in ORDER if (n := total(results)[v])],
        found=[
            (group[0], [(f, places.get(id(f.row.result or f.row.subject))) for f in group[: 1 + MAX_ALIKE]], len(group) - 1 - MAX_ALIKE)
            for group in groups[:MAX_FINDINGS]
        ],
        found_left=sum(map(len, groups[MAX_FINDINGS:])),
        found_count=len(found),
        lines=lines,
        left_out=len(results.tensors) + len(results.not_compared) - len(lines),
        choices={name: sorted({line.facts[name] for line in lines} - {""}) for name in ("op", "format", "lane", "shape")},
        verdicts=[v for v in ORDER if any(line.verdict is v for line in lines)],
        severity={v: v.severity for v in Verdict},
        matrix=_matrix(results),
        facts=platform_facts(results.dumps),
        lacking=lacking_facts(results.dumps),
        counted=counted_sentence(results),
        cards=numerics_facts(results.dumps),
        labels=labels,
        workbooks=[(p.file, p.title, p.verdict, counts_sentence(p.counts)) for p in parts],
        summary=f"{SUMMARY}.xlsx" if _beside(folder, f"{SUMMARY}.xlsx") else "",
        details=_packed(json.dumps(_detail(results, line), separators=(",", ":"), allow_nan=False) for line in lines),
        points=_json(_points(results, lines)),
        visible=messages.visible,
        of_candidate=messages.of_candidate,
        breakable=_breakable,
        is_command=is_command,
    )
    path.write_text(page, "utf-8", errors="backslashreplace", newline="\n")
    return [path]


def environment() -> Environment:
    """Templates of this package: text is escaped, an unknown name is an error, `source(name)` puts a file in as it is."""
    loader = PackageLoader("accuracy_eval.report", "templates")
    environment = Environment(
        loader=loader, autoescape=select_autoescape(("html", "j2")), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["source"] = lambda name: Markup(loader.get_source(environment, name)[0])
    return environment


def _beside(folder: Path, name: str) -> bool:
    return (folder / name).exists() or (folder.parent / name).exists()


def _lines(results: Results, files: Mapping[int, str]) -> Iterator[Line]:
    """A line per tensor and per case not compared, the worst first, otherwise in the order of the results."""
    items: list[TensorResult | NotCompared] = [*results.tensors, *results.not_compared]
    for item in sorted(items, key=lambda i: -i.verdict.severity):
        file = files.get(id(item), "")
        if isinstance(item, NotCompared):
            yield Line(item, (Row(item),), messages.visible(item.label), messages.visible(item.reason), None, "", file)
            continue
        rows = tuple(tensor_rows(item))
        told = [row for row in rows if row.verdict is item.verdict]  # what is right beside a failure says nothing about it
        apart = dict.fromkeys(messages.visible(p.sentence) for p in item.pairs if p.attribution is Attribution.NOT_COMPARABLE)
        causes = messages.causes((d for row in told for d in row.diagnoses), item.verdict) or ", ".join(apart)
        yield Line(item, rows, who(item), causes, *_share(item.verdict, told), file)


def _share(verdict: Verdict, rows: Sequence[Row]) -> tuple[float | None, str]:
    """The largest part of a limit that these rows use, and its text; of a failure only limits that were broken speak."""
    gates = [row.gate for row in rows if row.gate is not None and (verdict is not Verdict.FAIL or row.gate.passed is False)]
    shares = [(share, _share_words(share)) for g in gates if (share := share_of_limit(g)) is not None]
    beyond = [(math.inf, _value_words(g)) for g in gates if g.passed is False and share_of_limit(g) is None]
    return max([*beyond, *shares], default=(None, ""), key=lambda s: s[0] or 0.0)


def _share_words(share: float) -> str:
    return f"{100 * share:.3g} %" if share <= 1 else f"{messages.number(share, 3)} ×"


def _value_words(gate: GateResult) -> str:
    if gate.comparison == "==" and gate.value is not None:
        return f"{messages.exact(gate.value)}, not {messages.exact(gate.limit)}"
    return messages.number(gate.value, 3) + (" ×" if gate.metric == "budget_max" else "")


def _gate_value(gate: GateResult) -> str:
    return messages.exact(gate.value) if gate.comparison == "==" and gate.value is not None else messages.number(gate.value)


def _detail(results: Results, line: Line) -> dict[str, Any]:
    """What opens below a line."""
    item = line.item
    if isinstance(item, NotCompared):
        return {"text": line.rows[0].message, "steps": next_steps(results, item), "workbook": line.workbook}
    rows = line.rows
    names = [n for n in metric_names(rows) if any(row.flat.get(n) is not None for row in rows)]
    gates = [
        [
            _subject(row), messages.visible(g.gate), messages.visible(g.metric), _gate_value(g), g.comparison,
            messages.number(g.limit), {True: "kept", False: "broken"}.get(g.passed, "not applied"),  # type: ignore[arg-type]
            messages.visible(g.source if g.passed is not None else g.note),
        ]
        for row in rows for g in row.gates
    ]  # fmt: skip
    return {
        "text": messages.result_message(item),
        "steps": next_steps(results, item),
        "workbook": line.workbook,
        "columns": [[_subject(row), str(row.verdict)] for row in rows],
        "metrics": [[n, KNOWN[n].unit if n in KNOWN else "", *(_text(row.flat.get(n)) for row in rows)] for n in names],
        "gates": gates,
        "worst": _used_columns(_WORST, [w for row in rows for w in _worst(row)]),
        "sketches": [s for row in rows if (s := _sketch(row, item.shape))],
        "group": _series(item),
    }


def _subject(row: Row) -> str:
    return f"{messages.visible(row.actual)} against {messages.visible(row.expected)}"


def _text(value: Any) -> str:
    return "" if value is None else messages.number(value, 6)


_WORST = (
    "what", "index", "actual code", "actual", "expected code", "expected", "reference", "error", "error / ulp", "budget", "error / budget",
)  # fmt: skip


def _worst(row: Row) -> Iterator[list[str]]:
    shown = row.worst if row.verdict is not Verdict.PASS else row.worst[:QUIET_WORST]
    for e in shown:
        codes = messages.code_text(e.actual_code, row.format), messages.code_text(e.expected_code, row.format)
        numbers = (e.reference, e.signed_error, e.ulp, e.budget, of_budget(row, e))
        yield [
            _subject(row), messages.index_text(e.index), codes[0], _text(e.actual), codes[1], _text(e.expected), *map(_text, numbers),
        ]  # fmt: skip


def _used_columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """A table, its titles first, without the columns that are empty in every row; empty where there are no rows."""
    used = [i for i in range(len(titles)) if any(row[i] for row in rows)]
    return [[row[i] for i in used] for row in (titles, *rows)] if rows else []


def _sketch(row: Row, shape: tuple[int, ...]) -> dict[str, Any] | None:
    assert not isinstance(row.subject, NotCompared)
    s = row.subject.sketch
    if not s.ulp_histogram:
        return None
    bins = [[b.low, b.high, b.ulp, b.limit] for b in s.by_input]
    plain: dict[str, Any] = to_json(
        {
            "title": _subject(row),
            "histogram": s.ulp_histogram,
            "map": s.error_map,
            "cell": s.cell,
            "shape": rows_and_columns(shape),
            "inputs": bins,
        }
    )
    return plain


def _series(item: TensorResult) -> str:
    """What cases that differ in k alone have in common; "" for ops without k."""
    case = item.case
    if "k" not in case.dims:
        return ""
    others = [f"{letter}{size}" for letter, size in case.shape if letter != "k"]
    return "|".join([case.op, *others, case.layout, case.format, case.out_format, case.recipe, str(case.options), case.input_class,
                     case.lane, case.direction, str(case.seed), item.candidate, item.tensor])  # fmt: skip


def _points(results: Results, lines: Sequence[Line]) -> dict[str, list[Any]]:
    """Of every side that has a limit: [line, maker, k or null, share of limit, relative error, group of the strip plot, series].

    labels  the makers: a dump, or one of its candidates; dumps in their order, what the framework chose first
    """
    drawn = [(i, row, share) for i, line in enumerate(lines) for row in line.rows if (share := _drawn_share(row)) is not None]
    makers = list(by_maker((row for _, row, _ in drawn), [d.label for d in results.dumps]))
    series: dict[str, int] = {}
    points = []
    for i, row, share in drawn:
        assert row.result is not None
        case, name = row.result.case, _series(row.result)
        number = series.setdefault(name, len(series)) if name else None
        error = to_json(row.flat.get("rel_fro"))
        points.append([i, makers.index(row.maker), case.dims.get("k"), share, error, f"{case.op} {case.format}", number])
    return {"labels": makers, "points": points}


def _drawn_share(row: Row) -> float | None:
    return share_of_limit(row.gate) if isinstance(row.subject, Side) else None


def _matrix(results: Results) -> list[tuple[str, list[tuple[Verdict | None, str]]]]:
    """Dump against the reference and every other dump: worst verdict, and how often each answer came."""
    pairs, sides = pair_summaries(results.tensors), dump_summaries(results.tensors)
    labels = [d.label for d in results.dumps]
    rows = []
    for a in labels:
        counts = sides.get(a)
        worst = max(counts, key=lambda v: v.severity) if counts else None
        cells: list[tuple[Verdict | None, str]] = [(worst, counts_sentence(counts) if counts else "not judged")]
        for b in labels:
            s = pairs.get((a, b)) or pairs.get((b, a))
            text = (
                ", ".join(f"{n} {who}" for who, n in sorted(s.attributions.items(), key=lambda x: (-x[1], x[0]))) if s else "not compared"
            )
            if s and s.named != s.who:
                text = f"{s.named} ({text})"
            cells.append((None, "—") if a == b else (s.verdict if s else None, text))
        rows.append((a, cells))
    return rows


def _breakable(text: str) -> Markup:
    """Text that breaks after its dots, where it must, and not within a word."""
    return Markup(".<wbr>").join(messages.visible(text).split("."))


def _json(value: Any) -> Markup:
    """JSON that may stand inside a script element."""
    text = json.dumps(to_json(value), separators=(",", ":"))  # ASCII: line separators and surrogates are escapes
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _packed(lines: Iterable[str]) -> Markup:
    """Lines of text, deflated (zlib format), in base64."""
    return Markup(base64.b64encode(zlib.compress("\n".join(lines).encode(), 9)).decode())
