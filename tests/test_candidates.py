"""Implementations beside the default: which run where, in which state of the device, and what was not visited."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import support_kernels
import torch
from support_fake_torch import fake_torch

import accuracy_eval as ae
from accuracy_eval.backends import candidates, states
from accuracy_eval.backends.candidates import BUILT_IN, FEATURES, registered
from accuracy_eval.backends.gemms import GEMMS, by_products
from accuracy_eval.backends.states import STATES, in_state, off_alignment
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import make_case
from accuracy_eval.cli import run
from accuracy_eval.compare import compare_dumps
from accuracy_eval.dump import dump
from accuracy_eval.errors import UsageError
from accuracy_eval.json_data import to_json
from accuracy_eval.ops.registry import OPS
from accuracy_eval.records import CaseRecord, Verdict
from accuracy_eval.report.findings import findings
from accuracy_eval.store import Dump
from accuracy_eval.suite import expectations, parse_suite
from accuracy_eval.visits import besides_default, states_text, unvisited, visits, visits_text


def suite(expected=None, **table):
    data = {"name": "test", "cases": [{"op": "gemm", "shape": "8x6x32", "format": "float32", **table}]}
    return parse_suite({**data, "expected": expected} if expected else data, "test")


@pytest.fixture(autouse=True)
def faulty_kernels(monkeypatch):
    monkeypatch.setattr(candidates, "_USER", {})
    monkeypatch.setattr(states, "BUSY", 16)  # the fake device multiplies on a CPU
    support_kernels.register()


def dumped(path, chosen, device="cpu", **options):
    if device == "cpu":
        backend = TorchBackend("cpu")
        summary = dump(chosen, backend, path, **options)
        backend.close()
        return summary
    with fake_torch(device) as fake:
        backend = TorchBackend("cuda:0", torch=fake)
        summary = dump(chosen, backend, path, **options)
        backend.close()
    return summary


def statuses(path):
    return {(r.case.format, r.candidate): (r.status, r.reason) for r in Dump.open(path).records}


# the registry


@pytest.mark.parametrize("c", [c for op in OPS for c in registered(op)], ids=lambda c: f"{c.op}-{c.name}")
def test_every_candidate_says_what_it_needs(c):
    assert set(c.needs) <= set(FEATURES)
    assert c.filtered(make_case("gemm", (("m", 4), ("n", 4), ("k", 4))), {"vendor": "cpu"}) or not set(c.needs) & {"gpu", "nvidia", "amd"}
    assert (c.name == "default") != (c in BUILT_IN)


def test_each_op_has_one_fallback():
    for op in OPS:
        assert [c.name for c in registered(op) if c.name == "default"] == ["default"]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_products_give_forward_and_gradients_in_every_layout(layout):
    run_products = by_products(lambda torch, case, x, y: x @ y)
    for direction in ("fwd", "bwd"):
        case = make_case("gemm", (("m", 5), ("n", 7), ("k", 3)), layout=layout, format="float64", direction=direction)
        t = {"a": torch.randn(5, 3), "b": torch.randn(3, 7), "grad_d": torch.randn(5, 7)}
        t = {n: x.double() for n, x in t.items()}
        t["a"] = t["a"].t().contiguous() if layout[0] == "t" else t["a"]
        t["b"] = t["b"].t().contiguous() if layout[1] == "t" else t["b"]
        wanted = OPS["gemm"].torch(torch, case, t, {})
        for name, value in run_products(torch, case, t, {}).items():
            np.testing.assert_allclose(value, wanted[name], rtol=1e-12)


# which run where


def test_libraries_run_where_they_are_and_are_filtered_elsewhere(tmp_path):
    chosen = suite(format=["float32", "bfloat16"])
    dumped(tmp_path / "h200.h5", chosen, "h200", candidates=["cublas", "cublaslt", "rocblas", "ck"])
    found = statuses(tmp_path / "h200.h5")
    assert found["bfloat16", "cublas"] == found["float32", "cublaslt"] == ("done", "")
    assert found["float32", "rocblas"] == ("unsupported", "needs an AMD GPU")
    dumped(tmp_path / "mi300x.h5", chosen, "mi300x", candidates=["cublas", "rocblas", "hipblaslt", "ck"])
    found = statuses(tmp_path / "mi300x.h5")
    assert {name for (fmt, name), (status, _) in found.items() if status == "done"} == {"rocblas", "hipblaslt", "ck"}
    assert found["float32", "cublas"] == ("unsupported", "needs an NVIDIA GPU")


def test_a_library_that_the_device_overrides_is_never_swapped_for_another(tmp_path):
    dumped(tmp_path / "a.h5", suite(), "mi250x", candidates=["hipblaslt", "default"])
    dumped(tmp_path / "b.h5", suite(), "w7900", candidates=["ck", "default"])
    assert statuses(tmp_path / "a.h5")["float32", "hipblaslt"][0] == "done"
    status, reason = statuses(tmp_path / "b.h5")["float32", "ck"]
    assert status == "unsupported"
    assert "CK" in reason or "ck" in reason


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_xla_and_the_compiler_run_on_a_cpu_too(tmp_path, direction):
    """Three implementations of one product, each within its budget of the truth, and equal to it where sums are integers.

    In a process of its own: JAX's threads do not get on with the forks of other tests.
    """
    out = tmp_path / "a.h5"
    case = ["--op", "gemm", "--shape", "24x20x160", "--format", "bfloat16", "--direction", direction, "--lane", "random", "--lane", "exact"]
    chosen = ["--candidate", "default", "--candidate", "jax", "--candidate", "inductor"]
    program = [sys.executable, "-m", "accuracy_eval", "dump", *case, *chosen, "--device", "cpu", "-o", str(out)]
    subprocess.run(program, check=True, capture_output=True)
    judged = compare_dumps(out).tensors
    assert {(t.candidate, t.case.lane) for t in judged} == {
        (c, lane) for c in ("default", "jax", "inductor") for lane in ("random", "exact")
    }
    assert {t.verdict for t in judged} == {Verdict.PASS}


def test_an_installed_library_that_does_not_reach_the_device_is_unsupported(tmp_path, monkeypatch):
    import jax

    def none(platform):
        raise RuntimeError(f"Unknown backend {platform}\nAvailable: []")

    monkeypatch.setattr(jax, "devices", none)
    dumped(tmp_path / "a.h5", suite(), candidates=["jax"])
    assert statuses(tmp_path / "a.h5")["float32", "jax"] == ("unsupported", "this JAX does not reach the device: Unknown backend cpu")


def test_the_compiler_needs_one_of_its_own(monkeypatch):
    (inductor,) = (c for c in registered("gemm") if c.name == "inductor")
    case = make_case("gemm", (("m", 4), ("n", 4), ("k", 4)), format="float32")
    assert inductor.filtered(case, {"vendor": "cpu"}) is None
    monkeypatch.setenv("PATH", "")
    assert "C++ compiler" in inductor.filtered(case, {"vendor": "cpu"})
    assert inductor.filtered(case, {"vendor": "amd"}) is None  # there it is Triton's, which is installed


def test_only_the_default_and_the_users_run_unless_asked(tmp_path):
    dumped(tmp_path / "a.h5", suite(), candidates=())
    names = {r.candidate for r in Dump.open(tmp_path / "a.h5").records}
    assert names == {"default", *(name for _, name in candidates._USER)}
    assert not names & {g.name for g in GEMMS}
    dumped(tmp_path / "b.h5", suite(), candidates=["all"])
    assert {g.name for g in GEMMS} <= {r.candidate for r in Dump.open(tmp_path / "b.h5").records}


# states


def test_rows_alone_and_misaligned_views_are_judged_as_candidates_of_their_own(tmp_path):
    dumped(tmp_path / "a.h5", suite(layout=["nt", "tn"]), candidates=["default"], states=["misaligned", "alone", "graph", "stream"])
    results = compare_dumps(tmp_path / "a.h5")
    assert {t.candidate for t in results.tensors} == {"default", "default+misaligned", "default+alone"}
    assert all(t.verdict is Verdict.PASS for t in results.tensors)
    assert {(n.candidate, n.reason) for n in results.not_compared} == {("default+graph", "needs a GPU"), ("default+stream", "needs a GPU")}
    assert any("of 2 outputs have the bytes of default" in note for note in results.notes)


def test_a_graph_is_replayed_over_poison_and_equals_the_eager_run(tmp_path):
    dumped(tmp_path / "a.h5", suite(), "h200", candidates=["default"], states=["graph", "stream"])
    by_name = {r.candidate: r for r in Dump.open(tmp_path / "a.h5").records}
    assert by_name["default+graph"].status == "done", by_name["default+graph"].reason
    assert by_name["default+graph"].tensors[-1].sha256 == by_name["default"].tensors[-1].sha256
    assert states_text(list(by_name.values())) == [
        "default+graph: 1 of 1 output has the bytes of default", "default+stream: 1 of 1 output has the bytes of default",
    ]  # fmt: skip


def test_an_output_that_is_an_operand_survives_the_poison_of_a_replay(tmp_path):
    """The gradient of the residual is grad_y itself. (Autograd's own kernels are not replayed by the fake device.)"""
    suite = parse_suite({"name": "s", "cases": [{
        "op": "gemm_epilogue", "shape": "8x6x32", "format": "float32", "options": {"residual": True}, "direction": "bwd",
    }]}, "s")  # fmt: skip
    dumped(tmp_path / "a.h5", suite, "h200", candidates=["default"], states=["graph"])
    graph = next(r for r in Dump.open(tmp_path / "a.h5").records if r.candidate == "default+graph")
    assert "operands_changed" not in graph.notes
    assert "dresidual" not in graph.notes["never_written"]
    assert {t.verdict for t in compare_dumps(tmp_path / "a.h5").tensors if t.tensor == "dresidual"} == {Verdict.PASS}


def test_what_a_replay_leaves_unwritten_is_seen(tmp_path):
    @ae.candidate("gemm", name="writes-once")
    def writes_once(case, tensors):
        """Fills its result outside what a graph captures: a replay leaves the poison."""
        import torch

        with torch._C.DisableTorchFunction():
            d = torch.mm(tensors["a"], tensors["b"].t())
        d._fake_cuda = 0
        return d

    dumped(tmp_path / "a.h5", suite(), "h200", candidates=["writes-once"], states=["graph"])
    record = Dump.open(tmp_path / "a.h5").record("gemm.m8.n6.k32.nt.float32.normal.s0", "writes-once+graph")
    assert record.notes["never_written"] == {"d": 48}
    graph = next(t for t in compare_dumps(tmp_path / "a.h5").tensors if t.candidate == "writes-once+graph")
    assert (graph.verdict, graph.sides[0].diagnoses[0].code) == (Verdict.FAIL, "never-written")


def test_a_kernel_whose_rows_depend_on_each_other_shows_in_the_batch(tmp_path):
    @ae.candidate("gemm", name="couples-rows")
    def couples_rows(case, tensors):
        d = tensors["a"] @ tensors["b"].t()
        return d * (1 if d.shape[0] > 1 else 1 + 2**-23)

    dumped(tmp_path / "a.h5", suite(), candidates=["couples-rows"], states=["alone"])
    (line,) = states_text(Dump.open(tmp_path / "a.h5").records)
    assert line == (
        "couples-rows+alone: 0 of 1 output has the bytes of couples-rows; the first that does not: gemm.m8.n6.k32.nt.float32.normal.s0 d"
    )


def test_a_view_off_alignment_holds_the_same_values():
    for shape in ((5,), (3, 4), (2, 3, 4)):
        x = torch.arange(float(np.prod(shape))).reshape(shape)
        view = off_alignment(torch, x)
        assert torch.equal(view, x)
        assert view.storage_offset() == 3
    assert view.stride() == (3 * 20, 20, 1)


def test_states_have_names_and_unknown_ones_are_refused():
    assert all(s.sentence for s in STATES.values())
    with pytest.raises(UsageError, match="unknown state 'warm'; allowed: alone, graph, misaligned, stream"):
        in_state(registered("gemm")[0], "warm")


def test_a_second_process_gives_the_same_bytes(tmp_path):
    digests = []
    for name in ("a", "b"):
        out = tmp_path / f"{name}.h5"
        command = ["dump", "--op", "gemm", "--shape", "32x24x96", "--format", "bfloat16", "--direction", "bwd", "--device", "cpu", "-q"]
        subprocess.run(
            [sys.executable, "-m", "accuracy_eval", *command, "--repeats", "10", "-o", str(out)], check=True, cwd=Path(__file__).parents[1]
        )
        digests.append(Dump.open(out).content_digest)
        assert [r.repeats for r in Dump.open(out).records] == [10]
    assert digests[0] == digests[1]


# what was visited


def test_a_suite_says_what_must_run_where():
    rules = expectations([{"op": "gemm", "candidates": ["cublas", "cublaslt"], "vendor": "nvidia", "format": ["bfloat16"]}])
    case = make_case("gemm", (("m", 4), ("n", 4), ("k", 4)), format="bfloat16")
    assert rules[0].covers(case, "nvidia")
    assert not rules[0].covers(case, "amd")
    assert not rules[0].covers(make_case("gemm", case.shape), "nvidia")
    assert expectations({"gemm": ["mine"]})[0].covers(case, "cpu")
    with pytest.raises(UsageError, match="unknown key in an expectation: 'platform'"):
        expectations([{"op": "gemm", "platform": "cuda"}])


def test_what_a_suite_expects_runs_without_being_named_and_what_cannot_is_missing(tmp_path):
    chosen = suite([{"op": "gemm", "candidates": ["cublas", "ck"], "vendor": "nvidia"}])
    candidates._USER.clear()
    dumped(tmp_path / "a.h5", chosen, "h200")
    results = compare_dumps(tmp_path / "a.h5")
    missing = [(n.candidate, n.verdict, n.reason) for n in results.not_compared]  # once, though it was filtered too
    assert missing == [("ck", Verdict.MISSING, "expected here by the suite, and filtered: needs an AMD GPU")]
    assert results.exit_code == 1
    (step,) = findings(results)[0].steps
    assert '[[expected]] takes vendor = "nvidia", "amd" or "cpu"' in step
    assert statuses(tmp_path / "a.h5")["float32", "cublas"][0] == "done"
    dumped(tmp_path / "cpu.h5", chosen, candidates=["default"])
    assert compare_dumps(tmp_path / "cpu.h5").exit_code == 0


def test_what_a_candidate_raises_is_recorded_and_a_message_of_ours_needs_no_class(tmp_path):
    candidates._USER.clear()
    for name, error in (("ours", UsageError("a must be contiguous; copy it first")), ("theirs", RuntimeError("illegal memory access"))):

        @ae.candidate("gemm", name=name)
        def raising(case, tensors, error=error):
            raise error

    dumped(tmp_path / "a.h5", suite(lane=["exact"]))
    reasons = {r.candidate: r.reason for r in Dump.open(tmp_path / "a.h5").records if r.status == "error"}
    line = raising.__code__.co_firstlineno + 2  # of the raise: the decorator is the first
    place = f"({Path(__file__).name}:{line})"
    assert reasons == {"ours": "a must be contiguous; copy it first", "theirs": f"RuntimeError: illegal memory access {place}"}


def test_an_error_inside_a_library_is_placed_at_the_line_of_the_plugin_that_called_it(tmp_path, capsys):
    candidates._USER.clear()
    plugin = tmp_path / "my_kernels.py"
    lines = [
        "import torch",
        "import accuracy_eval as ae",
        "def product(a, b):",
        "    return torch.stack([a, b]).fill_diagonal_(",
        "        0.0)",
        "@ae.candidate('gemm', name='mine', supports=lambda case, platform: case.options.get('bias') if case.layout == 'nn' else None)",
        "def mine(case, tensors):",
        "    return product(tensors['a'], tensors['b'])",
    ]
    plugin.write_text("\n".join(lines))
    grid = ["--op", "gemm", "--shape", "8x6x32", "--format", "float32", "--layout", "nt", "--layout", "nn", "--lane", "random"]
    assert run(["dump", *grid, "--device", "cpu", "--plugin", str(plugin), "-o", str(tmp_path / "a.h5")]) == 1
    nn, nt = (r.reason for r in Dump.open(tmp_path / "a.h5").records if r.candidate == "mine")
    assert nn == "AttributeError: 'tuple' object has no attribute 'get' (my_kernels.py:6)"
    assert nt.startswith("RuntimeError: stack expects each tensor to be equal size")
    assert nt.endswith("(my_kernels.py:4)")
    assert nt in capsys.readouterr().out


def test_an_unknown_contract_is_refused_where_a_candidate_is_registered():
    with pytest.raises(UsageError, match=r"candidate 'mine' of gemm: unknown contract 'tf33' \(did you mean tf32\?\); allowed: .*fp32acc"):
        ae.candidate("gemm", name="mine", contract="tf33")
    with pytest.raises(UsageError, match=r"candidate 'mine' of gemm: contract .*int8"):
        ae.candidate("gemm", name="mine", contract="partials(int8)")
    ae.candidate("gemm", name="mine", contract="partials(bfloat16)")(lambda case, tensors: tensors["a"])
    assert [c.contract for c in registered("gemm") if c.name == "mine"] == ["partials(bfloat16)"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["import accuracy_eval as ae", "def mine(case, tensors:"], ":2: SyntaxError: '(' was never closed"),
        (["import accuracy_eval as ae", "", "import no_such"], ":3: ModuleNotFoundError: No module named 'no_such'"),
        (["def fails():", "    return 1 // 0", "fails()"], ":2: ZeroDivisionError: integer division or modulo by zero"),
        (
            ["import accuracy_eval as ae", "ae.candidate('gemm', name='first')(print)", "ae.candidate('gemmm', name='second')"],
            ":3: unknown op 'gemmm' (did you mean gemm",
        ),
    ],
)  # fmt: skip
def test_a_plugin_that_cannot_be_loaded_is_one_line_with_its_place(tmp_path, capsys, lines, said):
    before = dict(candidates._USER)
    plugin = tmp_path / "broken.py"
    plugin.write_text("\n".join(lines))
    assert run(["list", "candidates", "--plugin", str(plugin)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"accuracy-eval: plugin {plugin}{said}")
    assert candidates._USER == before


def test_compare_takes_candidates_as_dump_does(tmp_path, capsys):
    dumped(tmp_path / "a.h5", suite(seed=[0, 1]), candidates=["default", "fills-out", "skips-a-row"], states=["misaligned"])

    def judged(*names):
        arguments = [a for name in names for a in ("--candidate", name)]
        assert run(["compare", str(tmp_path / "a.h5"), "-q", "--to", "json", "--out", str(tmp_path / "r"), *arguments]) == 0
        return [t.candidate for t in ae.load_results(tmp_path / "r").tensors]

    assert judged("fills-out") == ["fills-out", "fills-out+misaligned"] * 2
    assert judged("fills-out+misaligned", "default") == ["default", "default+misaligned", "fills-out+misaligned"] * 2
    notes = ae.load_results(tmp_path / "r").candidates
    assert notes
    assert not any("skips-a-row" in line for line in notes)
    results = compare_dumps(tmp_path / "a.h5", candidates=["all"])
    assert to_json(results) == to_json(compare_dumps(tmp_path / "a.h5"))
    assert results.exit_code == 1  # skips-a-row
    capsys.readouterr()
    assert run(["compare", str(tmp_path / "a.h5"), "--candidate", "fill-out"]) == 2
    assert "unknown candidate 'fill-out' (did you mean fills-out?); allowed: " in capsys.readouterr().err
    assert run(["compare", str(tmp_path / "a.h5"), "--candidate", "default", "--lane", "exact"]) == 2
    assert "(--lane exact --candidate default)" in capsys.readouterr().err


def test_what_is_missing_is_asked_for_by_its_candidate_too(tmp_path):
    dumped(tmp_path / "a.h5", suite({"gemm": ["hand-written"]}), candidates=["default"])
    assert compare_dumps(tmp_path / "a.h5", candidates=["default"]).not_compared == ()
    results = compare_dumps(tmp_path / "a.h5", candidates=["default", "hand-written"])
    assert [n.candidate for n in results.not_compared] == ["hand-written"]


def test_an_expected_candidate_that_nobody_registered_is_missing(tmp_path):
    dumped(tmp_path / "a.h5", suite({"gemm": ["hand-written"]}), candidates=["default"])
    (missing,) = compare_dumps(tmp_path / "a.h5").not_compared
    assert (missing.candidate, missing.verdict) == ("hand-written", Verdict.MISSING)
    assert missing.reason == "expected here by the suite, and not registered: no such implementation in the dump"


def test_a_candidate_that_no_case_reaches_fails_the_comparison(tmp_path):
    candidates._USER.clear()

    @ae.candidate("gemm", name="picky", supports=lambda case, platform: "needs m = 512")
    def picky(case, tensors):
        raise AssertionError("never called")

    dumped(tmp_path / "a.h5", suite(lane=["random", "exact"]))
    results = compare_dumps(tmp_path / "a.h5")
    missing = [n for n in results.not_compared if n.verdict is Verdict.MISSING]
    assert [(n.case_id, n.candidate, n.reason) for n in missing] == [("gemm (all cases)", "picky", "never reached: needs m = 512 (2)")]
    assert results.exit_code == 1
    assert findings(results)[0].steps == ("dump a case that the candidate takes, or mend what it says it supports",)


def record(case, name, status="done", reason=""):
    return CaseRecord(f"{case.op}.{case.seed}", case, name, status, reason)


def test_five_lists_tell_registered_filtered_visited_crashed_and_not_asked_for():
    a, b = (make_case("gemm", (("m", 4), ("n", 4), ("k", 4)), seed=s) for s in (0, 1))
    records = [
        record(a, "default"), record(b, "default"), record(a, "ck", "unsupported", "needs an AMD GPU"),
        record(a, "mine"), record(b, "mine", "error", "RuntimeError: illegal memory access"),
    ]  # fmt: skip
    known = {"gemm": {"default": {}, "ck": {"asked": True}, "mine": {"asked": True}, "jax": {}}}
    assert visits_text(visits(records, known)) == [
        "gemm: default 2, mine 1; filtered (needs an AMD GPU): ck 1; "
        "crashed mine: RuntimeError: illegal memory access (1); not asked for: jax"
    ]
    assert [(u.candidate, u.reason) for u in unvisited(records, {"candidates": known}, "nvidia")] == [
        ("ck", "never reached: needs an AMD GPU (1)")
    ]
    assert visits_text(visits(records[:2], {})) == []
    found = {"h200": visits(records, known), "cpu": visits(records[:3], known)}
    assert besides_default(found) == ["besides default ran: h200 mine 1 (compare -v lists every candidate)"]
    assert besides_default({"cpu": found["cpu"]}) == []


def test_the_command_line_takes_candidates_and_states(tmp_path, capsys):
    out = tmp_path / "a.h5"
    arguments = ["dump", "--op", "gemm", "--shape", "8x6x32", "--format", "float32", "--device", "cpu", "-o", str(out)]
    candidates._USER.clear()
    assert run([*arguments, "--candidate", "default", "--state", "misaligned", "--kernels"]) == 0
    capsys.readouterr()
    assert run(["inspect", str(out)]) == 0
    text = capsys.readouterr().out
    assert "@default+misaligned  done d:" in text
    assert Dump.open(out).records[0].notes["kernels_unknown"] == "no GPU: kernels of CPU libraries have no names"
    assert run([*arguments[:-1], str(tmp_path / "b.h5"), "--state", "asleep"]) == 2
    assert "unknown state 'asleep'" in capsys.readouterr().err


def test_a_file_that_was_loaded_twice_is_loaded_once_by_other_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "_PLUGINS", [])
    file = tmp_path / "nothing_registered.py"
    file.write_text("VALUE = 1\n")
    for _ in range(2):
        candidates.load_plugin(str(file))
    assert candidates.plugins() == (str(file),)
