"""What a resumed dump does not keep: results of a candidate whose files have changed since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from accuracy_eval import store
from accuracy_eval.cases import case_id
from accuracy_eval.dump.choosing import Known
from accuracy_eval.dump.running import Job
from accuracy_eval.errors import counted
from accuracy_eval.records import Case

Key = tuple[str, str]


def outdated(parts: Path, work: Sequence[Job], finished: Collection[Key], of: Callable[[Case], Sequence[Known]]) -> dict[Key, str]:
    """Of the finished (case id, candidate): those that came from other files than the user's candidate does now, and which files."""
    found: dict[Key, str] = {}
    for job in work:
        now = {k.name: dict(k.sources) for k in of(job.case) if not k.built_in}
        for name in job.candidates:
            key, base = (case_id(job.case), name), name.partition("+")[0]
            if base not in now or key not in finished:
                continue
            with store.Dump.open(parts / store.part_name(*key)) as d:
                before = dict(d.records[0].notes.get("sources", {}))
            differing = sorted(file for file, _ in before.items() ^ now[base].items())
            if differing:
                found[key] = " and ".join(dict.fromkeys(differing))
    return found


def again_text(stale: Mapping[Key, str]) -> list[str]:
    """A sentence a candidate and what has changed."""
    numbers = Counter((name, files) for (_, name), files in stale.items())
    return [
        f"{counted(n, 'result')} of {name} {'is' if n == 1 else 'are'} run again: {files} {'have' if ' and ' in files else 'has'} changed"
        for (name, files), n in numbers.items()
    ]
