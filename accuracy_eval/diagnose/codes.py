"""The registry: one row per code. This is the one place to add one.

Rules run in the order of the table; `diagnose` ranks what they find. Rows without a rule are named by whoever joins dumps or runs
devices, through `named`, so that every sentence has one home.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from accuracy_eval.diagnose import (
    accumulators,
    alignment,
    attention,
    collectives,
    element_codes,
    epilogues,
    facts,
    grids,
    grouping,
    indices,
    places,
    products,
    sampling,
    scales,
    steps,
    ties,
    values,
)
from accuracy_eval.diagnose.context import Context, Finding, Look
from accuracy_eval.messages import number
from accuracy_eval.records import Diagnosis, GateResult

Rank = Literal["cause", "fact", "place", "note"]
RANKS: tuple[Rank, ...] = ("cause", "fact", "place", "note")
Rule = Callable[[Look], Finding | None]


@dataclass(frozen=True)
class Code:
    """One diagnosis.

    sentence   plain words; fields are the evidence's keys and the words a rule adds
    evidence   keys that are always there
    rule       what finds it; None where others do
    rank       "cause" what went wrong · "fact" what is certain by itself · "place" where · "note" what to know
    unless     codes beside which it would say nothing new, or be a guess
    fails      by itself a FAIL under every profile
    meaning, action   for docs/diagnoses.md: what it says, what to do next
    with_      codes that often stand beside it
    """

    name: str
    rank: Rank
    sentence: str
    meaning: str
    action: str
    evidence: tuple[str, ...] = ()
    rule: Rule | None = None
    unless: tuple[str, ...] = ()
    fails: bool = False
    with_: tuple[str, ...] = ()

    @property
    def needs_fault(self) -> bool:
        """Whether it explains an error: never said of a tensor whose every element is right, or within its budget."""
        return self.rank in ("cause", "place") or self.name == "constant"


def _first(*rules: Rule) -> Rule:
    def rule(look: Look) -> Finding | None:
        return next((found for found in (r(look) for r in rules) if found is not None), None)

    return rule


_OUT = ("empty", "all-zero", "constant")  # after these nothing about the output's structure is left to say
_NARROW = ("result-rounded", "tf32-like", "bf16-inputs-like", "reduced-partials", "accumulator-rounded", "flush-to-zero")
_SCALES = ("scale-rounding-rule", "amax-stale")
_COLLECTIVE = ("lost-rank", "doubled-rank", "rank-order")
_ATTENTION = ("softmax-scale", "wrong-mask", "keys-missing", "wrong-kv-head", "wrong-sink")
_OF_PRODUCT = (
    "wrong-layout",
    "epilogue-step",
    "formula-step",
    "wrong-index",
    "wrong-group",
    "scale-ignored",
    "scale-swapped",
    "scale-index",
    "k-tail-missing",
    "lost-k",
    "misaligned-read",
)
_PRODUCT = (*_COLLECTIVE, *_ATTENTION, *_SCALES, *_OF_PRODUCT, *_NARROW)
_PLACES = ("zero-tail", "rows", "columns", "block", "periodic")

CODES: dict[str, Code] = {
    c.name: c
    for c in (
        # named by judge, compare and dump
        Code("inputs-differ", "fact", "the dumps were made from different inputs, the first difference at {from_index}",
             "the operands' digests differ", "dump both again with the same version and suite", ("from_index",)),
        Code("shape-mismatch", "fact", "the output is {found}; the case asks for {asked}",
             "the output has another shape than the case", "check layout and output allocation", fails=True),
        Code("format-mismatch", "fact", "the output is {found}; the case asks for {asked}",
             "the output has another number format family", "check the output dtype of the call", fails=True),
        Code("never-written", "fact", "{count} of {total} elements were never written: they held the fill of both runs",
             "elements kept the poison that was there before the run", "look for skipped tiles, wrong grid size, early exits", ("count",),
             fails=True, with_=_PLACES),
        Code("operand-changed", "fact", "the run wrote to operand {operand}: later runs, and whoever reads it next, get other inputs",
             "the kernel changed one of its inputs", "look for an in-place step or an output that overlaps an operand", ("operand",),
             fails=True),
        Code("nondeterministic", "note", "{count} different results in {repeats} runs of the same call; every one was judged",
             "the same call gave different bytes", "look for atomics, races, uninitialised memory; fix the algorithm choice", ("count",)),
        Code("gate-cannot-fail", "note", "gate {gate} cannot fail here: an all-zero output passes it; the largest expected is {largest}",
             "the limit is so wide that zeros pass it", "tighten the tolerance, or use a relative gate", ("gate",)),
        # facts
        Code("empty", "note", "the output is empty: there is nothing to judge", "no elements", "check the case's shape", rule=facts.empty),
        Code("nan-in-actual", "fact", "{count} of {total} elements are NaN where the other side is not, the first at {index}",
             "NaN appears", "find the first NaN's inputs with the reproducer; look for 0·Inf, Inf − Inf, unwritten memory",
             ("index", "count"), facts.nan_in_actual, fails=True, with_=(*_PLACES, "fp8-encoding", "overflow-policy")),
        Code("inf-in-actual", "fact", "{count} of {total} elements are Inf where the other side is not, the first at {index}",
             "Inf appears", "look for an overflowing accumulator or output cast",
             ("index", "count"), facts.inf_in_actual, fails=True, with_=("accumulator-overflow", "overflow-policy")),
        Code("nan-in-expected", "fact", "{count} of {total} expected elements are NaN where the output is not, the first at {index}",
             "the expectation is NaN and the output is not", "see whether NaN is swallowed (fmax, clamp) or saturated", ("index", "count"),
             facts.nan_in_expected, fails=True, with_=("fp8-encoding", "overflow-policy")),
        Code("inf-in-expected", "fact", "{count} of {total} expected elements are Inf where the output is not, the first at {index}",
             "the expectation is Inf and the output is not", "see whether the cast saturates", ("index", "count"),
             facts.inf_in_expected, fails=True, with_=("overflow-policy",)),
        Code("all-zero", "fact", "all {total} elements are zero; the largest expected is {largest}",
             "nothing but zeros", "see whether the kernel ran and wrote to this buffer", rule=facts.all_zero, fails=True,
             with_=("gate-cannot-fail",)),
        Code("zero-reference", "note", "every expected element is zero: only the absolute error means anything here",
             "relative metrics have no meaning", "judge by max_abs = 0", rule=facts.zero_reference),
        Code("constant", "fact", "all {total} elements are {value}; expected are values from {low} to {high}",
             "one value everywhere", "look for an index that does not advance, or a broadcast", ("value",), facts.constant,
             ("accumulator-plateau",)),
        Code("relation-broken", "cause", "relation {relation} does not hold: {sentence} ({count} of {total} elements differ)",
             "two results of one kernel contradict each other", "compare the two calls: operands, shapes, strides",
             ("relation",)),
        # causes
        Code("fp8-encoding", "cause", "{what} read in the other fp8 encoding (OCP against FNUZ): every value is {gain} × the expected one",
             "bytes of one encoding decoded as the other", "convert between e4m3fn and e4m3fnuz (e5m2 and e5m2fnuz) before the call",
             ("gain",), values.fp8_encoding, with_=("nan-in-actual", "nan-in-expected")),
        Code("overflow-policy", "cause",
             "overflow beyond {limit} is treated differently at {count} of {total} elements: the output {here}, expected {there}",
             "one side saturates where the other makes NaN or Inf", "clamp before the cast, or state the policy; no accuracy is lost",
             ("count",), values.overflow_policy, with_=("nan-in-actual", "inf-in-actual", "nan-in-expected", "inf-in-expected")),
        Code("accumulator-overflow", "cause",
             "a running sum of 16 bits overflows: it reaches {reached} on its way to a value in range",
             "the accumulator is float16 and passes 65504", "accumulate in float32, or scale the operands",
             rule=accumulators.accumulator_overflow, unless=_OUT, with_=("inf-in-actual",)),
        Code("accumulator-plateau", "cause", "a {format} running sum stops growing at {value}: each further product is under half its step",
             "the accumulator is of 16 bits and absorbs what is added", "accumulate in float32", ("value",),
             accumulators.accumulator_plateau, with_=("constant",)),
        Code("scale-rounding-rule", "cause", "{count} of {total} scales differ: they follow the {actual} rule, expected is {expected}",
             "scales were rounded by another rule than the recipe's", "use one rule on both sides, or another recipe's name",
             ("actual", "expected"), scales.scale_rounding_rule),
        Code("amax-stale", "cause", "{count} of {total} scales differ: all are those of {part}, not of the whole block",
             "the largest magnitude was taken of a part of the data, or of other data",
             "check the reduction of amax: its range, and when it runs", ("part",), scales.amax_stale, ("scale-rounding-rule",)),
        Code("ties-rounded", "cause", "ties are rounded {how}, not to even: {count} of {total} elements differ, all of them ties",
             "halves go another way than IEEE 754's default", "use rounding to nearest even in the cast", ("how",), ties.ties_rounded,
             (*_OUT, "overflow-policy"), with_=("truncation-bias",)),
        Code("transposed", "cause", "the output is the transpose of what is expected", "rows and columns are exchanged",
             "check the layout of the output and the order of the operands", rule=places.transposed,
             unless=_SCALES),
        Code("wrong-layout", "cause", "the operands were read in layout {layout}; asked for is {asked}",
             "an operand is transposed that should not be, or is not that should", "check the transpose flags and leading dimensions",
             ("layout",), products.wrong_layout, with_=("transposed",)),
        Code("scale-ignored", "cause", "the scale of operand {operand} was not applied", "scales do not reach the result",
             "check that the scale pointer is passed and not 1", ("operand",), products.scale_ignored, with_=("gain",)),
        Code("scale-swapped", "cause", "the scales of a and b were exchanged", "each operand got the other's scales",
             "check the order of scale arguments; many kernels compute the transposed product", rule=products.scale_swapped,
             with_=("gain",)),
        Code("scale-index", "cause", "scales of operand {operand} were read at the wrong place ({blocks} of {total} blocks): {what}",
             "scale blocks do not belong to the data they multiply", "check block size, stride and swizzle of the scales", ("blocks",),
             _first(products.scale_index, scales.stored_elsewhere, element_codes.scale_of_a_neighbour), with_=("gain",)),
        Code("epilogue-step", "cause", "{step}", "a step after the product is left out or exchanged",
             "check the epilogue the kernel was built with, and the order of its operands", ("step",), epilogues.epilogue_step,
             with_=("gain",)),
        Code("formula-step", "cause", "{step}", "a step of a formula is left out or exchanged",
             "check that step of the kernel, and the option or operand that it takes", ("step",),
             _first(steps.formula_step, element_codes.pairs_exchanged)),
        Code("wrong-index", "cause", "indices of operand {operand} are used {how}", "every index is one off, or counted from the other end",
             "check where the kernel's numbering starts and in which order it goes", ("operand",), indices.wrong_index, with_=("gain",)),
        Code("wrong-group", "cause", "rows and groups do not belong together: {how}",
             "rows are cut at other places, or meet the B of another group",
             "check the offsets made of group_lens, empty groups too, and the index of B", ("how",), grouping.wrong_group),
        Code("lost-rank", "cause", "what rank {rank} gave is missing from the sum{where}", "one rank of a collective does not take part",
             "look at that rank's buffer, stream and group; a launch that was skipped or came late", ("rank",), collectives.lost_rank),
        Code("doubled-rank", "cause", "what rank {rank} gave is in the sum twice{where}", "one rank of a collective is counted twice",
             "look for an in-place buffer that is reduced again, or a retry", ("rank",), collectives.doubled_rank),
        Code("rank-order", "cause", "{count} of {total} blocks hold what belongs elsewhere: {which} holds what {other} should",
             "blocks of a collective are exchanged", "check the order of ranks in the group and the offsets of their blocks", ("count",),
             collectives.rank_order),
        Code("k-tail-missing", "cause", "products from k = {from_k} of {k} on are missing", "the last part of the contraction is lost",
             "check the handling of a K that is no multiple of the tile", ("from_k",), products.k_tail_missing, with_=("lost-k",)),
        Code("lost-k", "cause", "the products of k = {k} of {total} are missing", "one index of the contraction is lost",
             "check the tile boundaries at this k", ("k",), products.lost_one_k, with_=("k-tail-missing",)),
        Code("softmax-scale", "cause", "the scores are multiplied by {value} ({what}); asked for is {asked}",
             "the softmax takes scores of another scale", "check who applies 1/√d and log2 e, and whether both sides do", ("value",),
             attention.softmax_scale),
        Code("wrong-mask", "cause", "a query i sees the keys {mask}; it should see {asked}",
             "the mask is shifted, left out, or not asked for",
             "check the comparison of places (< or ≤), the window's ends, and where the diagonal starts", ("mask",), attention.wrong_mask),
        Code("keys-missing", "cause", "keys from {from_key} of {keys} on are left out", "the last keys have no part in the softmax",
             "check the handling of a length that is no multiple of the block of keys", ("from_key",), attention.keys_missing),
        Code("wrong-kv-head", "cause", "K and V are those of other heads: {how}", "query heads take K and V of other heads",
             "check how query heads are dealt to heads of K and V: h // (h/g)", ("how",), attention.wrong_kv_head),
        Code("wrong-sink", "cause", "a head's sink {how}", "the sinks of an attention are left out, or scaled",
             "check that the sink joins the denominator as it is, and no value", ("how",), attention.wrong_sink),
        Code("misaligned-read", "cause", "operands were read {elements} elements before they begin: an address was rounded down",
             "a kernel takes an operand off alignment for one on a boundary", "copy such views before the call, or refuse them",
             ("elements",), alignment.misaligned_read, ("k-tail-missing", "lost-k")),
        Code("result-rounded", "cause", "the result was {how} to {format} before it was stored as {stored}",
             "the output holds no more than a narrower format's bits", "check where the result is cast: an epilogue, autocast, a workspace",
             ("format",), grids.result_rounded, _OUT),
        Code("tf32-like", "cause", "the result is that of operands {how} to 10 fraction bits: TF32 is on", "TF32 replaced float32",
             "set allow_tf32 off (highest matmul precision), or state contract tf32", rule=products.tf32_like),
        Code("bf16-inputs-like", "cause", "the result is that of operands {how} to bfloat16", "operands were narrowed to bfloat16",
             "check autocast and the matmul precision setting", rule=products.bf16_inputs_like),
        Code("reduced-partials", "cause",
             "partial sums of {pieces} pieces, each {which}, are rounded to {format} before they are added",
             "split-K reduces in 16 bits", "turn reduced-precision reduction off, or state contract partials(format)", ("format",),
             products.reduced_partials),
        Code("accumulator-rounded", "cause", "the running sum is kept in {format}: it is rounded every {every} k",
             "the accumulator is of 16 bits", "accumulate in float32 (on CUDA: allow_fp16_accumulation off)", ("format", "every"),
             products.accumulator_rounded, ("result-rounded", "accumulator-plateau")),
        Code("flush-to-zero", "cause", "{what}: subnormals are flushed", "subnormal numbers become zero",
             "check flush-to-zero flags, or scale the data out of the subnormal range", ("count",),
             _first(values.flush_to_zero, products.operands_flushed), _OUT),
        Code("gain", "cause", "the output is {value} × the expected values{power}", "one factor everywhere",
             "compare alpha, scales and encodings with this factor", ("value", "power_of_two"), values.gain,
             (*_OUT, "fp8-encoding", "accumulator-plateau", "transposed", "epilogue-step", "formula-step", *_COLLECTIVE, *_ATTENTION,
              "k-tail-missing", "lost-k", *_SCALES, *_NARROW)),
        Code("range-violation", "cause", "{op} is {value} at {index}, outside [{low}, {high}]", "a value the function cannot have",
             "look at the argument there with the reproducer", ("index",), values.range_violation),
        Code("tail-flush", "cause", "{op} is zero for every argument {side} {from_value}, where its value is a normal number",
             "a tail is cut off", "widen the range of the approximation", ("from_value",), values.tail_flush, (*_OUT, "flush-to-zero")),
        # places
        Code("zero-tail", "place", "the last {count} of {total} elements are zero, from element {from_index} on",
             "the end of the output is zero", "check the last tile and the grid size", ("from_index",), places.zero_tail,
             (*_OUT, "transposed", "tail-flush", "flush-to-zero"), with_=("rows",)),
        Code("rows", "place", "{which} wrong, the others are not{detail}", "whole rows are off",
             "map the rows to tiles, batches or devices", ("first", "last"), places.rows, (*_OUT, "transposed", *_PRODUCT, "tail-flush")),
        Code("columns", "place", "{which} wrong, the others are not{detail}", "whole columns are off",
             "map the columns to tiles or heads", ("first", "last"), places.columns, (*_OUT, "transposed", *_PRODUCT, "tail-flush")),
        Code("block", "place", "only {which} wrong{detail}",
             "one rectangle is off", "map the rectangle to a tile", ("row_first", "row_last", "col_first", "col_last"), places.block,
             (*_OUT, "transposed", *_PRODUCT, "zero-tail", "tail-flush", "range-violation")),
        Code("periodic", "place", "{which} of every {modulus} {are} wrong, the others are not{detail}",
             "errors repeat at a fixed distance", "look at vector lanes, interleaving and swizzles of this period",
             ("axis", "modulus", "offset"), places.periodic, (*_OUT, "transposed", *_PRODUCT, "tail-flush")),
        # notes
        Code("truncation-bias", "cause", "errors pull toward zero: {what}", "results are truncated, not rounded",
             "check the rounding mode of the cast or the width of the accumulator", ("bias_sigma",), values.truncation_bias,
             (*_OUT, "transposed", "gain", "fp8-encoding", *_PRODUCT, *_PLACES)),
        Code("negative-zero", "note", "{count} of {total} elements are zeros of the other sign, nothing else differs{where}",
             "zeros differ in sign alone", "harmless unless divided by", ("count",), facts.negative_zero, _OUT),
        Code("rounding-only", "note", "{count} of {total} elements differ from the rounded truth, every one {why}",
             "differences are rounding", "nothing", ("count",), facts.rounding_only),
        Code("explained-by-datapath", "note", "{what}",
             "a known unit's arithmetic, in an order that is named, gives these bits; for a pair: both sides are identified",
             "nothing: it is information, and changes no verdict"),
        Code("not-explained", "note", "{what}", "no order of operations of a known unit gives these bits",
             "see which elements are not reproduced; probe the device; a FAIL stays a FAIL either way"),
    )
}  # fmt: skip

NOT_NAMED: dict[str, str] = {
    "cancellation": "a large relative error of a small result is within its budget and fails no gate; the budget says so already",
    "odd-one-out": "compares devices, not one tensor with its truth",
}


def diagnose(context: Context) -> list[Diagnosis]:
    """Named causes of what was measured, the most telling first; empty where nothing is sure. Same answer for the same context."""
    with np.errstate(all="ignore"):  # faulty data overflow and divide by zero; a rule that meets NaN finds nothing
        return _diagnose(context)


def _diagnose(context: Context) -> list[Diagnosis]:
    look = Look(context)
    if look.truth is None:
        look.truth = sampling.truth(look)
    for code in CODES.values():
        if code.rule is None or any(name in look.named for name in code.unless) or (look.quiet and code.needs_fault):
            continue
        found = code.rule(look)
        if found is not None:
            look.named[code.name] = found
        if code.name == "empty" and found is not None:
            break
    return [named(n, look.named[n].evidence, **look.named[n].words) for n in sorted(look.named, key=_rank)]


def structural(context: Context) -> list[Diagnosis]:
    """The diagnoses that fail under every profile, from the measurement alone: NaN and Inf sets that differ, an all-zero output."""
    look = Look(context)
    found = ((c, c.rule(look)) for c in CODES.values() if c.fails and c.rule is not None)
    return [named(c.name, f.evidence, **f.words) for c, f in found if f is not None]


def named(code: str, evidence: Mapping[str, Any] | None = None, **words: Any) -> Diagnosis:
    """A diagnosis of the registry with its sentence; `words` fill what the sentence needs besides the evidence."""
    row, given = CODES[code], dict(evidence or {})
    fields = {k: v if isinstance(v, str | list) else number(v, 6) for k, v in {**given, **words}.items()}
    return Diagnosis(code, row.sentence.format(**fields), given)


def gate_cannot_fail(gate: GateResult, largest: float | None, *, rtol: float = 0.0, atol: float = 0.0) -> dict[str, str] | None:
    """What `named("gate-cannot-fail", …)` needs (gate, largest) if an all-zero output would keep this gate, else None.

    largest     largest finite |expected|; 0 and None answer None: there all-zero is right, or unknown
    rtol, atol  tolerances of an `allclose_violations` gate
    """
    if not largest or not math.isfinite(largest):
        return None
    value = facts.all_zero_value(gate.metric, largest, rtol, atol)
    if value is None or not facts.COMPARE[gate.comparison](value, gate.limit):
        return None
    return {"gate": gate.gate, "largest": number(largest)}


def fails(diagnoses: Iterable[Diagnosis]) -> bool:
    """Whether one of them is a FAIL whatever the gates say."""
    return any(d.code in CODES and CODES[d.code].fails for d in diagnoses)


def _rank(code: str) -> int:
    names = list(CODES)
    return RANKS.index(CODES[code].rank) * len(names) + names.index(code)
