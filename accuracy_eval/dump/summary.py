"""What a dump did, result by result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from accuracy_eval.dump.running import Job
from accuracy_eval.messages import wrong_product
from accuracy_eval.records import CaseRecord


@dataclass
class DumpSummary:
    """What a dump did: results (a case by a candidate) by status, those taken over from an earlier run, and seconds. `wrong` are runs a
    certificate refused.

    reasons   why results are unsupported -> how many
    unnamed   op -> cases for which none of the named candidates is registered: they ran nothing
    again     why results of an earlier run were not kept: a file of their candidate has changed, or theirs is damaged
    lost      what raised and left a device that answers no more calls; a fresh process ran the cases after it
    certified runs of exact products that were checked where they were made; None where that was not asked
    start_s   of the command's seconds those before `dump` was called: framework, device, worker processes
    """

    path: Path
    done: int = 0
    unsupported: int = 0
    error: int = 0
    resumed: int = 0
    never_written: list[str] = field(default_factory=list)
    nondeterministic: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    unnamed: dict[str, int] = field(default_factory=dict)
    again: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    certified: int | None = None
    time_s: float = 0.0
    start_s: float = 0.0

    @classmethod
    def begun(cls, path: Path, work: Sequence[Job], left: Sequence[Job], again: list[str]) -> Self:
        """Before anything runs: of all the work, what is left to do; `again` as above."""
        resumed = sum(len(j.candidates) for j in work) - sum(len(j.candidates) for j in left)
        unnamed = Counter(j.case.op for j in work if not j.candidates)
        return cls(path, resumed=resumed, unnamed=dict(unnamed), again=again)

    def count(self, record: CaseRecord) -> None:
        """One more result."""
        setattr(self, record.status, getattr(self, record.status) + 1)
        if record.status == "unsupported":
            self.reasons[record.reason] = self.reasons.get(record.reason, 0) + 1
        if record.status == "error":
            self.errors.append(f"{record.id} ({record.candidate}): {record.reason}")
        name = record.id if record.candidate == "default" else f"{record.id} ({record.candidate})"
        certificate = record.notes.get("certificate", {})
        self.wrong += [f"{name}: {wrong_product(run)}" for run in certificate.get("wrong", ())]
        if self.certified is not None:
            self.certified += certificate.get("runs", 0)
        if "device_lost" in record.notes:
            self.lost.append(name)
        if "never_written" in record.notes:
            self.never_written.append(name)
        elif any(n > 1 for n in record.distinct.values()):
            self.nondeterministic.append(name)
