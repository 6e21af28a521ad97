"""accuracy-eval list."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from accuracy_eval.cli.tables import table, terminal_width

Table = list[dict[str, Any]]


def _ops() -> Table:
    from accuracy_eval.ops.registry import OPS

    return [
        {"op": o.name, "sizes": " or ".join("×".join(d) for d in o.dims), "directions": ", ".join(o.directions), "family": o.family,
         "equation": o.equation}
        for o in OPS.values()
    ]  # fmt: skip


def _formats() -> Table:
    from accuracy_eval.formats import FORMATS

    return [
        {"format": f.name, "family": f.family, "bits": f.bits, "exponent": f.exponent_bits, "fraction": f.fraction_bits, "bias": f.bias,
         "max": f"{f.max:g}", "smallest": f"{f.smallest_subnormal:g}", "specials": f.specials, "overflow": f.overflow}
        for f in FORMATS.values()
    ]  # fmt: skip


def _suites() -> Table:
    from accuracy_eval.suite import builtin_suites, load_suite

    return [{"suite": n, "cases": len(load_suite(n, huge=True).cases), "description": text} for n, text in builtin_suites().items()]


def _metrics() -> Table:
    from accuracy_eval.metrics.registry import KNOWN

    return [{"metric": m.name, "unit": m.unit, "better": m.better, "definition": m.definition} for m in KNOWN.values()]


def _gates(profile: str | None = None) -> Table:
    """Every gate of every profile, or of the one named, by its name or its file."""
    from accuracy_eval.gates import builtin_profiles, load_profile

    rows = []
    for name in builtin_profiles() if profile is None else (profile,):
        for g in load_profile(name).info():
            rows.append(
                {
                    "profile": name,
                    "gate": g.gate,
                    "limit": f"{g.metric} {g.comparison} {g.limit}",
                    "applies to": g.applies_to,
                    "source": g.source,
                }
            )
    return rows


def _contracts() -> Table:
    from accuracy_eval.contracts import CONTRACTS, FAMILIES

    rows = [(c.name, c.sentence, c.source) for c in CONTRACTS.values()] + [(f.name, f.sentence, f.source) for f in FAMILIES]
    return [{"contract": name, "promise": sentence, "source": source} for name, sentence, source in rows]


def _recipes() -> Table:
    from accuracy_eval.quantize import RECIPES

    return [{"recipe": r.name, "granularity": str(r.granularity), "rule": r.rule, "element": r.element} for r in RECIPES.values()]


def _inputs() -> Table:
    from accuracy_eval.inputs import INPUT_CLASSES

    return [{"input": name, "description": c.sentence} for name, c in INPUT_CLASSES.items()]


def _candidates() -> Table:
    from accuracy_eval.backends.candidates import registered
    from accuracy_eval.ops.registry import OPS

    return [{"op": op, "candidates": ", ".join(c.name for c in registered(op))} for op in OPS]


def _devices() -> Table:
    from accuracy_eval.backends.torch_device import import_torch
    from accuracy_eval.errors import MissingDependency

    rows: Table = [
        {"device": "reference", "name": "float64 truth, numpy"},
        {"device": "model:UNIT", "name": "model of a matrix unit: accuracy-eval list units"},
    ]
    try:
        torch = import_torch()
    except MissingDependency as error:
        return [*rows, {"device": "cpu, cuda", "name": str(error)}]
    rows.append({"device": "cpu", "name": f"torch {torch.__version__}"})
    if torch.cuda.is_available():
        rows += [{"device": f"cuda:{i}", "name": torch.cuda.get_device_name(i)} for i in range(torch.cuda.device_count())]
    return rows


def _units(name: str | None = None) -> Table:
    """Every instruction of every unit, or of the one named."""
    from accuracy_eval.cli.unit_detail import parts
    from accuracy_eval.datapath.units import UNITS, units_of

    return [
        {"unit": u.name, "formats": ", ".join(u.formats), "rule": str(u.rule or "–"), "accumulator": u.out, "certainty": u.certainty,
         "source": u.source, "parts": parts(u.arch)}
        for u in (UNITS if name is None else units_of(name))
    ]  # fmt: skip


def _fixtures() -> Table:
    from accuracy_eval.fixtures import SETS

    return [{"fixture": f.name, "set": name, "computes": f.equation} for name, (_, rows) in SETS.items() for f in rows]


_TABLES: dict[str, Callable[[], Table]] = {
    "ops": _ops, "formats": _formats, "recipes": _recipes, "contracts": _contracts, "metrics": _metrics, "gates": _gates,
    "suites": _suites, "inputs": _inputs, "candidates": _candidates, "devices": _devices,
    "units": _units, "fixtures": _fixtures,
}  # fmt: skip


@click.command("list")
@click.argument("what", metavar="[WHAT]", type=click.Choice(list(_TABLES)), default="ops")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--suite", help="The case ids of this suite instead.")
@click.option("--markdown", is_flag=True, help="As a Markdown table.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--plugin", "plugins", multiple=True, type=click.Path(), help="Python file that registers candidates.")
def list_command(what: str, name: str | None, suite: str | None, markdown: bool, as_json: bool, plugins: tuple[str, ...]) -> int:
    """Print a table of WHAT there is, one row a registered thing: ops, formats, recipes, contracts, metrics, gates, suites, inputs,
    candidates, devices, units or fixtures. With the NAME of an op, all that a case of it may be; with that of a unit or a part, all its
    instructions; with that of a gates profile, or its file, the gates of this one.

    \b
    accuracy-eval list suites
    accuracy-eval list ops gemm             sizes, operands, formats, options
    accuracy-eval list units MI300X         instructions, formats, how each adds, and how sure that is
    accuracy-eval list gates mine.toml      a profile of your own (docs/gates.md), as compare --gates reads it
    accuracy-eval list --suite smoke
    accuracy-eval list ops --markdown
    """
    for plugin in plugins:
        from accuracy_eval.backends.candidates import load_plugin

        load_plugin(plugin)
    if suite:
        from accuracy_eval.cases import case_id
        from accuracy_eval.suite import load_suite

        ids = [case_id(c) for c in load_suite(suite, huge=True).cases]
        click.echo(json.dumps(ids) if as_json else "\n".join(ids))
        return 0
    if name is not None and what not in _DETAILS:
        from accuracy_eval.errors import UsageError

        raise UsageError(f"list {what} {name}: a name may follow {', '.join(_DETAILS)}; the table of {what} says all there is")
    if what == "ops" and name is not None:
        _show_op(name, as_json)
        return 0
    rows = _NARROWED[what](name) if what in _NARROWED else _TABLES[what]()
    if as_json or markdown:
        click.echo(json.dumps(rows) if as_json else _markdown(rows))
        return 0
    click.echo(_units_text(name) if what == "units" else _plain(rows))
    if name is None and what in _DETAILS:
        click.echo(f"\nall about one: accuracy-eval list {what} {_DETAILS[what]}")
    return 0


# tables that a name narrows or of which a row has more to it, and how one is named
_DETAILS = {"ops": "NAME", "units": "NAME (H200, gfx942, hopper/mma.sync)", "gates": "NAME (default, mine.toml)"}
_NARROWED: dict[str, Callable[[str | None], Table]] = {"units": _units, "gates": _gates}


def _show_op(name: str, as_json: bool) -> None:
    from accuracy_eval.cli.op_detail import op_detail, text
    from accuracy_eval.json_data import to_json
    from accuracy_eval.ops.registry import get_op

    detail = op_detail(get_op(name))
    click.echo(json.dumps(to_json(detail)) if as_json else text(detail, terminal_width()))


def _units_text(name: str | None) -> str:
    from accuracy_eval.cli.unit_detail import detail, overview
    from accuracy_eval.datapath.units import units_of

    return overview(terminal_width()) if name is None else detail(units_of(name), terminal_width())


def _markdown(rows: Table) -> str:
    head = list(rows[0])
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(['---'] * len(head))}|"]
    return "\n".join([*lines, *(f"| {' | '.join(str(r[h]).replace('|', chr(92) + '|') for h in head)} |" for r in rows)])


def _plain(rows: Table) -> str:
    head = list(rows[0])
    return "\n".join(table(head, [[str(r[h]) for h in head] for r in rows], terminal_width()))
