"""What is judged, and what gates may ask about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from accuracy_eval.cases import case_id
from accuracy_eval.formats import get_format
from accuracy_eval.gates import Gate, Profile
from accuracy_eval.metrics.aggregates import FEWEST, TILE
from accuracy_eval.ops.reduce import axis_of
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Output, rows_and_columns
from accuracy_eval.records import Case, Pair, Side, TensorResult, Verdict


@dataclass(frozen=True)
class Subject:
    """One output of a case, as one candidate gives it.

    name    the case's, as reports show it
    family  of the op: reports group by it, gates may ask for it
    """

    case: Case
    output: Output
    name: str
    family: str
    candidate: str = ""

    @classmethod
    def of(cls, case: Case, output: Output, candidate: str = "default") -> Self:
        """Of a case that goes by its id, in the family of its op."""
        return cls(case, output, case_id(case), get_op(case.op).family, candidate)

    def facts(self, contract: str) -> dict[str, Any]:
        """What gates may ask about the tensor: see gates.FACTS."""
        case, output = self.case, self.output
        rows, columns = rows_and_columns(output.shape)
        return {
            "op": case.op, "family": self.family, "format": case.format, "out_format": get_format(output.format).family,
            "recipe": case.recipe, "quantised": bool(case.recipe), "lane": case.lane, "input": case.input_class,
            "direction": case.direction, "tensor": output.name, "axis": axis_of(case), "exact": output.exact,
            "contract": contract, "long_rows": columns >= FEWEST, "long_columns": rows >= FEWEST,
            "large_tiles": min(rows, TILE) * min(columns, TILE) >= FEWEST,
        }  # fmt: skip

    def gates(self, profile: Profile, contract: str) -> tuple[Gate, ...]:
        """The limits of a profile that apply; of the four errors an operand that was not quantised leaves one."""
        gates = profile.applicable(self.facts(contract))
        return gates if self.case.recipe else tuple(g.of_one_error for g in gates)

    def result(self, sides: Sequence[Side], pairs: Sequence[Pair], *, referenced: bool = True) -> TensorResult:
        """The worst verdict decides. Without a reference no side passes by itself, but one that fails does so all the same."""
        alone = [s.verdict for s in sides if referenced or not pairs or s.verdict is Verdict.FAIL]
        verdict = max([*alone, *(p.verdict for p in pairs)], key=lambda v: v.severity)
        case, output = self.case, self.output
        return TensorResult(self.name, case, self.family, self.candidate, output.name, output.shape, verdict, tuple(sides), tuple(pairs))
