"""The numerics card of a device: what the probes found, and which known unit answers the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from accuracy_eval.datapath.compositions import parse
from accuracy_eval.datapath.evaluation import Problem, evaluate
from accuracy_eval.datapath.expectations import EXPECTATIONS, same_answer
from accuracy_eval.datapath.probes import INFORMATION, PROBES, Answer, Matmul, narrow, probe
from accuracy_eval.datapath.products import gemm
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, get_format
from accuracy_eval.records import to_json

DERIVED = ("rdna3/wmma", "rdna4/wmma", "rdna4/wmma.w64")  # units whose expected answers come from their models, checked on silicon
NEEDED = 8  # answers that must have been compared before anything counts as a match


@dataclass(frozen=True)
class FormatCard:
    """One operand format.

    format, out  operands and output
    answers    probe name → answer (`probes.PROBES` says what each asks); None where it cannot be asked of this format
    survivors  contraction → i → units left (`probes.order_counts`)
    deterministic  whether repeated products had the same bytes
    matches    known units that give every compared answer
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

    @property
    def sentence(self) -> str:
        """What the format's arithmetic is, in one line."""
        if self.matches:
            return f"matches {' = '.join(self.matches)}"
        if not self.closest:
            return "unknown: nothing known takes this format"
        wrong = "; ".join(f"{name} {_show(found)}, expected {_show(expected)}" for name, (found, expected) in self.differs.items())
        return f"unknown: closest {self.closest} ({wrong})"


@dataclass(frozen=True)
class NumericsCard:
    """All formats of one device. `text` is for people, `to_json` for files."""

    device: str
    formats: tuple[FormatCard, ...]

    def to_json(self) -> Any:
        """Plain data: every field of every format, with its sentence."""
        return {"device": self.device, "formats": [{**to_json(c), "sentence": c.sentence} for c in self.formats]}

    @property
    def text(self) -> str:
        """The whole card, a block per format."""
        lines = [f"numerics of {self.device}" if self.device else "numerics"]
        for c in self.formats:
            lines += ["", f"{c.format} → {c.out}: {c.sentence}"]
            width = max(len(name) for name in PROBES)
            lines += [f"  {name:<{width}}  {_show(value)}" for name, value in c.answers.items() if value is not None]
            for k, counts in c.survivors.items():
                label = f"survivors at k = {k}"
                lines.append(f"  {label:<{width}}  {', '.join(f'{i}: {n}' for i, n in counts.items())}")
            if not c.deterministic:
                lines.append("  repeated products differ: the order of operations is not fixed")
        return "\n".join(lines)


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(_show, value)) if isinstance(value, tuple | list) else str(value)


def numerics_card(
    matmuls: Mapping[tuple[str, str], Matmul],
    *,
    device: str = "",
    lengths: Sequence[int] = (256, 1024),
    repeats: int = 3,
    long: bool = True,
) -> NumericsCard:
    """Probe a device and compare what it says with every unit known.

    matmuls  (operand format, output format) → callable: codes a [m, k], b [n, k] → codes of D = A·Bᵀ [m, n]. Shapes asked for: m = n a
             multiple of 16 up to about 200, k = 64, 4096 (float16) and `lengths`
    lengths  further contractions at which the order of additions is recorded; libraries change kernels with the shape
    repeats  how often the first product is made, to see whether bytes repeat
    long     ask the question about float16 accumulation, which needs k = 4096
    """
    return NumericsCard(
        device, tuple(format_card(m, fmt, out, lengths=lengths, repeats=repeats, long=long) for (fmt, out), m in matmuls.items())
    )


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
    if matches:
        best, fewest = "", {}
    return FormatCard(f.name, o.name, found.answers, survivors, found.deterministic, tuple(dict.fromkeys(matches)), best, fewest)


@cache
def _known(fmt: str, out: str) -> tuple[tuple[str, dict[str, Answer]], ...]:
    """(name, expected answers) of everything that takes the format; answers an output of that width cannot show are left out."""
    rows = [(e.name, e.answers(fmt)) for e in EXPECTATIONS if fmt in e.formats and e.out in ("", out)]
    if fmt in ("float16", "bfloat16"):
        for name in DERIVED:
            found = probe(model_matmul(name, fmt, "float32"), fmt, "float32", long=False).answers
            rows.append((name, {k: v for k, v in found.items() if v is not None}))
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
