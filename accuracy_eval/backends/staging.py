"""Page-locked host memory that tensors of a GPU arrive in, used again and again."""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE = 1 << 25  # bytes of a large tensor in one copy; two are under way at a time
GATHERED_FROM = 1 << 28  # bytes from which a tensor passes through pieces: page-locking so much takes longer than one more copy


class Staging:
    """Buffers that are never given back to torch: it would record an event on the device first, and end the process where that is lost.

    Sizes are powers of two, as in torch's own cache of such memory, which keeps what it is given back too.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._free: dict[int, list[Any]] = defaultdict(list)
        self._all: list[Any] = []

    def take(self, size: int) -> Any:
        """A buffer of at least so many bytes. It stays taken until an array that was lent is gone."""
        rounded = 1 << max(size - 1, 0).bit_length()
        try:
            return self._free[rounded].pop()
        except IndexError:
            buffer = self._torch.empty(rounded, dtype=self._torch.uint8, pin_memory=True)
            self._all.append(buffer)
            return buffer

    def lend(self, buffer: Any, size: int) -> NDArray[Any]:
        """The first bytes of a taken buffer; when neither this array nor a view of it is left, the buffer may be taken again."""
        whole: NDArray[Any] = buffer.numpy()
        weakref.finalize(whole, self._free[len(buffer)].append, buffer).atexit = False
        return whole[:size]

    def gathered(self, integers: Any, ready: Any) -> NDArray[Any]:
        """Bytes [size] of a contiguous tensor of the device in ordinary memory, through two pieces of page-locked memory.

        ready  the event after which the tensor holds its values. Blocks; for a thread beside the one that queues work.
        """
        whole = np.empty(integers.numel() * integers.element_size(), np.uint8)
        at = 0
        for piece in self._pieces(integers.view(-1).view(self._torch.uint8), ready):
            whole[at : at + len(piece)] = piece
            at += len(piece)
        return whole

    def _pieces(self, flat: Any, ready: Any) -> Iterator[NDArray[np.uint8]]:
        """The bytes of a tensor in order; each piece is valid until the next is asked for."""
        cuda = self._torch.cuda
        under_way: deque[tuple[Any, int, Any]] = deque()

        def arrived() -> Iterator[NDArray[np.uint8]]:
            buffer, size, copied = under_way.popleft()
            copied.synchronize()
            yield buffer.numpy()[:size]
            self._free[len(buffer)].append(buffer)

        with cuda.device(flat.device):
            stream = cuda.Stream()  # beside the one that kernels run on
            stream.wait_event(ready)
        for part in flat.split(PIECE):
            buffer, copied = self.take(PIECE), cuda.Event()
            with cuda.stream(stream):
                buffer[: len(part)].copy_(part, non_blocking=True)
                copied.record(stream)
            under_way.append((buffer, len(part), copied))
            if len(under_way) == 2:
                yield from arrived()
        while under_way:
            yield from arrived()
