from __future__ import annotations

import numpy as np
import pytest
import torch

from accuracy_eval.backends import torch_inputs
from accuracy_eval.errors import UnsupportedCase
from accuracy_eval.formats import get_format
from accuracy_eval.inputs import INPUT_CLASSES, generate

pytestmark = pytest.mark.torch
RULES = [name for name, row in INPUT_CLASSES.items() if row.rule is not None]


def codes(tensor: torch.Tensor, fmt: str) -> np.ndarray:
    f = get_format(fmt)
    signed = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[f.storage.itemsize]
    return tensor.view(signed).numpy().view(f.storage)


@pytest.mark.parametrize("fmt", torch_inputs.FORMATS)
@pytest.mark.parametrize("input_class", RULES)
def test_device_inputs_equal_host_inputs_bit_by_bit(input_class, fmt):
    for shape in ((7,), (33, 130), (3, 5, 27), (2, 0), ()):
        found = torch_inputs.generate(torch, "cpu", "gemm", "b", shape, input_class, 42, fmt)
        assert found.dtype == getattr(torch, fmt)
        assert found.shape == shape
        assert np.array_equal(codes(found, fmt).reshape(shape), generate("gemm", "b", shape, input_class, 42, fmt))


@pytest.mark.parametrize("fmt", ["float64", "float32", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("input_class", ["normal", "absmax", "outlier", "tiny", "relu"])
def test_pieces_of_a_device_operand_join_without_a_seam(monkeypatch, input_class, fmt):
    monkeypatch.setattr(torch_inputs, "CHUNK", 64)
    found = torch_inputs.generate(torch, "cpu", "gemm", "a", (9, 31), input_class, 1, fmt)
    assert np.array_equal(codes(found, fmt), generate("gemm", "a", (9, 31), input_class, 1, fmt))


def test_supported_are_the_value_rules_in_formats_torch_has():
    supported = {c for c in INPUT_CLASSES if torch_inputs.supports(c, "bfloat16")}
    assert supported == set(INPUT_CLASSES) - {"spike", "cancellation", "subnormal", "specials", "codes", "wide", "negative-zero"}
    assert torch_inputs.supports("normal", "fp8_e4m3")
    assert not torch_inputs.supports("normal", "tfloat32")
    assert not torch_inputs.supports("normal", "float4_e2m1fn")
    assert not torch_inputs.supports("gaussian", "float32")


def test_unsupported_classes_are_refused():
    with pytest.raises(UnsupportedCase, match=r"class .specials. in bfloat16 are not made on a device; make them with inputs"):
        torch_inputs.generate(torch, "cpu", "gemm", "a", (2, 2), "specials", 0, "bfloat16")
