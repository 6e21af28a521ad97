"""The command line as a user meets it: whole outputs, exit codes, one clear error."""

import builtins
import json
import shlex
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest

from accuracy_eval import compare, report
from accuracy_eval.backends import candidates
from accuracy_eval.cli import cli, run
from accuracy_eval.json_data import from_json
from accuracy_eval.ops.registry import OPS
from accuracy_eval.records import Results
from accuracy_eval.store import Dump, packing
from accuracy_eval.suite import load_suite

GEMM = ["--op", "gemm", "--shape", "16x8x32"]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """A reference dump and a CPU dump of four small GEMMs."""
    folder = tmp_path_factory.mktemp("dumps")
    for name, device in (("ref", "reference"), ("cpu", "cpu")):
        code = run(["dump", *GEMM, "--format", "float32", "--format", "bfloat16", "--lane", "random", "--lane", "exact",
                    "--device", device, "-o", str(folder / f"{name}.h5"), "-q"])  # fmt: skip
        assert code == 0
    return folder


def test_help_lists_every_command_and_the_exit_codes(capsys):
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for command in ("dump", "transfer", "compare", "run", "report", "inspect", "merge", "list", "demo"):
        assert f"\n  {command} " in text
    assert "Exit codes: 0 everything judged passed" in text


@pytest.mark.parametrize("command", cli.list_commands(None))
def test_every_command_has_help_with_an_example(command, capsys):
    assert run([command, "--help"]) == 0
    assert f"accuracy-eval {command}" in capsys.readouterr().out


def test_help_and_version_import_nothing_heavy():
    script = (
        "import sys; from accuracy_eval.cli import run; run(['--help']); run(['--version']);"
        "heavy = {'torch', 'numpy', 'h5py', 'numba', 'pandas', 'paramiko', 'rich', 'openpyxl'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_compare_of_two_dumps_needs_no_torch(dumps):
    paths = [str(dumps / name) for name in ("ref.h5", "cpu.h5")]
    script = (
        "import sys; sys.modules['torch'] = None\n"
        f"from accuracy_eval.cli import run; code = run(['compare', *{paths!r}, '--to', 'none', '-q'])\n"
        "assert code == 0, code"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)


def test_forms_without_a_spreadsheet_are_written_where_openpyxl_is_not_installed(dumps, tmp_path):
    arguments = ["compare", str(dumps / "cpu.h5"), "-q", "--to", "json,html,csv,md,junit", "-o", str(tmp_path / "r")]
    script = f"import sys; sys.modules['openpyxl'] = None\nfrom accuracy_eval.cli import run; sys.exit(run({arguments!r}))"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    written = {p.name for p in (tmp_path / "r").iterdir() if not p.name.startswith(".")}
    assert written == {"results.json", "report.html", "results.csv", "summary.md", "junit.xml"}


def test_a_form_whose_package_is_not_installed_is_refused_before_anything_is_judged(dumps, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    assert run(["compare", str(dumps / "cpu.h5"), "--to", "xlsx,json", "-o", str(tmp_path / "r")]) == 2
    said = capsys.readouterr().err
    assert "report form xlsx needs openpyxl" in said
    assert "accuracy-eval report results.json --to xlsx" in said
    assert not (tmp_path / "r").exists()


def test_everything_but_the_torch_backend_imports_without_torch():
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import pkgutil, importlib, accuracy_eval\n"
        "names = [m.name for m in pkgutil.walk_packages(accuracy_eval.__path__, 'accuracy_eval.')]\n"
        "assert len(names) > 50\n"
        "kernels = ('accuracy_eval.backends.triton_gemm', 'accuracy_eval.backends.certificate_kernel')  # loaded where triton is\n"
        "alone = ('accuracy_eval.__main__', *kernels)\n"
        "for n in names:\n    if n not in alone: importlib.import_module(n)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)


def test_compare_prints_the_verdict_first_and_writes_the_reports(dumps, tmp_path, capsys):
    code = run(["compare", str(dumps / "cpu.h5"), str(dumps / "ref.h5"), "--label", "cpu", "--label", "truth", "-o", str(tmp_path / "r")])
    text = capsys.readouterr().out
    assert code == 0
    assert text.startswith("PASS cpu vs truth · 4 PASS · profile default")
    names = sorted(p.name for p in (tmp_path / "r").iterdir() if not p.name.startswith("."))
    assert names == ["gemm-m16.n8.k32.xlsx", "report.html", "results.json", "summary.xlsx"]
    assert max(len(line) for line in text.splitlines() if not line.startswith("  /")) <= 80


def test_reports_of_other_dumps_are_not_replaced_without_a_word(dumps, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(dumps / "cpu.h5", tmp_path / "later.h5")
    compare = ["compare", "--label", "cpu", "--to", "json"]
    assert run([*compare, str(dumps / "cpu.h5")]) == run([*compare, str(dumps / "cpu.h5")]) == 0
    assert "replaced" not in capsys.readouterr().err
    assert run([*compare, "later.h5"]) == 0
    assert f"reports/cpu held the reports of {dumps / 'cpu.h5'}; they are replaced. Another folder: -o" in capsys.readouterr().err
    (tmp_path / "reports/cpu/results.json").write_text('{\n "dumps": [\n  {\n')
    assert run([*compare, "later.h5"]) == 0
    assert "replaced" not in capsys.readouterr().err


def test_json_on_stdout_is_the_results(dumps, capsys):
    assert run(["compare", str(dumps / "cpu.h5"), "--to", "none", "--json"]) == 0
    results = from_json(Results, json.loads(capsys.readouterr().out))
    assert {t.case_id for t in results.tensors} == {r.id for r in Dump.open(dumps / "cpu.h5").records}


def test_a_report_is_rendered_again_without_the_dumps(dumps, tmp_path, capsys):
    run(["compare", str(dumps / "cpu.h5"), str(dumps / "ref.h5"), "--to", "json,xlsx", "-o", str(tmp_path / "first"), "-q"])
    assert run(["report", str(tmp_path / "first" / "results.json"), "--to", "xlsx,md", "-o", str(tmp_path / "again")]) == 0
    again, first = (tmp_path / d / "summary.xlsx" for d in ("again", "first"))
    assert again.read_bytes() == first.read_bytes()
    assert (tmp_path / "again" / "summary.md").exists()


def test_forms_of_reports_add_up_over_options_and_commas(dumps, tmp_path, capsys):
    def files(folder):
        return {p.name for p in folder.iterdir() if not p.name.startswith(".")}

    given = ["--to", "md", "--to", "json,junit"]
    run(["compare", str(dumps / "cpu.h5"), "-q", *given, "-o", str(tmp_path / "r")])
    assert files(tmp_path / "r") == {"summary.md", "results.json", "junit.xml"}
    run(["report", str(tmp_path / "r" / "results.json"), "-q", *given, "-o", str(tmp_path / "again")])
    assert files(tmp_path / "again") == files(tmp_path / "r")
    run(["compare", str(dumps / "cpu.h5"), "-q", "--to", "none", "--to", "md", "-o", str(tmp_path / "one")])
    assert files(tmp_path / "one") == {"summary.md"}
    capsys.readouterr()
    one = ["fixtures", "export", "--only", "gemm.none_f32.8x16x16", "-o", str(tmp_path / "f")]
    assert run([*one, "--to", "rust", "--to", "bin"]) == 0
    assert {"fixture.rs", "a.bin", "manifest.json"} <= files(tmp_path / "f" / "gemm.none_f32.8x16x16")
    assert capsys.readouterr().out.endswith("1 fixture as rust,bin\n")


def test_nothing_in_common_is_never_a_pass(dumps, tmp_path, capsys):
    run(["dump", *GEMM, "--seed", "1", "--device", "reference", "-o", str(tmp_path / "other.h5"), "-q"])
    assert run(["compare", str(dumps / "ref.h5"), str(tmp_path / "other.h5"), "--to", "json", "-o", str(tmp_path / "r")]) == 1
    text = capsys.readouterr().out
    assert text.startswith("MISSING")
    refused = ["--device", "reference", "--shape", "16x8x32", "--op", "gemm", "--format", "fp8_e4m3"]
    assert run(["dump", *refused, "-o", str(tmp_path / "e.h5"), "-q"]) == 2


def test_a_suite_of_which_nothing_runs_exits_with_2(tmp_path, capsys):
    run(["dump", *GEMM, "--format", "tfloat32", "--device", "cpu", "-o", str(tmp_path / "a.h5"), "-q"])
    assert run(["compare", str(tmp_path / "a.h5"), "--to", "none"]) == 2
    assert "nothing was judged" in capsys.readouterr().out


def test_results_in_place_of_a_dump_are_told_from_one(dumps, tmp_path, capsys):
    run(["compare", str(dumps / "ref.h5"), "--to", "json", "-o", str(tmp_path), "-q"])
    assert run(["compare", str(tmp_path / "results.json"), str(dumps / "ref.h5")]) == 2
    assert capsys.readouterr().err == (
        f"accuracy-eval: {tmp_path / 'results.json'}: results of a comparison, not a dump; show them with accuracy-eval report, or name "
        "the dumps they are of\n"
    )


def test_filters_that_leave_no_case_are_said_to_and_write_nothing(dumps, tmp_path, capsys):
    filters = ["--op", "sum", "--op", "exp", "--format", "float32"]
    assert run(["compare", str(dumps / "ref.h5"), *filters, "-o", str(tmp_path / "reports")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("accuracy-eval: nothing was judged: none of the cases asked for is in the dumps, which hold ")
    assert line.endswith(" results of gemm (--op sum --op exp --format float32)")
    assert not (tmp_path / "reports").exists()


def test_a_dump_compared_with_itself_is_said_to_be_the_same_file(dumps, capsys):
    run(["compare", str(dumps / "ref.h5"), str(dumps / "ref.h5"), "--to", "none"])
    assert "are the same file ref.h5" in " ".join(capsys.readouterr().out.split())


def test_a_dump_says_why_cases_are_unsupported_and_which_ran_nothing(tmp_path, capsys):
    sizes = ["--shape", "16x8x32", "--format", "bfloat16", "--layout", "nt", "--layout", "tn"]
    assert run(["dump", "--op", "gemm", *sizes, "--device", "model:MI355X", "-o", str(tmp_path / "m.h5")]) == 0
    summary, *reasons = capsys.readouterr().out.splitlines()
    assert ": 0 results done, 2 unsupported, 0 errors on " in summary
    assert reasons == [
        "  unsupported 2 × the arithmetic of cdna4/mfma for bfloat16 × bfloat16 is not known (no model and no raw outputs are public); "
        "probe the device and explain its outputs instead of modelling them"
    ]
    (tmp_path / "two.toml").write_text('[[cases]]\nop = "gemm"\nshape = "4x4x4"\n[[cases]]\nop = "exp"\nshape = ["4", "8"]\n')
    assert run(["dump", str(tmp_path / "two.toml"), "--device", "cpu", "--candidate", "cublas", "-o", str(tmp_path / "c.h5")]) == 0
    summary, *notes = capsys.readouterr().out.splitlines()
    assert notes[-1] == "  not run: cases without any of the named candidates (2 of exp); accuracy-eval list candidates"


def test_filters_take_commas_and_may_be_repeated(capsys):
    ways = (["--op", "gemm,exp", "--format", "bfloat16"], ["--op", "gemm", "--op", "exp", "--format", "bfloat16"])
    joined, repeated = (json.loads(capsys.readouterr().out) for w in ways if run(["dump", "smoke", *w, "--plan", "cpu", "--json"]) == 0)
    assert joined == repeated
    assert [line["op"] for line in joined["lines"]] == ["gemm", "exp"]
    assert run(["dump", "--op", "gemm", "--shape", "8x8x8,8x8x16", "--plan", "cpu"]) == 0
    assert "2 cases" in capsys.readouterr().out


@pytest.mark.parametrize(("opened", "said"), [(8.0, " in 20.0 s, 8.0 s of it starting\n"), (0.4, " in 20.0 s\n")])
def test_the_time_of_a_dump_is_what_the_user_waited_for(tmp_path, capsys, monkeypatch, opened, said):
    for form in ([], ["--json"]):
        clock = iter([0.0, opened, 20.0])  # the command begins, its device or workers are there, they are gone
        monkeypatch.setattr("accuracy_eval.cli.dump.time", types.SimpleNamespace(monotonic=lambda clock=clock: next(clock)))
        command = ["dump", *GEMM, "--device", "reference", "--workers", "1", "-o", str(tmp_path / f"d{len(form)}.h5")]
        assert run([*command, *form]) == 0
        out = capsys.readouterr().out
        if form:
            assert (json.loads(out)["time_s"], json.loads(out)["start_s"]) == (20.0, opened)
        else:
            assert out.endswith(said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dmp"], "unknown command 'dmp' (did you mean dump?); allowed: atlas, "),
        (["dump", "smok", "-o", "x.h5"], "unknown suite 'smok' (did you mean smoke?); allowed: "),
        (["dump", "smoke", "--op", "gem", "-o", "x.h5"], "unknown op 'gem' (did you mean gemm?); allowed: gemm, "),
        (["dump", "smoke", "--format", "bf17", "-o", "x.h5"], "unknown format 'bf17' (did you mean bf16?); allowed: bf16, "),
    ],
)
def test_a_misspelt_name_is_met_with_the_one_spelt_like_it(arguments, said, capsys):
    assert run(arguments) == 2
    assert capsys.readouterr().err.startswith(f"accuracy-eval: {said}")


def test_a_part_of_a_suite_is_said_to_be_one_and_no_other_version(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text('name = "mine"\n[[cases]]\nop = ["exp", "log", "tanh"]\nshape = "8"\n')
    for name, more in (("whole", ()), ("part", ("--op", "exp")), ("other", ("--op", "log", "--seed", "3"))):
        arguments = ["dump", str(tmp_path / "mine.toml"), "--device", "reference", *more, "-o", str(tmp_path / f"{name}.h5"), "-q"]
        assert run(arguments) == 0
    assert run(["inspect", str(tmp_path / "part.h5")]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'part.h5'}: 1 of 3 cases of suite mine, by --op exp, device ")
    assert run(["compare", str(tmp_path / "whole.h5"), str(tmp_path / "part.h5"), "--op", "exp", "--to", "none"]) == 0
    text = capsys.readouterr().out
    assert "note: part holds 1 of 3 cases of suite mine, by --op exp\n" in text
    assert "different versions" not in text
    assert run(["compare", str(tmp_path / "whole.h5"), str(tmp_path / "other.h5"), "--to", "none"]) == 1  # no case in common
    assert "different versions of suite mine" in capsys.readouterr().out


def test_a_long_set_of_names_is_cut_with_where_the_rest_is_listed(capsys):
    assert run(["dump", "smoke", "--format", "gf12", "-o", "x.h5"]) == 2
    error = capsys.readouterr().err
    assert ", fp8_e4m3, " in error
    assert error.endswith(" more: accuracy-eval list formats\n")
    assert len(error) < 300


def test_an_unknown_op_in_a_suite_names_the_file_and_the_table(tmp_path, capsys):
    suite = tmp_path / "mine.toml"
    suite.write_text('[[cases]]\nop = "gemm"\nshape = "4x4x4"\n[[cases]]\nop = "gem"\nshape = "4x4x4"\n')
    assert run(["dump", str(suite), "-o", str(tmp_path / "x.h5")]) == 2
    assert capsys.readouterr().err.endswith(f"accuracy-eval list ops\n  in suite {suite}, cases table 2\n")


def test_other_inputs_under_the_same_id_are_refused_with_both_digests(dumps, tmp_path, capsys):
    import shutil

    from accuracy_eval.cases import parse_case
    from accuracy_eval.records import CaseRecord, TensorRecord
    from accuracy_eval.store import write_part

    ident = "gemm.m16.n8.k32.nt.float32.normal.s0"
    d = np.zeros((16, 8), np.uint32)
    from accuracy_eval.digests import sha256_codes

    tensors = [TensorRecord(n, "source", "float32", s, "ab" * 32) for n, s in (("a", (16, 32)), ("b", (8, 32)))]
    record = CaseRecord(ident, parse_case(ident), "default", "done", "",
                        (*tensors, TensorRecord("d", "output", "float32", (16, 8), sha256_codes(d))), "fp32acc", 1, {"d": 1})  # fmt: skip
    write_part(tmp_path / "p", record, {"d": d}, info={"suite": "x", "suite_digest": "y"}, platform={"label": "other"})
    shutil.copyfile(dumps / "ref.h5", tmp_path / "ref.h5")
    code = run(["compare", str(tmp_path / "ref.h5"), str(tmp_path / "p"), "--case", ident, "--to", "json", "-o", str(tmp_path / "r")])
    assert code == 2
    (refused,) = json.loads((tmp_path / "r" / "results.json").read_text())["not_compared"]
    assert refused["verdict"] == "INPUTS_DIFFER"
    assert "input 'a': sha256 abababab" in refused["reason"]
    assert "rounded-reference has" in refused["reason"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ImportError("libtorch_cpu.so: failed to map segment"),
            "torch is installed, but cannot be loaded: ImportError: libtorch_cpu.so: failed",
        ),
        (
            ModuleNotFoundError("No module named 'sympy'", name="sympy"),
            "torch is installed, but cannot be loaded: ModuleNotFoundError: No module",
        ),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "needs torch, which is not installed; install your vendor's build"),
    ],
)
def test_a_torch_that_does_not_load_is_told_from_one_that_is_not_there(error, said, tmp_path, capsys, monkeypatch):
    def refuse(name, *others, real=builtins.__import__):
        if name == "torch":
            raise error
        return real(name, *others)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert run(["dump", *GEMM, "--device", "cpu", "-o", str(tmp_path / "a.h5")]) == 2
    assert said in capsys.readouterr().err


def test_memory_that_is_not_there_is_one_message(dumps, capsys, monkeypatch):
    monkeypatch.setattr(compare, "compare_dumps", lambda *_, **__: np.empty(1 << 55))
    assert run(["compare", str(dumps / "cpu.h5"), "--to", "none"]) == 2
    assert "not enough memory: Unable to allocate 256. PiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dump", "smok", "-o", "x.h5"], "unknown suite 'smok' (did you mean smoke?); allowed: "),
        (["dump", "-o", "x.h5"], "name a suite (see accuracy-eval list suites), or give at least --op and --shape"),
        (["dump", *GEMM, "--format", "bf17", "-o", "x.h5"], "unknown format 'bf17' (did you mean bf16?); allowed: "),
        (["dump", *GEMM, "--device", "tpu", "-o", "x.h5"], "unknown device 'tpu'; allowed: auto, cpu, cuda, cuda:N, model:UNIT, reference"),
        (
            ["dump", "smoke", "--op", "gemm", "--layout", "zz", "-o", "x.h5"],
            "unknown layout 'zz'; allowed: bhsd, bshd, nn, nt, sbhd, tn, tt",
        ),
        (["dump", "smoke", "--op", "cast", "--layout", "nt", "-o", "x.h5"], "suite smoke: none of its"),
        (["dump", "smoke", "--shape", "1x", "-o", "x.h5"], "shape '1x': expected sizes joined by x, such as 512x128x256"),
        (["dump", "smoke", "--recipe", "fp8", "-o", "x.h5"], "unknown recipe 'fp8' (did you mean mxfp8?); allowed: block128x128, "),
        (["compare", "nowhere.h5"], "nowhere.h5"),
        (["compare", "nowhere.h5", "--gates", "lax"], "unknown gates profile 'lax'"),
        (["dump", *GEMM, "--plugin", "nowhere.py", "-o", "x.h5"], "plugin nowhere.py: no such file"),
        (["report", "nowhere.json"], "nowhere.json"),
    ],
)
def test_a_wrong_argument_is_one_message_and_exit_code_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert not list(tmp_path.iterdir())


def test_a_flipped_byte_is_found_and_named(dumps, tmp_path, capsys):
    data = bytearray((dumps / "ref.h5").read_bytes())
    d = Dump.open(dumps / "ref.h5")
    record = d.record("gemm.m16.n8.k32.nt.float32.normal.s0")
    at = bytes(data).index(d.read(record, "d").tobytes())
    data[at + 5] ^= 1
    (tmp_path / "bad.h5").write_bytes(data)
    assert run(["compare", str(tmp_path / "bad.h5"), "--to", "none"]) == 2
    error = capsys.readouterr().err
    assert "bad.h5" in error
    assert "gemm.m16.n8.k32.nt.float32.normal.s0" in error
    assert "sha256" in error.lower()


def test_inspect_shows_suite_device_cases_and_digests(dumps, capsys):
    assert run(["inspect", str(dumps / "ref.h5"), "--verify"]) == 0
    captured = capsys.readouterr()
    assert "4 tensors, every digest matches" in captured.err
    assert captured.out.splitlines()[1].startswith("content digest ")
    assert run(["inspect", str(dumps / "cpu.h5"), "--platform"]) == 0
    assert "torch" in capsys.readouterr().out
    assert run(["inspect", str(dumps / "ref.h5"), "--case", "gemm.m16.n8.k32.nt.float32.exact.s0"]) == 0
    assert "source  a" in capsys.readouterr().out


def test_the_detail_of_an_op_is_all_that_a_case_needs(capsys):
    assert run(["list", "ops", "cross_entropy"]) == 0
    assert (
        capsys.readouterr().out
        == """\
cross_entropy: L = log Σ e^x − x[target], its mean over rows

shape        m×n
  m          rows
  n          classes
fwd          x [m, n], target [m] → loss (a scalar)
bwd          x [m, n], target [m], grad_loss (a scalar) → dx [m, n]
format       float32, float64, float16, bfloat16
lane         random
direction    fwd, bwd
input        normal and others: accuracy-eval list inputs
options      --option NAME=VALUE on the command line
  reduction  of the rows' losses; none: a loss a row (mean, sum, none; default
             "mean")
  smoothing  weight of all classes in the target; 0 up to but not 1 (float;
             default 0.0)
  ignored    the second of every four rows counts for nothing (bool; default
             false)

In a suite; keys left out have the first of the names above:

  [[cases]]
  op = "cross_entropy"
  shape = "64x1000"
  format = "bfloat16"
  options = { reduction = "mean" }

At once:

  accuracy-eval dump --op cross_entropy --shape 64x1000 --format bfloat16 -o cross_entropy.h5
"""
    )


@pytest.mark.parametrize("name", OPS)
def test_what_the_detail_of_an_op_tells_to_write_is_a_case(name, tmp_path, capsys):
    op = OPS[name]
    letters = {d for dims in op.dims for d in dims}
    assert set(op.sizes) == letters
    assert len({size.example for size in op.sizes.values()}) == len(letters)  # or shapes could not be told by their letters
    assert run(["list", "ops", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 80  # but for the command, which is one line to copy
    table = "\n".join(line.strip() for line in lines[lines.index("  [[cases]]") : lines.index("At once:")])
    (tmp_path / "mine.toml").write_text(table)
    (case,) = load_suite(str(tmp_path / "mine.toml")).cases
    command = shlex.split(lines[-1])
    assert command[:2] == ["accuracy-eval", "dump"]
    assert run([*command[1:-1], str(tmp_path / "a.h5"), "--plan", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lines"][0]["cases"] == 1
    assert case.op == name
    usual = {"attention_fp8": ("fp8_e4m3", ""), "cast": ("float32", "bfloat16")}
    assert (case.format, case.out_format) == usual.get(name, ("bfloat16", ""))


def test_options_of_an_op_are_given_on_the_command_line(tmp_path, capsys):
    def ids(*arguments):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.h5"
        assert run(["dump", *arguments, "--device", "reference", "-q", "-o", str(path)]) == 0
        return [r.id for r in Dump.open(path).records]

    one = ["--op", "gemm", "--shape", "8x8x16", "--format", "bfloat16", "--layout", "nt"]
    case = "gemm.m8.n8.k16.nt.bfloat16.{}normal.s0"
    assert ids(*one, "--option", "beta=1") == [case.format("beta=3ff0000000000000.")]  # 1.0 as a float64
    assert ids(*one, "--option", "bias=true") == [case.format("bias=true.")]
    assert ids(*one, "--option", "alpha=2.0", "--option", "alpha=1", "--option", "beta=0") == [
        case.format("alpha=4000000000000000."), case.format(""),
    ]  # fmt: skip
    attention = ["--op", "attention", "--shape", "1x2x2x16x16x8", "--layout", "bhsd", "--option", "causal=true", "--option", "window=4"]
    assert ids(*attention) == ["attention.b1.h2.g2.s16.t16.d8.bhsd.float32.causal=true.window=4.normal.s0"]
    suite = tmp_path / "s.toml"
    rows = ['op = "gemm"', 'shape = "8x8x16"', 'layout = "nt"', "options = { beta = [0.0, 1.0] }", "[[cases]]", 'op = "exp"', 'shape = "9"']
    suite.write_text("\n".join(["[[cases]]", *rows]))
    assert len(ids(str(suite))) == 3
    assert ids(str(suite), "--option", "beta=1.0") == ["gemm.m8.n8.k16.nt.float64.beta=3ff0000000000000.normal.s0"]
    capsys.readouterr()
    for wrong, said in (
        ("bta=1", "unknown option 'bta' (did you mean beta?); allowed: "),
        ("beta", "--option beta: expected NAME=VALUE"),
        ("beta=x", "--option beta=x: expected a float like 0.0"),
        ("bias=1", "--option bias=1: expected a bool like False"),
    ):
        assert run(["dump", *one, "--option", wrong, "--device", "reference", "-o", str(tmp_path / "b.h5")]) == 2
        assert said in capsys.readouterr().err


def test_a_name_outside_the_registry_has_no_detail(capsys):
    assert run(["list", "ops", "gem"]) == 2
    assert "unknown op 'gem' (did you mean gemm?)" in capsys.readouterr().err
    assert run(["list", "formats", "bfloat16"]) == 2
    assert "a name may follow ops, units, gates" in capsys.readouterr().err
    assert run(["list", "ops", "cast", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["options"]["overflow"]["allowed"] == ["auto", "saturate", "inf", "nan"]


@pytest.mark.parametrize("what", ["ops", "formats", "metrics", "gates", "contracts", "suites", "fixtures"])
def test_lists_keep_to_80_columns_and_break_no_word(what, capsys):
    assert run(["list", what, "--json"]) == 0
    words = {word for row in json.loads(capsys.readouterr().out) for value in row.values() for word in str(value).split()}
    assert run(["list", what]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert words <= {word.removesuffix(";") for word in text.split()} | set(text.split())


def test_units_are_listed_by_architecture_and_each_in_full_by_any_of_its_names(capsys):
    assert run(["list", "units", "--json"]) == 0
    every = json.loads(capsys.readouterr().out)
    assert run(["list", "units"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 60
    assert max(map(len, text.splitlines())) <= 80
    assert {word for row in every for word in (row["unit"].partition("/")[0], *row["parts"].split())} <= set(text.split())
    for name, arch in (("H200", "hopper"), ("gfx950", "cdna4"), ("cpu", "cpu")):
        mine = [row for row in every if row["unit"].startswith(f"{arch}/")]
        assert run(["list", "units", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == mine
        assert run(["list", "units", name]) == 0
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 80
        said = {word.strip(",;:") for word in text.split()}
        assert {w.strip(",;:") for row in mine for value in row.values() for w in value.replace("/", " ").split()} <= said
    assert run(["list", "units", "hopper/mma.sync"]) == 0
    text = capsys.readouterr().out
    assert "tfloat32" in text
    assert "wgmma" not in text
    assert run(["list", "units", "mi399"]) == 2
    assert "unknown unit 'mi399'" in capsys.readouterr().err


def test_the_usage_of_list_breaks_no_word(capsys):
    assert run(["list", "--help"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "Usage: accuracy-eval list [OPTIONS] [WHAT] [NAME]"


def test_an_interrupt_while_packed_parts_are_removed_says_that_the_dump_is_whole_and_the_next_one_clears_up(tmp_path, capsys, monkeypatch):
    def interrupted(folder):
        raise KeyboardInterrupt

    command = ["dump", *GEMM, "--device", "reference", "-q", "-o", str(tmp_path / "a.h5")]
    aside = tmp_path / "a.h5.parts.packed"
    with monkeypatch.context() as patch:
        patch.setattr(packing, "_remove_parts", interrupted)
        assert run(command) == 130
    parts = f"{aside} holds parts that are in it: remove it, or the next dump to {tmp_path}/a.h5 does"
    assert capsys.readouterr().err.split("\n") == [f"dump: {tmp_path}/a.h5 is whole; {parts}", "", "accuracy-eval: interrupted", ""]
    assert list(aside.iterdir())
    before = Dump.open(tmp_path / "a.h5").content_digest
    assert run(command) == 2  # it exists already
    assert not aside.exists()
    assert Dump.open(tmp_path / "a.h5").content_digest == before


def test_merge_joins_shards(tmp_path, capsys):
    for i in range(2):
        run(
            [
                "dump",
                *GEMM,
                "--lane",
                "random",
                "--lane",
                "exact",
                "--device",
                "reference",
                "--shard",
                f"{i}/2",
                "-o",
                str(tmp_path / f"{i}.h5"),
                "-q",
            ]
        )
    assert run(["merge", str(tmp_path / "0.h5"), str(tmp_path / "1.h5"), "-o", str(tmp_path / "all.h5")]) == 0
    assert "all.h5: 2 results" in capsys.readouterr().out


@pytest.mark.parametrize(
    "what", ["ops", "formats", "recipes", "contracts", "metrics", "gates", "suites", "inputs", "candidates", "devices"]
)
def test_every_list_prints_a_table_in_three_forms(what, capsys):
    assert run(["list", what]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 1
    assert run(["list", what, "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("| ")
    assert run(["list", what, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_contracts_that_name_a_format_are_listed_as_they_are_written(capsys):
    from accuracy_eval.contracts import parse_contract

    assert run(["list", "contracts", "--json"]) == 0
    listed = {row["contract"]: row for row in json.loads(capsys.readouterr().out)}
    for name, written in (("hops(FORMAT)", "hops(bfloat16)"), ("partials(FORMAT,P)", "partials(bfloat16,8)")):
        sentence = listed[name]["promise"].replace("FORMAT", "bfloat16").replace(" P ", " 8 ")
        assert parse_contract(written).sentence == sentence
        assert parse_contract(written).source == listed[name]["source"]
    assert listed["partials(FORMAT)"]["promise"].replace("FORMAT", "float16") == "partials(float16,4)"
    assert parse_contract("partials(float16)").pieces == 4


def test_python_dash_m_is_the_same_command():
    done = subprocess.run([sys.executable, "-m", "accuracy_eval", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("accuracy-eval 0.")


def test_inspect_shows_every_candidate_of_a_case_or_the_one_that_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(candidates, "_USER", {})
    plugin, out, ident = tmp_path / "mine.py", str(tmp_path / "d.h5"), "gemm.m8.n6.k16.nt.float64.normal.s0"
    plugin.write_text(
        "import accuracy_eval as ae\n"
        '@ae.candidate("gemm", name="twice")\n'
        'def twice(case, tensors):\n    return 2 * tensors["a"] @ tensors["b"].t()\n'
    )
    assert run(["dump", "--op", "gemm", "--shape", "8x6x16", "--device", "cpu", "--plugin", str(plugin), "-o", out, "-q"]) == 0
    capsys.readouterr()
    assert run(["inspect", out, "--case", ident]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines() if line.startswith(ident)] == ["default", "twice"]
    assert run(["inspect", out, "--case", ident, "--candidate", "twice"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{ident}  candidate twice  done")
    assert "candidate default" not in shown
    assert run(["inspect", out, "--case", ident, "--candidate", "thrice"]) == 2
    assert "of candidate 'thrice'; it has candidates default, twice" in capsys.readouterr().err
    assert run(["inspect", out, "--candidate", "twice"]) == 2
    assert "--candidate belongs to --case ID" in capsys.readouterr().err


def test_dumps_that_differ_in_the_seed_alone_are_said_to(tmp_path, capsys):
    for seed in ("1", "2"):
        run(["dump", *GEMM, "--format", "float32", "--seed", seed, "--device", "reference", "-o", str(tmp_path / f"s{seed}.h5"), "-q"])
    labels = ["--label", "one", "--label", "two"]
    assert run(["compare", str(tmp_path / "s1.h5"), str(tmp_path / "s2.h5"), *labels, "--to", "none"]) != 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the dumps have the same cases of other operands, by seed 1 in one, 2 in two: dump all with one --seed" in said


def test_the_demo_keeps_both_dumps_beside_its_reports_and_runs_again(tmp_path, capsys):
    for _ in range(2):
        assert run(["demo", "--device", "reference", "-o", str(tmp_path / "d"), "-q"]) == 0
        assert f"accuracy-eval explain {tmp_path / 'd' / 'h200.h5'}" in capsys.readouterr().out
    assert {p.name for p in (tmp_path / "d").glob("*.h5")} == {"h200.h5", "this-machine.h5"}
    found = {d.file for d in report.load_results(tmp_path / "d").dumps}
    assert found == {str(tmp_path / "d" / name) for name in ("h200.h5", "this-machine.h5")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["transfer", "cpu.h5"], "the destination is missing; say where to: accuracy-eval transfer cpu.h5 HOST:FOLDER/"),
        (["dump", "--op", "gemm", "--shape", "64x64"], "shape 64x64 has 2 sizes; gemm takes m×n×k"),
        (["dump", "--op", "gemm", "--shape", "8x8x8", "--layout", "NT"], "unknown gemm layout 'NT' (did you mean nt?)"),
        (["dump", "demo", "--lane", "Random"], "unknown lane 'Random' (did you mean random?)"),
    ],
)
def test_what_was_meant_is_named(arguments, message, capsys):
    assert run(arguments) == 2
    assert message in capsys.readouterr().err
