"""The documentation's links lead somewhere, its commands exist, and the public API is documented."""

import contextlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import accuracy_eval as ae
from accuracy_eval.cli import cli, run
from accuracy_eval.fixtures import OPERATIONS, QUANTISATIONS
from accuracy_eval.ops.registry import OPS
from accuracy_eval.store import Dump

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_relative_link_leads_to_a_file(page):
    links = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def parse(line):
    """Parse a command line as the program does, running nothing; what is said after it (a remark, a pipe) is left out."""
    text = re.split(r"\s(?:#|\||>|>>|&&|;)\s?|\s{3,}", line)[0]
    command, words = cli, shlex.split(re.sub(r"\$\w+", "0", text))[1:]
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(click.Context(command), name)
        assert found is not None, line
        command = found
    with contextlib.suppress(click.exceptions.Exit):  # --help, --version
        command.make_context(command.name, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_shown_is_one_that_the_program_takes(page):
    text = page.read_text()
    lines = re.findall(r"^\s*(?:\$ )?(accuracy-eval [a-z].*)$", text, re.MULTILINE)
    for line in lines:
        if "…" not in line:
            parse(line)
    for line in re.findall(r"`(accuracy-eval [a-z][^`…]*)`", text):
        with contextlib.suppress(click.MissingParameter):  # a command's name alone
            parse(line.replace("\n", " "))


def leaves(command, path):
    """Every command that runs something, with the words that lead to it."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        yield from leaves(command.get_command(context, name), [*path, name])


@pytest.mark.parametrize(("path", "command"), [pytest.param(p, c, id=" ".join(p)) for p, c in leaves(cli, [])])
def test_the_help_of_every_command_has_examples_that_the_program_takes(path, command):
    lines = [line.strip() for line in command.get_help(click.Context(command)).splitlines()]
    shown = [line for line in lines if line.startswith("accuracy-eval ")]
    assert any(line.startswith(" ".join(["accuracy-eval", *path])) for line in shown)
    for line in shown:
        parse(line)


def sessions(page: str) -> list[list[str]]:
    """Commands of a page's ```console blocks, in order."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    return [shlex.split(line[2:], comments=True) for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.parametrize("page", ["index.md", "flow.md", "scale.md"])
def test_the_commands_of_a_walk_through_work_one_after_the_other(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = sessions(page)
    assert len(commands) > 1
    for program, *arguments in commands:
        assert program == "accuracy-eval"
        assert run(arguments) == 0, (arguments, capsys.readouterr())


def test_the_kernel_of_the_page_on_candidates_runs_as_the_page_says(tmp_path):
    page = (ROOT / "docs" / "candidates.md").read_text()
    code, commands = re.search(r"```python\n(# my_kernels\.py\n.*?)```\n\n```\n(.*?)```", page, re.DOTALL).groups()
    (tmp_path / "my_kernels.py").write_text(code)
    dumped, judged = ([sys.executable, "-m", "accuracy_eval", *shlex.split(c, comments=True)[1:]] for c in commands.splitlines())
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    made = subprocess.run([*dumped, "--device", "cpu"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    assert ", 0 errors on " in made.stdout
    mine = [r for r in Dump.open(tmp_path / "mine.h5").records if r.candidate == "mine"]
    assert {r.case.format for r in mine if r.status == "done"} == {"float64", "float32", "float16", "bfloat16"}
    assert any(r.case.option("bias", False) for r in mine if r.status == "done")
    verdict = subprocess.run(judged, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert verdict.returncode == 0, verdict.stdout


def test_the_python_page_names_every_public_object():
    named = set(re.findall(r"^::: accuracy_eval\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE))
    assert named == {n for n in ae.__all__ if n not in ("__version__", "datapath")}


@pytest.mark.parametrize("name", ae.__all__)
def test_every_public_name_has_a_docstring(name):
    found = getattr(ae, name)
    if name == "__version__":
        assert re.fullmatch(r"\d+\.\d+\.\d+", found)
        return
    text = inspect.getdoc(found)
    assert text
    if inspect.isfunction(found) and found.__module__ != "accuracy_eval.backends.candidates":
        assert "Error" in text or "raises" in text.lower(), f"{name}: the docstring names no error"


def test_every_test_file_named_in_the_coverage_page_exists():
    page = (ROOT / "docs" / "coverage.md").read_text()
    files = set(re.findall(r"`(test_\w+\.py)", page))
    assert len(files) > 15
    assert {f for f in files if not (ROOT / "tests" / f).exists()} == set()
    for file, name in re.findall(r"`(test_\w+\.py)::(test_\w+)`", page):
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), (file, name)


def test_the_table_of_ops_in_the_readme_names_every_op_once():
    text = (ROOT / "README.md").read_text()
    table = text.split("| op | family | equation |\n|---|---|---|\n")[1].split("\n\n")[0]
    names = [name for line in table.splitlines() for name in line.split("|")[1].strip().split(", ")]
    assert sorted(names) == sorted(OPS)


def test_the_table_of_fixtures_names_every_operation_and_quantisation_once():
    text = (ROOT / "docs" / "fixtures.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if re.match(r"\| `(gemm|none|fp8|w8a8|nvfp4)", line)]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted([*OPERATIONS, *QUANTISATIONS])
