"""Causes inside a matrix product: a sample of elements is computed again under each hypothesis, and one must explain the error.

The sample holds the worst elements and others spread over the result. X is what the output holds there, T the truth, D = ‖X - T‖²,
F the energy that rounding to the output's format adds. A hypothesis with prediction P explains the error when ‖X - P‖² is at most
1 % of D (plus 2F), or when P rounded gives the output's very codes. If two different hypotheses explain it, none is named.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.gemm import gradient
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.diagnose.context import Finding, Look, Rows
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Format, Values, decode, encode, get_format, ulp

Indices = NDArray[np.int64]
SAMPLE_ROWS, SAMPLE_COLUMNS = 24, 64
LONGEST = 1 << 17  # products per element beyond which no sample is drawn: 24 rows of float64 are 25 MB
REST = 0.01  # of the error's energy may remain unexplained
CLEAR = 10.0  # the error must have this many times the energy of output rounding before energies are compared
COLLINEAR = 0.98  # cos² of error and truth beyond which a missing part of K cannot be told from a gain
HALF = frozenset({"float16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"})  # added up in float16, if narrowly
COARSEST = 0.01  # energy of an error, of the truth's, beyond which it is not that of partial sums rounded to 16 bits
FEWEST = 12  # clearly wrong elements that must be explained
OPERANDS = frozenset({"a", "b", "c", "bias", "a_scale", "b_scale", "grad_d", "grad_d_scale"})


@dataclass(frozen=True)
class Sample:
    """Elements of a product: rows × columns of D = alpha·A·B + base.

    a [r, k], b [k, c], base [r, c]   float64; a and b with their scales
    x, t [r, c]                       what the output holds, and the truth
    problem, rows, cols               what was sampled
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

    def of(self, a: Values, b: Values) -> Values:
        """The result from other operands."""
        return self.alpha * (a @ b) + self.base

    def rest(self, prediction: Values) -> float:
        """‖X - P‖² with P rounded to the output's format: 0 for a prediction that is right."""
        return float(np.sum((self.x - decode(encode(prediction, self.fmt), self.fmt)) ** 2))

    def explains(self, prediction: Values) -> bool:
        """Whether most of the elements that are clearly wrong are explained one by one: an energy may be that of one element."""
        off = np.abs(self.error)
        step = ulp(self.t, self.fmt)
        wrong = off > 4 * step
        left = np.abs(self.x - prediction)
        return int(wrong.sum()) >= FEWEST and float((left <= np.maximum(off / 4, step))[wrong].mean()) >= 0.9

    def matches(self, prediction: Values) -> NDArray[np.bool_]:
        return np.asarray(decode(encode(prediction, self.fmt), self.fmt) == self.x)


def sample(look: Look) -> Sample | None:
    """The sample of a GEMM output whose operands are known, or None; drawn once."""
    if look.product is None:
        look.product = (_draw(look),)
    found: Sample | None = look.product[0]
    return found


def _problem(look: Look) -> Gemm | None:
    c = look.context
    if c.op != "gemm" or not {"a", "b"} <= set(c.inputs) <= OPERANDS or look.fmt.kind != "float":
        return None
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
    fits = (p.m, p.n) == (look.rows, look.cols) and 0 < p.k <= LONGEST and p.scalars[0] != 0
    return p if fits else None


def _draw(look: Look) -> Sample | None:
    if look.context.actual is None or look.quiet:
        return None
    p = _problem(look)
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
    s = Sample(p, rows[good_rows], cols[good_cols], a[good_rows], b[:, good_cols], base, x, t, look.fmt)
    return s if _is_the_expectation(look, s) else None


def truth(look: Look) -> Rows | None:
    """Rows of the exact product, for a GEMM measured against real values whose expectation cannot be asked for; None for others.

    Costs the multiplications of those rows; B is decoded by 1024 columns at a time.
    """
    p = _problem(look) if look.reference else None
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
    return _fill(worst_rows, look.rows, SAMPLE_ROWS), _fill(worst_cols, look.cols, SAMPLE_COLUMNS)


def _fill(worst: list[int], size: int, count: int) -> Indices:
    if size <= count:
        return np.arange(size)
    spread = np.linspace(0, size - 1, count).astype(np.int64).tolist()
    chosen = list(dict.fromkeys([*list(dict.fromkeys(worst))[: count // 2], *spread]))
    return np.sort(np.array(chosen[:count], np.int64))


# hypotheses


@dataclass(frozen=True)
class Hypothesis:
    code: str
    evidence: dict[str, Any]
    words: dict[str, str]
    prediction: Values


def explanations(look: Look) -> list[Hypothesis]:
    """The hypothesis that explains the sampled error, alone or, for the last k, with its twin; empty where none does or two differ."""
    if look.context.lane == "coded":
        return _coded_loss(look)
    s = sample(look)
    if s is None or not np.isfinite(s.x).all() or s.energy == 0 or s.x.size < 16:
        return []
    wrong = ~s.matches(s.t)
    clear = s.energy >= CLEAR * s.rounding
    narrow = s.fmt.bits <= 16 and int(wrong.sum()) >= 24
    if not clear and not narrow:
        return []
    found: list[tuple[float, Hypothesis]] = []

    def keep(h: Hypothesis) -> None:
        rest = s.rest(h.prediction)
        by_energy = clear and rest <= REST * s.energy + 2 * s.rounding and s.explains(h.prediction)
        same = s.matches(h.prediction)
        by_codes = (
            narrow and rest < s.energy / 2 and same[wrong].mean() >= 0.9 and (same[~wrong].mean() >= 0.9 if not wrong.all() else True)
        )
        if by_energy or by_codes:
            found.append((rest, h))

    for h in _hypotheses(s):
        keep(h)
    if not found:  # many compositions: tried only where nothing simple explains the error
        for h in _partials(s):
            keep(h)
    found.sort(key=lambda f: f[0])
    named: list[Hypothesis] = []
    for rest, h in found:
        if not named or (h.code != named[0].code and _twins(s, h, named[0])):
            named.append(h)
        elif h.code != named[0].code and rest <= 4 * found[0][0] + s.rounding:
            return []
    return named[:2]


def _twins(s: Sample, one: Hypothesis, other: Hypothesis) -> bool:
    """The last k alone is both a lost k and a missing tail."""
    last = s.problem.k - 1
    return {one.code, other.code} == {"lost-k", "k-tail-missing"} and [*one.evidence.values(), *other.evidence.values()] == [last, last]


def _coded_loss(look: Look) -> list[Hypothesis]:
    """A one-hot A gives each row one k: the rows that are zero say which k never arrived.

    Of the k between the last that arrived and the first that did not, unseen by every row, the roundest is where kernels end.
    """
    p, noise = _problem(look), look.m.rows
    if p is None or noise is None or look.quiet:
        return []
    wrong = noise.mismatches > 0
    gone = wrong & (noise.error == noise.reference) & (noise.reference > 0)
    if not gone.any() or (wrong != gone).any():
        return []
    seen = _single_k(p)
    if seen is None:
        return []
    lost, kept = np.unique(seen[gone]), np.unique(seen[~gone])
    nothing = np.empty((0, 0))
    found = []
    if lost.size == 1 and lost[0] not in kept:
        found.append(Hypothesis("lost-k", {"k": int(lost[0])}, {"total": str(p.k)}, nothing))
    if kept.size and kept[-1] < lost[0] and (lost.size > 1 or lost[0] == p.k - 1):
        from_k = _roundest(int(kept[-1]) + 1, int(lost[0]), int(lost[0]))
        found.append(Hypothesis("k-tail-missing", {"from_k": from_k}, {"k": str(p.k)}, nothing))
    return found


def _single_k(p: Gemm) -> Indices | None:
    """The k of the only nonzero element of each row of op(A); None if A is not one-hot."""
    codes = p.a.codes
    places = []
    for i in range(0, p.m, 128):
        part = codes[i : i + 128] if p.layout[0] == "n" else codes[:, i : i + 128].T
        if (np.count_nonzero(part, axis=1) != 1).any():
            return None
        places.append(np.argmax(part != 0, axis=1))
    return np.concatenate(places)


def _roundest(first: int, last: int, near: int) -> int:
    """Of first … last the one with the largest power of two in it, the nearest to `near` of equals."""
    return max(range(first, last + 1), key=lambda j: ((j & -j) if j else 1 << 30, -abs(j - near)))


def _named(look: Look, code: str) -> Finding | None:
    if look.hypotheses is None:
        look.hypotheses = explanations(look)
    return next((Finding(h.evidence, h.words) for h in look.hypotheses if h.code == code), None)


def _hypotheses(s: Sample) -> Iterator[Hypothesis]:
    yield from _narrowed(s)
    yield from _flushed(s)
    yield from _scales(s)
    tail = missing_tail(s)
    if tail is not None:
        from_k, prediction = tail
        yield Hypothesis("k-tail-missing", {"from_k": from_k}, {"k": str(s.problem.k)}, prediction)
    lost = lost_k(s)
    if lost is not None:
        k, prediction = lost
        yield Hypothesis("lost-k", {"k": k}, {"total": str(s.problem.k)}, prediction)


def _unscaled(s: Sample) -> tuple[Gemm, Values, Values]:
    p = s.problem
    if p.a_scale is None and p.b_scale is None:
        return p, s.a, s.b
    bare = replace(p, a_scale=None, b_scale=None, a_block=None, b_block=None)
    return bare, bare.a_rows(s.rows), bare.b_columns(s.cols)


def _narrow(values: Values, bits: int, *, truncate: bool = False) -> Values:
    """Values with `bits` fraction bits, float32's exponents: to nearest even, or cut."""
    u = values.astype(np.float32).view(np.uint32)
    drop = np.uint32(23 - bits)
    keep = ~np.uint32((1 << int(drop)) - 1)
    if not truncate:
        u = u + np.uint32((1 << (int(drop) - 1)) - 1) + ((u >> drop) & np.uint32(1))
    return np.asarray((u & keep).view(np.float32), np.float64)


def _narrowed(s: Sample) -> Iterator[Hypothesis]:
    """Operands rounded to TF32 or bfloat16 on their way into the product."""
    p, a, b = _unscaled(s)
    if p is not s.problem:
        return
    formats = (p.left.format.name, p.right.format.name)
    for code, bits, wider in (("tf32-like", 10, ("float32",)), ("bf16-inputs-like", 7, ("float32", "float16"))):
        if not set(formats) <= set(wider):
            continue
        for truncate in (False, True):
            na, nb = _narrow(a, bits, truncate=truncate), _narrow(b, bits, truncate=truncate)
            words = {"how": "cut" if truncate else "rounded"}
            for left, right in ((na, nb), (na, b), (a, nb)):
                yield Hypothesis(code, {}, words, s.of(left, right))


def _flushed(s: Sample) -> Iterator[Hypothesis]:
    """Subnormal operands read as zero."""
    p, a, b = _unscaled(s)
    if p is not s.problem:
        return
    small = [np.abs(v) < o.format.smallest_normal for v, o in ((a, p.left), (b, p.right))]
    count = sum(int((m & (v != 0)).sum()) for m, v in zip(small, (a, b), strict=True))
    if count:
        words = {"what": f"{count} operand elements of a sample are subnormal; the result is what zeros in their place give"}
        yield Hypothesis("flush-to-zero", {"count": count}, words, s.of(np.where(small[0], 0, a), np.where(small[1], 0, b)))


def _scales(s: Sample) -> Iterator[Hypothesis]:
    """Scales left out, taken from the other operand, or read at another place of their grid."""
    p = s.problem

    def result(left: Any, right: Any) -> Values | None:
        try:
            other = replace(p, a_scale=left, b_scale=right)
            return s.of(other.a_rows(s.rows), other.b_columns(s.cols))
        except (UsageError, IndexError):
            return None

    scales = {"a": p.a_scale, "b": p.b_scale}
    given = [n for n, v in scales.items() if v is not None]
    drops = [(n,) for n in given] + ([("a", "b")] if len(given) == 2 else [])
    for names in drops:
        prediction = result(*(None if n in names else v for n, v in scales.items()))
        if prediction is not None:
            yield Hypothesis("scale-ignored", {"operand": ", ".join(names)}, {}, prediction)
    if len(given) == 2 and np.size(p.a_scale) > 1:
        prediction = result(p.b_scale, p.a_scale)
        if prediction is not None:
            yield Hypothesis("scale-swapped", {}, {}, prediction)
    for n in given:
        grid = np.asarray(scales[n])
        for what, moved in _moved(grid, k_axis=1 if p.layout[0 if n == "a" else 1] == ("n" if n == "a" else "t") else 0):
            if np.array_equal(moved, grid):
                continue
            prediction = result(*(moved if m == n else v for m, v in scales.items()))
            if prediction is not None:
                wrong = int(np.count_nonzero(moved != grid))
                yield Hypothesis("scale-index", {"blocks": wrong}, {"operand": n, "what": what, "total": str(grid.size)}, prediction)


def _moved(grid: NDArray[Any], k_axis: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """Ways to read a grid of scales wrongly."""
    if grid.size < 2:
        return
    if grid.ndim == 2 and grid.shape[k_axis] > 1:
        first = np.take(grid, [0], axis=k_axis)
        yield "the first block along k was used for all of k", np.broadcast_to(first, grid.shape).copy()
        for shift, text in ((-1, "the next block along k was used"), (1, "the block before along k was used")):
            yield text, np.roll(grid, shift, axis=k_axis)
            index = np.clip(np.arange(grid.shape[k_axis]) - shift, 0, grid.shape[k_axis] - 1)
            yield text, np.take(grid, index, axis=k_axis)
    other = 1 - k_axis if grid.ndim == 2 else 0
    if grid.shape[other] > 1:
        for shift, text in ((-1, "the next row of scales was used"), (1, "the row of scales before was used")):
            yield text, np.roll(grid, shift, axis=other)
    if grid.ndim == 2 and min(grid.shape) > 1:
        yield "the grid of scales was read transposed", np.ascontiguousarray(grid.T).reshape(grid.shape)


def _up(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple


def _partials(s: Sample) -> Iterator[Hypothesis]:
    """Contiguous pieces of K whose sums are rounded to 16 bits before they are added, in float32 or in 16 bits."""
    k = s.problem.k
    lengths = {_up(_up(k, pieces) // pieces, g) for pieces in (2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64) for g in (1, 8, 16, 32, 64, 128)}
    if k < 16 or s.energy > COARSEST * float(np.sum(s.t**2)):
        return
    few = replace(s, a=s.a[::3], b=s.b[:, ::4], base=s.base[::3, ::4], x=s.x[::3, ::4], t=s.t[::3, ::4])
    for length in sorted(n for n in lengths if 0 < n < k):
        for fmt in (get_format("bfloat16"), get_format("float16")):
            for wide in (True, False):
                tried = _joined(few, length, fmt, wide)
                if few.rest(tried) <= few.energy / 2:
                    words = {"pieces": str(-(-k // length)), "length": str(length)}
                    yield Hypothesis("reduced-partials", {"format": fmt.name}, words, _joined(s, length, fmt, wide))


def _halved(values: Values, fmt: Format) -> Values:
    """Rounded to float16 or bfloat16 (the latter by way of float32: a hypothesis may miss a tie in 2^16)."""
    if fmt.name == "bfloat16":
        return _narrow(values, 7)
    with np.errstate(over="ignore"):
        half: Values = values.astype(np.float16).astype(np.float64)
    return half


def _joined(s: Sample, length: int, fmt: Format, wide: bool) -> Values:
    """The result of pieces of `length` products rounded to `fmt`, added in float32 or better (`wide`) or in `fmt`."""
    sums = np.stack([s.a[:, i : i + length] @ s.b[i : i + length] for i in range(0, s.problem.k, length)])
    parts = _halved(sums, fmt)
    total: Values = parts[0]
    for part in parts[1:]:
        total = total + part if wide else _halved(total + part, fmt)
    return np.asarray(s.alpha * total + s.base)


def missing_tail(s: Sample) -> tuple[int, Values] | None:
    """The k from which on products are missing, and what the result is then; None if it cannot be told."""
    if not _rich(s):
        return None
    k = s.problem.k
    part = s.error.copy()  # X - T + the products from k on: what is left if they are missing
    rests = np.empty(k)
    a = s.alpha * s.a
    for j in range(k - 1, -1, -1):
        part += np.multiply.outer(a[:, j], s.b[j])
        rests[j] = np.vdot(part, part)
    best = int(np.argmin(rests))
    noise = rests[best] / s.x.size
    # within nine standard deviations of the least the k cannot be told apart: the roundest of them is where kernels end
    near = rests <= rests[best] + 9 * noise * max(1.0, np.sqrt(2.0 * s.x.size) / 4) + 1e-12 * s.energy
    first, last = best, best
    while first > 0 and near[first - 1]:
        first -= 1
    while last < k - 1 and near[last + 1]:
        last += 1
    from_k = _roundest(first, last, best)
    return from_k, s.t - a[:, from_k:] @ s.b[from_k:]


def lost_k(s: Sample) -> tuple[int, Values] | None:
    """The single k whose product is missing everywhere, and what the result is then."""
    if not _rich(s):
        return None
    a = s.alpha * s.a
    along = np.einsum("kc,kc->k", a.T @ s.error, s.b)
    size = np.einsum("rk,rk->k", a, a) * np.einsum("kc,kc->k", s.b, s.b)
    rests = s.energy + 2 * along + size
    order = np.argsort(rests, kind="stable")
    best = int(order[0])
    if size[best] == 0:
        return None
    prediction = s.t - np.multiply.outer(a[:, best], s.b[best])
    if len(order) > 1:
        second = int(order[1])
        apart = s.rest(s.t - np.multiply.outer(a[:, second], s.b[second])) - s.rest(prediction)
        if apart <= 0.1 * s.energy:
            return None
    return best, prediction


def _rich(s: Sample) -> bool:
    """Whether the data can tell a missing product from a factor: error and truth are not proportional."""
    product = s.t - s.base
    size = float(np.sum(product**2)) * s.energy
    return size > 0 and min(s.x.shape) * max(s.x.shape) >= 16 and float(np.sum(product * s.error)) ** 2 < COLLINEAR * size


def tf32_like(look: Look) -> Finding | None:
    return _named(look, "tf32-like")


def bf16_inputs_like(look: Look) -> Finding | None:
    return _named(look, "bf16-inputs-like")


def k_tail_missing(look: Look) -> Finding | None:
    return _named(look, "k-tail-missing")


def lost_one_k(look: Look) -> Finding | None:
    return _named(look, "lost-k")


def scale_ignored(look: Look) -> Finding | None:
    return _named(look, "scale-ignored")


def scale_swapped(look: Look) -> Finding | None:
    return _named(look, "scale-swapped")


def scale_index(look: Look) -> Finding | None:
    return _named(look, "scale-index")


def reduced_partials(look: Look) -> Finding | None:
    return _named(look, "reduced-partials")


def operands_flushed(look: Look) -> Finding | None:
    return _named(look, "flush-to-zero")


# accumulators


def _terms(look: Look) -> tuple[Values, Values, Values] | None:
    """(products [n, k] in increasing k, what the output holds [n], the truth [n]) of sampled elements of a product, a sum or a mean."""
    c = look.context
    if c.op in ("sum", "mean") and look.count == 1 and set(c.inputs) == {"x"} and c.actual is not None:
        x = decode(c.inputs["x"].codes.ravel(), c.inputs["x"].format)[None, :]
        if not 1 < x.size <= 1 << 20 or not np.isfinite(x).all():
            return None
        held = look.actual(0, 1).ravel() * (x.size if c.op == "mean" else 1)
        return x, held, x.sum(axis=1)
    s = sample(look)
    if s is None or s.base.any() or s.alpha != 1.0 or s.problem.k * 64 > 1 << 22:
        return None
    pick = np.stack(np.unravel_index(np.argsort(np.where(np.isfinite(s.error), -np.abs(s.error), -np.inf).ravel())[:64], s.x.shape))
    return s.a[pick[0]] * s.b[:, pick[1]].T, s.x[tuple(pick)], s.t[tuple(pick)]


def accumulator_overflow(look: Look) -> Finding | None:
    """Inf where a 16-bit running sum passes 65504 on its way to a value in range."""
    if not look.m.classes.inf_actual_only:
        return None
    found = _terms(look)
    if found is None:
        return None
    if not {f.format for n, f in look.context.inputs.items() if n in ("a", "b", "x")} <= HALF:
        return None
    products, held, truth = found
    top = get_format("float16").max
    with np.errstate(over="ignore", invalid="ignore"):
        reached = np.abs(np.cumsum(products, axis=1)).max(axis=1)
    out = np.isinf(held)
    scale = products.shape[1] if look.context.op == "mean" else 1
    explained = out & (reached > top) & (np.abs(truth) <= look.fmt.max * scale)
    if not out.any() or not explained[out].all() or (reached[~out] > top).any():
        return None
    return Finding({}, {"reached": f"{reached[out].max():.6g}"})


def accumulator_plateau(look: Look) -> Finding | None:
    """A running sum of 16 bits that no longer grows: each product is under half a step of it."""
    if look.m.metrics["nonfinite_mismatch"] or look.quiet:
        return None
    found = _terms(look)
    if found is None:
        return None
    products, held, truth = found
    import ml_dtypes

    for name, dtype in (("float16", np.dtype(np.float16)), ("bfloat16", np.dtype(ml_dtypes.bfloat16))):
        with np.errstate(over="ignore", invalid="ignore"):
            running = np.add.accumulate(products.astype(dtype), axis=1, dtype=dtype).astype(np.float64)
        total = running[:, -1]
        quarter = max(1, products.shape[1] // 4)
        stuck = (running[:, -quarter:] == total[:, None]).all(axis=1) & (products[:, -quarter:] != 0).any(axis=1)
        wrong = (np.abs(held - truth) > 0.02 * np.abs(truth)) & (total != 0)
        mean = look.context.op == "mean"
        same = np.abs(held - total) <= (2.0**-8 * np.abs(total) if mean else 0.0)
        if wrong.any() and (stuck & same)[wrong].all() and same.mean() >= 0.95:
            return Finding({"value": float(total[wrong][0])}, {"format": name})
    return None
