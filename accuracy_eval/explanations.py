"""Explanations in a comparison: notes on sides and pairs, and the lines that sum them up. No verdict depends on one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from accuracy_eval.datapath import Explanation
from accuracy_eval.diagnose import named
from accuracy_eval.errors import counted
from accuracy_eval.formats import get_format
from accuracy_eval.messages import USUAL_CANDIDATES
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Case, Diagnosis, TensorResult

Why = Mapping[str, Sequence[Explanation]]  # dump label → explanations of an output's products


def with_explanations(result: TensorResult, why: Why) -> TensorResult:
    """The result with a note on every explained side, and on every pair of which both sides are reproduced; verdicts stand."""
    sides = tuple(replace(s, diagnoses=(*s.diagnoses, diagnosis(why[s.label]))) if why.get(s.label) else s for s in result.sides)
    pairs = tuple(replace(p, diagnoses=(*p.diagnoses, *_of_pair(why, p.a, p.b))) for p in result.pairs)
    return replace(result, sides=sides, pairs=pairs)


def _of_pair(why: Why, a: str, b: str) -> tuple[Diagnosis, ...]:
    found = [*why.get(a, ()), *why.get(b, ())]
    if not why.get(a) or not why.get(b) or any(e.status == "unexplained" for e in found):
        return ()
    x, y = (_descriptions(why[label]) for label in (a, b))
    if all(e.identified for e in found):
        said = f"both sides identified: they differ by arithmetic only ({a} {x}; {b} {y})" if x != y else f"both sides identified: {x}"
    else:
        said = f"both sides are bit for bit what known arithmetic gives, too few elements tell which ({a} {x}; {b} {y})"
    return (named("explained-by-datapath", {"identified": all(e.identified for e in found)}, what=said),)


OPEN = "consistent, not identified"
EXACT = "exact arithmetic rounded once, nothing to explain"
NOTATION = "docs/datapath.md says how to read compositions"
STATUS_WORDS = {
    "identified": "explained (arithmetic only)",
    OPEN: OPEN,
    "unexplained": "not explained",
}


def explanations_text(tensors: Iterable[TensorResult], exact: Collection[str] = (), narrow: Collection[str] = ()) -> list[str]:
    """One line a dump: how many outputs are explained; one line a pair of which both sides are; none where no product was asked about.

    exact   labels of dumps that hold exact results rounded once
    narrow  labels of dumps whose device gives no float32 of 16-bit operands (`gives_no_wider`)
    """
    found: dict[str, Counter[str]] = {}
    still_open: list[tuple[Case, str]] = []
    for t in tensors:
        for s in t.sides:
            for d in s.diagnoses:
                if d.code in ("explained-by-datapath", "not-explained"):
                    found.setdefault(s.label, Counter())[d.evidence["status"]] += 1
                    asks = d.evidence["status"] == OPEN and s.label not in exact and not (s.label in narrow and t.candidate == "default")
                    still_open += [(t.case, t.candidate)] if asks else []
        for p in t.pairs:
            for d in p.diagnoses:
                if d.code == "explained-by-datapath" and not {p.a, p.b} & set(exact):
                    status = "identified" if d.evidence["identified"] else OPEN
                    found.setdefault(f"{p.a} against {p.b}, both sides", Counter())[status] += 1
    lines = [f"{name}: {_counted(counts) if name not in exact else EXACT}" for name, counts in found.items()]
    return [*lines, *filter(None, [wider_output(still_open)]), NOTATION] if lines else []


def gives_no_wider(platform: Mapping[str, Any]) -> bool:
    """Whether the framework's own products give no float32 of 16-bit operands there."""
    return platform.get("backend") == "torch" and platform.get("device") == "cpu"


def wider_output(products: Iterable[tuple[Case, str]]) -> str:
    """What tells more of products (case, candidate) whose order stays open: the same in float32, where they were stored in 16 bits; ""
    without such."""
    narrow = [(c, candidate) for c, candidate in dict.fromkeys(products) if _gives_16_bits(c)]
    if not narrow:
        return ""
    c, candidate = narrow[0]
    given = {"op": c.op, "shape": "x".join(str(n) for _, n in c.shape), "layout": c.layout, "format": c.format, "recipe": c.recipe}
    name, *states = candidate.split("+")
    if candidate != "default":
        given |= {"candidate": name, "state": ",".join(states)}
    words = " ".join(f"--{key} {value}" for key, value in given.items() if value)
    if name not in USUAL_CANDIDATES:
        words += " (and --plugin FILE where a file registers it)"
    stored = (
        f"{counted(len(narrow), 'case')} of these {'is' if len(narrow) == 1 else 'are'} stored in 16 bits, whose rounding hides the order"
    )
    command = f"accuracy-eval dump {words} --out-format float32 -o wide.h5, then accuracy-eval explain wide.h5"
    return f"{stored}; a float32 output shows it, for example: {command}"


def _gives_16_bits(case: Case) -> bool:
    spec = get_op(case.op)
    return case.direction == "fwd" and "float32" in spec.out_formats and get_format(spec.outputs(case, "ocp")[0].format).bits == 16


def _counted(counts: Counter[str]) -> str:
    first, *others = [(counts[status], words) for status, words in STATUS_WORDS.items() if counts[status]]
    said = [f"{first[0]} product{'' if first[0] == 1 else 's'} {first[1]}", *(f"{n} {words}" for n, words in others)]
    return "; ".join(said)


def diagnosis(found: Sequence[Explanation]) -> Diagnosis:
    """What the explanations of an output's products say together: the least of them decides."""
    least = min(found, key=lambda e: (("unexplained", OPEN, "identified").index(e.status), e.fraction))
    evidence = {
        "status": least.status, "composition": _descriptions(found), "fraction": least.fraction, "evidence": sum(e.evidence for e in found),
        "ties": list(least.ties), "tried": sum(e.tried for e in found), "best_loser": least.best_loser,
        "best_loser_fraction": least.best_loser_fraction,
    }  # fmt: skip
    return named("not-explained" if least.status == "unexplained" else "explained-by-datapath", evidence, what=_said(least))


def _said(found: Explanation) -> str:
    """The explanation in words; of one that failed no more than a reader needs, what came nearest is in the evidence."""
    if found.status != "unexplained":
        return str(found)
    left_out = f"; with {found.without[0]} left out every element is {found.without[1]}" if found.without else ""
    return f"no known order of operations gives these bits{left_out}"


def _descriptions(found: Iterable[Explanation]) -> str:
    return " | ".join(dict.fromkeys(e.description for e in found))
