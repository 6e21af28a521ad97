"""What sending a file and fetching one have in common."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from accuracy_eval.errors import DigestMismatch, Interrupted
from accuracy_eval.transfer.hashing import digest_of
from accuracy_eval.transfer.links import Moved, Span
from accuracy_eval.transfer.locations import Options
from accuracy_eval.transfer.pacing import Pace
from accuracy_eval.transfer.parallel import AHEAD_BYTES
from accuracy_eval.transfer.remote import Remote

Meter = Callable[[int], None]  # called with the bytes of the file that are done so far


@dataclass(frozen=True)
class Trip:
    """How one file moves, whichever way: over which connection, as asked, at which pace.

    meter  called with how much of the file is done, what was done before included
    """

    remote: Remote
    options: Options
    pace: Pace
    meter: Meter

    def counter(self, span: Span, reach: Meter) -> Moved:
        """Paces what moves of a span, and tells `reach` and the meter how far it is."""
        position = span.start

        def moved(count: int) -> None:
            nonlocal position
            position = min(span.end, position + count)
            self.pace.spend(count)
            reach(position)
            self.meter(position)

        return moved

    def beginning(self, path: str, file: Any, size: int) -> tuple[Any, int]:
        """(running digest, length) of the bytes with which a partial file of `size` bytes proves to begin the whole, here and at `path`
        there: both ends compute at once.

        All of them, or all but the last: what came over several connections may have gaps there.
        """
        for length in (size, size - AHEAD_BYTES):
            if length > 0:
                with ThreadPoolExecutor(1) as threads:
                    theirs = threads.submit(self.remote.digest, path, length, length)
                    digest = digest_of(file.fileno(), length)
                    if digest.hexdigest() == theirs.result():
                        return digest, length
        return None, 0


def both(first: Meter, second: Meter) -> Meter:
    def meter(position: int) -> None:
        first(position)
        second(position)

    return meter


def busy(part: str) -> Interrupted:
    return Interrupted(f"{part}: another transfer is writing it; wait until that has ended, or name another destination")


def verify(place: str, wanted: str, where: str, found: str, remove: Callable[[], object]) -> None:
    """DigestMismatch, and the copy removed, where its digest is not the source's."""
    if found != wanted:
        remove()
        raise DigestMismatch(
            f"{place}: sha256 {found} of {where} != {wanted} of the source; the bytes changed on the way or at the far end "
            "and were removed. Run again; if it repeats, check the disk and memory of both hosts."
        )
