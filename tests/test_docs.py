"""The documentation's links lead somewhere, its commands exist, and the public API is documented."""

import inspect
import re
from pathlib import Path

import pytest

import accuracy_eval as ae
from accuracy_eval.cli import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_relative_link_leads_to_a_file(page):
    links = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_shown_exists_with_its_options(page):
    import click

    context = click.Context(cli)
    for line in re.findall(r"^\$?\s*accuracy-eval ([a-z]+)([^\n]*)", page.read_text(), re.MULTILINE):
        command = cli.get_command(context, line[0])
        assert command is not None, line
        options = {o for p in command.params for o in p.opts} | {"--help"}
        if isinstance(command, click.Group):
            options |= {o for name in command.list_commands(context) for p in command.get_command(context, name).params for o in p.opts}
        used = set(re.findall(r"(?<![\w-])(--[a-z-]+)", line[1].split("#")[0]))
        assert used <= options, (line, used - options)


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
