"""Collectives: the truth about them, what n ranks may be off by, real process groups, planted faults, ranks that die or hang."""

import json
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from accuracy_eval.backends import candidates, together
from accuracy_eval.backends.candidates import load_plugin, registered
from accuracy_eval.backends.together import Together
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import case_id, make_case
from accuracy_eval.cli import run
from accuracy_eval.compare import compare_dumps
from accuracy_eval.contracts import parse_contract
from accuracy_eval.cpu_ref.hops import growth, hop_budget, hop_overflows
from accuracy_eval.dump import dump
from accuracy_eval.errors import UnsupportedCase, UsageError
from accuracy_eval.formats import decode, encode, ulp
from accuracy_eval.gates import load_profile
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import side_of
from accuracy_eval.ops.operands import operand_codes
from accuracy_eval.ops.registry import OPS
from accuracy_eval.records import Coded, Verdict
from accuracy_eval.store import Dump
from accuracy_eval.suite import load_suite, parse_suite

every = pytest.mark.parametrize
SUMS, MOVES = ("all_reduce", "reduce_scatter"), ("all_gather", "all_to_all")
TYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
PLUGIN = Path(__file__).parent / "support_faulty_collectives.py"


def case_of(op, r, n, fmt="bfloat16", **more):
    return make_case(op, (("r", r), ("n", n)), format=fmt, **more)


def truth(case, x):
    """The reference of a case with these operand values, as values [r, columns]."""
    spec = OPS[case.op]
    (o,) = spec.operands(case, "ocp")
    (output,) = spec.outputs(case, "ocp")
    found = spec.reference(case, {"x": Coded(encode(x.reshape(o.shape), o.format), o.format)}, "ocp", spec.contract(case))["y"]
    rows = np.concatenate([p.values for p in found.panels()])
    return decode(rows, output.format) if found.kind == "codes" else rows


# what each one is


def test_what_ranks_hold_afterwards():
    # rank i gives 10·i + block: blocks of one element, three ranks
    one, each = np.array([[0.0], [10.0], [20.0]]), np.array([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0], [20.0, 21.0, 22.0]])
    assert truth(case_of("all_reduce", 3, 1), one).tolist() == [[30.0]] * 3
    assert truth(case_of("reduce_scatter", 3, 1), each).tolist() == [[30.0], [33.0], [36.0]]
    assert truth(case_of("all_gather", 3, 1), one).tolist() == [[0.0, 10.0, 20.0]] * 3
    assert truth(case_of("all_to_all", 3, 1), each).tolist() == [[0.0, 10.0, 20.0], [1.0, 11.0, 21.0], [2.0, 12.0, 22.0]]


def test_blocks_stay_whole():
    x = np.arange(12.0).reshape(2, 6)  # two ranks, blocks of three
    assert truth(case_of("all_to_all", 2, 3), x).tolist() == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]
    assert truth(case_of("reduce_scatter", 2, 3), x).tolist() == [[6, 8, 10], [12, 14, 16]]


def test_sums_are_those_of_exact_arithmetic():
    case = case_of("all_reduce", 8, 500, "float32", input_class="heavy-tailed")
    x = decode(operand_codes(OPS["all_reduce"], case, "ocp")["x"], "float32")
    exact = [float(sum(Fraction(v) for v in column)) for column in x.T]
    np.testing.assert_allclose(truth(case, x)[5], exact, rtol=2.0**-52)


@every("op", [*SUMS, *MOVES])
@every("fmt", ["float32", "float16", "bfloat16"])
@every("r", [2, 3, 8, 128])
def test_integers_of_the_exact_lane_show_every_rank_and_round_nowhere(op, fmt, r):
    case = case_of(op, r, 64, fmt, lane="exact")
    x = decode(operand_codes(OPS[op], case, "ocp")["x"], fmt)
    assert np.all(x == np.rint(x))
    assert np.all(x != 0)
    assert {np.sign(v) for v in x.ravel()} == {-1.0, 1.0}
    largest = {"bfloat16": 2.0**8, "float16": 2.0**11, "float32": 2.0**24}[fmt]
    assert np.abs(x).sum(0).max() <= largest or op in MOVES
    assert np.abs(x).max() <= largest


@every(("op", "dims", "why"), [("all_reduce", (1, 4), "r=1 ranks; allowed: 2 to 128"), ("all_gather", (200, 4), "r=200 ranks")])
def test_groups_that_are_none_are_refused(op, dims, why):
    with pytest.raises(UsageError, match=why):
        case_of(op, *dims)


# what a sum over ranks may be off by


def any_tree(x, fmt, rng):
    """A sum over axis 0 in a random order and tree, each addition rounded to the format."""
    dtype = TYPES[fmt]
    terms = [v.astype(dtype) for v in x[rng.permutation(len(x))]]
    while len(terms) > 1:
        i, j = rng.choice(len(terms), 2, replace=False)
        added = (terms[i].astype(np.float64) + terms[j].astype(np.float64)).astype(dtype)
        terms = [t for k, t in enumerate(terms) if k not in (i, j)] + [added]
    return terms[0].astype(np.float64)


@every("fmt", TYPES)
@every("ranks", [2, 3, 4, 8, 64])
def test_no_order_or_tree_leaves_the_budget(fmt, ranks):
    rng = np.random.default_rng(ranks)
    x = (rng.standard_normal((ranks, 2000)) * np.exp2(rng.integers(-4, 5, (ranks, 2000)))).astype(TYPES[fmt]).astype(np.float64)
    exact = np.array([float(sum(Fraction(v) for v in column)) for column in x.T])
    budget = hop_budget(x, parse_contract(f"hops({fmt})"), fmt)
    half_ulp = ulp(exact, fmt) / 2
    for _ in range(5):
        assert np.all(np.abs(any_tree(x, fmt, rng) - exact) <= budget + half_ulp)


def test_two_ranks_may_only_round_once():
    assert growth(parse_contract("hops(float32)"), "float32", 2) == 0.0
    assert 0 < growth(parse_contract("hops(bfloat16)"), "bfloat16", 2) <= 2.0**-23  # a truncating adder of 24 bits, whatever the format
    assert growth(parse_contract("exact"), "float32", 8) == 0.0


def test_eight_ranks_are_off_by_at_most_six_roundings_before_the_last():
    assert growth(parse_contract("hops(float32)"), "float32", 8) == pytest.approx(6 * 2.0**-24, rel=1e-5)
    assert growth(parse_contract("fp32acc"), "bfloat16", 8) == pytest.approx(7 * 2.0**-23, rel=1e-5)


def test_partial_sums_overflow_only_where_terms_of_one_sign_do():
    x = np.array([[6e4, 6e4, 1.0], [6e4, -6e4, 1.0], [-6e4, 1.0, 1.0]])
    up, down = hop_overflows(x, parse_contract("hops(float16)"), "float16")
    assert up.tolist() == [True, False, False]
    assert down.tolist() == [False, False, False]


# real process groups


@pytest.fixture(scope="module")
def backend():
    made = TorchBackend("cpu")
    yield made
    made.close()


@pytest.fixture
def plugin(monkeypatch):
    """The faulty collectives, for one test."""
    monkeypatch.setattr(candidates, "_USER", {})
    monkeypatch.setattr(candidates, "_PLUGINS", [])
    load_plugin(str(PLUGIN))


def suite_of(*tables):
    return parse_suite({"name": "mine", "description": "Mine.", "cases": list(tables)}, "mine")


def dumped(tmp_path, backend, *tables, **options):
    path = tmp_path / "cpu.h5"
    return path, dump(suite_of(*tables), backend, path, **options)


def verdicts(results):
    return {t.candidate: t.verdict for t in results.tensors if t.candidate != "default"}


def test_gloo_passes_in_every_lane_and_format(tmp_path, backend):
    sums = {"op": list(SUMS), "shape": ["2x33", "4x33"], "format": list(TYPES), "lane": ["random", "exact", "metamorphic"]}
    moves = {"op": list(MOVES), "shape": "3x33", "format": ["bfloat16", "float32", "fp8_e4m3", "fp8_e5m2"], "lane": ["random", "exact"]}
    extreme = {"op": [*SUMS, *MOVES], "shape": "3x33", "format": ["float32", "float16"], "input": ["specials", "huge", "subnormal"]}
    path, summary = dumped(tmp_path, backend, sums, moves, extreme)
    assert (summary.error, summary.unsupported, summary.nondeterministic) == (0, 0, [])
    results = compare_dumps(path)
    assert {t.verdict for t in results.tensors} == {Verdict.PASS}
    assert len(results.tensors) == 36 + 16 + 24
    assert {r.notes["transport"] for r in Dump.open(path).records} == {"gloo"}


def test_blocks_without_elements_are_inconclusive(tmp_path, backend):
    path, _ = dumped(tmp_path, backend, {"op": [*SUMS, *MOVES], "shape": "3x0", "format": "bfloat16"})
    results = compare_dumps(path)
    assert {t.case.op: t.verdict for t in results.tensors} == dict.fromkeys([*SUMS, *MOVES], Verdict.INCONCLUSIVE)
    assert results.not_compared == ()


def test_every_rank_holds_the_same_bytes(tmp_path, backend):
    path, _ = dumped(tmp_path, backend, {"op": ["all_reduce", "all_gather"], "shape": "4x100", "format": "bfloat16"})
    for t in compare_dumps(path).tensors:
        assert t.sides[0].metrics["rank_mismatch_count"] == 0
        assert "ranks" in [g.gate for g in t.sides[0].gates]


def test_ranks_in_another_order_may_differ_by_rounding_and_the_report_counts_it(tmp_path, backend):
    table = {"op": "all_reduce", "shape": "8x4000", "format": "bfloat16", "lane": ["random", "metamorphic"]}
    path, _ = dumped(tmp_path, backend, table)
    base, permuted = compare_dumps(path).tensors
    assert (base.verdict, permuted.verdict) == (Verdict.PASS, Verdict.PASS)
    assert 0 < permuted.sides[0].metrics["mismatch_count"] < 8 * 4000  # gloo's result does depend on it


def test_a_gpu_transport_says_why_it_cannot_run_here(tmp_path, backend):
    path, _ = dumped(tmp_path, backend, {"op": "all_reduce", "shape": "2x8"}, candidates=["nccl", "rccl", "gloo"])
    reasons = {r.candidate: (r.status, r.reason) for r in Dump.open(path).records}
    assert reasons["gloo"] == ("done", "")
    assert reasons["nccl"] == ("unsupported", "needs an NVIDIA GPU")
    assert reasons["rccl"] == ("unsupported", "needs an AMD GPU")
    (nccl,) = [c for c in registered("all_reduce") if c.name == "nccl"]
    case = case_of("all_reduce", 4, 8)
    with pytest.raises(UnsupportedCase, match="4 ranks by nccl need as many GPUs in this process, which sees 2"):
        Together("nccl", lambda: 2, 60.0).run(backend.prepare(case), nccl, OPS["all_reduce"].outputs(case, "ocp"), 2)


# planted faults


@every("fmt", TYPES)
def test_a_planted_fault_fails_in_every_lane(tmp_path, backend, plugin, fmt):
    names = ["lost", "doubled", "rotated", "exchanged"]
    table = {"op": ["all_reduce", "all_gather", "reduce_scatter"], "shape": ["2x65", "4x65"], "format": fmt, "lane": ["random", "exact"]}
    path, summary = dumped(tmp_path, backend, table, candidates=names)
    assert summary.error == 0
    results = compare_dumps(path)
    assert len(results.tensors) == 4 * 2 * 2
    assert {t.verdict for t in results.tensors} == {Verdict.FAIL}


def test_a_ring_that_rounds_each_addition_breaks_a_promise_of_float32_sums(tmp_path, backend, plugin):
    path, _ = dumped(
        tmp_path, backend, {"op": "all_reduce", "shape": "8x500", "format": "bfloat16"}, candidates=["narrow_ring", "wide_ring"]
    )
    narrow, wide = compare_dumps(path).tensors
    assert (narrow.verdict, wide.verdict) == (Verdict.FAIL, Verdict.PASS)
    assert narrow.sides[0].off_contract == "partials(bfloat16)"


def test_ranks_that_drift_apart_fail_though_each_is_within_its_budget(tmp_path, backend, plugin):
    path, _ = dumped(tmp_path, backend, {"op": "all_reduce", "shape": "8x500", "format": "bfloat16"}, candidates=["drifting"])
    (found,) = compare_dumps(path).tensors
    assert found.verdict is Verdict.FAIL
    assert [g.gate for g in found.sides[0].gates if not g.passed] == ["ranks"]
    assert found.sides[0].metrics["rank_mismatch_count"] > 0


def test_an_operand_that_is_written_to_is_named_and_the_next_run_has_it_as_it_was(tmp_path, backend, plugin):
    path, summary = dumped(tmp_path, backend, {"op": "all_reduce", "shape": "3x50", "format": "float32"}, candidates=["in_place"])
    assert (summary.error, summary.nondeterministic) == (0, [])
    (record,) = Dump.open(path).records
    assert record.notes["operands_changed"] == ["x"]
    (found,) = compare_dumps(path).tensors
    assert found.verdict is Verdict.FAIL
    assert ("operand-changed", {"operand": "x"}) in [(d.code, d.evidence) for d in found.sides[0].diagnoses]
    assert found.sides[0].metrics["gain"] == pytest.approx(1.0, abs=1e-6)


def test_what_ranks_print_does_not_reach_standard_output(tmp_path):
    command = [
        "dump",
        "--op",
        "all_reduce",
        "--shape",
        "2x3",
        "--format",
        "float32",
        "--device",
        "cpu",
        "--json",
        "-o",
        str(tmp_path / "x.h5"),
    ]
    chosen = ["--plugin", str(PLUGIN), "--candidate", "talking"]
    done = subprocess.run([sys.executable, "-m", "accuracy_eval", *command, *chosen], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)
    for said in ("hello from a rank", "and from its library"):
        assert said in done.stderr


# faults by name

SIZES = [(2, 16), (4, 257), (8, 1000)]


def ring(case, x, fmt):
    """What a healthy ring gives: sums rounded at every step, moves as they are; [r, columns]."""
    r, n = case.dims["r"], case.dims["n"]
    given = x.reshape(r, -1, n)
    if case.op in SUMS:
        total = given[0].astype(TYPES[fmt])
        for part in given[1:]:
            total = (total.astype(np.float64) + part).astype(TYPES[fmt])
        total = total.astype(np.float64)
        return np.repeat(total.reshape(1, -1), r, 0) if case.op == "all_reduce" else total.reshape(r, n)
    return np.repeat(given.reshape(1, -1), r, 0) if case.op == "all_gather" else given.swapaxes(0, 1).reshape(r, -1)


def diagnosed(case, y, fmt):
    """(verdict, code -> evidence) of an output."""
    spec = OPS[case.op]
    x = {"x": Coded(operand_codes(spec, case, "ocp")["x"], fmt)}
    (output,) = spec.outputs(case, "ocp")
    side = side_of("me", Coded(encode(y, fmt), fmt), contract=spec.contract(case))
    truths = {"me": spec.reference(case, x, "ocp", spec.contract(case))["y"]}
    result = judge_tensor(Subject.of(case, output), [side], truths, load_profile("default"), inputs={"me": x})
    return result.verdict, {d.code: d for d in result.sides[0].diagnoses}


def values_of(case, fmt):
    return decode(operand_codes(OPS[case.op], case, "ocp")["x"], fmt)


@every("op", SUMS)
@every("size", SIZES)
@every("fmt", TYPES)
@every("lane", ["random", "exact"])
@every(("times", "code"), [(0.0, "lost-rank"), (2.0, "doubled-rank")])
def test_a_lost_and_a_doubled_rank_are_named(op, size, fmt, lane, times, code):
    case = case_of(op, *size, fmt, lane=lane)
    x = values_of(case, fmt)
    for rank in {0, size[0] - 1}:
        faulty = x.copy()
        faulty[rank] *= times
        verdict, found = diagnosed(case, ring(case, faulty, fmt), fmt)
        assert verdict is Verdict.FAIL
        assert list(found) == [code]
        assert found[code].evidence == {"rank": rank}


def test_where_a_rank_is_lost_is_said():
    case = case_of("all_reduce", 4, 100)
    x = values_of(case, "bfloat16")
    y, faulty = ring(case, x, "bfloat16"), x.copy()
    faulty[2] = 0
    y[[0, 3]] = ring(case, faulty, "bfloat16")[[0, 3]]
    _, found = diagnosed(case, y, "bfloat16")
    assert found["lost-rank"].sentence == "what rank 2 gave is missing from the sum at rank 0, 3"


@every("op", ["all_gather", "all_to_all", "reduce_scatter"])
@every("size", SIZES)
@every("fmt", TYPES)
def test_blocks_in_each_others_place_are_named(op, size, fmt):
    case = case_of(op, *size, fmt)
    r, n = size
    right = ring(case, values_of(case, fmt), fmt)
    one_rank = right.reshape(-1, n).copy()
    one_rank[[0, 1]] = one_rank[[1, 0]]
    everywhere = right.reshape(r, -1, n)
    everywhere = np.roll(everywhere, 1, 0 if op == "reduce_scatter" else 1).reshape(-1, n)
    for y, count in ((one_rank, 2), (everywhere, len(one_rank))):
        verdict, found = diagnosed(case, y.reshape(right.shape), fmt)
        assert verdict is Verdict.FAIL
        assert list(found) == ["rank-order"]
        assert found["rank-order"].evidence == {"count": count}
    which, other = ("rank 0", "rank 1") if op == "reduce_scatter" else ("block 0 of rank 0", "block 1 of rank 0")
    assert f": {which} holds what {other} should" in diagnosed(case, one_rank.reshape(right.shape), fmt)[1]["rank-order"].sentence


@every("op", [*SUMS, *MOVES])
@every("fmt", TYPES)
def test_near_misses_and_healthy_results_have_no_such_name(op, fmt):
    names = {"lost-rank", "doubled-rank", "rank-order"}
    case = case_of(op, 4, 300, fmt)
    x = values_of(case, fmt)
    verdict, found = diagnosed(case, ring(case, x, fmt), fmt)
    assert verdict is Verdict.PASS
    assert not found.keys() & names
    rng = np.random.default_rng(0)
    spoilt = [x.copy() for _ in range(4)]
    spoilt[0][1] *= 0.5  # half of a rank
    spoilt[1][[1, 2]] = 0  # two ranks
    spoilt[2][1] = rng.standard_normal(x.shape[1])  # another buffer
    spoilt[3] = x * 1.25
    for faulty in spoilt:
        verdict, found = diagnosed(case, ring(case, faulty, fmt), fmt)
        assert verdict is Verdict.FAIL
        assert not found.keys() & names


# ranks that die, hang or raise


def alive(pids):
    return [p for p in pids if Path(f"/proc/{p}").exists() and " Z " not in Path(f"/proc/{p}/stat").read_text()]


@every(
    ("name", "reason"),
    [("dying", "rank 1 ended: SIGKILL"), ("hanging", "rank 1 silent: no answer within 8 s; ranks 0, 2 gave up: RuntimeError"),
     ("raising", "failed: RuntimeError: this rank has had enough"),
     ("stuck_beside_one_that_raises", "rank 1 failed: RuntimeError: this rank has had enough; ranks 0, 2 silent: no answer within 5 s")],
)  # fmt: skip
def test_a_rank_in_trouble_costs_its_case_and_leaves_nothing_behind(tmp_path, plugin, monkeypatch, name, reason):
    started = []
    launch = together.Ranks.__init__

    def watched(self, *args, **kwargs):
        launch(self, *args, **kwargs)
        started.extend(p.pid for p in self._processes)

    monkeypatch.setattr(together.Ranks, "__init__", watched)
    own = TorchBackend("cpu", limit_s=30.0 if name.startswith("stuck") else 3.0)
    path, _ = dumped(tmp_path, own, {"op": "all_reduce", "shape": ["3x6", "3x7", "3x8"]}, candidates=[name])
    own.close()
    found = {r.case.dims["n"]: (r.status, r.reason) for r in Dump.open(path).records}
    assert [found[n][0] for n in (6, 7, 8)] == ["done", "error", "done"]
    assert reason in found[7][1]
    assert len(started) == 6  # a group before the trouble, one after it
    assert alive(started) == []


def test_ranks_wait_for_each_other_as_long_as_a_case_may_take(tmp_path, monkeypatch):
    given = []
    launch = together.Ranks.__init__

    def watched(self, *args, **kwargs):
        given.append(kwargs["limit_s"])
        launch(self, *args, **kwargs)

    monkeypatch.setattr(together.Ranks, "__init__", watched)
    case = ["--op", "all_reduce", "--shape", "2x4", "--format", "float32", "--device", "cpu"]
    assert run(["dump", *case, "-o", str(tmp_path / "a.h5"), "--case-limit", "47", "-q"]) == 0
    assert given == [47.0]


def test_ranks_end_with_the_process_that_started_them():
    program = (
        "import os, time\n"
        "from accuracy_eval.backends.ranks import Group, Ranks\n"
        "if __name__ == '__main__':\n"
        "    ranks = Ranks(Group('gloo', 2), limit_s=60)\n"
        "    print(*[p.pid for p in ranks._processes], flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        pids = [int(p) for p in process.stdout.readline().split()]
        assert len(alive(pids)) == 2
        os.kill(process.pid, signal.SIGKILL)
    until = time.monotonic() + 300
    while alive(pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert alive(pids) == []


def test_the_suite_has_every_collective_at_2_4_and_8_ranks():
    cases = load_suite("collectives").cases
    assert {(c.op, c.dims["r"]) for c in cases} >= {(op, r) for op in (*SUMS, *MOVES) for r in (2, 4, 8)}
    assert all(case_id(c) for c in cases)
