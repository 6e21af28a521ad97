"""summary.md: findings and counts for a pull request or a job summary; always under 60 kB, the size a GitHub comment can hold."""

from __future__ import annotations

import re
from pathlib import Path

from accuracy_eval import messages
from accuracy_eval.records import Results, Verdict
from accuracy_eval.report.counts import ORDER, by_format, count_verdicts, counts_sentence, total, unsupported
from accuracy_eval.report.findings import findings, is_command
from accuracy_eval.report.scales import scale_agreements
from accuracy_eval.report.summaries import attribution_sentence, pair_summaries

NAME = "summary.md"
MAX_BYTES = 60_000
_TEXT = 600  # characters of one text in a table: a hostile string of a megabyte leaves room for the others
MARKS = {
    Verdict.PASS: "✅", Verdict.WARN: "⚠️", Verdict.FAIL: "❌", Verdict.ERROR: "❌", Verdict.MISSING: "❓", Verdict.INPUTS_DIFFER: "❓",
    Verdict.INCONCLUSIVE: "❔", Verdict.UNSUPPORTED: "➖",
}  # fmt: skip


def write(results: Results, folder: Path) -> list[Path]:
    """Write summary.md into `folder`."""
    path = folder / NAME
    path.write_text(render(results), "utf-8", newline="\n")
    return [path]


def render(results: Results) -> str:
    """The Markdown text."""
    labels = " vs ".join(_escape(d.label) for d in results.dumps)
    head = [
        f"## {MARKS[results.verdict]} {results.verdict}: {labels}", "",
        _escape(attribution_sentence(results.tensors)), "",
        f"{counts_sentence(total(results))}. Gates profile {_escape(results.profile)}; exit code {results.exit_code}.", "",
        *(f"- {_escape(note)}" for note in results.notes[:20]),
    ]  # fmt: skip
    sections = _counts(results), _unsupported(results), _pairs(results), _scales(results)
    tail = ["", *(line for section in sections for line in (*section, "")), f"<sub>{_escape(results.producer)}</sub>", ""]
    table: list[str] = []
    found = findings(results)
    room = MAX_BYTES - len("\n".join([*head, *tail]).encode()) - 400
    if found:
        table = [
            "",
            f"### Findings ({len(found)})",
            "",
            "| Verdict | Case | Who is off | What | Cause | Run next |",
            "|---|---|---|---|---|---|",
        ]
        for shown, f in enumerate(found):
            steps = "<br>".join(_code(step) if is_command(step) else _escape(step) for step in f.steps)
            cells = (f"{MARKS[f.verdict]} {f.verdict}", _code(f.title), *map(_escape, (f.who, f.what, f.cause)), steps)
            line = f"| {' | '.join(cells)} |"
            room -= len(line.encode()) + 1
            if room < 0:
                table += ["", f"{len(found) - shown} more findings do not fit here: see summary.xlsx or results.json."]
                break
            table.append(line)
    return "\n".join([*head, *table, *tail])


def _counts(results: Results) -> list[str]:
    groups = count_verdicts(results, by_format)
    used = [v for v in ORDER if any(c[v] for c in groups.values())]
    lines = ["### Counts", "", "| Family | Format | Lane |" + "".join(f" {v} |" for v in used), "|---|---|---|" + "--:|" * len(used)]
    lines += [f"| {' | '.join(map(_escape, key))} |" + "".join(f" {c[v] or ''} |" for v in used) for key, c in list(groups.items())[:60]]
    return lines if len(groups) <= 60 else [*lines, "", f"{len(groups) - 60} more groups: see results.csv."]


def _unsupported(results: Results) -> list[str]:
    """Why cases did not run."""
    groups = unsupported(results)
    lines = ["### Unsupported", "", "| Families | Cases | Why |", "|---|---|---|"] if groups else []
    lines += [f"| {_escape(g.what)} | {_escape(g.who)} | {_escape(g.reason)} |" for g in groups[:60]]
    return lines if len(groups) <= 60 else [*lines, "", f"{len(groups) - 60} more reasons: see summary.xlsx or results.json."]


def _pairs(results: Results) -> list[str]:
    summaries = list(pair_summaries(results.tensors).values())[:60]
    if not summaries:
        return []
    lines = ["### Pairs", "", "| Actual | Expected | Worst | Who is off there | All |", "|---|---|---|---|---|"]
    for s in summaries:
        parts = ", ".join(f"{n} {who}" for who, n in sorted(s.attributions.items(), key=lambda item: (-item[1], item[0]))[:6])
        parts += f"; equivalent ones differ: {s.apart}" if s.apart and len(summaries) > 1 else ""
        lines.append(f"| {_escape(s.a)} | {_escape(s.b)} | {MARKS[s.verdict]} {s.verdict} | {_escape(s.named)} | {_escape(parts)} |")
    return lines


def _scales(results: Results) -> list[str]:
    """Scale factors by recipe."""
    rows = scale_agreements(results.tensors)
    if not rows:
        return []
    rows.sort(key=lambda r: not r.differing)
    lines = ["### Scale factors", "", "| Recipe | Actual | Against | Scales | Differ | What differs |", "|---|---|---|--:|--:|---|"]
    for r in rows[:60]:
        lines.append(
            f"| {_escape(r.recipe)} | {_escape(r.actual)} | {_escape(r.expected)} | {r.scales} | {r.differing} | {_escape(r.sentence)} |"
        )
    return lines if len(rows) <= 60 else [*lines, "", f"{len(rows) - 60} more rows: see summary.xlsx."]


def _escape(text: str) -> str:
    """`text` as Markdown that shows the same characters: nothing in it is a tag, a link, a mention, an emphasis or a cell border."""
    text = messages.visible(text)
    if len(text) > _TEXT:
        text = f"{text[:_TEXT]}…"
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#!$])", r"\\\1", text).replace("@", "@<!-- -->").replace("://", ":<!-- -->//")


def _code(text: str) -> str:
    """`text` as a code span in a table: longer backtick fences than any inside, '|' as an entity-free escape."""
    text = messages.visible(text)
    if len(text) > _TEXT:
        text = f"{text[:_TEXT]}…"
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")
