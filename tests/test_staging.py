"""Page-locked memory that tensors of a GPU pass through: used again, and never read before its copy is done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from accuracy_eval.backends import staging
from accuracy_eval.backends.staging import Staging

pytestmark = pytest.mark.torch


class Memory:
    """A page-locked buffer, or a part of it, whose copies wait in a queue as those of a stream do."""

    def __init__(self, bytes_: np.ndarray[Any, np.dtype[np.uint8]], queue: list[Callable[[], None]]) -> None:
        self._bytes, self._queue = bytes_, queue

    def __len__(self) -> int:
        return len(self._bytes)

    def __getitem__(self, part: slice) -> Memory:
        return Memory(self._bytes[part], self._queue)

    def copy_(self, source: Any, non_blocking: bool) -> None:
        assert non_blocking
        held = source.numpy().copy()
        self._queue.append(lambda: self._bytes.__setitem__(slice(None), held))

    def numpy(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return self._bytes


class Cuda:
    """torch with a device whose copies are done when an event after them is waited for."""

    uint8 = torch.uint8

    def __init__(self) -> None:
        self.queue: list[Callable[[], None]] = []
        self.buffers: list[Memory] = []
        self.waited: list[object] = []
        self.cuda = self

    def empty(self, size: int, dtype: Any, pin_memory: bool) -> Memory:
        assert (dtype, pin_memory) == (torch.uint8, True)
        self.buffers.append(Memory(np.full(size, 0xEE, np.uint8), self.queue))
        return self.buffers[-1]

    def device(self, _: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def stream(self, stream: Any) -> AbstractContextManager[None]:
        assert stream is self
        return nullcontext()

    def Stream(self) -> Any:
        return self

    def wait_event(self, event: object) -> None:
        self.waited.append(event)

    def Event(self) -> Any:
        fake = self

        class Event:
            def record(self, _: Any) -> None:
                self.behind = list(fake.queue)

            def synchronize(self) -> None:
                for copy in self.behind:
                    copy()

        return Event()


@pytest.mark.parametrize("size", [1, 63, 64, 65, 128, 1000])
def test_a_large_tensor_passes_through_two_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "PIECE", 64)
    fake, ready = Cuda(), object()
    held = torch.arange(size, dtype=torch.int16).view(-1, 1)
    memory = Staging(fake)
    for _ in range(2):  # the second time through the same pieces
        assert memory.gathered(held, ready).tobytes() == np.arange(size, dtype=np.int16).tobytes()
    assert len(fake.buffers) == min(2, -(-2 * size // 64))
    assert fake.waited == [ready, ready]
