"""A minimal reproducer: one element of a matrix product as one row of A, one column of B, and the exact result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.gemm import gradient
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.digests import sha256_codes
from accuracy_eval.formats import Format, Values, decode, encode, get_format
from accuracy_eval.records import Case, Coded

MOST = 4096  # codes written out per operand


def reproducer(
    case: Case,
    inputs: Mapping[str, Coded],
    index: tuple[int, ...] | list[int],
    *,
    output: str = "d",
    out_format: str = "float32",
    actual_code: int | None = None,
) -> dict[str, Any]:
    """Everything needed to compute element `index` of a GEMM output again, as JSON data.

    inputs      operands as stored, scales included
    out_format  concrete format of the output
    Codes are hex, `digits` a code, in increasing k: all of them where K <= 4096; else the SHA-256 of the little-endian codes and
    `terms` [k, a, b] of the 4096 largest products. `expected` is the exact result (a sum of fractions) rounded once to nearest even;
    `value` its float64 neighbour. A NaN or Inf operand makes `expected` what IEEE arithmetic gives.
    """
    options = dict(case.options)
    alpha, beta = float(options.get("alpha", 1.0)), float(options.get("beta", 0.0))
    scale = {n: decode(inputs[n].codes, inputs[n].format) if n in inputs else None for n in ("a_scale", "b_scale")}
    problem = Gemm(
        inputs["a"], inputs["b"], case.layout or "nn", alpha, beta if output == "d" else 0.0, inputs.get("c") if output == "d" else None,
        inputs.get("bias") if output == "d" else None, scale["a_scale"], scale["b_scale"],
    )  # fmt: skip
    if output != "d":
        problem = gradient(output, problem, inputs["grad_d"])
    i, j = (int(x) for x in index) if len(index) == 2 else (0, int(index[0]))
    a, b = _codes(problem, 0, i), _codes(problem, 1, j)
    alpha, beta = problem.scalars
    terms = [(alpha, x, y) for x, y in zip(problem.a_rows([i])[0], problem.b_columns([j])[:, 0], strict=True)]
    more: dict[str, Any] = {}
    if beta and problem.c is not None:
        terms.append((1.0, beta, float(problem.c_values(slice(i, i + 1))[0, j])))
        more["c"] = _hex(np.asarray(problem.c.codes[i, j]).reshape(1), get_format(problem.c.format))
    if problem.bias is not None and problem.bias_values is not None:
        terms.append((1.0, 1.0, float(problem.bias_values[j])))
        more["bias"] = _hex(np.asarray(problem.bias.codes).reshape(-1)[j : j + 1], get_format(problem.bias.format))
    fmt = get_format(out_format)
    value, code = exact(terms, fmt)
    found = {
        "op": case.op, "layout": "nt", "output": output, "index": [i, j], "k": problem.k, "alpha": alpha.hex(), "beta": beta.hex(),
        **_operand("a", a, problem.left.format), **_operand("b", b, problem.right.format), **more, "out_format": fmt.name,
        "expected": f"0x{code:0{fmt.code_digits}x}", "value": value.hex() if math.isfinite(value) else str(value),
    }  # fmt: skip
    if problem.k > MOST:
        products = np.abs(problem.a_rows([i])[0] * problem.b_columns([j])[:, 0])
        largest = np.sort(np.argsort(-products, kind="stable")[:MOST])
        fa, fb = problem.left.format, problem.right.format
        found["terms"] = [[int(k), _hex(a[k : k + 1], fa), _hex(b[k : k + 1], fb)] for k in largest if products[k]]
    if actual_code is not None:
        found["actual"] = f"0x{int(actual_code):0{fmt.code_digits}x}"
    for name in ("a_scale", "b_scale"):
        if name in inputs:
            found[name] = [float(x).hex() for x in _scales(problem, name, i, j)]
    return found


def _codes(problem: Gemm, which: int, at: int) -> NDArray[Any]:
    codes = (problem.a, problem.b)[which].codes
    return np.ascontiguousarray(codes[at] if problem.layout[which] == "nt"[which] else codes[:, at])


def _scales(problem: Gemm, name: str, i: int, j: int) -> Values:
    """Scale of each k of the row or column."""
    operand, which, at = (problem.left, 0, i) if name == "a_scale" else (problem.right, 1, j)
    line = slice(at, at + 1)
    grid = operand.scale_of(line) if problem.layout[which] == "nt"[which] else operand.scale_of(slice(None), line)
    values: Values = grid.reshape(-1)
    return values[:1] if (values == values[0]).all() else values[:MOST]


def _operand(name: str, codes: NDArray[Any], fmt: Format) -> dict[str, Any]:
    facts: dict[str, Any] = {f"{name}_format": fmt.name, f"{name}_digits": fmt.code_digits}
    if codes.size <= MOST:
        return {**facts, f"{name}_codes": _hex(codes, fmt)}
    return {**facts, f"{name}_sha256": sha256_codes(codes)}


def _hex(codes: NDArray[Any], fmt: Format) -> str:
    return "".join(f"{int(c):0{fmt.code_digits}x}" for c in codes)


def exact(terms: list[tuple[float, float, float]], fmt: Format) -> tuple[float, int]:
    """Σ s·x·y of float64 numbers: its float64 neighbour, and the code of the exact sum rounded once to nearest even."""
    numbers = np.array(terms, np.float64).reshape(-1, 3)
    if not np.isfinite(numbers).all():
        with np.errstate(invalid="ignore", over="ignore"):
            total = float(np.prod(numbers, axis=1).sum())
        return total, int(encode(np.array([total]), fmt)[0])
    result = sum((Fraction(float(s)) * Fraction(float(x)) * Fraction(float(y)) for s, x, y in numbers if x and y), Fraction(0))
    try:
        value = result.numerator / result.denominator
    except OverflowError:
        value = math.inf if result > 0 else -math.inf
    return value, round_exactly(result, value, fmt)


def round_exactly(result: Fraction, value: float, fmt: Format) -> int:
    """The code of `result`, whose float64 neighbour is `value`: what float64 dropped decides ties of narrower formats."""
    if math.isfinite(value) and Fraction(value) != result and fmt.name != "float64":
        # round to odd: the dropped part leaves a trace in the last bit
        mantissa = int(np.float64(abs(value)).view(np.uint64)) & 1
        if not mantissa:
            value = math.nextafter(value, math.inf if result > Fraction(value) else -math.inf)
    return int(encode(np.array([value]), fmt)[0])
