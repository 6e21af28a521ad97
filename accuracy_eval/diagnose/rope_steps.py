"""Changes of rotary embeddings that kernels have had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from accuracy_eval.formats import Values
from accuracy_eval.records import Case

Pairs = tuple[Values, Values]
Split = Callable[[Values], Pairs]
Join = Callable[[Values, Values], Values]


def rope_changes(case: Case, values: Mapping[str, Values]) -> Iterator[tuple[str, Mapping[str, Values]]]:
    backward = case.direction == "bwd"
    x, cos, sin = values["grad_y" if backward else "x"], values["cos"][:, None], values["sin"][:, None]
    sin = -sin if backward else sin

    def turned(
        c: Values, s: Values, split: Callable[[Values], Pairs] = _halves, joined: Callable[[Values, Values], Values] = _beside
    ) -> Values:
        first, second = split(x)
        return joined(first * c - second * s, second * c + first * s)

    found = {
        "pairs are turned the other way round": turned(cos, -sin),
        "elements are paired with their neighbours, not with those half a head on": turned(cos, sin, _neighbours, _interleaved),
        "the result is interleaved, not in halves": turned(cos, sin, _halves, _interleaved),
        "neighbours are paired, and the result is in halves": turned(cos, sin, _neighbours, _beside),
        "the angles are those of the position before": turned(np.roll(cos, 1, axis=0), np.roll(sin, 1, axis=0)),
        "the angles are those of the position after": turned(np.roll(cos, -1, axis=0), np.roll(sin, -1, axis=0)),
        "sines and cosines are exchanged": turned(sin, cos),
        "nothing is turned": x,
    }
    for what, y in found.items():
        yield what, {"dx" if backward else "y": y}


def _halves(x: Values) -> Pairs:
    first, second = np.split(x, 2, axis=2)
    return first, second


def _neighbours(x: Values) -> Pairs:
    return x[..., 0::2], x[..., 1::2]


def _beside(first: Values, second: Values) -> Values:
    return np.concatenate([first, second], axis=2)


def _interleaved(first: Values, second: Values) -> Values:
    return np.stack([first, second], axis=3).reshape(*first.shape[:2], -1)
