"""Codes of the host as tensors of a device, and back, bit for bit; what either takes is noted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.backends.staging import GATHERED_FROM, Staging
from accuracy_eval.digests import sha256_codes
from accuracy_eval.errors import UnsupportedCase
from accuracy_eval.formats import get_format
from accuracy_eval.threads import thread_count
from accuracy_eval.timeline import Span, Timeline

Codes = NDArray[Any]
INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}  # torch's integer of so many bytes
_HELD_AS = {"float8_ue4m3": "float8_e4m3fn"}  # torch has no unsigned scale format: the sign bit is 0


def integers_of(torch: Any, tensor: Any) -> Any:
    """The tensor's codes: contiguous, as integers of the width of its elements."""
    return tensor.contiguous().view(getattr(torch, INTEGERS[tensor.element_size()]))


class Tensors:
    """Tensors of one device ("cpu", "cuda:0").

    timeline  where stages are noted: that of what is being prepared or run now
    """

    def __init__(self, torch: Any, device: str) -> None:
        self.torch, self.device, self.on_gpu = torch, device, device != "cpu"
        self.timeline = Timeline()
        self._staging = Staging(torch)
        self._pool = ThreadPoolExecutor(max(2, min(16, thread_count())), thread_name_prefix="digest")

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def dtype(self, fmt: str) -> Any:
        """The torch dtype of a format. UnsupportedCase when this torch has none."""
        dtype = getattr(self.torch, fmt, None)
        if dtype is None:
            raise UnsupportedCase(f"torch {self.torch.__version__} has no dtype {fmt}")
        return dtype

    def to_device(self, codes: Codes, fmt: str) -> Any:
        """A tensor of the format's dtype holding these codes; of bytes where an element has fewer than 8 bits."""
        width = codes.dtype.itemsize
        integers = np.ascontiguousarray(codes).reshape(codes.shape).view(INTEGERS[width])
        held = self.torch.from_numpy(integers.copy() if not integers.flags.writeable else integers)
        with self.stage("to_device", codes.nbytes):
            tensor = held.to(self.device)
        return tensor if get_format(fmt).bits < 8 else tensor.view(self.dtype(_HELD_AS.get(fmt, fmt)))

    def to_host(self, tensor: Any, fmt: str) -> Future[Codes]:
        """The tensor's codes on the host: copied through pinned memory, large ones by pieces of it; ready when the copy is done."""
        storage = get_format(fmt).storage
        integers = integers_of(self.torch, tensor)
        if not self.on_gpu:
            return self._pool.submit(lambda: integers.numpy().view(storage))
        size = integers.numel() * integers.element_size()
        return (self._gathered if size >= GATHERED_FROM else self._pinned)(integers, size, storage)

    def _gathered(self, integers: Any, size: int, storage: np.dtype[Any]) -> Future[Codes]:
        made, timeline = self.torch.cuda.Event(), self.timeline
        made.record()

        def gather() -> Codes:
            with timeline.stage("to_host", size):
                return self._staging.gathered(integers, made).view(storage).reshape(integers.shape)

        return self._pool.submit(gather)

    def _pinned(self, integers: Any, size: int, storage: np.dtype[Any]) -> Future[Codes]:
        with self.timeline.stage("pin", size):
            buffer = self._staging.take(size)
            host = buffer[:size].view(integers.dtype).view(integers.shape)
        with self.stage("to_host", size):
            host.copy_(integers, non_blocking=True)
        event = self.torch.cuda.Event()
        event.record()

        def wait() -> Codes:
            event.synchronize()
            keep = integers  # alive until the copy is done
            del keep
            return self._staging.lend(buffer, size).view(storage).reshape(integers.shape)

        return self._pool.submit(wait)

    def digest(self, host: Future[Codes]) -> Future[str]:
        """SHA-256 of codes that are on their way to the host."""
        timeline = self.timeline

        def made() -> str:
            codes = host.result()
            with timeline.stage("digest", codes.nbytes):
                return sha256_codes(codes)

        return self._pool.submit(made)

    @contextmanager
    def stage(self, name: str, size: int) -> Iterator[None]:
        """The block is work of that stage on `size` bytes: on a GPU, what it queues there is timed, not the queueing."""
        if not self.on_gpu:
            with self.timeline.stage(name, size):
                yield
            return
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        began = time.time()
        start.record()
        yield
        end.record()

        def taken() -> float | None:
            try:
                return float(start.elapsed_time(end)) / 1000
            except RuntimeError:  # the device answers no more: a later case made it so
                return None

        self.timeline.add(Span(name, began, taken, size))
