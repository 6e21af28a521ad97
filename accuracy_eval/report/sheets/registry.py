"""The table sheets of a workbook, in order: what each holds, who writes it, where it is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from accuracy_eval.records import Results
from accuracy_eval.report.pictures import picture_sheet_names, picture_sheets
from accuracy_eval.report.scales import scale_agreements
from accuracy_eval.report.sheets import facts, judged
from accuracy_eval.report.volumes import Volume
from accuracy_eval.report.workbook import Book

Wanted = Callable[[Results, Volume], bool]


def _always(results: Results, part: Volume) -> bool:
    return True


def _never(results: Results, part: Volume) -> bool:
    return False


def _judged(results: Results, part: Volume) -> bool:
    return bool(part.tensors)


def _skipped(results: Results, part: Volume) -> bool:
    return bool(part.skipped)


def _scaled(results: Results, part: Volume) -> bool:
    return bool(scale_agreements(part.tensors))


def _probed(results: Results, part: Volume) -> bool:
    return any(d.numerics for d in results.dumps)


def _drawn(name: str) -> Wanted:
    return lambda results, part: name in picture_sheet_names(part.tensors)


@dataclass(frozen=True)
class Sheet:
    """A sheet of the workbooks of one family and shape.

    says        what the overview says of it
    write       its writer; None: written with another sheet
    needed      whether a workbook has anything for it
    in_summary  whether summary.xlsx, which is about all tensors, has it too
    """

    says: str
    write: Callable[[Book, Results, Volume], None] | None
    needed: Wanted
    in_summary: Wanted = _never


SHEETS = {
    "Verdict": Sheet(
        "a row per tensor and dump, and per tensor and pair of dumps: who is off, every gate's value, limit and margin",
        judged.verdict_sheet, _judged,
    ),
    "Metrics": Sheet("every metric of the same rows, as numbers", judged.metric_sheet, _judged),
    "Worst elements": Sheet(
        "where the largest errors are: index, codes, values, the truth, distance in ulp", judged.worst_sheet, _judged
    ),
    "Pictures": Sheet(
        "error maps, histograms in ulp and, for special functions, errors by input",
        lambda book, results, part: picture_sheets(book, part.tensors), _drawn("Pictures"),
    ),
    "Histograms": Sheet("how many elements are off by how many ulp", None, _drawn("Histograms")),
    "By input": Sheet("special functions: the largest error by octave of the input", None, _drawn("By input")),
    "Scales": Sheet(
        "scale factors by recipe: how many are the same bytes, and which rounding rule each side follows",
        facts.scale_sheet, _scaled, _scaled,
    ),
    "Platforms": Sheet("machines and software side by side; what differs is marked", facts.platform_sheet, _always, _always),
    "Numerics": Sheet("what each probed device's products are made of", facts.numerics_sheet, _probed, _probed),
    "Gates": Sheet("the limits in force, where each comes from, how often it was applied and broken", facts.gate_sheet, _always, _always),
    "Not compared": Sheet("cases left out, each with its reason", facts.skipped_sheet, _skipped, _always),
    "Definitions": Sheet("what each metric means, its unit and which way is better", facts.definition_sheet, _judged, _always),
}  # fmt: skip


def wanted(results: Results, part: Volume) -> dict[str, Sheet]:
    """The sheets that a workbook needs, in order."""
    return {name: sheet for name, sheet in SHEETS.items() if sheet.needed(results, part)}


def wanted_in_summary(results: Results, whole: Volume) -> dict[str, Sheet]:
    """The sheets of the workbooks that summary.xlsx has too, in order."""
    return {name: sheet for name, sheet in SHEETS.items() if sheet.in_summary(results, whole)}
