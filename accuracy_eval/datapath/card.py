"""The numerics card of a device: what the probes found, and which known unit answers the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from accuracy_eval.datapath.compositions import parse
from accuracy_eval.datapath.evaluation import Problem, evaluate
from accuracy_eval.datapath.expectations import EXPECTATIONS, same_answer
from accuracy_eval.datapath.probes import BLOCK_POSITIONS, INFORMATION, PROBES, Answer, Matmul, narrow, probe
from accuracy_eval.datapath.products import gemm
from accuracy_eval.datapath.trees import summation_tree
from accuracy_eval.errors import UnsupportedCase, UsageError
from accuracy_eval.formats import Codes, get_format
from accuracy_eval.json_data import to_json

TREE_LENGTH, TREE_SIDE = 64, 128  # the product whose order of additions a card draws
SPANNING = ("survivors", "rounding", "tiny_accumulator")  # questions whose terms lie in more than one block of 32
TO_NEAREST = (2, -2)
CHAIN = "fused multiply-adds in order"  # the name in the table of what is no matrix unit
NEEDED = 8  # answers that must have been compared before anything counts as a match


@dataclass(frozen=True)
class Call:
    """One way in which a device multiplies.

    matmul  codes a [m, k], b [n, k] of `format` → codes of D = A·Bᵀ [m, n] of `out`; it raises UnsupportedCase where the device refuses.
            Shapes asked for: m, n multiples of 16 up to 256, k = 64, 4096 (float16) and the lengths a caller wishes
    mode    what tells it from the device's other ways with these formats: "tf32", "slow accumulation"; "" the usual one
    """

    format: str
    out: str
    matmul: Matmul
    mode: str = ""

    @property
    def name(self) -> str:
        return f"{self.format} → {self.out}" + (f", {self.mode}" if self.mode else "")


@dataclass(frozen=True)
class FormatCard:
    """One operand format.

    format, out, mode  operands, output, and which of the device's ways (`Call.mode`)
    answers    probe name → answer (`probes.PROBES` says what each asks); None where it cannot be asked of this format
    survivors  contraction → i → units left (`probes.order_counts`)
    tree       the order in which 64 products are added, in words; why there is none where it could not be read
    deterministic  whether repeated products had the same bytes
    matches    known units that give every compared answer
    split      they do but for the order: the library cut k of the questions into pieces, so what spans two of them (survivors far apart,
               rounding and tiny accumulators) shows the join
    closest    where none does: the nearest unit, and the answers that differ: probe → (found, expected)
    """

    format: str
    out: str
    answers: Mapping[str, Any]
    survivors: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    deterministic: bool = True
    matches: tuple[str, ...] = ()
    closest: str = ""
    differs: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    mode: str = ""
    tree: str = ""
    split: bool = False

    @property
    def name(self) -> str:
        return f"{self.format} → {self.out}" + (f", {self.mode}" if self.mode else "")

    @property
    def sentence(self) -> str:
        """What the format's arithmetic is, in one line."""
        if self.matches:
            return f"matches {' = '.join(self.matches)}" + (", k in pieces that are added to nearest" if self.split else "")
        if not self.closest:
            return "unknown: nothing known takes this format"
        wrong = "; ".join(f"{name} {_show(found)}, expected {_show(expected)}" for name, (found, expected) in self.differs.items())
        return f"unknown: closest {self.closest} ({wrong})"


@dataclass(frozen=True)
class NumericsCard:
    """All formats of one device. `text` is for people, `to_json` for files.

    refused  calls that the device does not take, with its reason
    """

    device: str
    formats: tuple[FormatCard, ...]
    refused: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> Any:
        """Plain data: every field of every format, with its sentence."""
        formats = [{**to_json(c), "sentence": c.sentence} for c in self.formats]
        return {"device": self.device, "summary": self.summary, "formats": formats, "refused": dict(self.refused)}

    @property
    def summary(self) -> str:
        """The architectures that match most of the device's ways to multiply, of those that are no plain chain of fused multiply-adds."""
        chains = [c for c in self.formats if c.matches and all(m.startswith(CHAIN) for m in c.matches)]
        ways = [c for c in self.formats if c not in chains]
        also = f", {CHAIN} in {len(chains)}" if chains and ways else ""
        if not ways:
            return f"{CHAIN} in {len(chains)} of {len(chains)} ways to multiply" if chains else "nothing to multiply with"
        if not any(c.matches for c in ways):
            return f"unknown in {len(ways)} way{'s' * (len(ways) > 1)} to multiply{also}"
        found = Counter(unit for c in ways for unit in {re.split("[,/]", m)[0] for m in c.matches})
        most = max(found.values())
        names = " = ".join(name for name, count in found.items() if count == most)
        return f"matches {names} in {most} of {len(ways)} ways to multiply{also}"

    @property
    def text(self) -> str:
        """The whole card, a block per format."""
        lines = [f"numerics of {self.device or 'a device'}: {self.summary}"]
        for c in self.formats:
            lines += ["", f"{c.name}: {c.sentence}"]
            width = max(len(name) for name in PROBES)
            lines += [f"  {name:<{width}}  {_show(value)}" for name, value in c.answers.items() if value is not None]
            for k, counts in c.survivors.items():
                label = f"survivors at k = {k}"
                lines.append(f"  {label:<{width}}  {', '.join(f'{i}: {n}' for i, n in counts.items())}")
            if c.tree:
                label = f"additions at k = {TREE_LENGTH}"
                lines.append(f"  {label:<{width}}  {c.tree}")
            if not c.deterministic:
                lines.append("  repeated products differ: the order of operations is not fixed")
        if self.refused:
            lines += ["", "not probed:", *(f"  {name}: {reason}" for name, reason in self.refused.items())]
        return "\n".join(lines)


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(_show, value)) if isinstance(value, tuple | list) else str(value)


def numerics_card(
    calls: Sequence[Call], *, device: str = "", lengths: Sequence[int] = (256, 1024), repeats: int = 3, long: bool = True
) -> NumericsCard:
    """Probe a device and compare what it says with every unit known.

    lengths  further contractions at which the order of additions is recorded; libraries change kernels with the shape
    repeats  how often the first product is made, to see whether bytes repeat
    long     ask the question about float16 accumulation, which needs k = 4096
    """
    cards: list[FormatCard] = []
    refused: dict[str, str] = {}
    for call in calls:
        try:
            card = format_card(call.matmul, call.format, call.out, lengths=lengths, repeats=repeats, long=long)
        except UnsupportedCase as error:
            refused[call.name] = str(error)
        else:
            cards.append(replace(card, mode=call.mode, tree=_tree(call)))
    return NumericsCard(device, tuple(cards), refused)


def _tree(call: Call) -> str:
    try:
        tree = summation_tree(call.matmul, call.format, call.out, TREE_LENGTH, m=TREE_SIDE, n=TREE_SIDE)
    except UsageError as error:
        return f"not read: {error}"
    return tree.outline() + ("" if tree.uniform else "; not the same in every element")


def format_card(matmul: Matmul, fmt: str, out: str, *, lengths: Sequence[int] = (), repeats: int = 1, long: bool = True) -> FormatCard:
    """The card of one operand format."""
    f, o = get_format(fmt), get_format(out)
    found = probe(matmul, f, o, lengths=lengths, repeats=repeats, long=long)
    survivors = {str(k): {str(i): n for i, n in v.items()} for k, v in found.survivors.items() if k in lengths}
    matches: list[str] = []
    best: str = ""
    fewest: dict[str, tuple[Answer, Answer]] = {}
    for name, expected in _known(f.name, o.name):
        answers = {k: v for k, v in expected.items() if k not in INFORMATION and found.answers.get(k) is not None}
        wrong = {k: (found.answers[k], v) for k, v in answers.items() if not same_answer(found.answers[k], v)}
        if not wrong and len(answers) >= NEEDED:
            matches.append(name)
        if not best or len(wrong) < len(fewest):
            best, fewest = name, wrong
    split = not matches
    if split:
        matches = [name for name, expected in _known(f.name, o.name) if _matches_split(found.answers, expected)]
    if matches:
        best, fewest = "", {}
    return FormatCard(
        f.name,
        o.name,
        found.answers,
        survivors,
        found.deterministic,
        tuple(dict.fromkeys(matches)),
        best,
        fewest,
        split=split and bool(matches),
    )


def _matches_split(found: Mapping[str, Answer], expected: Mapping[str, Answer]) -> bool:
    """Whether a device gives a unit's answers where one piece of k holds the question, and those of a join to nearest where two do."""
    near = BLOCK_POSITIONS.index(4) + 1
    survivors = found["survivors"], expected["survivors"]
    if not all(isinstance(s, tuple) for s in survivors) or survivors[0][:near] != survivors[1][:near]:  # type: ignore[index]
        return False
    joined = found["survivors"] != expected["survivors"] and found["rounding"] in (expected["rounding"], TO_NEAREST)
    asked = [k for k, v in expected.items() if k not in (*INFORMATION, *SPANNING) and found.get(k) is not None]
    return joined and len(asked) >= NEEDED - 2 and all(same_answer(found[k], expected[k]) for k in asked)


@cache
def _known(fmt: str, out: str) -> tuple[tuple[str, dict[str, Answer]], ...]:
    """(name, expected answers) of everything that takes the format; answers an output of that width cannot show are left out."""
    rows = [(e.name, e.answers(fmt)) for e in EXPECTATIONS if fmt in e.formats and e.out in ("", out)]
    if narrow(get_format(out)):
        rows = [(name, {k: v for k, v in known.items() if k != "wide_exponents" or out == "bfloat16"}) for name, known in rows]
    return tuple(rows)


def model_matmul(model: str, fmt: str, out: str = "float32") -> Matmul:
    """A model as a device: `model` names a unit ("hopper", "hopper/mma.sync") or is a composition ("tf32rne T8.25.23 fwd c64 seq")."""
    try:
        composition = parse(model)
    except UsageError:
        composition = None
    if composition is not None:
        whole = composition

        def composed(a: Codes, b: Codes) -> Codes:
            return evaluate(whole, Problem(a, b, fmt, fmt))

        return composed

    def unit(a: Codes, b: Codes) -> Codes:
        return gemm(model, a, b, format=fmt, out=out)

    return unit
