r"""A plugin: the framework's own GEMM under switches that change its arithmetic, as candidates beside the default.

    accuracy-eval dump --op gemm --shape 512x128x256 --shape 16x16x4096 --format float32 --format bfloat16 --format float16 \
        --plugin examples/switches.py --device cuda -o switches.h5
    accuracy-eval compare switches.h5

Each keeps the promise of the default call (float32 accumulation), so that the comparison says what a switch breaks:
float32 under TF32 is off its contract and inside tf32; 16-bit partial sums show where the library splits K.
"""

import accuracy_eval as ae
from accuracy_eval.backends.flags import case_flags


def _product(case, tensors):
    a = tensors["a"] if case.layout[0] == "n" else tensors["a"].t()
    b = tensors["b"] if case.layout[1] == "n" else tensors["b"].t()
    return a @ b


def _only(fmt):
    return lambda case, platform: None if case.format == fmt and case.direction == "fwd" and not case.options else f"only plain {fmt}"


@ae.candidate("gemm", name="tf32", supports=_only("float32"))
def tf32(case, tensors):
    """float32 operands, TF32 allowed."""
    import torch

    with case_flags(torch, tf32=True, device=str(tensors["a"].device)):
        return _product(case, tensors)


@ae.candidate("gemm", name="bf16-reduction", supports=_only("bfloat16"))
def bf16_reduction(case, tensors):
    """bfloat16 partial sums allowed where K is split."""
    import torch

    with case_flags(torch, tf32=False, bf16_reduced=True, device=str(tensors["a"].device)):
        return _product(case, tensors)


@ae.candidate("gemm", name="fp16-accumulation", supports=_only("float16"))
def fp16_accumulation(case, tensors):
    """float16 accumulator and partial sums allowed."""
    import torch

    with case_flags(torch, tf32=False, fp16_reduced=True, fp16_accumulation=True, device=str(tensors["a"].device)):
        return _product(case, tensors)
