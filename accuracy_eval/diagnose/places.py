"""Where the error lies: rows, columns, a block, a periodic pattern, a tail of zeros, a transposed result.

Rounding noise is everywhere, so a place is named only where the parts of a tensor fall into two clear classes. Parts are compared by
NSR = ‖d‖/‖e‖; sorted, the largest step between neighbours divides them, and it must be larger than healthy parts of that many
elements ever show. Where the codes must be equal, a part is bad as soon as one code differs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.diagnose.context import Finding, Look
from accuracy_eval.formats import Values, ulp
from accuracy_eval.messages import number
from accuracy_eval.metrics.measured import NoiseMap

Mask = NDArray[np.bool_]
PANEL = 128  # rows of one look
CAP = 10.0  # NSR of a part that is nothing but error: beyond this one bad part is as bad as another
STEP = 4.0  # smallest ratio of NSR between bad and healthy parts where the error is known to be a fault
UNSURE = 16.0  # and where nothing says how large rounding may be
UNCERTAIN = 2.0**-12  # NSR that a healthy unit may have somewhere, where nothing is known of it (14-bit fp8 accumulators: 2^-14)
SPREAD = 64.0  # parts of w elements need a step (1 + SPREAD/w) times as large: the NSR of few elements varies by itself
ALONE = 12.0  # healthy errors stay below 12 times their rms


@dataclass(frozen=True)
class Run:
    """Bad indices first, first + modulus, … of an axis: `width` at a time; modulus 0: one run first … last."""

    first: int
    last: int
    modulus: int = 0
    width: int = 1


@dataclass(frozen=True)
class Places:
    """At most one of these is set; `detail` says what is there instead."""

    rows: Run | None = None
    columns: Run | None = None
    block: tuple[int, int, int, int] | None = None
    detail: str = ""


def bad_parts(look: Look, noise: NoiseMap | None, width: int) -> tuple[Mask, Mask] | None:
    """(bad, neutral) masks of the parts, or None where they do not fall into two classes. `width`: elements of a part.

    A neutral part says nothing: it is zero on both sides.
    """
    if noise is None or noise.error.size < 2:
        return None
    neutral = (noise.error == 0) & (noise.reference == 0) & (noise.mismatches == 0)
    if look.exact:
        bad = noise.mismatches > 0
        return _unless_chance(bad, neutral) if bad.any() else None
    lost = (noise.error == 0) & (noise.reference == 0) & (noise.mismatches > 0) & (look.metrics["nonfinite_mismatch"] > 0)
    nsr = np.where(lost, CAP, noise.nsr)  # nothing but NaN or Inf
    floor = look.fmt.eps / 16
    levels = np.clip(np.nan_to_num(nsr, nan=CAP, posinf=CAP), floor, CAP)
    counted = np.sort(levels[~neutral])
    if counted.size < 2:
        return None
    ratio = counted[1:] / counted[:-1]
    at = int(np.argmax(ratio))
    if ratio[at] < (STEP if look.over_budget else UNSURE) * (1 + SPREAD / max(width, 1)):
        return None
    # without a budget an error of two units of the last place, or of a short accumulator, is no fault
    if not look.over_budget and counted[at + 1] < max(2 * look.fmt.eps, UNCERTAIN):
        return None
    return _unless_chance((levels > counted[at]) & ~neutral, neutral)


def _unless_chance(bad: Mask, neutral: Mask) -> tuple[Mask, Mask] | None:
    """The masks, unless a single part among many is healthy: an error everywhere may be tiny at one place by chance."""
    healthy = int((~bad & ~neutral).sum())
    return (bad, neutral) if healthy > 1 or (healthy == 1 and bad.size <= 3) else None


def run_of(bad: Mask, neutral: Mask) -> Run | None:
    """The pattern of the bad indices: one run, or runs at a regular distance of at most 256; None for anything else, or if all are bad."""
    at = np.flatnonzero(bad)
    if not at.size or at.size == bad.size:
        return None
    first, last = int(at[0]), int(at[-1])
    if (bad | neutral)[first : last + 1].all():
        return None if (bad | neutral).all() else Run(first, last)
    for modulus in range(2, min(256, bad.size // 3) + 1):
        residues = np.unique(at % modulus)
        expected = np.isin(np.arange(bad.size) % modulus, residues)
        if residues.size == modulus or not ((expected == bad) | neutral).all():
            continue
        gaps = np.flatnonzero(np.diff(residues) > 1)
        if gaps.size > 1 or (gaps.size == 1 and (residues[0], residues[-1]) != (0, modulus - 1)):
            return None  # several runs a period: no single offset describes them
        offset = int(residues[gaps[0] + 1] if gaps.size else residues[0])
        return Run(offset, last, modulus, int(residues.size))
    return None


def locate(look: Look) -> Places:
    """Where the error is, if it is somewhere rather than everywhere."""
    m = look.m
    if look.quiet or min(look.rows, look.cols) == 0 or look.count < 16:
        return Places()
    rows, columns = bad_parts(look, m.rows, look.cols), bad_parts(look, m.cols, look.rows)
    if rows is not None:
        run = run_of(*rows)
        if run is None:
            return Places()
        return _across(look, run, rows[0], columns)
    if columns is not None:
        run = run_of(*columns)
        if run is None or (look.rows == 1 and 2 * int(columns[0].sum()) > look.cols):
            return Places()
        if look.rows == 1:
            detail = _detail(look, 0, 1, slice(run.first, run.last + 1))
            return Places(columns=run, detail=detail) if run.modulus else Places(block=(0, 0, run.first, run.last), detail=detail)
        if not _reaches_all_rows(look, run):
            return Places()
        return Places(columns=run, detail=_detail(look, 0, min(look.rows, PANEL), _cols_of(run, look.cols)))
    return Places()


def _across(look: Look, run: Run, bad: Mask, columns: tuple[Mask, Mask] | None) -> Places:
    """Whether the bad rows are bad all along, or in some columns only."""
    if look.cols == 1:
        return Places(rows=run)
    if not look.open or not look.height:
        other = None if columns is None else run_of(*columns)
        if other is None:
            return Places(rows=run)
        return Places(block=(run.first, run.last, other.first, other.last)) if not run.modulus and not other.modulus else Places()
    at = np.flatnonzero(bad)
    first = int(at[0])
    end = min(int(at[-1]) + 1, first + PANEL, first + look.height)
    wrong = _wrong(look, first, end, bad)[bad[first:end]]
    used = np.flatnonzero(wrong.any(axis=0))
    if not used.size:
        return Places()
    left, right = int(used[0]), int(used[-1])
    density = float(wrong[:, left : right + 1].mean())
    # at this density a column of a part that is bad all along is hit but for one chance in e^12
    slack = ALONE / max(density * len(wrong), 1e-9)
    if max(left, look.cols - 1 - right) <= slack:
        return Places(rows=run, detail=_detail(look, first, end, slice(None), bad))
    whole_run = used.size >= 0.9 * (right - left + 1)
    if run.modulus or not whole_run or density < 0.25:
        return Places()
    return Places(block=(run.first, run.last, left, right), detail=_detail(look, first, end, slice(left, right + 1), bad))


def _wrong(look: Look, first: int, end: int, bad: Mask) -> Mask:
    """Which elements of these rows are wrong by more than healthy rows ever are."""
    a, e = look.actual(first, end), look.expected(first, end)
    with np.errstate(invalid="ignore"):
        if look.exact:
            return np.asarray((a != look.rounded(e)) & ~(np.isnan(a) & np.isnan(e)))
        noise = look.m.rows
        healthy = noise.nsr[~bad] if noise is not None else np.zeros(1)
        level = float(np.median(healthy)) if healthy.size else 0.0
        scale = np.sqrt(np.mean(np.nan_to_num(e, posinf=0.0, neginf=0.0) ** 2))
        allowed = ALONE * level * scale + 1.5 * ulp(e, look.fmt)
        return np.asarray((np.abs(a - e) > allowed) | (np.isfinite(a) != np.isfinite(e)))


def _reaches_all_rows(look: Look, run: Run) -> bool:
    """Whether bad columns are bad at the top and at the bottom: a tall block has no clear row pattern."""
    if not look.open or not look.height:
        return True
    step = min(PANEL, look.height, max(1, look.rows // 4))
    cols = _cols_of(run, look.cols)
    none = np.zeros(look.rows, np.bool_)
    shares = []
    for first in (0, look.rows - step):
        shares.append(
            float(_wrong(look, first, first + step, none)[:, cols].mean()) if look.exact else _share(look, first, first + step, cols)
        )
    return min(shares) > 0.25 * max(shares) and min(shares) > 0


def _share(look: Look, first: int, end: int, cols: slice | Mask) -> float:
    """‖d‖/‖e‖ of these columns in these rows."""
    a, e = look.actual(first, end)[:, cols], look.expected(first, end)[:, cols]
    with np.errstate(invalid="ignore"):
        d = np.nan_to_num(a - e, nan=1.0, posinf=1.0, neginf=1.0)
    size = _norm(e)
    return _norm(d) / size if size else float(np.any(d != 0))


def _cols_of(run: Run, count: int) -> slice | Mask:
    if not run.modulus:
        return slice(run.first, run.last + 1)
    return np.asarray((np.arange(count) - run.first) % run.modulus < run.width)


def _detail(look: Look, first: int, end: int, cols: slice | Mask, rows: Mask | None = None) -> str:
    """What a wrong part holds, where one word says it: zeros, NaN, a multiple of what is expected."""
    if not look.open or not look.height:
        return ""
    end = min(end, first + look.height)
    pick = np.ones(end - first, np.bool_) if rows is None else rows[first:end]
    a, e = look.actual(first, end)[pick][:, cols], look.expected(first, end)[pick][:, cols]
    if not (a != 0).any():
        return "; zeros are there"
    if np.isnan(a).all():
        return "; NaN is there"
    both = np.isfinite(a) & np.isfinite(e)
    energy = float(np.sum(e[both] ** 2))
    if energy and a.size >= 8:
        g = float(np.sum(a[both] * e[both])) / energy
        rest = _norm(a[both] - g * e[both]) / energy**0.5
        if rest <= max(0.01 * abs(g), 2 * look.rounding * abs(g)) and abs(g - 1) > 4 * rest:
            return f"; {number(g)} × the expected values are there"
    return ""


def rows(look: Look) -> Finding | None:
    run = _places(look).rows
    return None if run is None or run.modulus else _whole(look, "row", run, look.rows)


def columns(look: Look) -> Finding | None:
    run = _places(look).columns
    return None if run is None or run.modulus else _whole(look, "column", run, look.cols)


def _whole(look: Look, line: str, run: Run, total: int) -> Finding:
    return Finding({"first": run.first, "last": run.last}, whole_words(line, run.first, run.last, total, _places(look).detail))


def whole_words(line: str, first: int, last: int, total: int, detail: str = "") -> dict[str, str]:
    """What the sentences of codes rows and columns say besides their evidence."""
    return {"which": f"{_lines(line, first, last)} of {total} {'is' if first == last else 'are'}", "detail": detail}


def block(look: Look) -> Finding | None:
    place = _places(look).block
    if place is None:
        return None
    top, bottom, left, right = place
    alone = top == bottom and left == right and len(look.m.shape) == 2
    which = f"the element [{top}, {left}] is" if alone else f"{_lines('row', top, bottom)}, {_lines('column', left, right)} are"
    words = {"which": which, "detail": _places(look).detail}
    return Finding({"row_first": top, "row_last": bottom, "col_first": left, "col_last": right}, words)


def _lines(line: str, first: int, last: int) -> str:
    """One line or several: row 5, rows 5 to 7."""
    return f"{line} {first}" if first == last else f"{line}s {first} to {last}"


def periodic(look: Look) -> Finding | None:
    places = _places(look)
    for axis, run in ((0, places.rows), (1 if len(look.m.shape) > 1 else 0, places.columns)):
        if run is not None and run.modulus:
            what = {0: "row", 1: "column"}[axis] if len(look.m.shape) > 1 else "element"
            which = _lines(what, run.first, run.first + run.width - 1)
            more = {} if run.width == 1 else {"width": run.width}
            evidence = {"axis": axis, "modulus": run.modulus, "offset": run.first, **more}
            return Finding(evidence, {"which": which, "are": "is" if run.width == 1 else "are", "detail": places.detail})
    return None


def _places(look: Look) -> Places:
    if look.places is None:
        look.places = locate(look)
    found: Places = look.places
    return found


def zero_tail(look: Look) -> Finding | None:
    """From some element on the output is zero although numbers are expected there."""
    if look.quiet or look.m.rows is None or not look.open or not look.height or look.count < 16:
        return None
    row = _last_kept(look)
    # the boundary lies in the last row that is not all zero
    kept = np.flatnonzero(look.actual(row, row + 1)[0] != 0)
    start = row * look.cols + (int(kept[-1]) + 1 if kept.size else 0)
    if start == 0 or look.count - start < 8:
        return None
    column = start % look.cols
    if row and column and not (look.actual(row - 1, row)[0, column:] != 0).any():
        return None  # columns that are zero in the rows above as well
    lost, step = 0, max(1, min(PANEL, look.height))
    first = start // look.cols
    for begin in range(first, min(look.rows, first + 4 * step), step):
        end = min(begin + step, look.rows)
        a, e = look.actual(begin, end), look.expected(begin, end)
        skip = max(0, start - begin * look.cols)
        if (a.ravel()[skip:] != 0).any():
            return None
        lost += int((np.abs(e.ravel()[skip:]) >= look.fmt.smallest_normal).sum())
    checked = min(look.count - start, 4 * step * look.cols)
    return (
        Finding({"from_index": start}, {"count": str(look.count - start), "total": str(look.count)})
        if lost >= max(8, checked // 2)
        else None
    )


def _last_kept(look: Look) -> int:
    """The last row that is not all zero; 0 where there is none."""
    step = max(1, min(PANEL, look.height))
    for end in range(look.rows, 0, -step):
        begin = max(0, end - step)
        kept = np.flatnonzero((look.actual(begin, end) != 0).any(axis=1))
        if kept.size:
            return begin + int(kept[-1])
    return 0


def transposed(look: Look) -> Finding | None:
    """Actual is the transpose of what is expected: of the whole, or of two diagonal blocks of a large square."""
    if look.quiet or min(look.rows, look.cols) < 2 or look.m.metrics["nonfinite_mismatch"] or (look.metrics["rel_fro"] or 0.0) < 0.1:
        return None
    if look.whole is not None:
        a, e = look.whole
        return Finding() if _is_transposed(look, a, np.ascontiguousarray(e.T).reshape(a.shape), e) else None
    size = min(look.height, 1024, look.rows // 2)
    if look.rows != look.cols or size < 16 or not look.open:
        return None
    for first in (0, look.rows - size):
        part = slice(first, first + size)
        a, e = look.actual(first, first + size)[:, part], look.expected(first, first + size)[:, part]
        if not _is_transposed(look, a, e.T, e):
            return None
    return Finding()


def _is_transposed(look: Look, a: Values, moved: Values, e: Values) -> bool:
    with np.errstate(invalid="ignore"):
        error, rest = _norm(a - e), _norm(a - moved)
    different, size = np.count_nonzero(a != e), _norm(e)
    rounding = 0.0 if look.fmt.scale_only else 2 * look.rounding * size  # scale factors are moved, not rounded
    return bool(different >= 6 and error > 0.1 * size and rest <= max(0.02 * error, rounding))


def _norm(x: Values) -> float:
    """‖x‖ over finite elements; a plain sum, for a threaded dot product costs more than it saves here."""
    finite = np.where(np.isfinite(x), x, 0.0)
    return float(np.sqrt(np.sum(finite * finite)))
