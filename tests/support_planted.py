"""Results of planted faults, one per named cause: what a report must show of each. Made from arrays, judged as a comparison judges them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from support_planted_dumps import dumped_results
from support_results import CPU, H200, results_of

from accuracy_eval.cases import make_case
from accuracy_eval.gates import Profile, load_profile
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import SideTensor, side_of
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


def judged(
    p: Product,
    actual: np.ndarray,
    seed: int,
    *,
    shape: tuple[int, int, int] = SHAPE,
    change: Plant = lambda s: s,
    profile: Profile = PROFILE,
) -> TensorResult:
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
    return judge_tensor(Subject.of(case, output), sides, dict.fromkeys(LABELS, reference), profile, inputs=inputs)


def _family(fmt: str) -> str:
    return {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}.get(fmt, fmt)


def _planted() -> Iterator[tuple[Product, Fault]]:
    wide = product(SHAPE, "float32")
    for code, plant in {**faults.ANYWHERE, **faults.IN_PRODUCTS, **faults.NARROWED}.items():
        p = product((96, 96, 128), "float32") if code == "transposed" else wide
        yield p, plant(p, 1)
    half = product(SHAPE, "bfloat16", out="float32")
    yield half, faults.partials(half, 0)
    yield half, faults.rounded_result(half, 0)
    yield half, faults.narrow_accumulator(half, 1)
    narrow = product(SHAPE, "bfloat16")
    yield narrow, faults.truncated(narrow, 0)


# codes no comparison of dumps can show
NOT_IN_REPORTS = {
    "inputs-differ": "inputs that differ are a verdict of their own, INPUTS_DIFFER, and nothing is judged",
    "empty": "nothing is measured of an empty output: INCONCLUSIVE says so",
    "gate-cannot-fail": "said of a caller's own rtol and atol, by check",
}


@dataclass(frozen=True)
class PlantedResults:
    """A comparison in which h200 is wrong in one way per case and cpu is right.

    codes  the cause that (case id, output) must show
    wrong  its elements that hold other codes than they should; absent where that is not what is wrong
    """

    results: Results
    codes: Mapping[tuple[str, str], str]
    wrong: Mapping[tuple[str, str], NDArray[np.bool_]]

    def __iter__(self) -> Iterator[tuple[str, TensorResult]]:
        by_key = {(t.case_id, t.tensor): t for t in self.results.tensors}
        return ((code, by_key[key]) for key, code in self.codes.items())


Made = tuple[str, TensorResult, NDArray[np.bool_] | None]  # cause, result, wrong elements


def _from_arrays() -> Iterator[Made]:
    for seed, (p, fault) in enumerate(_planted()):
        wrong = fault.actual != faults.codes(p, p.healthy)
        yield fault.code, judged(p, fault.actual, seed, shape=(*p.truth.shape, p.k)), wrong
    p = product(SHAPE, "float32")
    right = faults.codes(p, p.healthy)
    yield "never-written", judged(p, right, 90, change=lambda s: replace(s, never_written=640)), None
    other = right.copy()
    other[3, 5] ^= 1
    twice: Plant = lambda s: replace(s, variants=(s.variants[0], lambda a, b: other[a:b]), repeats=3)  # noqa: E731
    yield "nondeterministic", judged(p, right, 91, change=twice), None
    yield "shape-mismatch", judged(p, right[:, :-1], 92), None
    yield "format-mismatch", judged(p, right, 93, change=lambda s: replace(s, format="int32")), None
    rounded = faults.codes(p, faults.float32_chain(p))
    yield "rounding-only", judged(p, rounded, 94, profile=load_profile("exact")), rounded != right


def planted_results() -> PlantedResults:
    """Faults in arrays, and faults in dumps."""
    arrays = list(_from_arrays())
    codes = {(t.case_id, t.tensor): code for code, t, _ in arrays}
    wrong = {(t.case_id, t.tensor): where for _, t, where in arrays if where is not None}
    with TemporaryDirectory() as folder:
        found, more, where = dumped_results(Path(folder), LABELS)
    tensors = (*(t for _, t, _ in arrays), *found.tensors)
    where = {key: mask for key, mask in where.items() if mask.any()}
    return PlantedResults(results_of(tensors, found.not_compared, dumps=(H200, CPU)), codes | more, wrong | where)
