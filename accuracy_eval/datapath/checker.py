"""Whether a composition gives the bits of an output."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.datapath.compositions import Composition
from accuracy_eval.datapath.elements import Elements
from accuracy_eval.datapath.evaluation import Problem, evaluate
from accuracy_eval.jit import map_threads

CHUNK = 512  # elements evaluated together
PARTS = 4  # groups of them whose operands are kept ready


class Checker:
    """Compositions held against the output, element by element."""

    def __init__(self, elements: Elements, problem: Problem) -> None:
        self._elements, self._problem = elements, problem
        self._parts: dict[bytes, Problem] = {}

    def at(self, composition: Composition, where: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these elements the composition reproduces."""
        parts = [where[x : x + CHUNK] for x in range(0, len(where), CHUNK)]

        def one(part: NDArray[np.int64]) -> NDArray[np.bool_]:
            return self._elements.equal(evaluate(composition, self._part(part)), part)

        return np.concatenate(map_threads(one, parts))

    def _part(self, part: NDArray[np.int64]) -> Problem:
        """The problem of some elements; the last few asked for are kept, as many compositions are checked on them."""
        key = part.tobytes()
        found = self._parts.get(key)
        if found is None:
            found = self._problem.at(self._elements.i[part], self._elements.j[part])
            if len(self._parts) >= PARTS:
                self._parts.clear()
            self._parts[key] = found
        return found

    def everywhere(self, composition: Composition) -> NDArray[np.bool_]:
        """Which of the elements (all, or the sample) the composition reproduces."""
        every = np.arange(len(self._elements.i))
        if not self._elements.everything:
            return self.at(composition, every)
        return self._elements.equal(evaluate(composition, self._problem).reshape(-1), every)
