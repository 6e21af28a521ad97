"""Operands that the host makes ahead of a device: what is begun when, what is dropped, and that no bit depends on it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import support_fake_torch

from accuracy_eval.backends import drafts
from accuracy_eval.backends.drafts import Ahead, Draft
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import make_case
from accuracy_eval.digests import sha256_codes
from accuracy_eval.dump import dump
from accuracy_eval.errors import UnsupportedCase
from accuracy_eval.ops.operands import operand_codes
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Case
from accuracy_eval.store import Dump
from accuracy_eval.suite import parse_suite
from accuracy_eval.threads import map_threads

pytestmark = pytest.mark.torch
CASES = [make_case("gemm", [("m", m), ("n", 8), ("k", 8)], format="float32", layout="nt") for m in range(1, 9)]


class Maker:
    """Makes drafts when it is let; keeps which cases were begun, and in which thread."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.let.set()
        self.begun: list[int] = []
        self.threads: list[str] = []

    def __call__(self, case: Case) -> Draft:
        self.begun.append(case.dims["m"])
        self.threads.append(threading.current_thread().name)
        assert self.let.wait(60)
        if case.dims["m"] == 3:
            raise UnsupportedCase("no threes")
        return Draft({"m": case.dims["m"]})  # type: ignore[dict-item]


def ahead(maker: Maker, threads: int, size: int = 1) -> Ahead:
    return Ahead(maker, lambda _: size, threads)


def taken(a: Ahead, m: int) -> Any:
    return a.take(CASES[m - 1]).codes["m"]


def test_the_next_cases_are_made_by_threads_in_order_and_each_once() -> None:
    maker = Maker()
    a = ahead(maker, 2)
    a.expect(CASES)
    a.expect(CASES)  # what is begun is not begun again
    assert [taken(a, m) for m in (1, 2)] == [1, 2]
    with pytest.raises(UnsupportedCase, match="no threes"):
        taken(a, 3)
    assert [taken(a, m) for m in (4, 5, 6, 7, 8)] == [4, 5, 6, 7, 8]
    a.close()
    assert sorted(maker.begun) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(name.startswith("draft") for name in maker.threads)


def test_no_more_than_the_threads_and_one_are_ahead() -> None:
    maker = Maker()
    a = ahead(maker, 1)
    a.expect(CASES)
    assert taken(a, 1) == 1
    assert taken(a, 2) == 2
    a.close()
    assert set(maker.begun) <= {1, 2, 3, 4}


def test_small_cases_take_a_thread_each_and_large_ones_all(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def make(_: Case) -> Draft:
        def name(_: int) -> str:
            time.sleep(0.01)
            return threading.current_thread().name

        ran.append(map_threads(name, range(8), threads=4))
        return Draft({})

    for size in (drafts.ALONE_BELOW - 1, drafts.ALONE_BELOW):
        a = Ahead(make, lambda _, size=size: size, 1)
        a.expect(CASES[:1])
        a.take(CASES[0])
        a.close()
    assert set(ran[0]) == {"draft_0"}
    assert len(set(ran[1])) > 1


def test_memory_bounds_what_is_ahead_but_one_case_always_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "MOST_AHEAD", 10)
    for size, most in ((4, 2), (11, 1)):
        maker = Maker()
        maker.let.clear()
        a = ahead(maker, 4, size)
        a.expect(CASES)
        maker.let.set()
        a.close()
        assert len(maker.begun) <= most


def test_cases_that_are_passed_over_are_dropped_and_unexpected_ones_are_made_at_once() -> None:
    maker = Maker()
    a = ahead(maker, 1)
    a.expect(CASES[:6])
    assert taken(a, 5) == 5  # prepared elsewhere, or refused before their operands were needed
    assert taken(a, 8) == 8
    assert taken(a, 6) == 6
    assert taken(a, 1) == 1
    a.close()
    assert maker.begun.count(5) == maker.begun.count(6) == 1


def test_without_threads_each_is_made_when_it_is_taken() -> None:
    maker = Maker()
    a = ahead(maker, 0)
    a.expect(CASES)
    assert maker.begun == []
    assert taken(a, 2) == 2
    assert maker.threads == [threading.current_thread().name]
    a.close()


def test_a_dump_has_the_bytes_of_one_that_makes_nothing_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands of every lane, quantised ones, and such as a device makes itself."""
    data = {
        "name": "test",
        "cases": [
            {"op": "gemm", "shape": ["8x6x32", "16x6x64"], "format": ["float32", "bfloat16"], "lane": ["random", "exact", "coded"]},
            {"op": "gemm", "shape": "64x64x128", "format": "float32", "layout": ["nt", "nn"]},
            {"op": "gemm", "shape": "64x64x128", "format": "float32", "options": {"c": "nan"}},
            {"op": "gemm", "shape": "32x32x64", "format": "fp8_e4m3", "recipe": ["tensorwise", "rowwise"], "lane": ["random", "exact"]},
            {"op": "softmax", "shape": "4x33", "format": "float32", "input": ["normal", "specials"]},
            {"op": "embedding", "shape": "8x16x4", "format": "float32"},
        ],
    }
    monkeypatch.setattr("accuracy_eval.backends.torch_device.ON_DEVICE_ELEMENTS", 1 << 12)
    digests = []
    for threads in (0, 3):
        monkeypatch.setattr("accuracy_eval.backends.torch_device.drafting_threads", lambda threads=threads: threads)
        with support_fake_torch.fake_torch("h200") as fake:
            backend = TorchBackend("cuda:0", torch=fake)
            summary = dump(parse_suite(data, "test"), backend, tmp_path / f"{threads}.h5")
            backend.close()
        assert summary.error == 0
        assert summary.done > 15
        made = Dump.open(summary.path)
        digests.append(made.content_digest)
    assert digests[0] == digests[1]
    for record in made.records:
        codes = operand_codes(get_op(record.case.op), record.case, "ocp")
        assert {t.name: t.sha256 for t in record.tensors if t.role == "source"} == {n: sha256_codes(c) for n, c in codes.items()}
