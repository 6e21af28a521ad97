"""batched_gemm: each product of the batch is the truth's, in every layout; one batch gone wrong is found."""

import numpy as np
import pytest
import torch
from support_judging import judged, known

from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import make_case
from accuracy_eval.formats import decode, encode
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Verdict

SPEC = get_op("batched_gemm")


def batched(layout, fmt, direction):
    case = make_case("batched_gemm", (("b", 3), ("m", 12), ("n", 20), ("k", 48)), layout=layout, format=fmt, direction=direction)
    return case, *known(case)


@pytest.mark.parametrize("layout", SPEC.layouts)
def test_values_and_gradients_are_those_of_float64_autograd(layout):
    case, inputs, references = batched(layout, "bfloat16", "bwd")
    t = {n: torch.from_numpy(decode(c.codes, c.format)) for n, c in inputs.items()}
    wanted = SPEC.torch(torch, case, t, {})
    forward, more, first = batched(layout, "bfloat16", "fwd")
    wanted |= SPEC.torch(torch, forward, {n: torch.from_numpy(decode(c.codes, c.format)) for n, c in more.items()}, {})
    for name, value in wanted.items():
        reference = {**references, **first}[name]
        mine = np.concatenate([p.values for p in reference.panels()]).reshape(reference.shape)
        np.testing.assert_allclose(mine, value.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fmt", SPEC.formats)
@pytest.mark.parametrize("direction", SPEC.directions)
def test_what_torch_computes_passes_and_one_wrong_product_fails(fmt, direction):
    case, _, references = batched("nt", fmt, direction)
    backend = TorchBackend("cpu")
    outcome = backend.run(backend.prepare(case), backend.candidates("batched_gemm")[0], repeats=2)
    backend.close()
    for r in outcome.results:
        codes = r.codes[0].result()
        assert judged(case, r.name, codes, references).verdict is Verdict.PASS
        values = decode(codes, r.format)
        values[1] = values[0]
        assert judged(case, r.name, encode(values, r.format), references).verdict is Verdict.FAIL
