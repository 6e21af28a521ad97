"""Results held as text until they are looked at: a tenth of the memory of their objects, and no work to write.

A text is the JSON of one TensorResult, as results.json and the journal of a comparison hold it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, overload

from accuracy_eval.concluding import Tally
from accuracy_eval.json_data import from_json, to_json, written_as_array
from accuracy_eval.records import TensorResult, Verdict

_UNPACKED = 4  # batches at most whose texts are held; results are read in the order in which they were packed, or nearly


@dataclass(frozen=True, slots=True)
class Packed:
    """One tensor's result as text, with what a verdict over all results asks of it.

    batch    the compressed texts, a line each, of the results packed together: they share it
    labels   of the sides; scopes likewise
    """

    batch: bytes
    index: int
    verdict: Verdict
    labels: tuple[str, ...]
    scopes: tuple[str, ...]

    @property
    def text(self) -> str:
        return _texts(self.batch)[self.index]

    @property
    def result(self) -> TensorResult:
        return from_json(TensorResult, json.loads(self.text))


@lru_cache(_UNPACKED)
def _texts(batch: bytes) -> list[str]:
    return zlib.decompress(batch).decode("ascii").split("\n")


def packed(results: Iterable[TensorResult]) -> list[Packed]:
    """Results packed together, in their order."""
    return packed_data(map(to_json, results))


def packed_data(results: Iterable[Mapping[str, Any]]) -> list[Packed]:
    """Results packed together, from their JSON data."""
    held = list(results)
    batch = zlib.compress("\n".join(map(json_line, held)).encode("ascii"), level=1)
    return [
        Packed(batch, i, Verdict(r["verdict"]), *(tuple(s[name] for s in r["sides"]) for name in ("label", "scope")))
        for i, r in enumerate(held)
    ]  # fmt: skip


def json_line(data: Any) -> str:
    """JSON data as one line of ASCII: lone surrogates of a hostile string survive as escapes, and no line separator hides in it."""
    return json.dumps(data, allow_nan=False)


@written_as_array
class KeptResults(Sequence[TensorResult]):
    """Results of a comparison in their order, as they are or packed; a packed one is made anew each time it is read."""

    def __init__(self, items: Sequence[TensorResult | Packed]) -> None:
        self._items = items

    @overload
    def __getitem__(self, index: int) -> TensorResult: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TensorResult]: ...
    def __getitem__(self, index: int | slice) -> TensorResult | Sequence[TensorResult]:
        if isinstance(index, slice):
            return KeptResults(self._items[index])
        item = self._items[index]
        return item.result if isinstance(item, Packed) else item

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeptResults | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"KeptResults({len(self)} results)"

    def texts(self) -> Iterator[str]:
        """Each result as a line of JSON."""
        return (item.text if isinstance(item, Packed) else json_line(to_json(item)) for item in self._items)

    def tally(self) -> Tally:
        """What a verdict over all asks of each; no text is read for it."""
        found = Tally()
        for item in self._items:
            if isinstance(item, Packed):
                found.count(item.verdict, item.labels, item.scopes)
            else:
                found.add(item)
        return found
