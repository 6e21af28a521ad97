"""What a part would return for a GEMM, with scales, alpha, C, bias and the output's rounding: the model as a device."""

from __future__ import annotations

from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.datapath.compositions import Composition
from accuracy_eval.datapath.evaluation import Problem, evaluate, problem_of
from accuracy_eval.datapath.orders import FWD, PLAIN, PROMOTED, Pieces, parse_order
from accuracy_eval.datapath.planes import BLOCK_SCALES
from accuracy_eval.datapath.units import Unit, find_unit
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, get_format


def predict(gemm: Gemm, unit: str, out: str, *, tf32: bool = False, promoted: bool = False) -> Codes:
    """Codes of D [m, n] in format `out` as that unit computes it, one chain of blocks per element in increasing k.

    unit  any name of a unit or part
    tf32  float32 operands go through the TF32 instruction: rounded to nearest first as cuBLAS does, cut on CDNA3
    promoted  an accumulator shorter than float32 is added to a float32 sum every 128 products, as libraries do by default
    Scales of a tensor or of rows multiply the result, scales of 1×128 blocks the sums over each block; 16- and 32-wide block scales are
    the instruction's own and must be values of its scale format. A library may order or split k otherwise: its bits then differ by
    rounding only. UsageError where the unit does not take the formats or its arithmetic is not known.
    """
    problem = problem_of(gemm)
    formats = problem.a_format, problem.b_format
    if tf32 and formats == ("float32", "float32"):
        row = find_unit(unit, "tfloat32")
        return _composed(predicted_composition(row, problem, out, pre=tf32_conversion(row)), problem)
    if problem.block in BLOCK_SCALES:
        return _composed(predicted_composition(_scaled_unit(unit, problem), problem, out, pre="mx"), problem)
    return _composed(predicted_composition(find_unit(unit, formats), problem, out, promoted=promoted), problem)


def tf32_conversion(unit: Unit) -> str:
    """What happens to float32 operands before the unit's TF32 rule: CDNA3 cuts them, cuBLAS rounds them to nearest."""
    return "tf32rz" if unit.arch.startswith("cdna") else "tf32rne"


def predicted_composition(unit: Unit, problem: Problem, out: str, *, pre: str = "", promoted: bool = False) -> Composition:
    """The plainest composition of a unit for a problem: one chain, or one per block of scales (per 128 products where a short
    accumulator is promoted); then scales, alpha, C, bias, cast.
    """
    assert unit.rule is not None
    epilogue: list[str] = []
    if problem.scaled_outside:
        epilogue.append("*(ab)")
    if problem.alpha != 1:
        epilogue.append("*alpha")
    if problem.c is not None:
        epilogue.append("+fma(c)")
    if problem.bias is not None:
        epilogue.append("+bias")
    order = parse_order(unit.group) if unit.group else None
    name = get_format(out).name
    pieces, join = (Pieces(0, problem.block), "blk") if problem.block and pre != "mx" else (PLAIN, "")
    if promoted and not problem.block and unit.rule.P < 23 and unit.out == "float32" and problem.k > PROMOTED:
        pieces, join = Pieces(0, PROMOTED), "seq"
    cast = "" if name == unit.out else name
    return Composition(unit.rule, order or FWD, pieces, join, pre, tuple(epilogue), cast)  # type: ignore[arg-type]


def _scaled_unit(unit: str, problem: Problem) -> Unit:
    """The row whose instruction takes the problem's block scales."""
    row = find_unit(unit, (problem.a_format, problem.b_format), scaled=True)
    if (BLOCK_SCALES[problem.block], problem.block) not in row.scales:
        have = " or ".join(f"{width}-wide {f}" for f, width in row.scales)
        raise UsageError(f"{row.name} takes {have} block scales, the problem's are {problem.block} wide")
    return row


def _composed(composition: Composition, problem: Problem) -> Codes:
    if problem.k == 0:
        raise UsageError("a model needs at least one product; the contraction is empty")
    return evaluate(composition, problem)
