"""Cases that several ranks compute together: operands cut into rows, rows joined again, every distinct result of the runs kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.backends.base import POISONS, Outcome, Prepared, Result
from accuracy_eval.backends.candidates import Candidate, plugins
from accuracy_eval.backends.ranks import Group, Ranks, Runs, Share
from accuracy_eval.backends.reference import ready
from accuracy_eval.errors import EngineError, UnsupportedCase
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Output
from accuracy_eval.records import Coded


class Together:
    """Runs such cases, by the group of ranks that the last one had where it fits.

    transport  what the device's tensors travel by where the candidate does not say
    gpus       how many GPUs this process sees
    limit_s    seconds that ranks wait for each other
    """

    def __init__(self, transport: str, gpus: Callable[[], int], limit_s: float) -> None:
        self._transport, self._gpus, self._limit = transport, gpus, limit_s
        self._ranks: Ranks | None = None

    def run(self, prepared: Prepared, candidate: Candidate, outputs: Sequence[Output], repeats: int) -> Outcome:
        """UnsupportedCase where there are fewer GPUs than ranks; EngineError says which rank ended, hung or failed."""
        case = prepared.case
        ranks = get_op(case.op).ranks
        assert ranks is not None
        group = Group(candidate.transport or self._transport, ranks(case), plugins())
        if group.transport != "gloo" and group.ranks > self._gpus():
            raise UnsupportedCase(f"{group.ranks} ranks by {group.transport} need as many GPUs in this process, which sees {self._gpus()}")
        try:
            found = self._at(group).call(_shares(prepared, candidate.name, outputs, group.ranks, max(1, repeats)))
        except EngineError:
            self.close()
            raise
        runs = [rank.runs for rank in found]
        notes: dict[str, Any] = {"transport": group.transport}
        if changed := sorted({name for rank in found for name in rank.changed}):
            notes["operands_changed"] = changed
        return Outcome(tuple(_joined(o, runs) for o in outputs), len(runs[0]), notes)

    def _at(self, group: Group) -> Ranks:
        if self._ranks is None or self._ranks.group != group:
            self.close()
            self._ranks = Ranks(group, limit_s=self._limit)
        return self._ranks

    def close(self) -> None:
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None


def _shares(prepared: Prepared, candidate: str, outputs: Sequence[Output], ranks: int, repeats: int) -> list[Share]:
    """Row i of every operand and output is rank i's."""
    own = tuple(Output(o.name, o.shape[1:], o.format) for o in outputs)
    operands = [{n: Coded(c.codes[rank], c.format) for n, c in prepared.tensors.items()} for rank in range(ranks)]
    return [Share(prepared.case, candidate, mine, own, repeats) for mine in operands]


def _joined(output: Output, found: Sequence[Runs]) -> Result:
    runs = [np.stack([rank[i][output.name] for rank in found]) for i in range(len(found[0]))]
    distinct: list[NDArray[Any]] = []
    for run in runs:
        if not any(np.array_equal(run, d) for d in distinct):
            distinct.append(run)
    unwritten = int((_holds(runs[0], POISONS[0]) & _holds(runs[1], POISONS[1])).sum()) if len(runs) > 1 else 0
    return Result(output.name, output.format, output.shape, tuple(ready(d) for d in distinct), unwritten)


def _holds(codes: NDArray[Any], byte: int) -> NDArray[np.bool_]:
    return np.asarray(codes == codes.dtype.type(int.from_bytes(bytes([byte] * codes.itemsize), "little")))
