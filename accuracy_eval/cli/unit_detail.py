"""`accuracy-eval list units`: matrix units by architecture, and with a NAME every instruction of one."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from accuracy_eval.cli.tables import table, wrapped
from accuracy_eval.datapath.units import CERTAINTIES, UNITS, Unit, architectures
from accuracy_eval.parts import PARTS


def parts(arch: str) -> str:
    """Every name of a part with that unit."""
    return " ".join(name for p in PARTS.values() if p.unit == arch for name in (p.arch, *p.names))


def overview(width: int) -> str:
    """A row an architecture."""
    rows = []
    for arch in architectures():
        units = [u for u in UNITS if u.arch == arch]
        rows.append([arch, _listed(u.instruction for u in units), _listed(u.certainty for u in units), parts(arch)])
    return "\n".join(table(["unit", "instructions", "certainty", "parts"], rows, width))


def detail(units: Sequence[Unit], width: int) -> str:
    """The rows of one architecture, each with what it multiplies and how sure its rule is; what the words mean and the sources below."""
    (arch,) = {u.arch for u in units}
    rows = [[u.instruction, _operands(u), str(u.rule or "–"), u.out or "–", u.certainty] for u in units]
    sources: dict[str, list[str]] = {}
    for u in units:
        sources.setdefault(u.source, []).append(u.instruction)
    meanings = [(c, CERTAINTIES[c]) for c in dict.fromkeys(u.certainty for u in units)]
    notes = [("rule", "docs/datapath.md says how to read it"), *meanings, *((_listed(of), source) for source, of in sources.items())]
    title = textwrap.wrap(f"{arch}: {parts(arch)}" if parts(arch) else arch, width, subsequent_indent="  ")
    head = ["instruction", "formats", "rule", "accumulator", "certainty"]
    return "\n".join([*title, "", *table(head, rows, width), "", *wrapped(notes, width)])


def _operands(unit: Unit) -> str:
    scales = (f"scales {name} of {count}" for name, count in unit.scales)
    return ", ".join((*unit.formats, *scales))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
