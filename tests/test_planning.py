"""What a dump costs: sizes and operations counted by hand, memory in flight."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accuracy_eval.cli import run
from accuracy_eval.dump.planning import RATES, duration, plan, table
from accuracy_eval.dump.running import LEAST_IN_FLIGHT, MOST_IN_FLIGHT, in_flight_bytes
from accuracy_eval.errors import UsageError
from accuracy_eval.store import Dump
from accuracy_eval.suite import parse_suite


def test_operations_and_bytes_are_those_counted_by_hand() -> None:
    suite = parse_suite(
        {"name": "t", "cases": [{"op": "gemm", "shape": "8x16x32", "format": "bfloat16", "direction": ["fwd", "bwd"]},
                                {"op": "exp", "shape": "100", "format": "float32"}]}, "t")  # fmt: skip
    gemm, exp = plan(suite).lines
    assert (gemm.cases, gemm.flop) == (2, 2 * 8 * 16 * 32 * (1 + 2))  # backward is two products of that size
    assert gemm.operands == 2 * ((8 * 32 + 16 * 32) + (8 * 32 + 16 * 32 + 8 * 16))
    assert gemm.outputs == 2 * (8 * 16 + (8 * 32 + 16 * 32))
    assert (exp.cases, exp.results, exp.operands, exp.outputs) == (1, 1, 400, 400)
    assert plan(suite).disk == 2 * (gemm.outputs + exp.outputs)
    assert plan(suite, store_inputs=True).disk == 2 * (gemm.outputs + exp.outputs + gemm.operands + exp.operands)


def test_a_plan_counts_what_the_named_candidates_make_of_each_case(capsys: pytest.CaptureFixture[str]) -> None:
    suite = parse_suite({"name": "t", "cases": [{"op": "gemm", "shape": "8x16x32", "format": "float32"}]}, "t")
    (default,), (two,) = (plan(suite, "h200", candidates=names).lines for names in ((), ("default", "cublas", "rocblas")))
    assert (default.cases, default.results, default.refused) == (1, 1, 0)
    assert (two.cases, two.results, two.refused) == (1, 3, 1)  # an NVIDIA GPU has no rocBLAS: recorded as unsupported
    assert (two.flop, two.operands, two.outputs) == (2 * default.flop, default.operands, 2 * default.outputs)
    assert plan(suite, "h200", candidates=("default", "cublas")).disk == 2 * plan(suite, "h200").disk
    (stated,) = plan(suite, "h200", states=("stream", "alone")).lines
    assert stated.results == 3  # itself, and in each state
    assert run(["dump", "--op", "gemm", "--shape", "8x16x32", "--plan", "cpu", "--candidate", "default", "--candidate", "cublas"]) == 0
    assert "1 case, 2 results (1 of candidates for other devices)" in capsys.readouterr().out
    assert run(["dump", "smoke", "--plan", "cpu", "--candidate", "cublass"]) == 2
    assert "candidate cublass is registered for no op of the suite (did you mean cublas" in capsys.readouterr().err


def test_a_plan_counts_the_results_that_a_dump_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["dump", "fp8", "--recipe", "rowwise", "--shape", "256x512x1024", "--device", "cpu", "-o", str(tmp_path / "d.h5")]
    assert run([*arguments, "--plan", "cpu", "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["lines"]
    run([*arguments, "-q"])
    assert line["results"] == len(Dump.open(tmp_path / "d.h5").records) > line["cases"]


def test_a_plan_knows_what_ranks_cost_to_start_and_to_wait_for() -> None:
    def seconds(*counts: int) -> float:
        cases = [{"op": "all_reduce", "shape": f"{r}x1000", "format": "float32"} for r in counts]
        return plan(parse_suite({"name": "t", "cases": cases}, "t"), "cpu").seconds

    cpu = RATES["cpu"]
    alone = plan(parse_suite({"name": "t", "cases": [{"op": "exp", "shape": "1000", "format": "float32"}]}, "t"), "cpu").seconds
    assert seconds(2) - alone == pytest.approx(cpu.group_s + 2 * cpu.shared_s, abs=1e-3)
    assert seconds(2, 4) - seconds(2) == pytest.approx(cpu.result_s + 4 * (cpu.rank_s + cpu.shared_s), abs=1e-3)  # another group


def test_more_workers_take_less_time_but_never_less_than_the_longest_case() -> None:
    suite = parse_suite({"name": "t", "cases": [{"op": "gemm", "shape": ["8192x8192x8192", "64x64x64"], "format": "float32"}]}, "t")
    alone, shared = plan(suite, workers=1), plan(suite, workers=64)
    longest = max(
        line.seconds
        for line in plan(parse_suite({"name": "t", "cases": [{"op": "gemm", "shape": "8192x8192x8192", "format": "float32"}]}, "t")).lines
    )
    assert alone.seconds > shared.seconds >= longest


def test_an_unknown_kind_of_device_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=f"allowed: {', '.join(sorted(RATES))}"):
        plan(parse_suite({"name": "t", "cases": [{"op": "exp", "shape": "4"}]}, "t"), "mi300x")


def test_the_command_prints_a_table_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", "smoke", "--plan", "h200", "--workers", "4"]) == 0
    text = capsys.readouterr().out
    assert "on 4 workers" in text
    assert "gemm" in text
    assert run(["dump", "smoke", "--plan", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["suite"] == "smoke"


def test_a_plan_of_a_shard_is_of_its_cases_alone(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [64, 96, 128, 160, 192]
    suite = parse_suite({"name": "t", "cases": [{"op": "exp", "shape": {"n": sizes}, "format": "float32"}]}, "t")
    found = plan(suite, shard=(1, 2))
    assert [(x.cases, x.operands) for x in found.lines] == [(2, 4 * (96 + 160))]
    assert "suite t, shard 1/2: 2 cases" in table(found)
    assert run(["dump", "demo", "--plan", "cpu", "--shard", "2/3"]) == 0
    assert "suite demo, shard 2/3: 15 cases" in capsys.readouterr().out  # of 47


def test_a_plan_without_its_device_says_what_is_expected(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", "demo", "--plan", "--device", "cpu"]) == 2
    assert "'--device' follows it: expected the device whose rates to plan by" in capsys.readouterr().err


def test_huge_tensors_are_planned_without_being_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", "huge", "--plan", "h200"]) == 0
    assert "suite huge: 4 cases" in capsys.readouterr().out


def test_durations_read_as_people_say_them() -> None:
    assert [duration(s) for s in (0.25, 12.3, 200.4, 18600)] == ["0.25 s", "12 s", "3 min 20 s", "5 h 10 min"]
    assert "128 T " in table(plan(parse_suite({"name": "t", "cases": [{"op": "gemm", "shape": "40000x40000x40000"}]}, "t")))


def test_memory_in_flight_is_an_eighth_of_what_is_free_within_bounds(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    for kib, expected in ((32 << 20, 4 << 30), (1 << 20, LEAST_IN_FLIGHT), (1 << 30, MOST_IN_FLIGHT)):
        file.write_text(f"MemTotal: 1 kB\nMemAvailable: {kib} kB\n")
        assert in_flight_bytes(file) == expected
    assert in_flight_bytes(tmp_path / "absent") == LEAST_IN_FLIGHT
