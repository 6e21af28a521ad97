"""Planted faults that need more than arrays: operands of every op, quantised ones, lanes, several outputs. Dumped, then compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support_quantised_faults import PARTS, maxima, scales

from accuracy_eval.backends.base import Backend, Outcome, Prepared, Result
from accuracy_eval.backends.candidates import Candidate
from accuracy_eval.backends.model import ModelBackend
from accuracy_eval.backends.reference import ReferenceBackend, ready
from accuracy_eval.cases import case_id, make_case
from accuracy_eval.compare import compare_dumps
from accuracy_eval.cpu_ref.epilogue import Epilogue, epilogue_panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.dump import dump
from accuracy_eval.formats import decode, encode, get_format
from accuracy_eval.ops.spec import Inputs
from accuracy_eval.quantize import quantize
from accuracy_eval.records import Case, Coded, Results
from accuracy_eval.store import Dump
from accuracy_eval.suite import Suite

Codes = NDArray[Any]
Values = NDArray[np.float64]
Change = Callable[[Inputs, Codes, str], Codes]  # (operands, right codes, format) -> wrong codes
GEMM = (("m", 96), ("n", 64), ("k", 128))
RANKS = (("r", 4), ("n", 300))
METAMORPHIC = (("m", 48), ("n", 40), ("k", 128))


@dataclass(frozen=True)
class Planted:
    """A fault in one output of a case.

    code    what must be named
    beside  cases that the case is judged by, left as they are
    notes   what the record says of the run
    """

    code: str
    case: Case
    tensor: str
    change: Change = lambda inputs, codes, fmt: codes
    beside: tuple[Case, ...] = ()
    notes: Mapping[str, Any] | None = None


def _values(change: Callable[[Values], Values]) -> Change:
    """A change of values, rounded to the format again."""
    return lambda inputs, codes, fmt: encode(change(decode(codes, fmt)), fmt)


def _at(index: tuple[int, ...], value: float) -> Change:
    def change(x: Values) -> Values:
        x[index] = value
        return x

    return _values(change)


def _instead(chosen: Callable[[Values], NDArray[np.bool_]], value: float) -> Change:
    return _values(lambda x: np.where(chosen(x), value, x))


def _negative_zeros_lost(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    return np.where(decode(codes, fmt) == 0, codes.dtype.type(0), codes)


def _read_as_fnuz(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    return encode(decode(inputs["x"].codes, "float8_e4m3fnuz"), fmt)


def _not_saturated(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    return encode(decode(inputs["x"].codes, inputs["x"].format), fmt, overflow="nan")


def _ties_away(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    """e4m3 of normal numbers, halves away from zero."""
    x = decode(inputs["x"].codes, inputs["x"].format)
    step = np.exp2(np.maximum(np.frexp(x)[1] - 1, -6) - 3)
    return encode(np.copysign(np.floor(np.abs(x) / step + 0.5) * step, x), fmt)


def _flushed(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    return np.where(np.abs(decode(codes, fmt)) < get_format(fmt).smallest_normal, codes.dtype.type(0), codes)


def _tail_cut(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    return np.where(decode(inputs["x"].codes, inputs["x"].format) < -1.5, codes.dtype.type(0), codes)


def _bfloat16_sum(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    import ml_dtypes

    terms = decode(inputs["x"].codes, inputs["x"].format).astype(ml_dtypes.bfloat16)
    return encode(np.add.accumulate(terms, axis=-1, dtype=ml_dtypes.bfloat16)[..., -1].astype(np.float64), fmt)


def _other_rule(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    return quantize(inputs["x"].codes, inputs["x"].format, "mxfp8_rceil").scale


def _half_amax(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    x = decode(inputs["x"].codes, inputs["x"].format)
    return scales(maxima(x, "block1x128", PARTS["the first half of each block"]), "block1x128").reshape(codes.shape)


def _with_scales(change: Callable[[Values, Values], tuple[Values, Values]]) -> Change:
    """The product of operands in blocks of 32 along k under other scales."""

    def faulty(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
        values = {n: decode(c.codes, c.format) for n, c in inputs.items()}
        a_scale, b_scale = change(values["a_scale"], values["b_scale"])
        a, b = values["a"] * np.repeat(a_scale, 32, axis=1), values["b"] * np.repeat(b_scale, 32, axis=1)
        return encode(a @ b.T, fmt)

    return faulty


def _next_word(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    return inputs["weight"].codes[(inputs["ids"].codes + 1) % len(inputs["weight"].codes)]


def _group_before(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    """A grouped product, layout nt, of groups of as many rows each, with the B of the group before."""
    a, b = (decode(inputs[n].codes, inputs[n].format) for n in "ab")
    return encode((a.reshape(len(b), -1, a.shape[1]) @ np.roll(b, 1, axis=0).swapaxes(1, 2)).reshape(codes.shape), fmt)


def _rank_times(rank: int, times: float) -> Change:
    """The sum over ranks with what one gave so many times."""

    def faulty(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
        given = decode(inputs["x"].codes, inputs["x"].format).copy()
        given[rank] *= times
        return encode(np.broadcast_to(given.sum(axis=0), codes.shape), fmt)

    return faulty


def _blocks_turned(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    blocks = codes.reshape(len(codes), len(codes), -1)
    return np.roll(blocks, 1, axis=1).reshape(codes.shape)


def _without_activation(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    problem = Gemm(inputs["a"], inputs["b"], "nt", bias=inputs["bias"])
    return encode(np.concatenate([p.values for p in epilogue_panels(problem, Epilogue("none"))]), fmt)


def _uncentred(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    """A layer norm that subtracts no mean."""
    x, weight, bias = (decode(inputs[n].codes, inputs[n].format) for n in ("x", "weight", "bias"))
    return encode(x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5) * weight + bias, fmt)


def _coded(recipe: str, fmt: str, size: int = 128) -> Case:
    shape = (("m", size), ("n", size), ("k", 512))
    return make_case("gemm", shape, layout="nt", format=fmt, recipe=recipe, out_format="float32", lane="coded")


def _special(op: str, fmt: str = "float32", input_class: str = "normal") -> Case:
    return make_case(op, (("n", 4096),), format=fmt, input_class=input_class)


def _cast(fmt: str, out: str, input_class: str) -> Case:
    return make_case("cast", (("n", 65536),), format=fmt, out_format=out, input_class=input_class)


def _read_early(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    """Softmax of rows that begin three zeros early."""
    x = decode(inputs["x"].codes, inputs["x"].format)
    e = np.exp(np.concatenate([np.zeros((len(x), 3)), x[:, :-3]], axis=1))
    return encode(e / e.sum(axis=1, keepdims=True), fmt)


def _not_transposed(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    a, b = (decode(inputs[n].codes, inputs[n].format) for n in "ab")
    return encode(a @ b, fmt)


def _attention(direction: str, **options: Any) -> Case:
    shape = tuple(zip("bhgstd", (1, 4, 2, 32, 32, 32), strict=True))
    return make_case("attention", shape, layout="bshd", format="bfloat16", direction=direction, options=options)


def _attended(scale: float, last: int, keys: int, heads: Sequence[int]) -> Change:
    """A softmax of scores times `scale`: query i sees keys up to i + last of so many, query head h takes K and V of heads[h]."""

    def change(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
        q, k, v = (decode(inputs[n].codes, inputs[n].format).transpose(0, 2, 1, 3) for n in "qkv")
        i, j = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None, :]
        scores = np.where((j <= i + last) & (j < keys), scale * q @ k[:, heads].swapaxes(2, 3), -np.inf)
        e = np.exp(scores - scores.max(axis=3, keepdims=True))
        return encode((e @ v[:, heads] / e.sum(axis=3, keepdims=True)).transpose(0, 2, 1, 3), fmt)

    return change


_PADDED = make_case("gemm", METAMORPHIC, layout="nt", lane="metamorphic", options={"relation": "padded_k"})
_PADDED_BASE = make_case("gemm", (("m", 48), ("n", 40), ("k", 100)), layout="nt")
_VECTOR = (("m", 1), ("n", 16384))

PLANTED: tuple[Planted, ...] = (
    Planted("operand-changed", make_case("gemm", GEMM, layout="tn"), "d", notes={"operands_changed": ["b"]}),
    Planted("inf-in-actual", make_case("gemm", GEMM, layout="nn"), "d", _at((17, 40), np.inf)),
    Planted("nan-in-expected", _special("exp", "bfloat16", "specials"), "result", _instead(np.isnan, 0.0)),
    Planted("inf-in-expected", _special("exp", "float16", "specials"), "result", _instead(np.isinf, 65504.0)),
    Planted("zero-reference", make_case("sum", (("m", 64), ("n", 256)), input_class="negative-zero"), "result", _at((3,), 1.0)),
    Planted("relation-broken", _PADDED, "d", _values(lambda x: x * 1.0625), beside=(_PADDED_BASE,)),
    Planted("fp8-encoding", _cast("fp8_e4m3", "float32", "codes"), "y", _read_as_fnuz),
    Planted("overflow-policy", _cast("float32", "fp8_e4m3", "huge"), "y", _not_saturated),
    Planted("accumulator-overflow", make_case("mean", (("m", 1), ("n", 524288)), format="float16", input_class="relu"), "result",
            _values(lambda x: np.full_like(x, np.inf))),
    Planted("accumulator-plateau", make_case("sum", _VECTOR, format="bfloat16", input_class="relu"), "result", _bfloat16_sum),
    Planted("scale-rounding-rule", make_case("quantize", (("m", 64), ("n", 512)), format="bfloat16", recipe="mxfp8"), "scale",
            _other_rule),
    Planted("amax-stale", make_case("quantize", (("m", 64), ("n", 512)), format="bfloat16", recipe="block1x128"), "scale", _half_amax),
    Planted("ties-rounded", _cast("bfloat16", "fp8_e4m3", "normal"), "y", _ties_away),
    Planted("wrong-layout", make_case("gemm", (("m", 64), ("n", 48), ("k", 64)), layout="tn"), "d", _not_transposed),
    Planted("scale-ignored", _coded("mxfp4", "fp4_e2m1"), "d", _with_scales(lambda a, b: (np.ones_like(a), b))),
    Planted("scale-swapped", _coded("mxfp8", "fp8_e4m3"), "d", _with_scales(lambda a, b: (b, a))),
    Planted("scale-index", _coded("mxfp8", "fp8_e4m3", 96), "d", _with_scales(lambda a, b: (np.roll(a, -1, axis=1), b))),
    Planted("epilogue-step", make_case("gemm_epilogue", GEMM, layout="nt", options={"activation": "silu", "bias": True}), "y",
            _without_activation),
    Planted("formula-step", make_case("layernorm", (("m", 32), ("n", 96)), format="bfloat16"), "y", _uncentred),
    Planted("wrong-index", make_case("embedding", (("t", 48), ("v", 64), ("n", 40)), format="bfloat16"), "y", _next_word),
    Planted("softmax-scale", _attention("fwd", lse=True), "out", _attended(1 / 32, 32, 32, [0, 0, 1, 1])),
    Planted("wrong-mask", _attention("fwd", causal=True), "out", _attended(32**-0.5, 1, 32, [0, 0, 1, 1])),
    Planted("keys-missing", _attention("fwd", scale=0.25), "out", _attended(0.25, 32, 24, [0, 0, 1, 1])),
    Planted("wrong-kv-head", _attention("fwd", scale=0.125), "out", _attended(0.125, 32, 32, [0, 1, 0, 1])),
    Planted("wrong-sink", _attention("fwd", sink=True), "out", _attended(32**-0.5, 32, 32, [0, 0, 1, 1])),
    Planted("misaligned-read", make_case("softmax", (("m", 24), ("n", 96)), format="float16", input_class="misaligned"), "result",
            _read_early),
    Planted("flush-to-zero", _cast("float32", "float16", "wide"), "y", _flushed),
    Planted("range-violation", _special("sigmoid"), "result", _at((37,), 1.0001)),
    Planted("tail-flush", _special("exp"), "result", _tail_cut),
    Planted("negative-zero", _cast("float32", "bfloat16", "negative-zero"), "y", _negative_zeros_lost),
    Planted("wrong-group", make_case("grouped_gemm", tuple(zip("gmnk", (3, 24, 32, 48), strict=True)), layout="nt"), "d", _group_before),
    Planted("lost-rank", make_case("all_reduce", RANKS, format="bfloat16"), "y", _rank_times(2, 0.0)),
    Planted("doubled-rank", make_case("all_reduce", RANKS, format="bfloat16", seed=1), "y", _rank_times(2, 2.0)),
    Planted("rank-order", make_case("all_gather", RANKS, format="bfloat16"), "y", _blocks_turned),
    # odd shapes and many outputs: what a layout must hold
    Planted("nan-in-actual", _attention("bwd"), "dk", _at((0, 3, 1, 5), np.nan)),
    Planted("gain", _attention("fwd"), "out", _values(lambda x: x * 0.5)),
    Planted("rows", make_case("grouped_gemm", tuple(zip("gmnk", (4, 32, 48, 64), strict=True)), format="bfloat16"), "d",
            _values(lambda x: np.where(np.arange(len(x))[:, None] // 32 == 2, 0.0, x))),
    Planted("all-zero", make_case("batched_gemm", tuple(zip("bmnk", (3, 16, 24, 32), strict=True)), layout="nn"), "d",
            _values(np.zeros_like)),
)  # fmt: skip


# products whose order of operations is looked for: one by a known unit, one that loses a k
_EXPLAINED = make_case("gemm", (("m", 48), ("n", 40), ("k", 256)), layout="tn", format="bfloat16", out_format="float32")
_LOSES_K = replace(_EXPLAINED, seed=1)


class PlantedBackend(ReferenceBackend):
    """The reference with the planted faults."""

    def run(self, prepared: Prepared, candidate: Candidate, **options: Any) -> Outcome:
        outcome = super().run(prepared, candidate, **options)
        for p in PLANTED:
            if p.case == prepared.case:
                results = tuple(_changed(r, p.change, prepared.tensors) if r.name == p.tensor else r for r in outcome.results)
                outcome = Outcome(results, outcome.repeats, dict(p.notes or {}))
        return outcome


class LosesK(ModelBackend):
    """A unit one of whose products misses a k."""

    def run(self, prepared: Prepared, candidate: Candidate, **options: Any) -> Outcome:
        outcome = super().run(prepared, candidate, **options)
        if prepared.case != _LOSES_K:
            return outcome
        return replace(outcome, results=tuple(_changed(r, _without_k, prepared.tensors) for r in outcome.results))


def _without_k(inputs: Inputs, codes: Codes, fmt: str) -> Codes:
    a, b = (decode(inputs[n].codes[7], inputs[n].format) for n in "ab")  # layout tn: both are stored with k first
    return encode(decode(codes, fmt) - np.multiply.outer(a, b), fmt)


def _changed(result: Result, change: Change, inputs: Mapping[str, Coded]) -> Result:
    codes = change(inputs, result.codes[0].result().copy(), result.format)
    return replace(result, codes=(ready(np.ascontiguousarray(codes)),))


def _compared(folder: Path, cases: Sequence[Case], bad: Backend, good: Backend, labels: Sequence[str], explain: bool = False) -> Results:
    suite = Suite("planted", "a fault a case", tuple(dict.fromkeys(cases)), ())
    paths = [folder / f"{name}{explain:d}.h5" for name in labels]
    for backend, path in zip((bad, good), paths, strict=True):
        dump(suite, backend, path)
    return compare_dumps(*paths, labels=labels, explain=explain)


def _wrong(folder: Path, labels: Sequence[str], explain: bool) -> dict[tuple[str, str], NDArray[np.bool_]]:
    """The elements of every output in which the two dumps hold other codes."""
    bad, good = (Dump.open(folder / f"{name}{explain:d}.h5") for name in labels)
    outputs = [(r, t.name) for r in bad.records for t in r.tensors if t.role == "output"]
    return {(r.id, name): np.asarray(bad.read(r, name) != good.read(good.record(r.id), name)) for r, name in outputs}


def dumped_results(
    folder: Path, labels: Sequence[str]
) -> tuple[Results, dict[tuple[str, str], str], dict[tuple[str, str], NDArray[np.bool_]]]:
    """A comparison of a dump with the faults and a right one; by (case id, output) the cause that it must show and its wrong elements."""
    cases = [c for p in PLANTED for c in (p.case, *p.beside)]
    found = _compared(folder, cases, PlantedBackend(), ReferenceBackend(), labels)
    told = _compared(folder, [_EXPLAINED, _LOSES_K], LosesK("H200"), ModelBackend("MI300X"), labels, explain=True)
    codes = {(case_id(p.case), p.tensor): p.code for p in PLANTED}
    codes |= {(case_id(_EXPLAINED), "d"): "explained-by-datapath", (case_id(_LOSES_K), "d"): "not-explained"}
    wrong = _wrong(folder, labels, False) | _wrong(folder, labels, True)
    return replace(found, tensors=(*found.tensors, *told.tensors)), codes, {key: wrong[key] for key in codes}
