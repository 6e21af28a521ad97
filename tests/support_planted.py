"""Results of planted faults, one per named cause: what a report must show of each. Made from arrays, judged as a comparison judges them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from support_results import CPU, H200, results_of

from accuracy_eval.cases import case_id, make_case
from accuracy_eval.gates import load_profile
from accuracy_eval.judge import SideTensor, judge_tensor, side_of
from accuracy_eval.ops.spec import Output, Panel, Reference
from accuracy_eval.records import Coded, Results, TensorResult
from tests import support_faults as faults
from tests.support_faults import Fault, Product, product

# the budget of each element alone: limits on rows and tiles need more of a reference than a fault needs to be seen
PROFILE = replace(load_profile("default"), gates=tuple(g for g in load_profile("default").gates if g.name == "budget"))
SHAPE = (96, 64, 128)
LABELS = ("h200", "cpu")  # the first is faulty, the second right

Plant = Callable[[SideTensor], SideTensor]


def _fp8(p: Product, codes: np.ndarray) -> dict[str, Coded]:
    inputs = {"a": p.a, "b": p.b}
    for name, s in p.scales.items():
        inputs[name] = Coded(np.asarray(s, np.float32).view(np.uint32), "float32")
    return inputs


def judged(p: Product, actual: np.ndarray, seed: int, *, shape: tuple[int, int, int] = SHAPE, change: Plant = lambda s: s) -> TensorResult:
    """One faulty and one right output of a product, against the truth and each other."""
    case = make_case("gemm", tuple(zip("mnk", shape, strict=True)), layout="nt", format=_family(p.a.format), seed=seed)
    if p.fmt != p.a.format:
        case = replace(case, out_format=_family(p.fmt))
    output = Output("d", p.truth.shape, p.fmt)
    panel = Panel(0, p.truth, p.budget)
    reference = Reference("values", p.fmt, p.truth.shape, p.contract, lambda: iter((panel,)))
    right = faults.codes(p, p.healthy)
    bad = change(side_of(LABELS[0], Coded(actual, p.fmt), contract=p.contract))
    sides = [bad, side_of(LABELS[1], Coded(right, p.fmt), contract=p.contract)]
    inputs = dict.fromkeys(LABELS, _fp8(p, actual))
    return judge_tensor(case, case_id(case), "gemm", "default", output, sides, dict.fromkeys(LABELS, reference), PROFILE, inputs=inputs)


def _family(fmt: str) -> str:
    return {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}.get(fmt, fmt)


def _planted() -> Iterator[tuple[Product, Fault]]:
    wide = product(SHAPE, "float32")
    for code, plant in {**faults.ANYWHERE, **faults.IN_PRODUCTS, **faults.NARROWED}.items():
        p = product((96, 96, 128), "float32") if code == "transposed" else wide
        yield p, plant(p, 1)
    half = product(SHAPE, "bfloat16", out="float32")
    yield half, faults.partials(half, 0)
    narrow = product(SHAPE, "bfloat16")
    yield narrow, faults.truncated(narrow, 0)


def fault_codes() -> list[str]:
    """The cause each tensor of `planted_results` carries, in order."""
    return [*(fault.code for _, fault in _planted()), "never-written", "nondeterministic", "shape-mismatch", "format-mismatch"]


def planted_results() -> Results:
    """A comparison in which h200 is wrong in one way per case and cpu is right."""
    tensors = []
    for seed, (p, fault) in enumerate(_planted()):
        shape = (*p.truth.shape, p.k)
        tensors.append(judged(p, fault.actual, seed, shape=shape))
    p = product(SHAPE, "float32")
    right = faults.codes(p, p.healthy)
    tensors.append(judged(p, right, 90, change=lambda s: replace(s, never_written=640)))
    other = right.copy()
    other[3, 5] ^= 1
    tensors.append(judged(p, right, 91, change=lambda s: replace(s, variants=(s.variants[0], lambda a, b: other[a:b]), repeats=3)))
    tensors.append(judged(p, right[:, :-1], 92))
    tensors.append(judged(p, right, 93, change=lambda s: replace(s, format="int32")))
    return results_of(tuple(tensors), dumps=(H200, CPU))
