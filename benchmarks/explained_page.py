"""Tables of docs/explained-h200.md from what explanations printed.

    python benchmarks/explained_page.py rows PAGE OUTPUT…
    python benchmarks/explained_page.py families NAME=JSON…

`rows` puts the lines that `h200_explain.py` printed into the table of PAGE, in place of rows of the same family and shape, and says what
PAGE then counts. `families` prints the table of whole dumps, each given as what `accuracy-eval explain DUMP --json` printed.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from accuracy_eval.cases import parse_case

STATUSES = ("identified", "consistent, not identified", "unexplained")
LINE = re.compile(rf"^(\S+) (\S+?)\s+({'|'.join(STATUSES)})\s+([\d.]+)\s+(\d+)\s+(\d+)\s+(\d+)\s+[\d.]+\s\s(.*)$")
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|")


def printed_rows(outputs: Iterable[str]) -> dict[tuple[str, str], str]:
    """Rows of the page by family and shape, from lines that `h200_explain.py` printed."""
    rows = {}
    for line in (line for text in outputs for line in text.splitlines()):
        if match := LINE.match(line.rstrip()):
            family, shape, *columns, composition = match.groups()
            shape = shape.replace("x", "×")
            composition = composition.replace(" (exact result rounded once)", "")
            rows[family, shape] = f"| {family} | {shape} | {' | '.join(columns)} | `{composition}` |"
    return rows


def with_rows(page: str, rows: dict[tuple[str, str], str]) -> str:
    """The page with those rows in place of its own."""
    lines = page.splitlines()
    found = [ROW.match(line) for line in lines]
    return "\n".join(rows.get((m[1], m[2]), line) if m else line for m, line in zip(found, lines, strict=True)) + "\n"


def counted(page: str) -> Counter[str]:
    """How many rows of the page have each status."""
    return Counter(m[3] for m in map(ROW.match, page.splitlines()) if m and m[3] in STATUSES)


def family(item: dict[str, Any]) -> tuple[str, str, str]:
    """What was multiplied, how its operands were quantised, and by which candidate."""
    case = parse_case(item["case_id"])
    return f"{case.op} {case.format}{', gradients' if case.direction == 'bwd' else ''}", case.recipe or "–", item["candidate"]


def families(dumps: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown: dump and family, how many products have each status, and the compositions without their cast."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for name, items in dumps.items():
        for item in items:
            groups[name, *family(item)].append(item["explanation"])
    head = ["dump", "products", "recipe", "candidate", *STATUSES, "compositions"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for key, found in groups.items():
        status = Counter(e["status"] for e in found)
        said = Counter(e["description"].partition(" >")[0] for e in found)
        compositions = ", ".join(f"`{text}`{f' {n}' if len(said) > 1 else ''}" for text, n in said.most_common())
        lines.append(f"| {' | '.join(key)} | {' | '.join(str(status[s]) for s in STATUSES)} | {compositions} |")
    return "\n".join(lines)


def main(what: str, *arguments: str) -> int:
    if what == "rows":
        page, *outputs = map(Path, arguments)
        page.write_text(with_rows(page.read_text(), printed_rows(o.read_text() for o in outputs)))
        print(dict(counted(page.read_text())))
    elif what == "families":
        dumps = (a.partition("=") for a in arguments)
        print(families({name: json.loads(Path(path).read_text()) for name, _, path in dumps}))
    else:
        sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 2 else __doc__)
