"""Which composition made these bits: a search over the language, verified on elements it never saw.

The search looks at a few elements of one half of the matrix (a checkerboard), survivors are checked on the other half and the best
on every element. *Evidence* is the number of elements where the model agrees with the output and differs from the correctly rounded
truth: an element where everything sensible gives the same code says nothing. An output with fewer than 20 such elements is
consistent with the composition, which is then not identified: outputs of 16 bits mostly, so explain the float32 output and check the
cast. An explanation changes no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.gemm import panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.datapath.compositions import Composition, canonical
from accuracy_eval.datapath.evaluation import Problem, codes_of, evaluate, finish, join_pieces, piece_sums, problem_of, rounded_pieces
from accuracy_eval.datapath.hypotheses import Chain, by_signature, epilogues, joins, partials, rules_for, stages
from accuracy_eval.datapath.rules import Rule
from accuracy_eval.datapath.units import UNITS, units_of
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, Values, decode, encode, get_format, is_nan, ulp
from accuracy_eval.jit import map_threads
from accuracy_eval.records import Coded

EVIDENCE = 20  # discriminating elements that identify
FULL = 1 << 33  # products up to which every element is checked; beyond, SAMPLE elements
MOST = 1 << 23  # and elements
SAMPLE = 8192
VERIFY = 256  # elements of the other half a survivor is first checked on
CHUNK = 512  # elements evaluated together
PARTS = 4  # groups of them whose operands are kept ready
TIED = 1024  # elements ties are checked on
TIES = 24  # ties that are checked and named
SIMPLE = 2  # stages searched to their end, so that ties among simple compositions are complete
BATCH = 64  # hypotheses between two looks at the clock of progress
NEAR = 0.75  # fraction of the search elements that makes a survivor: a corrupted element must not hide the rest
NEARLY = 2  # of those, how many that fail on a search element are checked further
TRIES = 60_000
EXACT_TRIES = 5_000  # hypotheses for a narrow output that is the exact result rounded once
AGAIN_TRIES = 5_000  # and where a step of the epilogue is taken to be left out
CORRUPT = 1e-4  # fraction of the elements that may be corrupted before a composition counts as a near miss and the search goes on

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


def explain(
    actual: Coded,
    a: Coded,
    b: Coded,
    *,
    layout: str = "nn",
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Coded | None = None,
    bias: Coded | None = None,
    a_scale: Any = None,
    b_scale: Any = None,
    a_block: tuple[int, int] | None = None,
    b_block: tuple[int, int] | None = None,
    unit: str | None = None,
    tries: int = TRIES,
    full: int = FULL,
) -> Explanation:
    """The composition that reproduces `actual` [m, n] from the operands as stored (layout letters and scales as in `cpu_ref.Gemm`).

    unit   name of a unit or part: only its arithmetic is tried. None: every unit known
    tries  hypotheses after which the search gives up
    full   products (m·n·k) up to which every element is checked; beyond, 8192 elements spread over the matrix
    A batch or a group is explained matrix by matrix, a gradient as the GEMM it is (`cpu_ref.gemm.gradient`).
    """
    return explain_gemm(
        actual, Gemm(a, b, layout, alpha, beta, c, bias, a_scale, b_scale, a_block, b_block), unit=unit, tries=tries, full=full
    )


def explain_gemm(actual: Coded, gemm: Gemm, *, unit: str | None = None, tries: int = TRIES, full: int = FULL) -> Explanation:
    """As `explain`, for a problem already described."""
    if actual.shape != (gemm.m, gemm.n):
        raise UsageError(f"the output has shape {actual.shape}, the product {(gemm.m, gemm.n)}; batches are explained matrix by matrix")
    if gemm.m * gemm.n * gemm.k == 0:
        raise UsageError(f"nothing to explain in an empty product of m = {gemm.m}, n = {gemm.n}, k = {gemm.k}")
    found = _Search(actual, gemm, unit, tries, full).run()
    if found.status != "unexplained":
        return found
    for step, bare in _left_out(gemm):
        tried = _Search(actual, bare, unit, min(tries, AGAIN_TRIES), full).run()
        found = replace(found, tried=found.tried + tried.tried)
        if tried.status != "unexplained":
            return replace(found, without=(step, tried.description))
    return found


def _left_out(gemm: Gemm) -> Iterator[tuple[str, Gemm]]:
    """The product without each step of its epilogue."""
    if gemm.alpha != 1:
        yield "alpha", replace(gemm, alpha=1.0)
    if gemm.beta != 0:
        yield "C", replace(gemm, beta=0.0, c=None)
    if gemm.bias is not None:
        yield "bias", replace(gemm, bias=None)


@dataclass
class _Survivor:
    composition: Composition
    fraction: float  # of the elements of the last check


class _Search:
    """One explanation in the making: elements, truth, and what has been tried."""

    def __init__(self, actual: Coded, gemm: Gemm, unit: str | None, tries: int, full: int) -> None:
        self.out = get_format(actual.format)
        self.problem = problem_of(gemm)
        self.unit, self.tries = unit, tries
        self.total = gemm.m * gemm.n
        self.everything = self.total * gemm.k <= full and self.total <= MOST
        self.i, self.j = self._elements(gemm)
        self.actual = np.asarray(actual.codes)[self.i, self.j]
        self.nan = is_nan(self.actual, self.out)
        self.truth = self._truth(gemm)
        with np.errstate(over="ignore", invalid="ignore"):
            self.rounded = encode(self.truth, self.out)
        self.differs = (self.actual != self.rounded) & ~(self.nan & is_nan(self.rounded, self.out))
        even = (self.i + self.j) % 2 == 0
        self.search_half, self.verify_half = np.flatnonzero(even), np.flatnonzero(~even)
        if not len(self.verify_half):
            self.verify_half = self.search_half
        self.tried = 0
        self.parts: dict[bytes, Problem] = {}
        self.losers: dict[Composition, float] = {}
        self.matched: dict[Composition, NDArray[np.bool_]] = {}  # elements reproduced, of compositions checked everywhere
        self.promise: dict[tuple[str, Rule], float] = {}  # best fraction a rule has reached so far, whatever the order and pieces
        self.narrow = self.out.bits < 32

    def _elements(self, gemm: Gemm) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self.everything:
            i, j = np.divmod(np.arange(self.total, dtype=np.int64), gemm.n)
            return i, j
        flat = np.unique(np.random.default_rng(0).integers(0, self.total, SAMPLE + SAMPLE // 4))
        flat = np.random.default_rng(1).permutation(flat)[:SAMPLE]
        i, j = np.divmod(flat, gemm.n)
        return i, j

    def _truth(self, gemm: Gemm) -> Values:
        """The exact result at the elements, to float64 accuracy."""
        if self.everything:
            return np.concatenate([p.values.reshape(-1) for p in panels(gemm)])
        rows, where = np.unique(self.i, return_inverse=True)
        truth = np.empty(len(self.i))
        for r in range(0, len(rows), 64):
            sub = np.flatnonzero((where >= r) & (where < r + 64))
            part = _row_gemm(gemm, rows[r : r + 64])
            values = np.concatenate([p.values for p in panels(part)])
            truth[sub] = values[where[sub] - r, self.j[sub]]
        return truth

    # ------------------------------------------------------------------ search

    def run(self) -> Explanation:
        correct = not self.differs.any()
        candidates = rules_for(self.problem, self.out.name, self.unit)
        if not self.narrow:  # the error of a narrow output is its own rounding: it says nothing of the sum
            candidates = by_signature(candidates, self._bias())
        few = self._search_elements()
        sub = self.problem.at(self.i[few], self.j[few])
        for pre, rule in candidates:
            sub.planes(rule, pre)
        winners: list[_Survivor] = []
        best = _Survivor(Composition(candidates[0][1], pre=candidates[0][0]), -1.0)
        for number, chains in enumerate(self._pruned(candidates, sub, few)):
            while batch := list(islice(chains, BATCH)):
                found = [s for part in map_threads(lambda chain: self._hypotheses(chain, sub, few), batch) for s in part]
                self.tried += len(found)
                survivors = sorted((s for s in found if s.fraction >= NEAR), key=lambda s: -s.fraction)
                for s in found:
                    self._lose(s)
                    key = s.composition.pre, s.composition.rule
                    self.promise[key] = max(self.promise.get(key, 0.0), s.fraction)
                if not winners:
                    best = self._settle(survivors, winners, best)
                else:
                    winners += [_Survivor(s.composition, 1.0) for s in survivors if s.fraction == 1.0]
                if self.tried >= self.tries or (winners and number >= SIMPLE):
                    break
            # a few corrupted elements of a wide output: no other composition comes closer. A narrow output agrees that far with most
            nearly = not self.narrow and best.fraction >= 1 - CORRUPT
            # no order shows in an exact result; a narrow output may be one and yet be what some order of a long sum gives
            enough = correct and (not self.narrow or self.tried >= EXACT_TRIES)
            if winners or nearly or enough or self.tried >= self.tries:
                break
        return self._report(winners, best, correct)

    def _stages(self, candidates: list[tuple[str, Rule]]) -> Iterator[Iterator[Chain]]:
        def ranked() -> list[tuple[str, Rule]]:
            return sorted(candidates, key=lambda c: -self.promise.get(c, 0.0))

        return stages(candidates, self.problem.k, self.problem.block, ranked)

    def _bias(self) -> float:
        """mean(e·sign(truth))/std(e) of the output's error, in units of its ulp; 0 where there is no error."""
        with np.errstate(invalid="ignore", over="ignore"):
            e = (decode(self.actual, self.out) - self.truth) / np.sqrt(np.mean(self.truth[np.isfinite(self.truth)] ** 2) or 1.0)
        e = (e * np.sign(self.truth))[np.isfinite(e)]
        spread = float(np.std(e)) if e.size else 0.0
        return float(np.mean(e)) / spread if spread else 0.0

    def _search_elements(self) -> NDArray[np.int64]:
        """Elements of the search half that tell compositions apart: where the output is not the rounded truth, then nearest a midpoint."""
        half, count = self.search_half, 48 if self.narrow else 16
        finite = np.isfinite(self.truth[half])
        unit = ulp(self.truth[half], self.out)
        with np.errstate(invalid="ignore", over="ignore"):
            phase = np.abs(self.truth[half] / unit - np.floor(self.truth[half] / unit) - 0.5)
        shuffled = np.random.default_rng(2).random(len(half))
        if self.narrow:
            order = np.lexsort((np.where(finite, phase, 1.0), ~self.differs[half]))
        else:
            order = np.lexsort((shuffled, ~(self.differs[half] & finite)))
        return half[order[:count]]

    def _hypotheses(self, chain: Chain, sub: Problem, few: NDArray[np.int64]) -> list[_Survivor]:
        """Every join and epilogue of one chain, with the fraction of the search elements each reproduces."""
        base = Composition(
            chain.rule, chain.order, chain.pieces, pre=chain.pre, cast=self._cast(chain.rule), inner=chain.inner,
            inner_join=chain.inner_join,
        )  # fmt: skip
        sums = list(piece_sums(base, sub))
        out = []
        for join, partial in product(joins(chain, sub), partials(chain, self.out)):
            joined = join_pieces(join, rounded_pieces(iter(sums), partial), sub)
            for epilogue in epilogues(sub, self.out):
                composition = replace(base, join=join, epilogue=epilogue, partial=partial)  # type: ignore[arg-type]
                codes = codes_of(composition, finish(composition, joined, sub))
                out.append(_Survivor(composition, float(np.mean(self._equal(codes, few)))))
        return out

    def _cast(self, rule: Rule) -> str:
        return "" if rule.accumulator == self.out.name else self.out.name

    def _equal(self, codes: Codes, where: NDArray[np.int64]) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = np.asarray(codes == self.actual[where])
        if self.nan.any():
            same |= self.nan[where] & is_nan(codes, self.out)
        return same

    def _pruned(self, candidates: list[tuple[str, Rule]], sub: Problem, few: NDArray[np.int64]) -> Iterator[Iterator[Chain]]:
        """The stages, without rules whose error is of another size altogether: a 14-bit sum does not make float32's last bit.

        The rounding of a narrow output hides most of that: it is searched on with every rule, or with none.
        """
        kept: dict[tuple[str, Rule], bool] = {}

        def plausible(pre: str, rule: Rule) -> bool:
            if (pre, rule) not in kept:
                kept[pre, rule] = self._plausible(pre, rule, sub, few)
            return kept[pre, rule]

        for number, chains in enumerate(self._stages(candidates)):
            if number == 0 or self.problem.block:
                yield chains
            elif self.narrow:
                if any(plausible(pre, rule) for pre, rule in candidates):
                    yield chains
            else:
                yield (c for c in chains if plausible(c.pre, c.rule))

    def _plausible(self, pre: str, rule: Rule, sub: Problem, few: NDArray[np.int64]) -> bool:
        composition = Composition(rule, pre=pre, cast=self._cast(rule), epilogue=epilogues(sub, self.out)[0])
        with np.errstate(invalid="ignore", over="ignore"):
            model = decode(evaluate(composition, sub), self.out) - self.truth[few]
            error = decode(self.actual[few], self.out) - self.truth[few]
        finite = np.isfinite(model) & np.isfinite(error)
        x, y = float(np.sqrt(np.sum(model[finite] ** 2))), float(np.sqrt(np.sum(error[finite] ** 2)))
        return not finite.any() or y / 64 <= x <= 64 * y or x == y

    # ------------------------------------------------------------------ verification

    def _settle(self, survivors: Sequence[_Survivor], winners: list[_Survivor], best: _Survivor) -> _Survivor:
        """Check survivors on the other half, the best of them everywhere; the first that reproduces everything becomes the winner."""
        verify = self._spread(self.verify_half, VERIFY)
        perfect = [s for s in survivors if s.fraction == 1.0]
        near = [s for s in survivors if s.fraction < 1.0][:NEARLY]
        checked = [_Survivor(s.composition, self._fraction(s.composition, verify)) for s in perfect[:TIES] + near]
        for s in checked:
            self._lose(s)
        for s in sorted(checked, key=lambda s: -s.fraction):
            if winners and s.fraction == 1.0:
                winners.append(s)
            elif not winners and s.fraction >= max(0.9, best.fraction):
                self.matched[s.composition] = self._everywhere(s.composition)
                whole = _Survivor(s.composition, float(np.mean(self.matched[s.composition])))
                if whole.fraction == 1.0:
                    winners.append(whole)
                else:
                    self._lose(whole)
                best = max(best, whole, key=lambda x: x.fraction)
        if winners:
            winners += [_Survivor(s.composition, 1.0) for s in perfect[TIES:]]
        return best

    def _spread(self, half: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """`count` elements of a half: those that discriminate first, a tenth of them, then any."""
        if len(half) <= count:
            return half
        rng = np.random.default_rng(3)
        telling = half[self.differs[half]]
        telling = rng.permutation(telling)[: count // 2]
        rest = rng.permutation(np.setdiff1d(half, telling, assume_unique=True))[: count - len(telling)]
        return np.concatenate([telling, rest])

    def _fraction(self, composition: Composition, where: NDArray[np.int64]) -> float:
        return float(np.mean(self._at(composition, where)))

    def _at(self, composition: Composition, where: NDArray[np.int64]) -> NDArray[np.bool_]:
        parts = [where[x : x + CHUNK] for x in range(0, len(where), CHUNK)]

        def one(part: NDArray[np.int64]) -> NDArray[np.bool_]:
            return self._equal(evaluate(composition, self._part(part)), part)

        return np.concatenate(map_threads(one, parts))

    def _part(self, part: NDArray[np.int64]) -> Problem:
        """The problem of some elements; the last few asked for are kept, as many compositions are checked on them."""
        key = part.tobytes()
        found = self.parts.get(key)
        if found is None:
            found = self.problem.at(self.i[part], self.j[part])
            if len(self.parts) >= PARTS:
                self.parts.clear()
            self.parts[key] = found
        return found

    def _everywhere(self, composition: Composition) -> NDArray[np.bool_]:
        """Which of the elements (all, or the sample) the composition reproduces."""
        every = np.arange(len(self.i))
        if not self.everything:
            return self._at(composition, every)
        return self._equal(evaluate(composition, self.problem).reshape(-1), every)

    def _lose(self, s: _Survivor) -> None:
        if s.fraction < 1.0:
            self.losers[s.composition] = s.fraction

    def _report(self, winners: list[_Survivor], best: _Survivor, correct: bool) -> Explanation:
        k = self.problem.k
        losers = sorted(self.losers.items(), key=lambda x: -x[1])
        if not winners:
            if best.fraction < 0 and losers:
                best = _Survivor(losers[0][0], 0.0)
            matched = self.matched.get(best.composition)
            if matched is None:
                matched = self._everywhere(best.composition)
            rest = [x for x in losers if x[0] != best.composition][:1]
            return self._explanation(best.composition, matched, "unexplained", (), 0, rest, correct)
        first = winners[0].composition
        spelled: dict[str, Composition] = {}
        for w in winners[1:]:
            c = canonical(w.composition, k)
            if c != canonical(first, k):
                spelled.setdefault(str(c), c)
        sample = self._spread(np.arange(len(self.i)), TIED)
        ties = [text for text, c in list(spelled.items())[:TIES] if self._at(c, sample).all()]
        more = max(len(spelled) - TIES, 0)
        matched = self.matched[first]
        evidence = int(np.count_nonzero(matched & self.differs))
        alone = not self.narrow or all(_same_sums(spelled[t], canonical(first, k)) for t in ties)
        status: Status = "identified" if evidence >= EVIDENCE and alone else "consistent, not identified"
        return self._explanation(first, matched, status, tuple(ties), more, losers[:1], correct)

    def _explanation(self, composition: Composition, matched: NDArray[np.bool_], status: Status, ties: tuple[str, ...], more: int,
                     losers: list[tuple[Composition, float]], correct: bool) -> Explanation:  # fmt: skip
        k = self.problem.k
        wrong = np.flatnonzero(~matched)[:16]
        loser, loser_fraction = (str(canonical(losers[0][0], k)), losers[0][1]) if losers else ("", 0.0)
        rows = units_of(self.unit) if self.unit is not None else UNITS
        scaled = composition.pre == "mx"
        units = dict.fromkeys(
            u.name for u in rows if u.rule and bool(u.scales) == scaled and _same_unit(u.rule, composition.rule) and self._takes(u.formats)
        )
        return Explanation(
            description=str(canonical(composition, k)),
            fraction=float(np.mean(matched)),
            status=status,
            evidence=int(np.count_nonzero(matched & self.differs)),
            checked=len(self.i),
            total=self.total,
            ties=ties,
            more_ties=more,
            tried=self.tried,
            best_loser=loser,
            best_loser_fraction=loser_fraction,
            unexplained=tuple((int(self.i[w]), int(self.j[w])) for w in wrong),
            units=tuple(units),
            correctly_rounded=correct,
        )

    def _takes(self, formats: tuple[str, ...]) -> bool:
        wanted = {"tfloat32" if "tfloat32" in formats and f == "float32" else f for f in (self.problem.a_format, self.problem.b_format)}
        return wanted <= set(formats)


def _same_sums(x: Composition, y: Composition) -> bool:
    """Whether two compositions differ only after the chains of blocks: in the join or the epilogue."""
    return replace(x, join=y.join, epilogue=y.epilogue) == y


def _same_unit(unit: Rule, rule: Rule) -> bool:
    """Whether a unit may have worked by that rule: the same arithmetic, in blocks of its own width or, for T-FDPA, narrower ones."""
    return replace(unit, L=rule.L, e0=rule.e0) == rule and (unit.L == rule.L or (rule.kind in ("tfdpa", "half") and rule.L < unit.L))


def _row_gemm(gemm: Gemm, rows: NDArray[np.int64]) -> Gemm:
    """The same product for some rows of op(A)."""
    codes = gemm.a.codes[rows] if gemm.layout[0] == "n" else gemm.a.codes[:, rows]
    scale, block = gemm.a_scale, gemm.a_block
    if scale is not None:
        full = np.broadcast_to(gemm.left.scale_of(), gemm.left.shape)
        scale = full[rows] if gemm.layout[0] == "n" else full[:, rows]
        block = (1, 1)
    c = None if gemm.c is None else Coded(gemm.c.codes[rows], gemm.c.format)
    return replace(gemm, a=Coded(codes, gemm.a.format), a_scale=scale, a_block=block, c=c)
