"""What the host makes of a case's operands, before a device has them; and that of the next cases while the device is at work."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from accuracy_eval.formats import get_format
from accuracy_eval.ops.operands import operand_codes, quantised_inputs, random_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Encoding, Operand, Output
from accuracy_eval.records import Case, Coded
from accuracy_eval.threads import alone
from accuracy_eval.timeline import Timeline

Codes = NDArray[Any]
ALONE_BELOW = 1 << 27  # bytes of a case's operands up to which one thread makes them: several cases at once keep the cores busier
MOST_AHEAD = 1 << 30  # bytes of operands that wait for their case or are being made; one case always fits


@dataclass(frozen=True)
class Draft:
    """Codes of a case's operands.

    codes     by operand, in canonical orientation; without those that the device makes itself
    received  under a recipe what the op multiplies, made by our quantiser: a device never rounds an operand; else empty
    """

    codes: Mapping[str, Codes]
    received: Mapping[str, Coded] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)


def draft(case: Case, encoding: Encoding, *, compiled: bool | None, on_device: Callable[[Case, Operand], bool]) -> Draft:
    """Everything of the case's operands that the host makes.

    compiled   whether numba may run, None: where it pays. No bit depends on it
    on_device  whether the device makes an operand of the random lane itself
    """
    spec = get_op(case.op)
    operands = spec.operands(case, encoding)
    timeline = Timeline()
    received: dict[str, Coded] = {}
    with timeline.stage("make", stored_bytes(operands)):
        if case.recipe and spec.received is not None:
            codes = operand_codes(spec, case, encoding, compiled=compiled)
            received = quantised_inputs(spec, case, stored_inputs(spec, case, encoding, codes, compiled=compiled is not False))
        elif case.lane != "random" or spec.ranks is not None:
            codes = operand_codes(spec, case, encoding)
        else:
            codes = dict(spec.own_codes(case, encoding)) if spec.own_codes else {}
            for o in operands:
                if o.name not in codes and not on_device(case, o):
                    codes[o.name] = random_codes(case, o, compiled=compiled)
    return Draft(codes, received, timeline)


def stored_bytes(tensors: Iterable[Operand | Output]) -> int:
    return sum(math.prod(t.shape) * get_format(t.format).storage.itemsize for t in tensors)


class Ahead:
    """Drafts of the cases that come next, made by threads.

    make     a case's draft; what it raises, `take` raises
    size     bytes of a case's operands
    threads  drafts made at a time; 0: each is made when it is taken
    """

    def __init__(self, make: Callable[[Case], Draft], size: Callable[[Case], int], threads: int) -> None:
        self._make, self._size, self._threads = make, size, threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="draft") if threads else None
        self._coming: deque[Case] = deque()
        self._begun: deque[tuple[Case, int, Future[Draft]]] = deque()

    def expect(self, cases: Iterable[Case]) -> None:
        """The cases that will be taken, in order; replaces what was expected before, not what is begun."""
        begun = {case for case, _, _ in self._begun}
        self._coming = deque(case for case in cases if case not in begun)
        self._begin()

    def take(self, case: Case) -> Draft:
        """The draft of a case. Cases that were expected before it are not coming any more."""
        if not any(c == case for c, _, _ in self._begun):
            self._skip_to(case)
            return self._make(case)
        while True:
            begun, _, made = self._begun.popleft()
            if begun == case:
                self._begin()
                return made.result()
            made.cancel()

    def close(self) -> None:
        """Return when its threads are done."""
        self._coming.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _skip_to(self, case: Case) -> None:
        """Of what is expected drop what comes up to the case, where it is expected at all."""
        if case in self._coming:
            while self._coming.popleft() != case:
                pass
            self._begin()

    def _begin(self) -> None:
        """Begin as many of the coming drafts as there are threads, and one more that waits, within the memory for them."""
        while self._pool is not None and self._coming and len(self._begun) <= self._threads:
            size = self._size(self._coming[0])
            if self._begun and sum(held for _, held, _ in self._begun) + size > MOST_AHEAD:
                return
            case = self._coming.popleft()
            self._begun.append((case, size, self._pool.submit(self._made_beside_others, case, size)))

    def _made_beside_others(self, case: Case, size: int) -> Draft:
        with alone() if size < ALONE_BELOW else nullcontext():
            return self._make(case)
