"""What an explanation says, and its words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["identified", "consistent, not identified", "unexplained"]


@dataclass(frozen=True)
class Explanation:
    """What was found.

    description    the composition, in canonical spelling; the best one where none reproduces everything; "" where none was tried
    fraction       of the checked elements that it reproduces bit for bit (any NaN equals any NaN)
    status         "identified": all of them, on enough evidence · "consistent, not identified": all, but too few elements discriminate,
                   or (outputs under 32 bits) other sums do as well · "unexplained"
    evidence       elements where it agrees with the output and the correctly rounded truth does not
    checked, total elements compared and elements there are
    ties           other compositions that reproduce everything; more_ties counts those beyond the ones named
    tried          hypotheses evaluated
    best_loser     the best composition that fails, and its fraction of the elements it was checked on
    unexplained    up to 16 indices [i, j] the composition does not reproduce
    units          matrix units with that rule, `arch/instruction`
    correctly_rounded  the whole output is the exact result rounded once: no order of operations shows in it
    without        for an unexplained output: the step ("alpha", "C", "bias") after whose omission a composition reproduces every
                   element, and that composition
    """

    description: str
    fraction: float
    status: Status
    evidence: int
    checked: int
    total: int
    ties: tuple[str, ...] = ()
    more_ties: int = 0
    tried: int = 0
    best_loser: str = ""
    best_loser_fraction: float = 0.0
    unexplained: tuple[tuple[int, int], ...] = ()
    units: tuple[str, ...] = ()
    correctly_rounded: bool = False
    without: tuple[str, str] | None = None

    @property
    def identified(self) -> bool:
        return self.status == "identified"

    @property
    def _tried_words(self) -> str:
        return f"{self.tried} {'hypothesis' if self.tried == 1 else 'hypotheses'} tried"

    def __str__(self) -> str:
        found = f"{self.fraction:.6f} of {self.checked} elements reproduced by {self.description or 'nothing tried'}"
        if self.status == "unexplained":
            text = f"unexplained: at best {found}; {self._tried_words}"
            if self.without:
                return text + f"; with {self.without[0]} left out every element is {self.without[1]}"
            return text + (f"; not reproduced: {', '.join(map(str, map(list, self.unexplained[:4])))}" if self.unexplained else "")
        text = f"{self.status}: {self.description}"
        text += f", {self.checked} of {self.total} elements bit for bit, {self.evidence} of them evidence, {self._tried_words}"
        if self.correctly_rounded:
            text += "; the output is the exact result rounded once"
        if self.ties:
            fit = len(self.ties) + self.more_ties
            text += f"; {fit} other {'composition fits' if fit == 1 else 'compositions fit'}: {', '.join(self.ties[:3])}"
        return text + (f"; best that does not: {self.best_loser} ({self.best_loser_fraction:.6f})" if self.best_loser else "")
