from __future__ import annotations

import hashlib

import ml_dtypes
import numpy as np
import pytest
from support_jit import printed

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import FORMATS, decode, get_format
from accuracy_eval.inputs import exact as exact_module
from accuracy_eval.inputs.companions import (
    NOT_AN_INTEGER,
    ExactOperands,
    certificate,
    code_integers,
    coded_gemm,
    coded_values,
    decode_coded,
    exact_gemm,
    integer_codes,
    wrong_columns,
)

SHAPES = [
    (1, 1, 1), (1, 1, 255), (1, 7, 300), (2, 3, 1021), (64, 64, 64), (67, 71, 257), (1, 512, 128), (512, 1, 128), (16, 300, 700),
    (33, 65, 127), (97, 89, 83), (31, 5, 4000), (4, 40, 8192), (300, 2, 1), (1, 300, 1),
]  # fmt: skip
OPTIONS = [
    {},
    {"limit": 2048},
    {"has_bias": True},
    {"beta": 1.0, "alpha": 0.5},
    {"beta": -0.5, "alpha": 2.0, "has_bias": True},
    {"alpha": 0.0, "beta": 4.0},
]


def product(e: ExactOperands) -> np.ndarray:
    """D of the definition in float64, which is exact here."""
    d = e.alpha * (e.a.astype(np.float64) @ e.b.T.astype(np.float64))
    return d + (e.beta * e.c if e.c is not None else 0) + (e.bias if e.bias is not None else 0)


def magnitudes(x: np.ndarray, y: np.ndarray) -> int:
    return int((np.abs(x.astype(np.int64)) @ np.abs(y.astype(np.int64))).max(initial=0))


# The exact companion.


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_sum_of_magnitudes_stays_within_the_limit(shape, options):
    e = exact_gemm(*shape, direction="bwd", seed=3, **options)
    assert magnitudes(e.a, e.b.T) <= e.limit
    units = abs(e.alpha) * (np.abs(e.a.astype(float)) @ np.abs(e.b.T.astype(float)))
    units = units + (abs(e.beta) * np.abs(e.c) if e.c is not None else 0) + (np.abs(e.bias) if e.bias is not None else 0)
    assert units.max(initial=0) / e.unit <= e.limit
    assert magnitudes(e.grad_d, e.b) <= e.limit
    assert magnitudes(e.grad_d.T, e.a) <= e.limit
    if e.bias is not None:
        assert np.abs(e.grad_d).sum(axis=0, dtype=int).max() <= e.limit


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_loss_of_any_one_k_n_or_m_changes_an_output_unless_it_is_reported(shape):
    m, n, k = shape
    e = exact_gemm(m, n, k, direction="bwd", seed=5)
    a, b, g = (x.astype(np.float32) for x in (e.a, e.b, e.grad_d))
    d, da, db = a @ b.T, g @ b, g.T @ a
    for lost in range(k):
        changed = not np.array_equal(d - np.outer(a[:, lost], b[:, lost]), d)
        assert changed == (lost not in e.unseen_k), lost
    for lost in range(n):
        assert (not np.array_equal(da - np.outer(g[:, lost], b[lost]), da)) == (lost not in e.unseen_n), lost
    for lost in range(m):
        assert (not np.array_equal(db - np.outer(g[lost], a[lost]), db)) == (lost not in e.unseen_m), lost


@pytest.mark.parametrize(
    ("shape", "unseen"), [((1, 1, 8192), 7936), ((1, 7, 8192), 6400), ((2, 3, 8191), 6655), ((16, 8, 8192), 0), ((1, 32, 8192), 0)], ids=str
)
def test_a_limit_of_256_shows_256_k_an_output_and_all_where_there_are_outputs_enough(shape, unseen):
    assert len(exact_gemm(*shape).unseen_k) == unseen == max(0, shape[2] - 256 * shape[0] * shape[1])


@pytest.mark.parametrize("shape", [(512, 128, 256), (1024, 2048, 2048), (127, 131, 257)], ids=str)
@pytest.mark.parametrize("options", OPTIONS[:5], ids=str)
def test_nothing_is_unseen_in_ordinary_sizes(shape, options):
    e = exact_gemm(*shape, direction="bwd", **options)
    assert [len(x) for x in (e.unseen_k, e.unseen_n, e.unseen_m)] == [0, 0, 0]


def test_operands_hold_only_0_1_and_2_and_both_signs():
    e = exact_gemm(64, 64, 512, direction="bwd", beta=1.0, has_bias=True)
    for x in (e.a, e.b, e.grad_d):
        assert set(np.unique(x).tolist()) == {-2, -1, 0, 1, 2} or (set(np.unique(x).tolist()) == {-2, -1, 1, 2} and x is e.grad_d)
    for x in (e.c, e.bias):
        assert set(np.unique(x).tolist()) == {-2, -1, 1, 2}


@pytest.mark.parametrize("dense_below", [0, 1 << 27], ids=["packed", "dense"])
@pytest.mark.parametrize("shape", [(67, 71, 257), (1, 7, 300), (300, 2, 9), (130, 140, 600)], ids=str)
def test_results_equal_the_plain_products(monkeypatch, shape, dense_below):
    monkeypatch.setattr(exact_module, "DENSE_BELOW", dense_below)
    for options in OPTIONS:
        e = exact_gemm(*shape, direction="bwd", seed=1, **options)
        a, b, g = (x.astype(np.int64) for x in (e.a, e.b, e.grad_d))
        assert np.array_equal(e.d() * e.unit, product(e))
        assert np.array_equal(e.da(), g @ b)
        assert np.array_equal(e.db(), g.T @ a)
        assert np.array_equal(e.dbias(), g.sum(axis=0))


def test_any_split_and_order_in_bfloat16_partials_gives_the_same_result():
    e = exact_gemm(24, 20, 700, beta=1.0, seed=2)
    rng = np.random.default_rng(0)
    for pieces in (1, 3, 16):
        order = rng.permutation(700)
        total = e.c.astype(ml_dtypes.bfloat16)
        for part in np.array_split(order, pieces):
            partial = np.zeros((24, 20), ml_dtypes.bfloat16)
            for k in part:
                partial = (partial + np.outer(e.a[:, k], e.b[:, k]).astype(ml_dtypes.bfloat16)).astype(ml_dtypes.bfloat16)
            total = (total + partial).astype(ml_dtypes.bfloat16)
        assert np.array_equal(total.astype(np.float64), product(e))


def test_swapped_rows_columns_and_k_show():
    e = exact_gemm(64, 64, 1024, seed=4)
    d = e.d()
    for axis in (0, 1):
        assert all(not np.array_equal(d.take(i, axis), d.take(j, axis)) for i in range(64) for j in range(i))
    for shift in (1, 8, 32, 64):
        assert not np.array_equal(np.roll(e.a, shift, axis=1).astype(int) @ e.b.T.astype(int), d)


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)], ids=str)
def test_empty_sizes_have_exact_operands_and_see_nothing(shape):
    e = exact_gemm(*shape, direction="bwd", beta=1.0, has_bias=True)
    m, n, k = shape
    assert np.array_equal(e.d(), e.c.astype(int) + e.bias)
    assert (e.da().shape, e.db().shape, e.dbias().shape) == ((m, k), (n, k), (n,))
    assert e.unseen_k.tolist() == list(range(k))


def test_seeds_differ_and_repeat():
    one, again, other = (exact_gemm(16, 16, 200, seed=s) for s in (1, 1 + 2**32, 2))
    assert np.array_equal(one.a, again.a)
    assert np.array_equal(one.b, again.b)
    assert not np.array_equal(one.a, other.a)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.7}, "need 0 or a power of two as alpha, found 0.7; other factors round"),
        ({"beta": float("inf")}, "need 0 or a power of two as beta, found inf"),
        ({"alpha": 2.0**-9, "has_bias": True}, "leave no room under the limit of 256"),
        ({"limit": 1 << 25}, "limit 33554432 is not in 1"),
    ],
    ids=["alpha", "beta", "room", "limit"],
)
def test_what_cannot_be_exact_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        exact_gemm(4, 4, 4, **options)


def test_forward_operands_refuse_backward_results():
    with pytest.raises(UsageError, match="direction fwd and have no grad_d"):
        exact_gemm(4, 4, 4).da()


def test_integer_codes_and_back():
    values = np.array([[-2, -1, 0], [1, 2, 2]], np.int8)
    assert integer_codes(values, "float16").tolist() == [[0xC000, 0xBC00, 0], [0x3C00, 0x4000, 0x4000]]
    assert np.array_equal(code_integers(integer_codes(values, "float32", 0.5), "float32", 0.5), values)
    assert integer_codes(np.zeros((0, 3), np.int8), "float32").shape == (0, 3)


def test_integer_codes_refuses_what_the_format_does_not_hold():
    with pytest.raises(UsageError, match=r"bfloat16 does not hold 257.0 exactly"):
        integer_codes(np.array([257, 256]), "bfloat16")


@pytest.mark.parametrize("fmt", ["float16", "float32"])
def test_codes_that_are_no_integers_become_one_that_no_sum_reaches(fmt):
    dtype = {"float16": np.float16, "float32": np.float32}[fmt]
    codes = np.array([1.0, 0.5, np.nan, np.inf, -0.0, -3.0], dtype).view(get_format(fmt).storage)
    assert code_integers(codes, fmt).tolist() == [1, NOT_AN_INTEGER, NOT_AN_INTEGER, NOT_AN_INTEGER, 0, -3]


def test_companions_equal_those_of_every_release():
    e = exact_gemm(33, 65, 700, direction="bwd", seed=42, beta=1.0, has_bias=True)
    found = hashlib.sha256(b"".join(x.tobytes() for x in (e.a, e.b, e.c, e.bias, e.grad_d))).hexdigest()
    assert found == "303f52a1bfee910e03c44711fdd41c30b265460ab0c53778afd461bc1f30c183"
    coded = coded_gemm(33, 65, 700, "bfloat16", seed=42)
    found = hashlib.sha256(coded.a.tobytes() + coded.b.tobytes()).hexdigest()
    assert found == "7d32d9938ae6cffaf3b5589ad18a29825fb2066962c80a80c7da233eb468371d"


# Certificates.


def scaled(e: ExactOperands) -> dict[str, object]:
    more: dict[str, object] = {"alpha": int(e.alpha / e.unit)}
    if e.c is not None:
        more |= {"beta": int(e.beta / e.unit), "c": e.c}
    if e.bias is not None:
        more |= {"bias": e.bias, "bias_scale": int(1 / e.unit)}
    return more


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
@pytest.mark.parametrize("options", OPTIONS[:5], ids=str)
def test_a_certificate_accepts_exact_results_and_names_the_row_of_one_wrong_element(options, dtype):
    e = exact_gemm(300, 70, 257, seed=1, **options)
    d = (product(e) / e.unit).astype(dtype)
    more = scaled(e)
    assert certificate(e.a, e.b, d, **more).tolist() == []
    for row, column, error in ((0, 0, 1), (299, 69, -1), (128, 5, 1024)):
        wrong = d.copy()
        wrong[row, column] += error
        assert certificate(e.a, e.b, wrong, **more).tolist() == [row]
        assert wrong_columns(e.a, e.b, wrong, row, **more).tolist() == [column]


def test_a_certificate_names_swapped_rows_and_a_swapped_pair_of_columns():
    e = exact_gemm(64, 48, 300)
    d = e.d()
    rows = d.copy()
    rows[[3, 40]] = rows[[40, 3]]
    assert certificate(e.a, e.b, rows).tolist() == [3, 40]
    columns = d.copy()
    columns[7, [1, 2]] = columns[7, [2, 1]]
    assert certificate(e.a, e.b, columns).tolist() == ([7] if d[7, 1] != d[7, 2] else [])


def test_errors_that_sum_to_zero_along_the_row_do_not_hide():
    e = exact_gemm(5, 64, 64)
    d = e.d()
    d[2, 10] += 1
    d[2, 11] -= 1
    assert certificate(e.a, e.b, d).tolist() == [2]


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1)], ids=str)
def test_certificates_of_empty_sizes(shape):
    m, n, k = shape
    d = np.zeros((m, n), np.int32) + (exact_gemm(m, n, k).d() if m and n and k else 0)
    assert certificate(np.asarray(exact_gemm(m, n, k).a), exact_gemm(m, n, k).b, d.astype(np.int32)).tolist() == []


def test_certificates_do_not_depend_on_threads(monkeypatch):
    e = exact_gemm(400, 300, 90)
    d = e.d()
    d[[5, 399]] += 1
    for threads in ("1", "3"):
        monkeypatch.setenv("ACCURACY_EVAL_THREADS", threads)
        assert certificate(e.a, e.b, d).tolist() == [5, 399]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d": np.zeros((3, 4), np.int32)}, r"d \(3, 4\).* do not fit"),
        ({"d": np.zeros((4, 4))}, "signed integers needed, found dtype float64"),
    ],
    ids=["shape", "dtype"],
)
def test_certificates_refuse_what_does_not_fit(change, message):
    e = exact_gemm(4, 4, 4)
    with pytest.raises(UsageError, match=message):
        certificate(e.a, e.b, **change)


def test_compiled_companions_run_as_plain_python_too():
    program = (
        "from accuracy_eval.inputs import exact; from accuracy_eval.inputs.companions import *\n"
        "exact.DENSE_BELOW = 0\n"
        "e = exact_gemm(9, 8, 70, direction='bwd', limit=16); d = e.d(); good = certificate(e.a, e.b, d)\n"
        "d[4, 4] += 1; print(good.tolist(), certificate(e.a, e.b, d).tolist(), int(abs(e.da() - e.grad_d.astype(int) @ e.b).max()))"
    )
    assert printed(program, compiled=False) == "[] [4] 0\n"


# The coded companion.

CODED_FORMATS = [
    "bfloat16",
    "float16",
    "float32",
    "tfloat32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float4_e2m1fn",
    "int8",
]


@pytest.mark.parametrize(
    ("fmt", "count"),
    [("bfloat16", 2 * 254 * 128), ("float16", 2 * 30 * 1024), ("float32", 65024), ("float8_e4m3fn", 2 * (15 * 8 - 1)),
     ("float8_e4m3fnuz", 240), ("float8_e5m2", 240), ("float4_e2m1fn", 12), ("int8", 255)],
)  # fmt: skip
def test_coded_operands_count_through_the_normal_numbers(fmt, count):
    values = coded_values(fmt)
    assert len(values) == count
    assert (np.diff(values) > 0).all()
    assert np.abs(values).min() >= get_format(fmt).smallest_normal or fmt in ("float32", "int8")


@pytest.mark.parametrize("fmt", CODED_FORMATS)
def test_a_coded_product_is_a_permutation_of_b(fmt):
    e = coded_gemm(20, 12, 17, fmt, seed=1)
    a, b = decode(e.a, fmt), decode(e.b, fmt)
    assert (a.sum(axis=1) == 1).all()
    assert ((a == 0) | (a == 1)).all()
    assert np.isfinite(b).all()
    assert set(e.sigma.tolist()) == set(range(17))
    with np.errstate(over="ignore"):
        assert np.array_equal(np.array([[b[j, e.sigma[i]] for j in range(12)] for i in range(20)]), e.d())
    assert np.array_equal(np.argmax(a, axis=1), e.sigma)


@pytest.mark.parametrize("fmt", CODED_FORMATS)
@pytest.mark.parametrize("shape", [(8, 12), (13, 24), (300, 240)], ids=str)
def test_neighbours_in_k_and_in_columns_differ(fmt, shape):
    b = decode(coded_gemm(1, shape[0], shape[1], fmt).b, fmt)
    for step in (1, 2, 4):
        assert (b[:, step:] != b[:, :-step]).all()
        assert (b[step:] != b[:-step]).all()


def test_every_element_is_its_own_where_the_format_has_numbers_enough():
    assert len(np.unique(coded_gemm(1, 200, 300, "bfloat16").b)) == 60_000


def test_k_that_no_row_picks_are_reported():
    e = coded_gemm(5, 4, 9, "bfloat16")
    assert sorted([*e.sigma.tolist(), *e.unseen_k.tolist()]) == list(range(9))


def codes_of(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).view(np.uint32)


@pytest.mark.parametrize("fmt", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"])
@pytest.mark.parametrize("shape", [(40, 24, 32), (33, 65, 500)], ids=str)
def test_a_right_product_reads_as_right(fmt, shape):
    e = coded_gemm(*shape, fmt)
    reading = decode_coded(e, codes_of(e.d()), "float32")
    assert reading.wrong == 0
    assert reading.faults == ()
    assert reading.sentence == "every element of D is the element of b it should be"
    assert np.array_equal(reading.found_k, np.broadcast_to(e.sigma[:, None], (shape[0], shape[1])))


@pytest.mark.parametrize("fmt", ["bfloat16", "float8_e4m3fn"])
def test_exchanged_columns_are_named(fmt):
    e = coded_gemm(6, 64, 16, fmt)
    d = e.d()[:, np.arange(64) ^ 1]
    reading = decode_coded(e, codes_of(d), "float32")
    assert reading.wrong == 6 * 64
    assert np.array_equal(reading.found_column, np.broadcast_to(np.arange(64) ^ 1, (6, 64)))
    assert str(reading.faults[0]) == f"D[0, 0] should be b[0, {e.sigma[0]}] and is b[1, {e.sigma[0]}]"
    assert reading.sentence.startswith("384 of 384 elements are wrong: 384 from another column at the right k; most often by k +0, column")


@pytest.mark.parametrize("fmt", ["bfloat16", "float8_e4m3fn"])
def test_a_shifted_k_is_named(fmt):
    e = coded_gemm(16, 8, 64, fmt)
    shifted = (e.sigma + 4) % 64
    d = decode(e.b, fmt).T[shifted]
    reading = decode_coded(e, codes_of(d), "float32")
    moved = e.sigma + 4 < 64
    assert np.array_equal(reading.found_k[moved], np.broadcast_to(shifted[moved, None], (int(moved.sum()), 8)))
    assert "from another k of the right column" in reading.sentence
    assert "most often by k +4, column +0" in reading.sentence


def test_a_transposed_b_is_named_in_a_format_with_numbers_enough():
    e = coded_gemm(12, 12, 12, "bfloat16")
    d = decode(e.b, "bfloat16")[e.sigma]  # b read as [k, n]
    reading = decode_coded(e, codes_of(d), "float32")
    columns, k = np.meshgrid(np.arange(12), e.sigma)
    assert np.array_equal(reading.found_k, columns)
    assert np.array_equal(reading.found_column, k)


def test_missing_nan_and_summed_elements_are_told_apart():
    e = coded_gemm(4, 4, 8, "float8_e4m3fn")
    d = e.d()
    d[0, 0], d[1, 1], d[2, 2] = 0.0, np.nan, 1e30
    reading = decode_coded(e, codes_of(d), "float32")
    assert [str(f).split(" and is ")[1] for f in reading.faults] == [
        "zero",
        "nan, no element of b",
        "1.0000000150474662e+30, no element of b",
    ]
    assert reading.sentence == (
        "3 of 16 elements are wrong: 1 zero: their k never reached the product, 2 no element of b: terms were added, scaled or rounded"
    )


def test_coded_operands_refuse_a_scale_format_and_a_wrong_shape():
    with pytest.raises(UsageError, match="float8_e8m0fnu"):
        coded_gemm(2, 2, 2, "float8_e8m0fnu")
    with pytest.raises(UsageError, match=r"coded D has shape \(3, 2\), expected \(2, 2\)"):
        decode_coded(coded_gemm(2, 2, 2, "bfloat16"), np.zeros((3, 2), np.uint16), "bfloat16")


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0)], ids=str)
def test_empty_coded_operands(shape):
    e = coded_gemm(*shape, "bfloat16")
    assert (e.a.shape, e.b.shape) == ((shape[0], shape[2]), (shape[1], shape[2]))
    assert decode_coded(e, np.zeros(shape[:2], np.uint16), "bfloat16").wrong == 0


def test_coded_bits_of_every_format_are_codes_of_it():
    for name, f in FORMATS.items():
        if not f.scale_only:
            assert coded_gemm(2, 3, 4, name).b.dtype == f.storage
