"""accuracy_eval as a pytest plugin: the planted bug is found and its place named; the repaired function passes."""

import pytest
import torch
from row_norm import repaired, row_norm, truth

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, COLUMNS = 24, 300  # two whole blocks of 128, and 44 columns that the kernel forgets


def operands(accuracy, dtype):
    return {"x": accuracy.seeded((ROWS, COLUMNS), dtype), "w": accuracy.seeded((COLUMNS,), dtype)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_planted_bug_is_found_where_it_is(accuracy, dtype):
    with pytest.raises(AssertionError) as failure:
        accuracy.verify(row_norm, reference=truth, inputs=operands(accuracy, dtype), grad=False, device=DEVICE)
    text = str(failure.value)
    assert text.startswith("FAIL row_norm output 'output'")
    assert "cause columns: columns 256 to 299 of 300 are wrong" in text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_repaired_function_passes_forward_and_backward(accuracy, dtype):
    found = accuracy.verify(repaired, reference=truth, inputs=operands(accuracy, dtype), device=DEVICE)
    assert set(found.comparisons) == {"output", "dx", "dw"}
