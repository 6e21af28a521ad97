"""Page-locked host memory that results of a GPU arrive in, used again and again."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any

from numpy.typing import NDArray


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
