"""A comparison's open dumps, and how it was asked to judge them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from accuracy_eval.compare.common import Common
from accuracy_eval.compare.how import How, ReferenceMode, explainer_of
from accuracy_eval.compare.joining import Entry, Joined, Key, join, labels_of
from accuracy_eval.compare.judging import compare_case
from accuracy_eval.digests import program_digest
from accuracy_eval.gates import load_profile
from accuracy_eval.json_data import to_json
from accuracy_eval.kept import Packed, packed
from accuracy_eval.records import Case, CaseRecord, NotCompared, TensorResult
from accuracy_eval.reference_cache import ReferenceCache
from accuracy_eval.store import Dump

Judged = list[TensorResult | Packed | NotCompared]
"""What was found of one candidate of a case."""
Found = list[tuple[Key, Judged]]
"""Judged cases."""


def as_text(found: Found) -> Found:
    """The same with tensors' results packed, all together."""
    texts = iter(packed(r for _, results in found for r in results if isinstance(r, TensorResult)))
    return [(key, [next(texts) if isinstance(r, TensorResult) else r for r in results]) for key, results in found]


@dataclass(frozen=True)
class Options:
    """What is compared and how, as `compare_dumps` was asked: enough to open the same comparison in another process."""

    paths: tuple[str, ...]
    labels: tuple[str, ...]
    gates: str
    reference: ReferenceMode
    reference_cache: str | Path | None
    cross_format: bool
    verify: bool
    explain: bool
    unit: str | None


class Comparison:
    """Open dumps and how to judge them. Use as a context manager."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.profile = load_profile(options.gates)
        dumps = [Dump.open(p) for p in options.paths]
        for d in dumps:
            d.borrow(other for other in dumps if other is not d)
        self.entries = [Entry(label, d) for label, d in zip(labels_of(dumps, options.labels), dumps, strict=True)]
        cache = ReferenceCache(options.reference_cache) if options.reference_cache else None
        explainer = explainer_of(options.unit) if options.explain else None
        self._how = How(self.profile, options.reference, cache, options.cross_format, options.verify, explainer)
        self._stack = ExitStack()

    def __enter__(self) -> Comparison:
        for e in self.entries:
            self._stack.enter_context(e.dump.kept_open())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def join(self, cases: Sequence[str] = (), keep: Callable[[Case], bool] = lambda case: True, candidates: Sequence[str] = ()) -> Joined:
        return join(self.entries, cases, keep, candidates)

    def identity(self) -> str:
        """What the results of its cases follow from, as a digest: the program, the libraries it computes with, the limits, the options, all
        that the dumps say of results, their codes by digest included."""
        o = self.options
        found = {
            "program": program_digest(), "libraries": {n: version(n) for n in ("numpy", "numba")}, "profile": to_json(self.profile),
            "options": [o.reference, o.cross_format, o.verify, o.explain, o.unit],
            "dumps": [[e.label, str(e.dump.path), e.dump.documents_digest()] for e in self.entries],
        }  # fmt: skip
        return hashlib.sha256(json.dumps(found, sort_keys=True).encode(), usedforsecurity=False).hexdigest()

    def run(self, batches: Iterable[Sequence[Key]], joined: Mapping[Key, Mapping[str, CaseRecord]]) -> Iterator[Found]:
        """The results of each batch."""
        for batch in batches:
            for _, of_case in groupby(batch, itemgetter(0)):
                keys = list(of_case)
                common = Common(several=len(keys) > 1)
                for key in keys:  # one at a time: progress is shown as they come
                    yield [(key, list(compare_case(self.entries, joined[key], self._how, common)))]
