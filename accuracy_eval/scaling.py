"""Scale factors of judged tensors: exponents, relative difference and rounding rule of each side, against the recipe's and each other's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from accuracy_eval.formats import Codes
from accuracy_eval.measuring import SideTensor
from accuracy_eval.ops.spec import Reference, rows_and_columns
from accuracy_eval.quantize import compare_scales, get_recipe
from accuracy_eval.records import Pair, Side, TensorResult

Rules = Mapping[str, Sequence[str]]  # by side label: names of the rules that give exactly these scales


def with_scales(result: TensorResult, sides: Sequence[SideTensor], references: Mapping[str, Reference], rules: Rules) -> TensorResult:
    """The result of a tensor of scale factors with `scales` on every side and pair whose codes are of one format and shape."""
    held = {s.label: s.variants[0](0, rows_and_columns(s.shape)[0]) for s in sides}
    formats = {s.label: (s.format, s.shape) for s in sides}
    wanted = (get_recipe(result.case.recipe).rule,)

    def of_side(side: Side) -> Side:
        expected = _whole(references.get(side.label))
        if expected is None or side.label not in rules or expected.size != held[side.label].size:
            return side
        facts = compare_scales(
            held[side.label].reshape(expected.shape), expected, side.format, rules=rules[side.label], expected_rules=wanted
        )  # fmt: skip
        return replace(side, scales=facts)

    def of_pair(pair: Pair) -> Pair:
        if formats[pair.a] != formats[pair.b]:
            return pair
        a, b = (rules.get(label, ()) for label in (pair.a, pair.b))
        return replace(pair, scales=compare_scales(held[pair.a], held[pair.b], formats[pair.a][0], rules=a, expected_rules=b))

    return replace(result, sides=tuple(map(of_side, result.sides)), pairs=tuple(map(of_pair, result.pairs)))


def _whole(reference: Reference | None) -> Codes | None:
    return None if reference is None else np.concatenate([p.values for p in reference.panels()])
