"""A sample of a matrix product: the worst elements and others spread over the result, with the operands that made them.

X is what the output holds there, T the truth, D = ‖X - T‖², F the energy that rounding to the output's format adds.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.gemm import gradient
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.diagnose.context import Look, Rows
from accuracy_eval.diagnose.epilogues import case_of, linear
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Format, Values, decode, round_to, ulp
from accuracy_eval.ops import factors, quantised
from accuracy_eval.records import Case

Indices = NDArray[np.int64]
SAMPLE_ROWS, SAMPLE_COLUMNS = 24, 64
LONGEST = 1 << 17  # products per element beyond which no sample is drawn: 24 rows of float64 are 25 MB
FEWEST = 12  # clearly wrong elements that must be explained
OPERANDS = frozenset({"a", "b", "c", "bias", "a_scale", "b_scale", "grad_d", "grad_d_scale", "residual"})


@dataclass(frozen=True)
class Sample:
    """Elements of a product: rows × columns of D = alpha·A·B + base.

    a [r, k], b [k, c], base [r, c]   float64; a and b with their scales
    x, t [r, c]                       what the output holds, and the truth
    problem, rows, cols               what was sampled
    names                             the operands of the product: those of a gradient are others
    """

    problem: Gemm
    rows: Indices
    cols: Indices
    a: Values
    b: Values
    base: Values
    x: Values
    t: Values
    fmt: Format
    names: tuple[str, str] = ("a", "b")

    @property
    def alpha(self) -> float:
        return self.problem.scalars[0]

    @property
    def error(self) -> Values:
        return self.x - self.t

    @property
    def energy(self) -> float:
        return float(np.sum(self.error**2))

    @property
    def rounding(self) -> float:
        """F: ulp²/12 of every element."""
        return float(np.sum(ulp(self.t, self.fmt) ** 2)) / 12

    def part(self, rows: NDArray[np.bool_], cols: NDArray[np.bool_]) -> Sample:
        """Those of its rows and columns."""
        at = np.ix_(rows, cols)
        return replace(
            self, rows=self.rows[rows], cols=self.cols[cols], a=self.a[rows], b=self.b[:, cols], base=self.base[at], x=self.x[at],
            t=self.t[at],
        )  # fmt: skip

    def of(self, a: Values, b: Values) -> Values:
        """The result from other operands."""
        return self.alpha * (a @ b) + self.base

    def rest(self, prediction: Values) -> float:
        """‖X - P‖² with P rounded to the output's format: 0 for a prediction that is right."""
        return float(np.sum((self.x - round_to(prediction, self.fmt)) ** 2))

    def explains(self, prediction: Values) -> bool:
        """Whether most of the elements that are clearly wrong are explained one by one: an energy may be that of one element."""
        off = np.abs(self.error)
        step = ulp(self.t, self.fmt)
        wrong = off > 4 * step
        left = np.abs(self.x - prediction)
        return int(wrong.sum()) >= FEWEST and float((left <= np.maximum(off / 4, step))[wrong].mean()) >= 0.9

    def matches(self, prediction: Values) -> NDArray[np.bool_]:
        return np.asarray(round_to(prediction, self.fmt) == self.x)


def sample(look: Look) -> Sample | None:
    """The sample of a GEMM output whose operands are known, or None; drawn once."""
    if look.product is None:
        look.product = (_draw(look),)
    found: Sample | None = look.product[0]
    return found


def truth(look: Look) -> Rows | None:
    """Rows of the exact product, for a GEMM measured against real values whose expectation cannot be asked for; None for others.

    Costs the multiplications of those rows; B is decoded by 1024 columns at a time.
    """
    p = problem_of(look) if look.reference else None
    if p is None:
        return None

    def rows(first: int, end: int) -> Values:
        part, every = slice(first, end), slice(0, p.k)
        out = np.empty((end - first, p.n))
        with np.errstate(invalid="ignore", over="ignore"):
            a = p.a_values(part, every)
            for j in range(0, p.n, 1024):
                cols = slice(j, min(j + 1024, p.n))
                np.matmul(a, p.b_values(every, cols), out=out[:, cols])
            out *= p.scalars[0]
            if p.beta != 0:
                out += p.scalars[1] * p.c_values(part)
            if p.bias_values is not None:
                out += p.bias_values
        return out

    return functools.lru_cache(maxsize=1)(rows)


def problem_of(look: Look) -> Gemm | None:
    """The product behind the output, where its operands are known; under a recipe that of codes and scales."""
    c = look.context
    if c.op == "gemm" and c.recipe and "a_source" in c.inputs:
        p = quantised.problem(quantised_case(look), c.inputs, c.output or "d")
        return p if _fits(p, look) else None
    if c.op not in ("gemm", "gemm_epilogue") or not {"a", "b"} <= set(c.inputs) <= OPERANDS or look.fmt.kind != "float":
        return None
    if c.op == "gemm_epilogue":
        return _linear_epilogue(look)
    i = c.inputs
    scales = {n: decode(i[n].codes, i[n].format) if n in i else None for n in ("a_scale", "b_scale", "grad_d_scale")}
    alpha, beta = (float(c.options.get(n, d)) for n, d in (("alpha", 1.0), ("beta", 0.0)))
    forward = c.direction != "bwd"
    try:
        p = Gemm(i["a"], i["b"], c.layout or "nn", alpha, beta if forward else 0.0, i.get("c") if forward else None,
                 i.get("bias") if forward else None, scales["a_scale"], scales["b_scale"])  # fmt: skip
        if not forward:
            p = gradient(c.output, p, i["grad_d"], scales["grad_d_scale"])
    except (UsageError, KeyError):  # operands that do not fit each other are reported where they are read
        return None
    return p if _fits(p, look) else None


def quantised_case(look: Look) -> Case:
    """The case of a product with a recipe, as far as its factors depend on it."""
    c = look.context
    return Case(c.op, (), c.layout, c.format, c.out_format, c.recipe, tuple(c.options.items()), lane=c.lane, direction=c.direction)


def _names(look: Look) -> tuple[str, str]:
    """What the two sides of the product are called in the case."""
    c = look.context
    if c.direction != "bwd" or not c.recipe:
        return "a", "b"
    case, output = quantised_case(look), c.output
    names = factors.PRODUCTS[output][::-1] if quantised.swapped(case, output) else factors.PRODUCTS[output]
    return names[0], names[1]


def _fits(p: Gemm, look: Look) -> bool:
    return (p.m, p.n) == (look.rows, look.cols) and 0 < p.k <= LONGEST and p.scalars[0] != 0


def _linear_epilogue(look: Look) -> Gemm | None:
    """The product behind an epilogue that is none: bias, residual and scales alone."""
    if look.context.direction == "bwd":
        return None
    try:
        p = linear(case_of(look), dict(look.context.inputs))
    except UsageError:
        return None
    return p if p is not None and _fits(p, look) else None


def _draw(look: Look) -> Sample | None:
    if look.context.actual is None or look.quiet:
        return None
    p = problem_of(look)
    if p is None:
        return None
    rows, cols = _places(look)
    with np.errstate(invalid="ignore", over="ignore"):
        a, b = p.a_rows(rows), p.b_columns(cols)
        x = np.concatenate([look.actual(int(i), int(i) + 1)[:, cols] for i in rows])
        base = np.zeros(x.shape)
        if p.beta != 0:
            base += p.scalars[1] * np.concatenate([p.c_values(slice(int(i), int(i) + 1))[:, cols] for i in rows])
        if p.bias_values is not None:
            base += p.bias_values[cols]
        t = p.scalars[0] * (a @ b) + base
    good_rows = np.isfinite(a).all(axis=1) & np.isfinite(base).all(axis=1)
    good_cols = np.isfinite(b).all(axis=0)
    x, t, base = (v[good_rows][:, good_cols] for v in (x, t, base))
    if x.size < 2 or not np.isfinite(t).all():
        return None
    s = Sample(p, rows[good_rows], cols[good_cols], a[good_rows], b[:, good_cols], base, x, t, look.fmt, _names(look))
    return s if _is_the_expectation(look, s) else None


def _is_the_expectation(look: Look, s: Sample) -> bool:
    """Whether the operands give what was expected: otherwise they explain nothing. Looked at where that costs no new reference."""
    if look.whole is None:
        return True
    e = look.whole[1][np.ix_(s.rows, s.cols)]
    with np.errstate(invalid="ignore"):
        off = float(np.sum(np.nan_to_num(e - s.t) ** 2))
    finite = np.isfinite(s.x)
    return off <= 4 * s.rounding + 0.01 * float(np.sum((s.x - s.t)[finite] ** 2)) + 1e-6 * float(np.sum(s.t**2))


def _places(look: Look) -> tuple[Indices, Indices]:
    """Rows and columns of the worst elements first, then some spread evenly."""
    flats = [int(np.ravel_multi_index(w.index, look.m.shape)) if look.m.shape else 0 for w in look.m.worst]
    for first in (look.m.classes.first_inf_actual_only, look.m.classes.first_nan_actual_only):
        flats[:0] = [] if first is None else [first]
    worst_rows = [f // look.cols for f in flats]
    worst_cols = [f % look.cols for f in flats]
    if look.m.rows is not None:
        worst_rows += np.argsort(-look.m.rows.error, kind="stable")[:4].tolist()
    return places_of(worst_rows, look.rows, SAMPLE_ROWS), places_of(worst_cols, look.cols, SAMPLE_COLUMNS)


def places_of(worst: list[int], size: int, count: int) -> Indices:
    """At most `count` of `size` places: the first of `worst`, and some spread evenly."""
    if size <= count:
        return np.arange(size)
    spread = np.linspace(0, size - 1, count).astype(np.int64).tolist()
    chosen = list(dict.fromkeys([*list(dict.fromkeys(worst))[: count // 2], *spread]))
    return np.sort(np.array(chosen[:count], np.int64))
