"""What a sampled product would be under each hypothesis: narrower operands, other scales, products left out, partial sums of 16 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from accuracy_eval.cpu_ref.operands import LAYOUTS, Gemm
from accuracy_eval.diagnose.sampling import Indices, Sample
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Format, Values, get_format
from accuracy_eval.quantize import misreadings, overreadings

COLLINEAR = 0.98  # cos² of error and truth beyond which a missing part of K cannot be told from a gain
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # products between two roundings of a running sum
COARSEST = 0.01  # energy of an error, of the truth's, beyond which it is not that of partial sums rounded to 16 bits


@dataclass(frozen=True)
class Hypothesis:
    code: str
    evidence: dict[str, Any]
    words: dict[str, str]
    prediction: Values


def simple_hypotheses(s: Sample) -> Iterator[Hypothesis]:
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


def layouts(s: Sample) -> Iterator[Hypothesis]:
    """Operands read in another layout than the call's, where their shapes allow it; none where two layouts give the same (A = Aᵀ)."""
    p = s.problem
    if p.a_scale is not None or p.b_scale is not None:
        return
    found: dict[str, Values] = {}
    for layout in LAYOUTS:
        try:
            other = replace(p, layout=layout)
        except UsageError:  # another contraction
            continue
        if layout != p.layout and (other.m, other.n) == (p.m, p.n):
            found[layout] = s.of(other.a_rows(s.rows), other.b_columns(s.cols))
    for layout, prediction in found.items():
        if not any(np.array_equal(prediction, x) for name, x in found.items() if name != layout):
            yield Hypothesis("wrong-layout", {"layout": layout}, {"asked": p.layout}, prediction)


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
    given = [n for n, v in (("a", p.a_scale), ("b", p.b_scale)) if v is not None]
    called = dict(zip("ab", s.names, strict=True))
    drops = [(n,) for n in given] + ([("a", "b")] if len(given) == 2 else [])
    for names in drops:
        prediction = _under(s, None if "a" in names else p.a_scale, None if "b" in names else p.b_scale)
        if prediction is not None:
            yield Hypothesis("scale-ignored", {"operand": ", ".join(called[n] for n in names)}, {}, prediction)
    if len(given) == 2 and np.size(p.a_scale) > 1:
        prediction = _under(s, p.b_scale, p.a_scale)
        if prediction is not None:
            yield Hypothesis("scale-swapped", {}, {}, prediction)
    yield from _misread(s, misreadings)


def overread(s: Sample) -> Iterator[Hypothesis]:
    """Scales read past the end of their grid: NaN is predicted where nobody knows what lies there."""
    yield from _misread(s, overreadings)


def _misread(s: Sample, readings: Callable[[Values], Iterator[tuple[str, Values]]]) -> Iterator[Hypothesis]:
    p = s.problem
    sides = ((p.left, p.a_scale, "t"), (p.right, p.b_scale, "n"))
    for i, (operand, scale, first) in enumerate(sides):
        if scale is None:
            continue
        turned = p.layout[i] == first  # the contracted axis comes first in the store
        grid = np.ascontiguousarray(operand.scale_grid.T if turned else operand.scale_grid)
        for what, moved in readings(grid):
            if np.array_equal(moved, grid):
                continue
            read = np.ascontiguousarray(moved.T if turned else moved)
            prediction = _under(s, p.a_scale if i else read, read if i else p.b_scale)
            if prediction is not None:
                words = {"operand": s.names[i], "what": what, "total": str(grid.size)}
                yield Hypothesis("scale-index", {"blocks": int(np.count_nonzero(moved != grid))}, words, prediction)


def _under(s: Sample, left: Any, right: Any) -> Values | None:
    """The result under other scales; None for scales that do not fit their operand."""
    try:
        other = replace(s.problem, a_scale=left, b_scale=right)
        return s.of(other.a_rows(s.rows), other.b_columns(s.cols))
    except (UsageError, IndexError):
        return None


def _up(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple


def narrow_sums(s: Sample) -> Iterator[Hypothesis]:
    """Partial sums, or the running sum, rounded to 16 bits on their way."""
    few = replace(s, a=s.a[::3], b=s.b[:, ::4], base=s.base[::3, ::4], x=s.x[::3, ::4], t=s.t[::3, ::4])
    for fmt in (get_format("bfloat16"), get_format("float16")):
        for step in (n for n in STEPS if n < s.problem.k):
            if few.rest(_running(few, step, fmt)) <= few.energy / 2:
                yield Hypothesis("accumulator-rounded", {"format": fmt.name, "every": step}, {}, _running(s, step, fmt))
        if s.problem.k < 16 or s.energy > COARSEST * float(np.sum(s.t**2)):
            continue
        for words, pieces in _pieces(s.problem.k):
            sums, whole = _sums(few, pieces, fmt), None
            for wide in (True, False):
                if few.rest(_joined(few, sums, fmt, wide)) <= few.energy / 2:
                    whole = _sums(s, pieces, fmt) if whole is None else whole
                    yield Hypothesis("reduced-partials", {"format": fmt.name}, words, _joined(s, whole, fmt, wide))


def _pieces(k: int) -> Iterator[tuple[dict[str, str], list[slice | Indices]]]:
    """Ways to cut k into pieces, with the words for them: contiguous ones, and groups dealt out in turn."""
    lengths = {_up(_up(k, pieces) // pieces, g) for pieces in (2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64) for g in (1, 8, 16, 32, 64, 128)}
    for length in sorted({n for n in (*lengths, *STEPS) if 4 <= n < k}):
        contiguous: list[slice | Indices] = [slice(i, i + length) for i in range(0, k, length)]
        yield {"pieces": str(len(contiguous)), "which": f"{length} consecutive k"}, contiguous
    for count, group in product((2, 3, 4, 5, 6, 7, 8, 12, 16), (8, 16, 32, 64, 128)):
        if count * group < k:
            dealt: list[slice | Indices] = [np.flatnonzero(np.arange(k) // group % count == p) for p in range(count)]
            yield {"pieces": str(count), "which": f"every {count}th group of {group} k"}, dealt


def _halved(values: Values, fmt: Format) -> Values:
    """Rounded to float16 or bfloat16 (the latter by way of float32: a hypothesis may miss a tie in 2^16)."""
    if fmt.name == "bfloat16":
        return _narrow(values, 7)
    with np.errstate(over="ignore"):
        half: Values = values.astype(np.float16).astype(np.float64)
    return half


def _running(s: Sample, step: int, fmt: Format) -> Values:
    """The result of a running sum that is rounded to `fmt` after every `step` products."""
    total = np.zeros(s.x.shape)
    for i in range(0, s.problem.k, step):
        total = _halved(total + s.a[:, i : i + step] @ s.b[i : i + step], fmt)
    return np.asarray(s.alpha * total + s.base)


def _sums(s: Sample, pieces: list[slice | Indices], fmt: Format) -> list[Values]:
    """Sums of pieces of the products, each rounded to `fmt`."""
    return [_halved(s.a[:, ks] @ s.b[ks], fmt) for ks in pieces]


def _joined(s: Sample, parts: list[Values], fmt: Format, wide: bool) -> Values:
    """Rounded partial sums added in float32 or better (`wide`) or in `fmt`."""
    total = parts[0]
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
    from_k = roundest(first, last, best)
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
    product, error = (x / (np.max(np.abs(x), initial=0.0) or 1.0) for x in (s.t - s.base, s.error))  # squares of their own size overflow
    size = float(np.sum(product**2) * np.sum(error**2))
    return size > 0 and min(s.x.shape) * max(s.x.shape) >= 16 and float(np.sum(product * error)) ** 2 < COLLINEAR * size


def roundest(first: int, last: int, near: int) -> int:
    """Of first … last the one with the largest power of two in it, the nearest to `near` of equals."""
    return max(range(first, last + 1), key=lambda j: ((j & -j) if j else 1 << 30, -abs(j - near)))
