"""How sparse the operands of an exact companion are: P, Q, the k of an output and S of `exact`, from the sizes and the limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from accuracy_eval.errors import UsageError

# Largest magnitudes of (a, b, grad_d), densest information first; the first that leaves nothing unseen is taken.
_LEVELS = ((2, 2, 2), (2, 1, 1), (1, 2, 1), (1, 1, 1))


@dataclass(frozen=True)
class Plan:
    """How sparse the operands are. Magnitudes are 1 or 1 and 2 each.

    rows, columns    P and Q
    kept             most k an output sums
    grad_step        S
    a, b, grad, c    largest magnitude of A, B, G, and of C and bias
    """

    rows: int
    columns: int
    kept: int
    grad_step: int
    a: int
    b: int
    grad: int
    c: int


class Sizes(NamedTuple):
    """The product that is asked for; `limit`: the largest sum of magnitudes, in units."""

    m: int
    n: int
    k: int
    limit: int
    has_bias: bool
    backward: bool


def plan_of(sizes: Sizes, alpha: float, offset: float) -> Plan:
    """The plan that leaves the fewest k (and, backward, n and m) unseen. alpha and offset (beta and bias together) in units.

    UsageError where they leave no room for a product under the limit.
    """
    m, n, k, limit, _, backward = sizes
    best: tuple[int, Plan] | None = None
    for c in (2, 1):
        room = int(min(limit, (limit - c * offset) // (alpha or 1)))
        if room >= min(limit // 2, max(k, 1)) or c == 1:
            break
    if room < 1:
        raise UsageError(
            f"exact operands: alpha {alpha:g} and offsets {offset:g} in their common unit leave no room under the limit of {limit};"
            " bring alpha, beta and the bias's 1 closer together"
        )
    for level in _LEVELS:
        plan = _plan_at(sizes, room, level, c)
        unseen = max(0, k - plan.kept * plan.rows * plan.columns)
        if backward:
            unseen += max(0, n - _covered(n, m, plan.grad_step)) + max(0, m - _covered(m, n, plan.grad_step))
        if best is None or unseen < best[0]:
            best = (unseen, plan)
        if not unseen:
            break
    assert best is not None
    return best[1]


def _covered(size: int, other: int, step: int) -> int:
    """Indices of `size` whose residue mod `step` occurs among `other` consecutive ranks."""
    return size if other >= step else sum(_ceil(size - r, step) for r in range(min(other, size, step)))


def _plan_at(sizes: Sizes, room: int, level: tuple[int, int, int], c: int) -> Plan:
    """The plan for one level of magnitudes; `room`: the largest sum of products |a·b|, c: the largest magnitude of C and bias."""
    (m, n, k, limit, has_bias, backward), (a, b, grad) = sizes, level
    kept = max(1, room // (a * b))
    per_column, per_row = max(1, limit // (grad * b)), max(1, limit // (grad * a))
    shorter = max(1, min(m, n))
    top_rows, top_columns = max(1, min(m, k)), max(1, min(n, k))
    # backward wants S <= min(m, n): every residue then meets a row and a column
    columns = min(top_columns, _ceil(n, per_column * shorter)) if backward and n else 1
    rows = min(top_rows, max(1, k // columns), _ceil(m, per_row * shorter)) if backward and m else 1
    needed = _ceil(k, kept)
    while rows * columns < needed:
        wider = [rows < top_rows and (rows + 1) * columns <= k, columns < top_columns and rows * (columns + 1) <= k]
        if wider[0] and (rows <= columns or not wider[1]):
            rows += 1
        elif wider[1]:
            columns += 1
        else:
            break
    step = 1
    if backward:
        step = max(1, _ceil(_ceil(n, columns), per_column), _ceil(_ceil(m, rows), per_row))
        if has_bias:
            step = max(step, _ceil(m, max(1, limit // grad)))
    # no more than are there: `kept` then also says how many k an output sums
    return Plan(rows, columns, min(kept, max(1, _ceil(k, rows * columns))), step, a, b, grad, c)


def _ceil(x: int, y: int) -> int:
    return -(-x // y)
