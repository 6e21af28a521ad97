"""What a composition makes of given operands, over the whole matrix or chosen elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.operands import Gemm, Operand
from accuracy_eval.datapath import chains
from accuracy_eval.datapath.compositions import SCALINGS, Composition
from accuracy_eval.datapath.orders import cut, ordered
from accuracy_eval.datapath.planes import BLOCK_SCALES, Plane, factored, order_of, plane, scaled_plane
from accuracy_eval.datapath.products import result_codes
from accuracy_eval.datapath.rules import Rule
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, Values, decode, encode, get_format, round_to
from accuracy_eval.jit import fma, kernel

Elements = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass
class Problem:
    """A GEMM as compositions see it: D = alpha·A·Bᵀ + beta·C + bias with scales.

    a, b            codes [m, k], [n, k]; a_format, b_format
    a_scale, b_scale  float32 [m, ka], [n, kb], one a row and per `block` k's; None without
    block           k's that share a scale, 0 where a row has one scale
    a_factor, b_factor  float32 factors of all scales of an operand beside its block scales
    c, bias         float64 values, [m, n] and [n]
    elements        None: every element of D [m, n]; (i, j): the elements d[t] = D[i[t], j[t]]
    """

    a: Codes
    b: Codes
    a_format: str
    b_format: str
    a_scale: NDArray[np.float32] | None = None
    b_scale: NDArray[np.float32] | None = None
    block: int = 0
    a_factor: float = 1.0
    b_factor: float = 1.0
    alpha: float = 1.0
    beta: float = 0.0
    c: Values | None = None
    bias: Values | None = None
    elements: Elements | None = None
    _planes: dict[Any, tuple[Plane, Plane]] = field(default_factory=dict, repr=False)

    @property
    def k(self) -> int:
        return int(self.a.shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the results."""
        return (self.a.shape[0], self.b.shape[0]) if self.elements is None else (len(self.elements[0]),)

    @property
    def wide(self) -> bool:
        return "float64" in (self.a_format, self.b_format)

    def planes(self, rule: Rule, pre: str) -> tuple[Plane, Plane]:
        """Operands for a rule; kept, as many compositions share them."""
        pre = "fp16" if rule.kind == "emulated" else pre  # part of that rule
        reads = rule.kind if rule.kind in ("flush", "rdna3", "gst") else ""
        key = (pre, reads)
        if key not in self._planes:
            self._planes[key] = self._plane("a", rule, pre), self._plane("b", rule, pre)
        return self._planes[key]

    def _plane(self, which: str, rule: Rule, pre: str) -> Plane:
        codes, fmt, grid = (self.a, self.a_format, self.a_scale) if which == "a" else (self.b, self.b_format, self.b_scale)
        if pre != "mx":
            return plane(codes, fmt, rule=rule, pre=pre)
        name = BLOCK_SCALES.get(self.block)
        if grid is None or name is None:
            raise UsageError(f"'mx' stands for block scales of {' or '.join(map(str, BLOCK_SCALES))} k's; the problem has none")
        scale = encode(grid.astype(float), name)
        if not np.array_equal(decode(scale, name), grid, equal_nan=True):
            raise UsageError(f"block scales of operand {which} are not values of {name}, which the instruction takes")
        return scaled_plane(codes, fmt, rule, scale, name, self.block)

    @property
    def instruction_scales(self) -> bool:
        """Whether the block scales are such that an instruction may take them itself."""
        name = BLOCK_SCALES.get(self.block)
        grids = (self.a_scale, self.b_scale)
        return name is not None and all(g is not None and np.array_equal(round_to(g.astype(float), name), g, equal_nan=True) for g in grids)

    def at(self, i: NDArray[np.int64], j: NDArray[np.int64]) -> Problem:
        """The same problem for the elements (i[t], j[t]) only: row t of its operands belongs to element t."""
        return Problem(
            self.a[i], self.b[j], self.a_format, self.b_format,
            None if self.a_scale is None else self.a_scale[i], None if self.b_scale is None else self.b_scale[j], self.block,
            self.a_factor, self.b_factor, self.alpha, self.beta, None if self.c is None else self.c[i, j],
            None if self.bias is None else self.bias[j], (i, j),
        )  # fmt: skip

    def scale(self, which: str, part: int = 0) -> NDArray[np.float32]:
        """A scale ("a" or "b") of one block of k, broadcastable to the results."""
        grid = self.a_scale if which == "a" else self.b_scale
        assert grid is not None
        column = grid[:, min(part, grid.shape[1] - 1)]
        if self.elements is not None:
            return column
        return column[:, None] if which == "a" else column[None, :]

    def outer_scale(self, which: str) -> NDArray[np.float32] | np.float32:
        """What scales the whole sum: the factor beside block scales, else the scale of a row or of the tensor."""
        if self.block:
            return np.float32(self.a_factor if which == "a" else self.b_factor)
        return self.scale(which)

    @property
    def scaled_outside(self) -> bool:
        """Whether anything scales whole sums."""
        return (self.a_factor, self.b_factor) != (1.0, 1.0) if self.block else self.a_scale is not None


def problem_of(gemm: Gemm) -> Problem:
    """The problem of a described GEMM (`cpu_ref.operands.Gemm`): operands turned to [m, k] and [n, k], scales to rows × blocks of k."""
    a = gemm.a.codes if gemm.layout[0] == "n" else gemm.a.codes.T
    b = gemm.b.codes.T if gemm.layout[1] == "n" else gemm.b.codes
    a_scale, a_block = _scales(gemm.left, k_axis=1 if gemm.layout[0] == "n" else 0)
    b_scale, b_block = _scales(gemm.right, k_axis=0 if gemm.layout[1] == "n" else 1)
    blocks = {x for x in (a_block, b_block) if x}
    if len(blocks) > 1:
        raise UsageError(f"block scales along k must have one width, found {sorted(blocks)}")
    block = max(blocks, default=0)
    a_factor = b_factor = 1.0
    if BLOCK_SCALES.get(block) == "float8_ue4m3":  # NVFP4 has a float32 factor for each operand besides
        a_scale, a_factor = (a_scale, 1.0) if a_scale is None else factored(a_scale, BLOCK_SCALES[block])
        b_scale, b_factor = (b_scale, 1.0) if b_scale is None else factored(b_scale, BLOCK_SCALES[block])
    if (a_scale is None) != (b_scale is None):
        one = np.ones((1, 1))
        a_scale = np.broadcast_to(one, (gemm.m, 1)) if a_scale is None else a_scale
        b_scale = np.broadcast_to(one, (gemm.n, 1)) if b_scale is None else b_scale
    alpha, beta = gemm.scalars
    c = None if beta == 0 or gemm.c is None else decode(gemm.c.codes, gemm.c.format)
    formats = get_format(gemm.a.format).name, get_format(gemm.b.format).name
    return Problem(
        np.ascontiguousarray(a),
        np.ascontiguousarray(b),
        *formats,
        None if a_scale is None else np.ascontiguousarray(a_scale, np.float32),
        None if b_scale is None else np.ascontiguousarray(b_scale, np.float32),
        block,
        a_factor,
        b_factor,
        alpha,
        beta,
        c,
        gemm.bias_values,
    )


def _scales(operand: Operand, *, k_axis: int) -> tuple[Values | None, int]:
    """Scales as float64 [rows, blocks of k] and the width of a block (0: one a row)."""
    if operand.scale is None or operand.block is None:
        return None, 0
    grid = np.asarray(operand.scale_of(), np.float64)
    grid = grid if k_axis == 1 else grid.T
    rows = operand.shape[1 - k_axis]
    width = 0
    if grid.shape[1] > 1:
        width = int(operand.block[k_axis])
        grid = grid[:, ::width]
    return np.broadcast_to(grid, (rows, grid.shape[1])), width


def chains_of(composition: Composition, k: int) -> list[list[NDArray[np.int64]]]:
    """Positions of k of every chain of every piece, padded with k (a zero) to whole blocks of the rule."""
    width, inner = composition.rule.L, composition.inner
    pieces = cut(ordered(k, composition.order), composition.pieces, k)
    return [[order_of(k, width, chain) for chain in cut(piece, inner, k)] for piece in pieces]


def piece_sums(composition: Composition, problem: Problem) -> Iterator[NDArray[Any]]:
    """Result of every piece, float32 (float64 for D) arrays of the problem's shape, in order of pieces."""
    rule = composition.rule
    a, b = problem.planes(rule, composition.pre)
    width = np.float64 if rule.kind == "fma64" else np.float32

    def chain(positions: NDArray[np.int64]) -> NDArray[Any]:
        acc = chains.accumulators(rule, problem.shape)
        chains.run(rule, a, b, positions, acc)
        with np.errstate(invalid="ignore"):
            return acc.astype(width, copy=False)

    for piece in chains_of(composition, problem.k):
        yield join_pieces(composition.inner_join, map(chain, piece), problem)


@kernel
def _fma_all(x: NDArray[Any], y: NDArray[Any], z: NDArray[Any], out: NDArray[Any]) -> None:
    """out = x·y + z, each rounded once."""
    for i in range(out.shape[0]):
        out[i] = fma(x[i], y[i], z[i])


def fused(x: Any, y: Any, z: Any, shape: tuple[int, ...], width: type) -> NDArray[Any]:
    """x·y + z with one rounding to `width`, broadcast to `shape`."""
    flat: list[NDArray[Any]] = [np.ascontiguousarray(np.broadcast_to(np.asarray(v, width), shape)).reshape(-1) for v in (x, y, z)]
    out: NDArray[Any] = np.empty(flat[0].shape, width)
    with np.errstate(all="ignore"):
        _fma_all(flat[0], flat[1], flat[2], out)
    return out.reshape(shape)


def join_pieces(join: str, pieces: Sequence[NDArray[Any]] | Iterator[NDArray[Any]], problem: Problem) -> NDArray[Any]:
    """The pieces' sums joined. `seq` and `blk` hold one piece at a time."""
    with np.errstate(over="ignore", invalid="ignore"):
        if join == "rev":
            pieces = list(pieces)[::-1]
        if join in ("tree", "half", "last"):
            return _FOLDS[join](list(pieces))
        total: NDArray[Any] | None = None
        for p, piece in enumerate(pieces):
            if join == "blk":
                start = np.zeros(problem.shape, np.float32) if total is None else total
                total = fused(piece, problem.scale("a", p) * problem.scale("b", p), start, problem.shape, np.float32)
            else:
                total = piece if total is None else total + piece
        assert total is not None
        return total


def _tree(level: list[NDArray[Any]]) -> NDArray[Any]:
    while len(level) > 1:
        level = [level[i] + level[i + 1] if i + 1 < len(level) else level[i] for i in range(0, len(level), 2)]
    return level[0]


def _half(lanes: list[NDArray[Any]]) -> NDArray[Any]:
    distance = 1 << max(len(lanes) - 1, 0).bit_length() >> 1
    while distance:
        lanes = [lanes[i] + lanes[i + distance] if i + distance < len(lanes) else lanes[i] for i in range(min(distance, len(lanes)))]
        distance >>= 1
    return lanes[0]


def _last(pieces: list[NDArray[Any]]) -> NDArray[Any]:
    *others, total = pieces
    count = (len(pieces) + 1) // 2
    buffers: list[NDArray[Any]] = others[:count]
    for i, piece in enumerate(others[count:]):
        buffers[i] = buffers[i] + piece
    for buffer in buffers:
        total = total + buffer
    return total


_FOLDS = {"tree": _tree, "half": _half, "last": _last}


def rounded_pieces(pieces: Iterator[NDArray[Any]], partial: str) -> Iterator[NDArray[Any]]:
    """The pieces' sums, each rounded to that format first; "" leaves them."""
    for piece in pieces:
        yield piece if not partial else decode(result_codes(piece, "", partial), partial).astype(piece.dtype)


def finish(composition: Composition, joined: NDArray[Any], problem: Problem) -> NDArray[Any]:
    """Epilogue, in the width of the joined sums."""
    width = joined.dtype.type
    d = joined
    with np.errstate(over="ignore", invalid="ignore"):
        for step in composition.epilogue:
            if step in SCALINGS:
                a, b = problem.outer_scale("a"), problem.outer_scale("b")
                d = d * (a * b) if step == "*(ab)" else ((d * a) * b if step == "*a*b" else (d * b) * a)
            elif step[0] == "~":
                d = decode(result_codes(d, "", step[1:]), step[1:]).astype(width)
            elif step == "*alpha":
                d = d * width(problem.alpha)
            elif step == "+fma(c)":
                d = fused(width(problem.beta), problem.c, d, problem.shape, width)
            elif step == "+fma(d)":
                assert problem.c is not None
                d = fused(width(problem.alpha), d, width(problem.beta) * problem.c.astype(width), problem.shape, width)
            else:
                assert problem.bias is not None
                d = d + problem.bias.astype(width)
    return d


def evaluate(composition: Composition, problem: Problem) -> Codes:
    """Codes of the composition's result: of its cast, else of the accumulator's format; shape of the problem.

    UsageError where the problem lacks what the composition uses (scales, C, bias, block scales of the pieces' width).
    """
    _check(composition, problem)
    joined = join_pieces(composition.join, rounded_pieces(piece_sums(composition, problem), composition.partial), problem)
    return codes_of(composition, finish(composition, joined, problem))


def codes_of(composition: Composition, d: NDArray[Any]) -> Codes:
    """Codes of finished values in the composition's output format."""
    accumulator = composition.rule.accumulator
    return result_codes(d, accumulator, composition.cast or accumulator)


def _check(composition: Composition, problem: Problem) -> None:
    if problem.k == 0:
        raise UsageError("a composition needs at least one product; the contraction is empty")
    scaled = any(s in composition.epilogue for s in SCALINGS)
    if (composition.join == "blk" and problem.a_scale is None) or (scaled and not problem.scaled_outside):
        raise UsageError(f"composition '{composition}' applies scales; the problem has none")
    if composition.join == "blk" and composition.pieces.group != (problem.block or composition.pieces.group):
        raise UsageError(
            f"composition '{composition}' scales pieces of {composition.pieces.group}, the problem's blocks are {problem.block}"
        )
    if any(s.startswith("+fma") for s in composition.epilogue) and problem.c is None:
        raise UsageError(f"composition '{composition}' adds C; the problem has none")
    if "+bias" in composition.epilogue and problem.bias is None:
        raise UsageError(f"composition '{composition}' adds a bias; the problem has none")
