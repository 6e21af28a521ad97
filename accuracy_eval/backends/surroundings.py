"""What a kernel may leave behind in its process beside the switches of torch: a later case must not run under it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

Held = tuple[Callable[[], Any], Callable[[Any], object]]
"""How something is read, and how it is set to what was read."""


def _held(torch: Any, *, on_gpu: bool) -> tuple[Held, ...]:
    anywhere: tuple[Held, ...] = (
        (os.getcwd, os.chdir),
        (np.geterr, lambda handling: np.seterr(**handling)),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_default_dtype, torch.set_default_dtype),
        # None: without a device of its own torch makes tensors on the CPU
        (torch.get_default_device, lambda device: torch.set_default_device(None if device.type == "cpu" else device)),
    )
    if not on_gpu:
        return anywhere
    return (*anywhere, (torch.cuda.current_device, torch.cuda.set_device), (torch.cuda.current_stream, torch.cuda.set_stream))


@contextmanager
def put_back(torch: Any, *, on_gpu: bool) -> Iterator[None]:
    """The block may change the working directory, numpy's handling of errors, torch's threads, gradients, default dtype and device, current
    GPU and stream; after it they are what they were."""
    held = [(read, write, read()) for read, write in _held(torch, on_gpu=on_gpu)]
    try:
        yield
    finally:
        for read, write, before in held:
            if read() != before:
                write(before)
