"""accuracy-eval fixtures export, verify, check."""

from __future__ import annotations

import json
from pathlib import Path

import click

from accuracy_eval.cli.selection import listed


@click.group("fixtures")
def fixtures_command() -> None:
    """Files an inference engine checks itself against: exact operands, what to compute, the result before and after rounding."""


@fixtures_command.command("export", short_help="Write fixtures: exact operands and results as files.")
@click.argument("sets", nargs=-1)
@click.option("-o", "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder; each fixture gets one in it.")
@listed("--to", "forms", metavar="FORMS", help="bin, safetensors, rust, c, cpp, python (default: bin).")
@listed(
    "--only",
    metavar="NAMES",
    help="Only these, with commas between (accuracy-eval list fixtures).",
)
@click.option("-q", "--quiet", is_flag=True, help="No summary.")
def export_command(sets: tuple[str, ...], out: Path, forms: str | None, only: str | None, quiet: bool) -> int:
    """Write the fixtures of SETS (profile, hard, quantisers; all without one).

    \b
    accuracy-eval fixtures export -o fixtures
    accuracy-eval fixtures export profile -o tests/fixtures --to bin,rust
    accuracy-eval fixtures export --only gemm_bias.w8a8.8x16x16 -o one --to c
    """
    from accuracy_eval.errors import counted, unknown
    from accuracy_eval.fixtures import export, fixtures_of

    forms = forms or "bin"
    chosen = fixtures_of(sets)
    names = _names(only or "")
    for name in names:
        if name not in {f.name for f in chosen}:
            raise unknown("fixture", name, (f.name for f in chosen), listed="fixtures")
    folders = export([f for f in chosen if not names or f.name in names], out, _names(forms))
    if not quiet:
        click.echo(f"{out}: {counted(len(folders), 'fixture')} as {forms}")
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(x.strip() for x in text.split(",") if x.strip())


@fixtures_command.command("verify", short_help="Make every fixture again and compare each byte.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def verify_command(folder: Path, as_json: bool) -> int:
    """Make every fixture in FOLDER again and compare each byte. Exits with 1 if one differs.

    \b
    accuracy-eval fixtures verify fixtures
    """
    from accuracy_eval.errors import counted
    from accuracy_eval.fixtures import verify
    from accuracy_eval.json_data import to_json

    count, drifts = verify(folder)
    if as_json:
        click.echo(json.dumps({"fixtures": count, "differences": to_json(drifts)}))
    else:
        different = len({d.fixture for d in drifts})
        click.echo("\n".join([f"{folder}: {count - different} of {counted(count, 'fixture')} as made today",
                              *(f"  {d.fixture}/{d.file} {d.what}" for d in drifts)]))  # fmt: skip
    return 1 if drifts else 0


@fixtures_command.command("check", short_help="Judge an engine's raw output against a fixture.")
@click.argument("result", type=click.Path(path_type=Path))
@click.option(
    "--fixture", required=True, type=click.Path(path_type=Path), help="The fixture's folder, manifest.json or fixture.safetensors."
)
@click.option("--output", default="", help="Which output, where a fixture has several (q, scale).")
@click.option("--format", "fmt", default="", help="float32: RESULT was not rounded to the output's format.")
@click.option("--profile", default="l3", show_default=True, help="Gates: a built-in profile or a .toml file.")
@click.option("--json", "as_json", is_flag=True, help="The whole record as JSON.")
def check_command(result: Path, fixture: Path, output: str, fmt: str, profile: str, as_json: bool) -> int:
    """Judge RESULT, an engine's raw output (.bin, .npy or .safetensors), against a fixture. Needs no torch.

    \b
    accuracy-eval fixtures check out.bin --fixture fixtures/gemm_bias.w8a8.8x16x16
    accuracy-eval fixtures check out.bin --fixture fixtures/gemm.fp8_unit.8x16x16 --format float32 --profile default
    """
    from accuracy_eval.fixtures import check_result
    from accuracy_eval.json_data import to_json
    from accuracy_eval.messages import side_message

    found = check_result(result, fixture, output=output, fmt=fmt, profile=profile)
    click.echo(json.dumps(to_json(found)) if as_json else side_message(found, found.sides[0]))
    return found.verdict.exit_code
