"""Writes every report form and a history of two days into a folder, under a clock set by its second argument (seconds since 1970)."""

from __future__ import annotations

import datetime
import sys
import time
from dataclasses import replace
from pathlib import Path

folder, now = Path(sys.argv[1]), float(sys.argv[2])


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Clock:
        return cls.fromtimestamp(now, tz)

    @classmethod
    def utcnow(cls) -> Clock:
        return cls.fromtimestamp(now, datetime.UTC).replace(tzinfo=None)


class Calendar(datetime.date):
    @classmethod
    def today(cls) -> Calendar:
        return cls.fromtimestamp(now)


local, universal = time.localtime, time.gmtime
time.time = lambda: now
time.localtime = lambda seconds=None: local(now if seconds is None else seconds)
time.gmtime = lambda seconds=None: universal(now if seconds is None else seconds)
datetime.datetime, datetime.date = Clock, Calendar  # type: ignore[misc]  # before anything else is imported

from support_results import gemm_results, hostile_results, special_result  # noqa: E402

from accuracy_eval.history import dated_results, series, write_history  # noqa: E402
from accuracy_eval.report import WRITERS, write_reports  # noqa: E402

results = gemm_results()
results = replace(results, tensors=(*results.tensors, special_result()))
write_reports(results, folder / "reports", tuple(WRITERS))
write_reports(hostile_results(), folder / "hostile", tuple(WRITERS))
for day in ("2026-11-29", "2026-11-30"):
    write_reports(results, folder / "nightly" / day, ("json",))
dated = dated_results(folder / "nightly")
write_history(dated, "rel_fro", series(dated, "rel_fro"), folder / "nightly")
