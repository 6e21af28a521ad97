"""OPS: every op there is. Add an op by writing its OpSpec and listing it here."""

from __future__ import annotations

from accuracy_eval.errors import unknown
from accuracy_eval.ops.attention import ATTENTION
from accuracy_eval.ops.attention_fp8 import ATTENTION_FP8
from accuracy_eval.ops.batched import BATCHED
from accuracy_eval.ops.cast import CAST
from accuracy_eval.ops.collectives import COLLECTIVE_OPS
from accuracy_eval.ops.embedding import EMBEDDING
from accuracy_eval.ops.epilogue import GEMM_EPILOGUE
from accuracy_eval.ops.experts import EXPERTS
from accuracy_eval.ops.gemm import GEMM
from accuracy_eval.ops.grouped import GROUPED
from accuracy_eval.ops.loss import CROSS_ENTROPY
from accuracy_eval.ops.norms import NORMS
from accuracy_eval.ops.quantize import QUANTIZE
from accuracy_eval.ops.reduce import REDUCE
from accuracy_eval.ops.rope import ROPE
from accuracy_eval.ops.router import TOPK
from accuracy_eval.ops.spec import OpSpec
from accuracy_eval.ops.special import SPECIAL

OPS: dict[str, OpSpec] = {
    op.name: op
    for op in (
        GEMM, BATCHED, GROUPED, GEMM_EPILOGUE, *SPECIAL, *REDUCE, *NORMS, CROSS_ENTROPY, ROPE, ATTENTION, ATTENTION_FP8, EMBEDDING,
        *EXPERTS, TOPK, CAST, QUANTIZE, *COLLECTIVE_OPS,
    )
}  # fmt: skip


def get_op(name: str) -> OpSpec:
    """The op of that name; unknown names raise UsageError."""
    try:
        return OPS[name]
    except KeyError:
        raise unknown("op", name, OPS, listed="ops") from None
