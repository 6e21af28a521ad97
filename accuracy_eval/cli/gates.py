"""accuracy-eval gates prove."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from accuracy_eval.prove import Cell, Proof


@click.group("gates")
def gates_command() -> None:
    """What the limits catch, shown instead of said."""


@gates_command.command("prove", short_help="Judge mutated GEMM results and print what caught each.")
@click.option("--profile", "profiles", multiple=True, metavar="NAME", help="Built-in profile or .toml file (repeatable; all: every one).")
@click.option("--input", "input_class", default="normal", show_default=True, help="Input class of the operands.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def prove_command(profiles: tuple[str, ...], input_class: str, as_json: bool) -> int:
    """Judge mutated GEMM results (K = 64 and 8192; float32, bfloat16, e4m3, MX and NVFP4 operands) and print what caught each.

    \b
    accuracy-eval gates prove
    accuracy-eval gates prove --profile turbo --profile mine.toml
    Exit code 1: a built-in gate misses what it claims to catch, or fails a healthy result it claims to pass.
    """
    from accuracy_eval.errors import unknown
    from accuracy_eval.gates import builtin_profiles
    from accuracy_eval.inputs import INPUT_CLASSES
    from accuracy_eval.json_data import to_json
    from accuracy_eval.prove import prove_all

    if input_class not in INPUT_CLASSES:
        raise unknown("input class", input_class, INPUT_CLASSES, listed="inputs")
    names = list(builtin_profiles()) if "all" in profiles else list(profiles) or ["default"]
    proofs = prove_all(names, input_class=input_class)
    click.echo(json.dumps(to_json(proofs)) if as_json else "\n\n".join(map(proof_text, proofs)))
    return 1 if any(p.broken for p in proofs) else 0


def proof_text(proof: Proof) -> str:
    """The detection table of a profile, notes on what was not caught, gates that cannot fail, and broken claims."""
    from accuracy_eval.errors import counted

    notes: list[str] = []
    names = list(dict.fromkeys(c.column for c in proof.cells))
    rows = [["", *(f"{name} operands" for name in names)]]
    rows.append(["(nothing changed)", *(_healthy([c for c in proof.healthy if c.column == name]) for name in names)])
    for mutation in dict.fromkeys(c.mutation for c in proof.cells):
        of = [[c for c in proof.cells if (c.mutation, c.column) == (mutation, name)] for name in names]
        rows.append([mutation, *(_entry(cells, notes) for cells in of)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [f"profile {proof.profile}: what caught each mutation of D = A·Bᵀ; a number before a colon is the K it holds for"]
    lines += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += [f"  [{number}] {text}" for number, text in enumerate(notes, 1)]
    lines += [f"  gate {gate} cannot fail: no mutation breaks it on {where}" for gate, where in _blunt(proof).items()]
    lines += [f"  BROKEN CLAIM: {text}" for text in proof.broken]
    caught, seen = (sum(c.status in s for c in proof.cells) for s in (("caught",), ("caught", "missed")))
    lines.append(f"  {caught} of {seen} results that differ were caught; {counted(len(proof.broken), 'claim')} broken")
    return "\n".join(lines)


def _by_k(cells: list[Cell]) -> dict[int, list[Cell]]:
    found: dict[int, list[Cell]] = {}
    for c in cells:
        found.setdefault(c.k, []).append(c)
    return found


def _joined(texts: dict[int, str]) -> str:
    """One text where it holds for every K, else each with its K."""
    return next(iter(texts.values())) if len(set(texts.values())) == 1 else "; ".join(f"{k}: {text}" for k, text in texts.items())


def _healthy(cells: list[Cell]) -> str:
    failed = {k: list(dict.fromkeys(name for c in here for name in c.by)) for k, here in _by_k(cells).items()}
    return _joined({k: f"FAILS {', '.join(by)}" if by else "passes" for k, by in failed.items()})


def _entry(cells: list[Cell], notes: list[str]) -> str:
    """One cell of the table: every K and lane of a mutation and a column. What was not caught gets one note."""
    from accuracy_eval.prove import telling

    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for k, lanes in _by_k(cells).items():
        by = list(dict.fromkeys(name for c in lanes for name in telling(c.by)))
        missed = [c for c in lanes if c.status == "missed"]
        rest = next((c for c in lanes if c.status == "same"), lanes[0])
        if by:
            texts[k] = ", ".join(by) + (f" ({', '.join(c.lane for c in lanes if c.by)} lane only)" if missed else "")
        else:
            texts[k] = "MISSED" if missed else {"n/a": "-"}.get(rest.status, rest.status)
            if texts[k] != "-":
                reasons[k] = missed[0].reason if missed else rest.reason
    if not reasons:
        return _joined(texts)
    reason = _joined(reasons)
    if reason not in notes:
        notes.append(reason)
    return f"{_joined(texts)} [{notes.index(reason) + 1}]"


def _blunt(proof: Proof) -> dict[str, str]:
    """Gates that cannot fail, and on what."""
    places: dict[tuple[str, str, str], list[str]] = {}
    for gate, column, k, lane in proof.cannot_fail:
        places.setdefault((gate, column, lane), []).append(str(k))
    found: dict[str, list[str]] = {}
    for (gate, column, lane), ks in places.items():
        found.setdefault(gate, []).append(f"{column} K = {', '.join(ks)} ({lane} lane)")
    return {gate: "; ".join(texts) for gate, texts in found.items()}
