"""junit.xml: one test case per verdict, its message the text a person reads. No times: results hold none."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

from accuracy_eval import messages
from accuracy_eval.records import Results, Verdict
from accuracy_eval.report.findings import is_command, next_steps
from accuracy_eval.report.rows import Row, all_rows

NAME = "junit.xml"
# what a CI system knows: failure is a wrong result, error is no result, skipped is counted and allowed
OUTCOMES = {
    Verdict.FAIL: "failure",
    Verdict.MISSING: "error",
    Verdict.ERROR: "error",
    Verdict.INPUTS_DIFFER: "error",
    Verdict.INCONCLUSIVE: "error",
    Verdict.UNSUPPORTED: "skipped",
}


def write(results: Results, folder: Path) -> list[Path]:
    """Write junit.xml into `folder`: one suite per op family."""
    suites: dict[str, list[Row]] = {}
    for row in all_rows(results):
        suites.setdefault(row.holder.family, []).append(row)
    root = Element("testsuites", {"name": "accuracy-eval"})
    for family, rows in suites.items():
        suite = SubElement(root, "testsuite", {"name": messages.visible(family)})
        counts = dict.fromkeys(("failure", "error", "skipped"), 0)
        for row in rows:
            outcome = OUTCOMES.get(row.verdict)
            if outcome:
                counts[outcome] += 1
            _test(suite, results, row, outcome)
        suite.attrib.update({"tests": str(len(rows)), "failures": str(counts["failure"]), "errors": str(counts["error"])})
        suite.attrib["skipped"] = str(counts["skipped"])
    indent(root)
    path = folder / NAME
    ElementTree(root).write(path, "utf-8", xml_declaration=True)
    return [path]


def _test(suite: Element, results: Results, row: Row, outcome: str | None) -> None:
    tensor = f" {row.result.tensor}" if row.result else ""
    against = f" vs {row.expected}" if row.expected else ""
    name = f"{row.holder.case_id}{tensor} [{row.actual}{against}]"
    where = ".".join((row.holder.family, row.holder.candidate or "default"))
    test = SubElement(suite, "testcase", {"classname": messages.visible(where), "name": messages.visible(name)})
    steps = (f"$ {step}" if is_command(step) else f"next: {step}" for step in next_steps(results, row.holder))
    text = "\n".join([row.message, *steps])
    if outcome:
        first = row.message.split("\n", 1)[0]
        SubElement(test, outcome, {"type": str(row.verdict), "message": first}).text = text
    elif row.verdict is Verdict.WARN:
        SubElement(test, "system-out").text = text
