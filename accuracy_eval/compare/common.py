"""What the candidates of one case share: its operands, and the references that judge them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from accuracy_eval.compare.inputs import Operands
from accuracy_eval.ops.spec import Encoding, Panel, Reference

LARGEST = 1 << 21  # elements of an output whose reference is kept for the next candidate: 50 MB

References = dict[str, Reference]
"""By output."""


class Common:
    """Of one case; `several`: more than one candidate will ask."""

    def __init__(self, *, several: bool) -> None:
        self.operands: dict[Encoding, Operands] = {}
        self._several = several
        self._references: dict[tuple[Encoding, str], References] = {}

    def references(self, meaning: Encoding, contract: str, make: Callable[[], References]) -> References:
        """The references under a contract, made once."""
        asked = meaning, contract
        if asked not in self._references:
            made = make()
            self._references[asked] = {name: _kept(r) for name, r in made.items()} if self._several else made
        return self._references[asked]


def _kept(r: Reference) -> Reference:
    """A reference that computes its panels once."""
    if math.prod(r.shape) > LARGEST:
        return r

    @cache
    def panels() -> tuple[Panel, ...]:
        return tuple(r.panels())

    return replace(r, panels=lambda: iter(panels()))
