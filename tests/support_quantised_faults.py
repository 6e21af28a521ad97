"""Faulty quantisers and products of quantised operands, in plain numpy: what the tests of their diagnoses put in.

Scales are made by the formulas of support_quantize, element by element; nothing here calls the quantiser under test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support_quantize import LARGEST, bf16, exponent

from accuracy_eval.diagnose import context_of, diagnose, rows_of
from accuracy_eval.formats import decode, encode
from accuracy_eval.metrics import measure
from accuracy_eval.quantize import RECIPES
from accuracy_eval.records import Case, Coded, Diagnosis

Array = NDArray[Any]
Amax = Callable[[Array], float]  # of one block [rows, elements]


def data(shape: tuple[int, int], seed: int = 0) -> Array:
    """bfloat16 codes of normal numbers whose rows and stretches of columns differ in size."""
    rng = np.random.default_rng([seed, *shape])
    sizes = np.exp2(rng.integers(-3, 4, (shape[0], 1)) + np.repeat(rng.integers(-1, 2, (1, -(-shape[1] // 16))), 16, axis=1)[:, : shape[1]])
    return bf16(rng.standard_normal(shape) * sizes)


def grid_of(recipe: str, shape: tuple[int, int]) -> tuple[int, int, int, int]:
    """Block rows, block columns, rows and elements of a block."""
    height, width = (b or n for b, n in zip(RECIPES[recipe].block, shape, strict=True))
    return -(-shape[0] // height), -(-shape[1] // width), height, width


def maxima(x: Array, recipe: str, of: Amax = lambda block: float(np.abs(block).max())) -> Array:
    """`of` each block of the values x, [block rows, block columns]."""
    rows, columns, height, width = grid_of(recipe, x.shape)
    found = np.zeros((rows, columns))
    for i, j in np.ndindex(rows, columns):
        found[i, j] = of(x[i * height : (i + 1) * height, j * width : (j + 1) * width])
    return found


def scales(amax: Array, recipe: str, rule: str = "") -> Array:
    """Scale codes of these maxima by the recipe's rule, or another."""
    r = RECIPES[recipe]
    element = {"fp8_e4m3": "float8_e4m3fn", "fp4_e2m1": "float4_e2m1fn", "int8": "int8", "fp8_e5m2": "float8_e5m2"}[r.element]
    rule = rule or r.rule
    if rule in ("floor", "ceil", "rceil", "even"):
        return np.clip(exponent(amax, rule, element) + 127, 0, 254).astype(np.uint8)
    f32 = np.float32
    top, a = f32(LARGEST[element]), np.maximum(amax.astype(f32), f32(r.floor))
    made = {
        "max_over_amax": lambda: f32(1) / (top / a),
        "amax_over_max": lambda: a / top,
        "pow2": lambda: np.exp2(exponent(a, "rceil", element)),
    }
    return made[rule]().astype(f32).view(np.uint32)


def diagnosed(codes: Array, made: Array, recipe: str) -> list[Diagnosis]:
    """What is said about these scales of the bfloat16 operand `codes`."""
    x = decode(codes, "bfloat16")
    shape = {"tensor": (), "row": (len(x),)}.get(RECIPES[recipe].granularity, made.shape)
    right, wrong = scales(maxima(x, recipe), recipe).reshape(shape), made.reshape(shape)
    fmt = "float8_e8m0fnu" if right.dtype == np.uint8 else "float32"
    case = Case("quantize", (("m", len(x)), ("n", x.shape[1])), format="bfloat16", recipe=recipe)
    m = measure(Coded(wrong, fmt), Coded(right, fmt))
    return diagnose(context_of(
        case, m, output="scale", actual=rows_of(wrong), expected=rows_of(right), inputs={"x": Coded(codes, "bfloat16")}, contract="exact",
    ))  # fmt: skip


# parts of a block whose largest magnitude a faulty reduction takes for the block's
PARTS: dict[str, Amax] = {
    "the first half of each block": lambda b: float(np.abs(b[:, : b.shape[1] // 2]).max()),
    "the second half of each block": lambda b: float(np.abs(b[:, b.shape[1] // 2 :]).max()),
    "every second element": lambda b: float(np.abs(b[:, ::2]).max()),
}


def product_of(codes: tuple[Array, Array], formats: tuple[str, str]) -> Array:
    a, b = (decode(c, f) for c, f in zip(codes, formats, strict=True))
    return a @ b.T


def encoded(x: Array, fmt: str) -> Array:
    return encode(x, fmt, overflow="saturate")
