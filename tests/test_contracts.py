from __future__ import annotations

import pytest

from accuracy_eval.contracts import CONTRACTS, default_contract, parse_contract
from accuracy_eval.errors import UsageError


@pytest.mark.parametrize("name", CONTRACTS)
def test_every_contract_says_what_it_promises_and_where_that_comes_from(name):
    contract = CONTRACTS[name]
    assert contract.name == name
    assert len(contract.sentence) > 20
    assert len(contract.source) > 10
    assert contract.exact or contract.accumulators


def test_the_rows_hold_the_documented_parameters():
    def units(c):
        return [(a.rounding, a.bits, a.align, a.width) for a in CONTRACTS[c].accumulators]

    assert units("fp32acc") == [("RZ", 23, 23, 4), ("RNE", 23, None, 1)]
    assert units("fp8fast") == [("RZ", 13, 13, 32)]
    assert units("fp64") == [("RNE", 52, None, 1)]
    assert CONTRACTS["fp8promoted"].part == 128
    assert CONTRACTS["tf32"].operand_bits == 10


def test_a_partial_sum_of_4097_products_needs_1025_roundings_of_four():
    assert CONTRACTS["fp32acc"].accumulators[0].steps(4097) == 1025


def test_partials_take_any_float_format_and_a_number_of_pieces():
    c = parse_contract("partials(bf16, 16)")
    assert (c.name, c.partial, c.pieces) == ("partials(bfloat16,16)", "bfloat16", 16)
    assert parse_contract("partials(float16)").pieces == 4
    assert parse_contract(c.name) == c


def test_hops_take_any_float_format():
    c = parse_contract("hops(bf16)")
    assert (c.name, c.partial, c.certain) == ("hops(bfloat16)", "bfloat16", True)
    assert parse_contract(c.name) == c


@pytest.mark.parametrize(("fmt", "most"), [("bfloat16", 128), ("float16", 1024), ("float8_e5m2", 4)])
def test_partials_of_which_nothing_could_fail_are_refused(fmt, most):
    assert parse_contract(f"partials({fmt},{most})").pieces == most
    with pytest.raises(UsageError, match=f"{most + 1} pieces in {fmt} may be off .* allowed: at most {most}"):
        parse_contract(f"partials({fmt},{most + 1})")


@pytest.mark.parametrize(
    "name", ["fp33", "partials()", "partials(int8)", "partials(float8_e8m0fnu)", "partials(bfloat16,0)", "hops(int8)", "hops()", ""]
)
def test_other_names_are_refused(name):
    with pytest.raises(UsageError):
        parse_contract(name)


def test_an_unknown_contract_is_answered_with_all_names():
    with pytest.raises(UsageError) as caught:
        parse_contract("fp33")
    assert str(caught.value) == (
        "unknown contract 'fp33'; allowed: exact, fp32acc, fp64, fp8fast, fp8promoted, hops(FORMAT), int32acc, partials(FORMAT), "
        "partials(FORMAT,P), tf32"
    )


@pytest.mark.parametrize(
    ("formats", "scaled", "want"),
    [
        (["float64"], "", "fp64"),
        (["float64", "float32"], "", "fp64"),
        (["float32"], "", "fp32acc"),
        (["bfloat16", "bfloat16"], "", "fp32acc"),
        (["float16"], "", "fp32acc"),
        (["tfloat32"], "", "tf32"),
        (["fp8_e4m3"], "", "fp8fast"),
        (["fp8_e4m3"], "tensor", "fp8fast"),
        (["fp8_e4m3", "fp8_e5m2"], "row", "fp8fast"),
        (["float8_e4m3fnuz"], "1x128", "fp8promoted"),
        (["fp8_e4m3"], "128x128", "fp8promoted"),
        (["fp8_e4m3"], "1x32", "fp32acc"),
        (["fp8_e4m3"], "32x32", "fp32acc"),
        (["fp4_e2m1"], "1x16", "fp32acc"),
        (["fp6_e2m3"], "", "fp32acc"),
        (["int8"], "row", "int32acc"),
    ],
)
def test_the_default_contract_follows_operands_and_scales(formats, scaled, want):
    assert default_contract(formats, scaled) == want


def test_no_operands_have_no_default_contract():
    with pytest.raises(UsageError, match="needs the operand formats"):
        default_contract([])
