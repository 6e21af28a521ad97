"""How results are shared between workbooks: one per op family and shape, and the summary of all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from accuracy_eval.records import NotCompared, Results, TensorResult, Verdict
from accuracy_eval.report.files import unique_stems
from accuracy_eval.report.rows import shape_text

SUMMARY = "summary"


@dataclass(frozen=True)
class Volume:
    """What one workbook is about: the tensors and skipped cases of one family and shape."""

    file: str
    family: str
    shape: str
    tensors: tuple[TensorResult, ...]
    skipped: tuple[NotCompared, ...]

    @property
    def title(self) -> str:
        return " ".join(part for part in (self.family, self.shape) if part)

    @property
    def verdict(self) -> Verdict:
        return max(self.counts, key=lambda v: v.severity, default=Verdict.INCONCLUSIVE)

    @property
    def counts(self) -> Counter[Verdict]:
        return Counter([t.verdict for t in self.tensors] + [n.verdict for n in self.skipped])

    def only(self, results: Results) -> Results:
        """The results with these tensors and cases alone."""
        return replace(results, tensors=self.tensors, not_compared=self.skipped)


def volumes(results: Results) -> list[Volume]:
    """Tensors and skipped cases by op family and shape. Skipped cases known by id alone appear in the summary only."""
    groups: dict[tuple[str, str], tuple[list[TensorResult], list[NotCompared]]] = {}
    for result in results.tensors:
        shape = shape_text(result.case) or "x".join(map(str, result.shape))
        groups.setdefault((result.family, shape), ([], []))[0].append(result)
    for skipped in results.not_compared:
        if skipped.case is not None:
            groups.setdefault((skipped.family, shape_text(skipped.case)), ([], []))[1].append(skipped)
    # sorted: which of two colliding names keeps its own does not depend on the order of the results
    stems = unique_stems({key: "-".join(part for part in key if part) for key in sorted(groups)}, taken=(SUMMARY,))
    return [Volume(f"{stems[key]}.xlsx", *key, tuple(tensors), tuple(skipped)) for key, (tensors, skipped) in groups.items()]
