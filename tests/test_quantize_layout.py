"""Padded and swizzled scale storage."""

from __future__ import annotations

import numpy as np
import pytest

from accuracy_eval.errors import UsageError
from accuracy_eval.quantize import pad_scales, padded_scale, quantize, swizzle_scales, unswizzle_scales


@pytest.mark.parametrize(("rows", "columns"), [(128, 4), (256, 8), (130, 5), (1, 1), (300, 12)])
def test_swizzled_position_of_every_scale_follows_the_tile_formula(rows, columns):
    coded = np.arange(1, rows * columns + 1, dtype=np.uint32).reshape(rows, columns)  # 0 is padding
    flat = swizzle_scales(coded)
    tiles_across = -(-columns // 4)
    assert flat.size == -(-rows // 128) * 128 * tiles_across * 4
    for r in range(rows):
        for c in range(columns):
            tile = (r // 128) * tiles_across + c // 4
            assert flat[tile * 512 + (r % 32) * 16 + (r % 128 // 32) * 4 + c % 4] == coded[r, c]
    assert np.count_nonzero(flat) == rows * columns


@pytest.mark.parametrize(("rows", "columns"), [(128, 4), (130, 5), (1, 1), (257, 9)])
def test_unswizzle_undoes_swizzle(rows, columns):
    coded = np.arange(rows * columns, dtype=np.uint32).reshape(rows, columns)
    assert np.array_equal(unswizzle_scales(swizzle_scales(coded), rows, columns), coded)


def test_unswizzle_refuses_a_wrong_size():
    with pytest.raises(UsageError, match="130 x 5 scales fill 2048 codes in 128 x 4 tiles, found 650"):
        unswizzle_scales(np.zeros(650, np.uint8), 130, 5)


def test_swizzle_refuses_scales_that_are_no_matrix():
    with pytest.raises(UsageError, match=r"swizzle_scales: scales must be \[rows, columns\], found shape \(4,\)"):
        swizzle_scales(np.zeros(4, np.uint8))


def test_padding_is_code_zero_and_nothing_else_moves():
    assert pad_scales(np.uint8([[1, 2, 3], [4, 5, 6]]), 3, 2).tolist() == [[1, 2, 3, 0], [4, 5, 6, 0], [0, 0, 0, 0]]


def test_mx_scales_of_a_ragged_operand_are_stored_padded_to_128_elements_with_bytes_zero():
    q = quantize(np.full((3, 160), 0x3F80, np.uint16), "bfloat16", "mxfp8")
    stored = padded_scale(q)
    assert q.scale.shape == (3, 5)
    assert stored.tolist() == [[127 - 8] * 5 + [0] * 3] * 3


def test_nvfp4_scales_are_stored_in_whole_tiles():
    q = quantize(np.full((3, 160), 0x3F80, np.uint16), "bfloat16", "nvfp4")
    assert padded_scale(q).shape == (128, 12)
