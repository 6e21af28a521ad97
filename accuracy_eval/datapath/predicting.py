"""What a part would return for a GEMM, with scales, alpha, C, bias and the output's rounding: the model as a device."""

from __future__ import annotations

from dataclasses import replace

from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.datapath.compositions import Composition
from accuracy_eval.datapath.evaluation import Problem, codes_of, evaluate, finish, problem_of
from accuracy_eval.datapath.orders import FWD, PLAIN, PROMOTED, Pieces, parse_order
from accuracy_eval.datapath.products import gemm as unit_gemm
from accuracy_eval.datapath.units import Unit, find_unit
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Codes, decode, encode, get_format

BLOCK_WIDTHS = (16, 32)  # block scales of these widths are the instruction's own, wider ones are applied to partial sums


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
    if problem.block in BLOCK_WIDTHS:
        return _block_scaled(unit, problem, out)
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
    if problem.a_scale is not None and not problem.block:
        epilogue.append("*(ab)")
    if problem.alpha != 1:
        epilogue.append("*alpha")
    if problem.c is not None:
        epilogue.append("+fma(c)")
    if problem.bias is not None:
        epilogue.append("+bias")
    order = parse_order(unit.group) if unit.group else None
    name = get_format(out).name
    pieces, join = (Pieces(0, problem.block), "blk") if problem.block else (PLAIN, "")
    if promoted and not problem.block and unit.rule.P < 23 and unit.out == "float32" and problem.k > PROMOTED:
        pieces, join = Pieces(0, PROMOTED), "seq"
    cast = "" if name == unit.out else name
    return Composition(unit.rule, order or FWD, pieces, join, pre, tuple(epilogue), cast)  # type: ignore[arg-type]


def _composed(composition: Composition, problem: Problem) -> Codes:
    if problem.k == 0:
        raise UsageError("a model needs at least one product; the contraction is empty")
    return evaluate(composition, problem)


def _block_scaled(unit: str, problem: Problem, out: str) -> Codes:
    """Scales inside the instruction; what follows it (alpha, C, bias, cast) is float32 arithmetic on its result."""
    row = find_unit(unit, (problem.a_format, problem.b_format), scaled=True)
    name = next((f for f, width in row.scales if width == problem.block), None)
    if name is None:
        have = " or ".join(f"{width}-wide {f}" for f, width in row.scales)
        raise UsageError(f"{row.name} takes {have} block scales, the problem's are {problem.block} wide")
    scales = []
    for which, values in (("a", problem.a_scale), ("b", problem.b_scale)):
        assert values is not None
        codes = encode(values.astype(float), name)
        if not (decode(codes, name) == values).all():
            raise UsageError(f"block scales of operand {which} are not values of {name}, the format {row.name} takes")
        scales.append(codes)
    d = unit_gemm(row, problem.a, problem.b, format=(problem.a_format, problem.b_format), a_scale=scales[0], b_scale=scales[1])
    bare = replace(problem, a_scale=None, b_scale=None, block=0)
    composition = predicted_composition(row, bare, out)
    return codes_of(composition, finish(composition, d.view("<f4"), bare))
