"""coverage: every value of every axis is seen, skipped with a reason or never reached; the checklist's lines have evidence or stay open."""

import json

import pytest

from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import make_case
from accuracy_eval.cli import run
from accuracy_eval.coverage import Cell, Coverage, checklist, coverage_of, coverage_text
from accuracy_eval.dump import dump
from accuracy_eval.ops.registry import OPS
from accuracy_eval.records import CaseRecord
from accuracy_eval.store import Dump
from accuracy_eval.suite import parse_suite


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    tables = [
        {
            "op": "gemm",
            "shape": ["32x16x64", "33x17x65"],
            "format": ["float32", "tfloat32"],
            "layout": ["nt", "tn"],
            "direction": ["fwd", "bwd"],
        },
        {"op": "gemm", "shape": "32x16x64", "format": "bfloat16", "lane": "exact"},
        {"op": "exp", "shape": "64", "format": "float32", "input": ["wide", "outlier"]},
    ]
    backend = TorchBackend("cpu")
    out = tmp_path_factory.mktemp("coverage") / "a.h5"
    dump(parse_suite({"name": "t", "cases": tables}, "t"), backend, out, candidates=["default", "cublas"])
    backend.close()
    return out


def test_every_value_is_in_one_of_three_states(path):
    found = {c.op: c for c in coverage_of([Dump.open(path)])}
    assert set(found) == set(OPS)
    cells = {axis: {x.value: (x.state, x.seen) for x in values} for axis, values in found["gemm"].axes.items()}
    assert cells["format"]["float32"] == ("seen", 8)
    assert cells["format"]["tfloat32"] == ("skipped", 0)
    assert cells["format"]["float16"] == ("never reached", 0)
    assert cells["layout"]["nn"] == ("never reached", 0)
    lanes = [cells["lane"][name] for name in ("random", "exact", "coded")]
    assert lanes == [("seen", 8), ("seen", 1), ("never reached", 0)]
    assert cells["candidate"]["default"] == ("seen", 9)
    assert cells["candidate"]["cublas"] == ("skipped", 0)
    assert cells["candidate"]["triton"] == ("never reached", 0)
    assert [x.value for x in found["exp"].axes["input"] if x.seen] == ["outlier", "wide"]
    assert found["attention"].results == 0


def test_a_checklist_line_without_evidence_stays_open():
    case = make_case("gemm", (("m", 32), ("n", 16), ("k", 64)))
    once = CaseRecord("a", case, "default", "done", repeats=1)
    lines = {q.text: q.evidence for q in checklist(OPS["gemm"], [once])}
    assert lines["forward results"] == "1 results"
    assert lines["gradients"] == ""
    assert lines["shapes that no tile divides"] == ""
    assert lines["runs compared as bytes"] == ""
    crashed = CaseRecord("b", case, "mine", "error", "RuntimeError: illegal memory access")
    assert {q.text: q.evidence for q in checklist(OPS["gemm"], [once, crashed])}["nothing crashed, what was skipped has its reason"] == ""
    assert "gradients" not in {q.text for q in checklist(OPS["exp"], [])}
    assert len(lines) == 7


def test_the_command_prints_axes_and_checklist(path, capsys):
    assert run(["coverage", str(path), "--op", "gemm"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("gemm: 34 results\n")
    assert "  layout    nt 5, tn 4; never reached nn, tt\n" in text
    assert "  [x] shapes that no tile divides: 1 of 2 shapes\n" in text
    assert "  [ ] every format\n" in text
    assert run(["coverage", str(path)]) == 0
    assert "never reached: batched_gemm, grouped_gemm" in capsys.readouterr().out
    assert run(["coverage", str(path), "--json", "--op", "exp"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["op"] == "exp"
    assert run(["coverage", str(path), "--op", "conv"]) == 2
    assert "unknown op 'conv'" in capsys.readouterr().err


def test_what_was_never_reached_is_cut_with_a_count():
    axes = {"recipe": tuple(Cell(f"r{i}", 0) for i in range(11))}
    text = coverage_text([Coverage("gemm", 1, axes, (), ())])
    assert text == "gemm: 1 result\n  recipe    never reached r0, r1, r2, r3, r4, r5, r6, r7 and 3 more"
