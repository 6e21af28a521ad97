"""The result on a terminal: plain text, at most `width` columns, colour only where asked for."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from accuracy_eval import messages
from accuracy_eval.records import Results, Side, Verdict
from accuracy_eval.report.counts import ORDER, QUIET, Counts, by_format, counted_sentence, counts_sentence, unsupported
from accuracy_eval.report.findings import Finding, alike, findings, is_command
from accuracy_eval.report.limits import passing_limits
from accuracy_eval.report.rows import EXPLAINS
from accuracy_eval.report.scales import Scales, scale_lines
from accuracy_eval.report.summaries import Attributions, PairSummary

_COLOURS = {
    Verdict.PASS: "32", Verdict.WARN: "33", Verdict.FAIL: "1;31", Verdict.ERROR: "1;31", Verdict.MISSING: "35", Verdict.INPUTS_DIFFER: "35",
    Verdict.INCONCLUSIVE: "36", Verdict.UNSUPPORTED: "2",
}  # fmt: skip
MIN_WIDTH = 40
NAMED_OTHERS = 3  # further cases of which a finding says the same
MOST_REASONS = 8  # lines said about unsupported results
MAX_TEXT = 600  # characters of one paragraph; the whole text is in results.json


def render(results: Results, *, width: int = 80, color: bool = False, limit: int = 20, verbose: bool = False) -> str:
    """Verdict and counts, findings, who is off, counts by format; every line at most `width` columns (at least 40) but for commands.

    A command is one line however long, so that it can be copied.
    """
    width = max(width, MIN_WIDTH)
    said, scales, counts, loud = Attributions(), Scales(), Counts(by_format), []
    for t in results.tensors:  # once: they may be too many to hold
        for summary in (said, scales, counts):
            summary.add(t)
        if t.verdict not in QUIET:
            loud.append(t)
    for skipped in results.not_compared:
        counts.add(skipped)
    labels = " vs ".join(messages.visible(d.label) for d in results.dumps)
    lines = _wrapped(
        f"{_paint(results.verdict, color)} {labels} · {counts_sentence(counts.total())} · profile {messages.visible(results.profile)}",
        width,
        "     ",
    )
    lines += _wrapped(said.sentence(), width, "")
    off = replace(results, tensors=tuple(loud))
    found = findings(off)
    if found:
        lines += ["", f"Findings ({len(found)})"]
        groups = [[f] for f in found] if verbose else alike(found)
        shown = groups if verbose else groups[:limit]
        for group in shown:
            lines += _finding_lines(group, width, color, verbose)
        rest = [finding for group in groups[len(shown) :] for finding in group]
        if rest:
            lines += _wrapped(_rest(rest), width, "  ")
    for line in passing_limits(off):
        lines += _wrapped(line, width, "  ")
    lines += [part for line in scale_lines(scales.agreements()) for part in _wrapped(line, width, "  ")]
    if verbose:
        lines += _quantised_lines(results, width, color)
        lines += _explained_lines(results, width, color)
    remarks = [f"note: {note}" for note in results.notes] + [f"candidates: {text}" for text in results.candidates if verbose]
    lines += [line for remark in remarks for line in _wrapped(messages.visible(remark), width, "      ")]
    lines += ["", *_count_table(counts.by_key, width, color)]
    if counted := counted_sentence(results):
        lines += _wrapped(counted, width, "  ")
    lines += _unsupported_lines(results, width)
    if len(results.dumps) > 2:
        lines += ["", "Pairs", *_pair_lines(said.pairs(), width, color)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _finding_lines(group: list[Finding], width: int, color: bool, verbose: bool) -> list[str]:
    """A finding and what to run next: in between who, how much, where and why, or (verbose) the whole text, which says all that."""
    finding, *others = group
    lines = _wrapped(f"  {_paint(finding.verdict, color)} {finding.title}", width, "    ")
    if others:
        named = ", ".join(f.title for f in others[:NAMED_OTHERS])
        lines += _wrapped(f"    and {len(others)} more: {named}{', …' if len(others) > NAMED_OTHERS else ''}", width, "    ")
    if verbose and finding.row.result is not None:
        text = messages.result_message(finding.row.result)
        lines += [part for line in text.split("\n") for part in _wrapped(f"    {line}", width, "        ")]
    else:
        lines += _reason_lines(finding, width)
    for step in finding.steps:
        lines += [f"    $ {step}"] if is_command(step) else _wrapped(f"    next: {step}", width, "    ")
    return lines


def _reason_lines(finding: Finding, width: int) -> list[str]:
    """Who is off, by how much, at which element, and the cause."""
    who = f"{finding.who}: " if finding.who else ""
    lines = _wrapped(f"    {who}{finding.what}", width, "    ")
    subject = finding.row.subject
    if isinstance(subject, Side) and (element := messages.broken_element(subject)) is not None:
        text = messages.element_text(element, finding.row.format, finding.row.actual, finding.row.expected)
        lines += _wrapped(f"    {text}", width, "    ")
    if finding.cause:
        code, _, sentence = finding.cause.partition(": ")  # a sentence that stands above is not said again
        lines += _wrapped(f"    cause {code if sentence == finding.what else finding.cause}", width, "    ")
    return lines


def _quantised_lines(results: Results, width: int, color: bool) -> list[str]:
    """The errors of every quantised result that passed, by tensor; dumps of which the same is said together."""
    lines: list[str] = []
    for t in results.tensors:
        said: dict[str, list[str]] = {}
        for side in t.sides if t.verdict is Verdict.PASS else ():
            if text := messages.errors_text(side):
                said.setdefault(text, []).append(messages.visible(side.label))
        if said:
            lines += _wrapped(
                f"  {_paint(t.verdict, color)} {messages.of_candidate(f'{t.case_id} {t.tensor}', t.candidate)}", width, "    "
            )
        for text, labels in said.items():
            lines += _wrapped(f"    {', '.join(labels)}: {text}", width, "      ")
    return ["", "Errors of quantised results that passed", *lines] if lines else []


def _explained_lines(results: Results, width: int, color: bool) -> list[str]:
    """The order of operations that makes each product that passed, by tensor and dump."""
    lines: list[str] = []
    for t in results.tensors:
        said = [(s.label, d.sentence) for s in t.sides for d in s.diagnoses if d.code == EXPLAINS[0]] if t.verdict is Verdict.PASS else []
        if said:
            title = messages.of_candidate(f"{t.case_id} {t.tensor}", t.candidate)
            lines += _wrapped(f"  {_paint(t.verdict, color)} {title}", width, "    ")
        for label, sentence in said:
            lines += _wrapped(f"    {messages.visible(label)}: {messages.visible(sentence)}", width, "      ")
    return ["", "Products explained", *lines] if lines else []


def _rest(found: list[Finding]) -> str:
    causes = Counter(messages.causes(f.row.diagnoses, f.verdict) or "no named cause" for f in found)
    text = ", ".join(f"{n} {name}" for name, n in causes.most_common(6))
    return f"  and {len(found)} more ({text}{', …' if len(causes) > 6 else ''}): see the Verdict sheets or results.json"


def _count_table(groups: Mapping[tuple[str, ...], Counter[Verdict]], width: int, color: bool) -> list[str]:
    used = [v for v in ORDER if any(c[v] for c in groups.values())]
    columns = [max(len(v), 5) for v in used]
    names = {key: messages.visible(" ".join(x for x in key if x)) for key in groups}
    room = width - sum(c + 2 for c in columns)
    widest = max(columns_of(n) for n in (*names.values(), "Counts"))
    if room < min(widest, 24):  # too many kinds of verdict for a table
        texts = [f"  {names[key]}: {counts_sentence(counts)}" for key, counts in groups.items()]
        return ["Counts", *(line for text in texts for line in _wrapped(text, width, "    "))]
    first = min(widest, room)
    lines = [_pad("Counts", first) + "".join(f"  {v:>{c}}" for v, c in zip(used, columns, strict=True))]
    for key, counts in groups.items():
        cells = "".join("  " + _paint(v, color, f"{counts[v] or '·':>{c}}", bool(counts[v])) for v, c in zip(used, columns, strict=True))
        lines.append(_pad(_cut(names[key], first), first) + cells)
    return lines


def _unsupported_lines(results: Results, width: int) -> list[str]:
    """Why cases did not run, a line a reason."""
    groups = unsupported(results)
    texts = [f"  {g.who} ({g.what}): {messages.visible(g.reason)}" for g in groups[:MOST_REASONS]]
    if len(groups) > MOST_REASONS:
        texts.append(f"  and {len(groups) - MOST_REASONS} more reasons: sheet Not compared of the workbooks, or results.json")
    return ["", "Unsupported", *(line for text in texts for line in _wrapped(text, width, "    "))] if groups else []


def _pair_lines(summaries: Mapping[tuple[str, str], PairSummary], width: int, color: bool) -> list[str]:
    lines = []
    for summary in summaries.values():
        text = f"  {_paint(summary.verdict, color)} {messages.visible(summary.a)} against {messages.visible(summary.b)}: {summary.answers}"
        text += f"; equivalent ones differ: {summary.apart}" if summary.apart else ""
        lines += _wrapped(text, width, "    ")
    return lines


def _paint(verdict: Verdict, color: bool, text: str = "", wanted: bool = True) -> str:
    text = text or str(verdict)
    return f"\x1b[{_COLOURS[verdict]}m{text}\x1b[0m" if color and wanted else text


def columns_of(text: str) -> int:
    """Terminal columns `text` takes: two for wide characters, none for combining marks and colour codes."""
    count, escape = 0, False
    for c in text:
        if c == "\x1b":
            escape = True
        if not escape:
            count += 0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        if c == "m":
            escape = False
    return count


def _pad(text: str, width: int) -> str:
    return text + " " * (width - columns_of(text))


def _cut(text: str, width: int) -> str:
    if columns_of(text) <= width:
        return text
    while columns_of(text) > width - 1:
        text = text[:-1]
    return text + "…"


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """`text` in lines of at most `width` columns, further lines after `indent`; words longer than a line are broken, long texts cut."""
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}…"
    lead = text[: len(text) - len(text.lstrip(" "))]
    lines, line, empty = [], lead, True
    for word in text.split():
        piece = word
        while True:
            gap = "" if empty else " "
            if columns_of(line + gap + piece) <= width:
                line, empty = line + gap + piece, False
                break
            if not empty:
                lines.append(line)
                line, empty = indent, True
                continue
            keep = len(piece)
            while keep > 1 and columns_of(line + piece[:keep]) > width:
                keep -= 1
            lines.append(line + piece[:keep])
            line, empty, piece = indent, True, piece[keep:]
            if not piece:
                break
    return lines if empty and lines else [*lines, line]
