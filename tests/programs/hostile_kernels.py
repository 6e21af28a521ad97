"""Kernels that do to their process what kernels should not."""

import os
import sys
import threading

import numpy as np
import torch

import accuracy_eval as ae


def product(t):
    return (t["a"].float() @ t["b"].float().T).to(t["a"].dtype)


def writes_and_raises(t):
    t["a"].zero_()
    raise ValueError("after writing to its operand")


def reshapes(t):
    t["a"].resize_(1, 1)


def transposes(t):
    t["b"].t_()


def takes_away(t):
    t.clear()


def changes_folder(t):
    os.chdir("/")


def stops_gradients(t):
    torch.set_grad_enabled(False)


def takes_one_thread(t):
    torch.set_num_threads(torch.get_num_threads() + 1)


def changes_defaults(t):
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")


def raises_on_overflow(t):
    np.seterr(all="raise")


LEAVE_BEHIND = (reshapes, transposes, takes_away, changes_folder, stops_gradients, takes_one_thread, changes_defaults, raises_on_overflow)


def leaving(change):
    def kernel(case, tensors):
        d = product(tensors)
        change(tensors)
        return d

    return kernel


for change in LEAVE_BEHIND:
    ae.candidate("gemm", name=change.__name__)(leaving(change))


@ae.candidate("gemm", name="writes_and_raises")
def _(case, tensors):
    return writes_and_raises(tensors)


class Unsayable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def raising(error):
    def kernel(case, tensors):
        raise error

    return kernel


RAISED = {
    "exits": SystemExit(0),
    "closes": GeneratorExit(),
    "unsayable": Unsayable(),
    "controls": ValueError("\x1b[31mred\x00 \u202eturned\ud800"),
    "talks": ValueError("x" * 1_000_000),
}
for name, error in RAISED.items():
    ae.candidate("gemm", name=name)(raising(error))

RETURNED = {
    "nothing": lambda d: None,
    "array": lambda d: d.float().numpy(),
    "list": lambda d: [d],
    "elsewhere": lambda d: d.to("meta"),
}


def returning(change):
    return lambda case, tensors: change(product(tensors))


for name, change in RETURNED.items():
    ae.candidate("gemm", name=name)(returning(change))


@ae.candidate("gemm", name="prints")
def _(case, tensors):
    print("from Python")
    sys.stdout.flush()
    os.write(1, b"from C\n")
    return product(tensors)


@ae.candidate("gemm", name="forks")
def _(case, tensors):
    os.fork()
    return product(tensors)


@ae.candidate("gemm", name="forks_and_raises")
def _(case, tensors):
    if not os.fork():
        raise ValueError("in the child")
    return product(tensors)


@ae.candidate("gemm", name="leaves_a_thread")
def _(case, tensors):
    threading.Thread(target=threading.Event().wait).start()
    return product(tensors)


ae.candidate("gemm", name="after")(lambda case, tensors: product(tensors))
