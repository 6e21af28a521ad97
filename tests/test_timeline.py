"""Stages of a case: what a dump notes about where its time went."""

import time
from pathlib import Path

import pytest

from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.dump import dump
from accuracy_eval.store import Dump
from accuracy_eval.suite import parse_suite
from accuracy_eval.timeline import Span, Timeline


def test_a_stage_reaches_from_its_first_start_to_its_last_end_and_adds_up_what_it_was_busy() -> None:
    line = Timeline()
    line.add(Span("digest", 12.0, lambda: 2.0, 100))
    line.add(Span("digest", 11.5, lambda: 1.0, 50))
    line.add(Span("make", 10.0, lambda: 0.5, 7))
    assert line.stages(since=11.0) == {
        "digest": {"from_s": 0.5, "to_s": 3.0, "busy_s": 3.0, "bytes": 150},
        "make": {"from_s": -1.0, "to_s": -0.5, "busy_s": 0.5, "bytes": 7},
    }


def test_a_stage_is_as_long_as_its_block() -> None:
    line, began = Timeline(), time.time()
    with line.stage("sleep", 3):
        time.sleep(0.05)
    found = line.stages(began)["sleep"]
    assert 0.05 <= found["busy_s"] <= found["to_s"]
    assert found["bytes"] == 3


def test_a_time_line_of_parts_has_what_is_added_to_a_part_afterwards() -> None:
    """Operands are digested while the case runs: such a span comes after the case's time line was made."""
    left, right = Timeline(), Timeline()
    left.add(Span("a", 1.0, lambda: 1.0, 1))
    both = Timeline(left, right)
    right.add(Span("a", 3.0, lambda: 1.0, 1))
    both.add(Span("b", 4.0, lambda: 1.0, 5))
    assert both.stages(0.0) == {
        "a": {"from_s": 1.0, "to_s": 4.0, "busy_s": 2.0, "bytes": 2}, "b": {"from_s": 4.0, "to_s": 5.0, "busy_s": 1.0, "bytes": 5},
    }  # fmt: skip
    assert left.stages(0.0)["a"]["bytes"] == 1


def test_seconds_that_are_lost_leave_the_span_out() -> None:
    line = Timeline()
    line.add(Span("run", 1.0, lambda: None, 1))
    assert line.stages(0.0) == {}


@pytest.mark.parametrize("lane", ["random", "exact"])
def test_a_dump_notes_the_bytes_of_every_stage(tmp_path: Path, lane: str) -> None:
    operands, output = 2 * 64 * (32 + 48), 2 * 32 * 48  # bytes of a and b, and of d
    suite = parse_suite({"name": "s", "cases": [{"op": "gemm", "shape": "32x48x64", "format": "bfloat16", "lane": lane}]}, "s")
    backend = TorchBackend("cpu")
    dump(suite, backend, tmp_path / "d.h5", repeats=3)
    backend.close()
    with Dump.open(tmp_path / "d.h5") as found:
        times = found.times_of(found.records[0])
    assert {stage: row["bytes"] for stage, row in times["stages"].items()} == {
        "make": operands, "to_device": operands, "digest": operands, "run": 3 * (operands + output), "digest_output": output,
    }  # fmt: skip
    order = [times["stages"][stage]["from_s"] for stage in ("make", "digest", "run", "digest_output")]
    assert order == sorted(order)


def test_a_case_that_failed_has_no_stages(tmp_path: Path) -> None:
    suite = parse_suite({"name": "s", "cases": [{"op": "gemm", "shape": "8x8x8", "format": "tfloat32"}]}, "s")
    backend = TorchBackend("cpu")
    dump(suite, backend, tmp_path / "d.h5")
    backend.close()
    with Dump.open(tmp_path / "d.h5") as found:
        assert found.times_of(found.records[0])["stages"] == {}
