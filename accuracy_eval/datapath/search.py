"""The search for compositions that reproduce an output, from the simplest to the longest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.datapath.checker import Checker
from accuracy_eval.datapath.compositions import Composition
from accuracy_eval.datapath.elements import Elements
from accuracy_eval.datapath.evaluation import Problem, codes_of, evaluate, finish, join_pieces, piece_sums, rounded_pieces
from accuracy_eval.datapath.hypotheses import Chain, by_signature, epilogues, joins, partials, rules_for, stages
from accuracy_eval.datapath.rules import Rule
from accuracy_eval.formats import decode
from accuracy_eval.jit import map_threads

TIES = 24  # ties that are checked and named
VERIFY = 256  # elements of the other half a survivor is first checked on
SIMPLE = 2  # stages searched to their end, so that ties among simple compositions are complete
BATCH = 64  # hypotheses between two looks at the clock of progress
NEAR = 0.75  # fraction of the search elements that makes a survivor: a corrupted element must not hide the rest
NEARLY = 2  # of those, how many that fail on a search element are checked further
EXACT_TRIES = 5_000  # hypotheses for a narrow output that is the exact result rounded once
CORRUPT = 1e-4  # fraction of the elements that may be corrupted before a composition counts as a near miss and the search goes on


@dataclass(frozen=True)
class Found:
    """Compositions that reproduce every element they were checked on, the first of them all there are; and the best one, winner or not."""

    winners: tuple[Composition, ...]
    best: Composition


@dataclass
class _Survivor:
    composition: Composition
    fraction: float  # of the elements of the last check


class Search:
    """What has been tried on an output, and how far each came.

    losers   compositions that fail, with the fraction of the elements they were last checked on; matched: elements reproduced, of
             compositions checked everywhere
    promise  the best fraction that a rule has reached so far, whatever the order and pieces
    """

    def __init__(self, elements: Elements, problem: Problem, unit: str | None, tries: int) -> None:
        self.elements, self.problem = elements, problem
        self.check = Checker(elements, problem)
        self._unit, self._tries = unit, tries
        self.tried = 0
        self.losers: dict[Composition, float] = {}
        self.matched: dict[Composition, NDArray[np.bool_]] = {}
        self._promise: dict[tuple[str, Rule], float] = {}
        self._few = elements.telling()
        self._sub = problem.at(elements.i[self._few], elements.j[self._few])

    def run(self) -> Found:
        """Stages of more and more hypotheses, until one reproduces everything or enough were tried."""
        correct = not self.elements.differs.any()
        candidates = rules_for(self.problem, self.elements.out.name, self._unit)
        if not self.elements.narrow:  # the error of a narrow output is its own rounding: it says nothing of the sum
            candidates = by_signature(candidates, self.elements.bias())
        for pre, rule in candidates:
            self._sub.planes(rule, pre)
        winners: list[_Survivor] = []
        best = _Survivor(Composition(candidates[0][1], pre=candidates[0][0]), -1.0)
        for number, chains in enumerate(self._pruned(candidates)):
            while batch := list(islice(chains, BATCH)):
                found = [s for part in map_threads(self._hypotheses, batch) for s in part]
                self.tried += len(found)
                survivors = sorted((s for s in found if s.fraction >= NEAR), key=lambda s: -s.fraction)
                for s in found:
                    self._lose(s)
                    key = s.composition.pre, s.composition.rule
                    self._promise[key] = max(self._promise.get(key, 0.0), s.fraction)
                if not winners:
                    best = self._settle(survivors, winners, best)
                else:
                    winners += [_Survivor(s.composition, 1.0) for s in survivors if s.fraction == 1.0]
                if self.tried >= self._tries or (winners and number >= SIMPLE):
                    break
            # a few corrupted elements of a wide output: no other composition comes closer. A narrow output agrees that far with most
            nearly = not self.elements.narrow and best.fraction >= 1 - CORRUPT
            # no order shows in an exact result; a narrow output may be one and yet be what some order of a long sum gives
            enough = correct and (not self.elements.narrow or self.tried >= EXACT_TRIES)
            if winners or nearly or enough or self.tried >= self._tries:
                break
        if best.fraction < 0 and self.losers:
            return Found((), max(self.losers, key=self.losers.__getitem__))
        return Found(tuple(w.composition for w in winners), best.composition)

    def _stages(self, candidates: list[tuple[str, Rule]]) -> Iterator[Iterator[Chain]]:
        def ranked() -> list[tuple[str, Rule]]:
            return sorted(candidates, key=lambda c: -self._promise.get(c, 0.0))

        return stages(candidates, self.problem.k, self.problem.block, ranked)

    def _hypotheses(self, chain: Chain) -> list[_Survivor]:
        """Every join and epilogue of one chain, with the fraction of the search elements each reproduces."""
        base = Composition(
            chain.rule, chain.order, chain.pieces, pre=chain.pre, cast=self._cast(chain.rule), inner=chain.inner,
            inner_join=chain.inner_join,
        )  # fmt: skip
        sums = list(piece_sums(base, self._sub))
        out = []
        for join, partial in product(joins(chain, self._sub), partials(chain, self.elements.out)):
            joined = join_pieces(join, rounded_pieces(iter(sums), partial), self._sub)
            for epilogue in epilogues(self._sub, self.elements.out):
                composition = replace(base, join=join, epilogue=epilogue, partial=partial)  # type: ignore[arg-type]
                codes = codes_of(composition, finish(composition, joined, self._sub))
                out.append(_Survivor(composition, float(np.mean(self.elements.equal(codes, self._few)))))
        return out

    def _cast(self, rule: Rule) -> str:
        return "" if rule.accumulator == self.elements.out.name else self.elements.out.name

    def _pruned(self, candidates: list[tuple[str, Rule]]) -> Iterator[Iterator[Chain]]:
        """The stages, without rules whose error is of another size altogether: a 14-bit sum does not make float32's last bit.

        The rounding of a narrow output hides most of that: it is searched on with every rule, or with none.
        """
        kept: dict[tuple[str, Rule], bool] = {}

        def plausible(pre: str, rule: Rule) -> bool:
            if (pre, rule) not in kept:
                kept[pre, rule] = self._plausible(pre, rule)
            return kept[pre, rule]

        for number, chains in enumerate(self._stages(candidates)):
            if number == 0 or self.problem.block:
                yield chains
            elif self.elements.narrow:
                if any(plausible(pre, rule) for pre, rule in candidates):
                    yield chains
            else:
                yield (c for c in chains if plausible(c.pre, c.rule))

    def _plausible(self, pre: str, rule: Rule) -> bool:
        composition = Composition(rule, pre=pre, cast=self._cast(rule), epilogue=epilogues(self._sub, self.elements.out)[0])
        with np.errstate(invalid="ignore", over="ignore"):
            model = decode(evaluate(composition, self._sub), self.elements.out) - self.elements.truth[self._few]
            error = decode(self.elements.codes[self._few], self.elements.out) - self.elements.truth[self._few]
        finite = np.isfinite(model) & np.isfinite(error)
        x, y = float(np.sqrt(np.sum(model[finite] ** 2))), float(np.sqrt(np.sum(error[finite] ** 2)))
        return not finite.any() or y / 64 <= x <= 64 * y or x == y

    def _settle(self, survivors: Sequence[_Survivor], winners: list[_Survivor], best: _Survivor) -> _Survivor:
        """Check survivors on the other half, the best of them everywhere; the first that reproduces everything becomes the winner."""
        verify = self.elements.spread(self.elements.verify_half, VERIFY)
        perfect = [s for s in survivors if s.fraction == 1.0]
        near = [s for s in survivors if s.fraction < 1.0][:NEARLY]
        checked = [_Survivor(s.composition, float(np.mean(self.check.at(s.composition, verify)))) for s in perfect[:TIES] + near]
        for s in checked:
            self._lose(s)
        for s in sorted(checked, key=lambda s: -s.fraction):
            if winners and s.fraction == 1.0:
                winners.append(s)
            elif not winners and s.fraction >= max(0.9, best.fraction):
                self.matched[s.composition] = self.check.everywhere(s.composition)
                whole = _Survivor(s.composition, float(np.mean(self.matched[s.composition])))
                if whole.fraction == 1.0:
                    winners.append(whole)
                else:
                    self._lose(whole)
                best = max(best, whole, key=lambda x: x.fraction)
        if winners:
            winners += [_Survivor(s.composition, 1.0) for s in perfect[TIES:]]
        return best

    def ranked_losers(self) -> list[Composition]:
        """The nearest first."""
        return sorted(self.losers, key=lambda c: -self.losers[c])

    def _lose(self, s: _Survivor) -> None:
        if s.fraction < 1.0:
            self.losers[s.composition] = s.fraction
