"""Collectives with one mistake each, as a user's plugin: every rank loads this file."""

import os
import signal
import time

import torch
import torch.distributed as dist

import accuracy_eval as ae

FAULTY_RANK = 1
TROUBLED = 7  # elements of the one case in which the last three misbehave


def summed(x):
    y = x.clone()
    dist.all_reduce(y)
    return y


def gathered(case, x):
    parts = [torch.empty_like(x) for _ in range(case.dims["r"])]
    dist.all_gather(parts, x)
    return parts


@ae.candidate("all_reduce", name="lost")
def lost(case, tensors):
    x = tensors["x"]
    return summed(torch.zeros_like(x) if dist.get_rank() == FAULTY_RANK else x)


@ae.candidate("all_reduce", name="doubled")
def doubled(case, tensors):
    x = tensors["x"]
    return summed(2 * x if dist.get_rank() == FAULTY_RANK else x)


@ae.candidate("all_gather", name="rotated")
def rotated(case, tensors):
    parts = gathered(case, tensors["x"])
    return torch.cat(parts[-1:] + parts[:-1])


@ae.candidate("reduce_scatter", name="exchanged")
def exchanged(case, tensors):
    """Ranks 0 and 1 keep each other's shard."""
    mine = {0: 1, 1: 0}.get(dist.get_rank(), dist.get_rank())
    return summed(tensors["x"]).view(case.dims["r"], -1)[mine].clone()


@ae.candidate("all_reduce", name="narrow_ring", contract="fp32acc")
def narrow_ring(case, tensors):
    """Each addition is rounded to the operand's format, where float32 sums were promised."""
    first, *others = gathered(case, tensors["x"])
    for x in others:
        first = first + x
    return first


@ae.candidate("all_reduce", name="wide_ring", contract="fp32acc")
def wide_ring(case, tensors):
    return torch.stack(gathered(case, tensors["x"])).float().sum(0).to(tensors["x"].dtype)


@ae.candidate("all_reduce", name="drifting")
def drifting(case, tensors):
    """One rank adds in the opposite order: within every budget, and no replica any more."""
    parts = gathered(case, tensors["x"])
    total, *others = parts[::-1] if dist.get_rank() == FAULTY_RANK else parts
    for x in others:
        total = total + x
    return total


@ae.candidate("all_reduce", name="in_place")
def in_place(case, tensors):
    dist.all_reduce(tensors["x"])
    return tensors["x"]


@ae.candidate("all_reduce", name="talking")
def talking(case, tensors):
    print("hello from a rank", flush=True)
    os.write(1, b"and from its library\n")
    return summed(tensors["x"])


def troubled(case):
    return dist.get_rank() == FAULTY_RANK and case.dims["n"] == TROUBLED


@ae.candidate("all_reduce", name="dying")
def dying(case, tensors):
    if troubled(case):
        os.kill(os.getpid(), signal.SIGKILL)
    return summed(tensors["x"])


@ae.candidate("all_reduce", name="hanging")
def hanging(case, tensors):
    if troubled(case):
        time.sleep(600)
    return summed(tensors["x"])


@ae.candidate("all_reduce", name="stuck_beside_one_that_raises")
def stuck(case, tensors):
    if troubled(case):
        raise RuntimeError("this rank has had enough")
    if case.dims["n"] == TROUBLED:
        time.sleep(600)
    return summed(tensors["x"])


@ae.candidate("all_reduce", name="raising")
def raising(case, tensors):
    if troubled(case):
        raise RuntimeError("this rank has had enough")
    return summed(tensors["x"])
