from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support_results import (
    bad_side,
    budget_gate,
    fail_result,
    gemm_case,
    gemm_results,
    good_side,
    nan_result,
    pass_result,
    quantised_result,
    warn_result,
)

from accuracy_eval import messages
from accuracy_eval.records import Attribution, Diagnosis, GateResult, Pair, Side, TensorResult, Verdict, WorstElement


def test_failing_side_says_case_value_place_contract_codes_counts_source_and_cause() -> None:
    result = fail_result(gemm_case("bfloat16", "nt"))
    assert messages.side_message(result, result.sides[0]) == (
        "FAIL gemm.m512.n128.k256.nt.bfloat16.normal.s42 output 'd' (bfloat16): error 6.9 × budget at [12, 301]"
        " (contract fp32acc, B 3.1e-4; gate budget)\n"
        "  actual 0x3F12 = 0.5703 (h200), expected 0.4629 (reference); 214 of 65536 differ, NaN 0/0, Inf 0/0\n"
        "  limit budget_max <= 1: running-error bound under the call's contract (docs/budgets.md)\n"
        "  cause k-tail-missing: The last 8 of 256 products are missing in every row."
    )


def test_failing_pair_names_both_dumps_codes_and_the_truth() -> None:
    result = fail_result(gemm_case("bfloat16", "nt"))
    assert messages.pair_message(result, result.pairs[0]) == (
        "FAIL gemm.m512.n128.k256.nt.bfloat16.normal.s42 output 'd' (bfloat16), h200 against cpu:"
        " h200 is off by 6.9 × its budget; cpu keeps contract fp32acc. [a_off]\n"
        "  largest error at [12, 301]: actual 0x3F12 = 0.5703 (h200), expected 0x3EED = 0.4629 (cpu), reference 0.46288123;"
        " 214 of 65536 differ, NaN 0/0, Inf 0/0\n"
        "  cause k-tail-missing: The last 8 of 256 products are missing in every row."
    )


def test_passing_side_states_what_would_have_failed() -> None:
    result = pass_result(gemm_case())
    assert messages.side_message(result, result.sides[1]) == (
        "PASS gemm.m512.n128.k256.nt.bfloat16.normal.s42 output 'd' (bfloat16): error 0.31 × budget (contract fp32acc; gate budget)\n"
        "  cpu against reference: 0 of 65536 differ, NaN 0/0, Inf 0/0\n"
        "  limit budget_max <= 1: running-error bound under the call's contract (docs/budgets.md)\n"
        "  would have failed: element 3.1e-4, row 0.0022, gain 4e-5"
    )


def test_a_kind_of_fault_that_no_gate_looks_at_is_not_promised() -> None:
    assert messages.resolution_text({"element": 3.1e-4, "row": 2.2e-3, "tile": math.nan, "gain": None}) == "element 3.1e-4, row 0.0022"


def test_limit_on_a_sum_has_no_place_and_the_largest_error_its_own_index() -> None:
    result = quantised_result(gemm_case("fp8_e4m3", "nt", recipe="row"))
    first, second = messages.side_message(result, result.sides[0]).split("\n")[:2]
    assert first.endswith("candidate 'triton' output 'd' (float8_e4m3fn): snr_db 24.2, must be over 25 (contract fp8fast; gate snr-e4m3)")
    assert second.startswith("  largest error at [1, 1]: actual 0x38 = 1 (h200), expected 1.51 (reference); 9000 of 65536 differ")


def test_unapplied_gate_is_said_and_the_finding_comes_first() -> None:
    result = nan_result(gemm_case("float16", "nt"))
    text = messages.side_message(result, result.sides[0])
    head = "FAIL gemm.m512.n128.k256.nt.float16.normal.s42 output 'd' (float16): "
    assert text.startswith(head + "12 NaN where the reference is finite; the first is at [0, 64].\n")
    assert "actual 0x7E00 = NaN (h200), expected -12.5 (reference)" in text


def test_warning_gives_the_finding_not_the_gate_it_kept() -> None:
    result = warn_result(gemm_case("float16", "nn"))
    assert messages.side_reason(result.sides[0]) == "3 of 10 repeats gave other bytes, all within budget."


def test_index_metric_places_the_value_where_it_was_found() -> None:
    side = bad_side("h200")
    side = replace(side, metrics=dict(side.metrics) | {"budget_max_index": [400, 5]})
    assert "error 6.9 × budget at [400, 5] (contract fp32acc, B 3e-4; gate budget)" in messages.side_reason(side)
    side = replace(side, metrics=dict(side.metrics) | {"budget_max_index": [9, 9]})
    result = replace(fail_result(gemm_case()), sides=(side,))
    first, second = messages.side_message(result, side).split("\n")[:2]
    assert "error 6.9 × budget at [9, 9] (contract fp32acc; gate budget)" in first
    assert second.startswith("  largest error at [12, 301]: ")


def test_index_of_a_vector_is_one_number() -> None:
    side = replace(bad_side("h200"), metrics={"budget_max_index": 7}, worst=())
    assert "at [7] (" in messages.side_reason(side)


def test_every_broken_gate_is_listed_worst_first() -> None:
    close = GateResult("l3-rel-fro", "rel_fro", 0.0501, "<=", 0.05, False, "operator gate")
    exact = GateResult("exact-lane", "mismatch_count", 3.0, "==", 0.0, False, "same bits")
    side = replace(bad_side("h200"), gates=(close, budget_gate(6.9), exact), diagnoses=())
    assert [g.gate for g in messages.failed_gates(side.gates)] == ["exact-lane", "budget", "l3-rel-fro"]
    text = messages.side_message(fail_result(gemm_case()), side)
    assert "mismatch_count 3 at [12, 301], must be 0" in text.split("\n")[0]
    assert "  also broken: error 6.9 × budget at [12, 301]" in text
    assert "  also broken: rel_fro 0.0501, must be at most 0.05 (gate l3-rel-fro)" in text


def test_a_stated_limit_is_written_in_full_however_far_the_value() -> None:
    gate = GateResult("l3-cosine", "cosine", 0.00796, ">=", 0.9999, False, "s")
    assert messages.gate_clause(gate) == "cosine 0.00796, must be at least 0.9999 (gate l3-cosine)"


def test_a_count_is_printed_in_full() -> None:
    counted = GateResult("exact-lane", "value_mismatch_count", 2752.0, "==", 0.0, False, "same bits")
    assert messages.gate_clause(counted, "fp32acc", (1, 2)) == (
        "value_mismatch_count 2752 at [1, 2], must be 0 (contract fp32acc; gate exact-lane)"
    )
    assert messages.gate_clause(replace(counted, value=12345678.0)).startswith("value_mismatch_count 12345678, must be 0")


def test_gate_that_could_not_be_applied_is_listed_beside_one_that_was() -> None:
    unapplied = GateResult("snr", "snr_db", None, ">", 25.0, None, "spec", "a zero reference has no SNR")
    side = replace(good_side("h200"), gates=(budget_gate(0.3), unapplied))
    assert messages.deciding_gate(side.gates) is unapplied
    assert "gate snr was not applied: a zero reference has no SNR (contract fp32acc)" in messages.side_message(
        pass_result(gemm_case()), side
    )


def test_verdict_without_gates_and_findings_says_that_no_reason_is_known() -> None:
    side = Side("h200", "float32", "", Verdict.INCONCLUSIVE)
    assert messages.side_reason(side) == "no gate applies and no reason was recorded"
    assert messages.side_reason(replace(side, note="the output is empty")) == "the output is empty"
    pair = Pair("a", "b", Verdict.INCONCLUSIVE, Attribution.UNDETERMINED, "")
    assert messages.pair_reason(pair) == "no gate applies and no reason was recorded"


def test_unknown_format_of_a_newer_file_still_prints_codes() -> None:
    assert messages.code_text(0x1F, "float7_e3m3") == "0x1F"


@pytest.mark.parametrize(
    ("code", "fmt", "text"),
    [
        (0x7, "float4_e2m1fn", "0x07"),
        (0x3F12, "bfloat16", "0x3F12"),
        (0x1, "float32", "0x00000001"),
        (1, "float64", "0x0000000000000001"),
        (None, "bfloat16", ""),
    ],
)
def test_codes_are_hex_at_the_width_of_their_format(code: int | None, fmt: str, text: str) -> None:
    assert messages.code_text(code, fmt) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5703125, "0.5703"),
        (3.1e-4, "3.1e-4"),
        (1e-5, "1e-5"),
        (0.0, "0"),
        (-0.0, "-0"),
        (214, "214"),
        (123456789, "123456789"),
        (1e300, "1e300"),
        (1.5e-7, "1.5e-7"),
        (math.nan, "NaN"),
        (math.inf, "Inf"),
        (-math.inf, "-Inf"),
        (None, "n/a"),
        (True, "yes"),
        (0.001, "0.001"),
        (123456.0, "1.235e5"),
    ],
)
def test_numbers_are_short_and_exponents_bare(value: float | None, text: str) -> None:
    assert messages.number(value) == text


def test_number_just_beyond_its_limit_does_not_print_as_the_limit() -> None:
    assert messages.numbers_apart(1.0000001, 1.0, 3) == ("1.0000001", "1")
    assert messages.numbers_apart(2.0, 2.0) == ("2", "2")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("a\r\nb\tc", r"a\nb\tc"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\x00\x7f\x85", r"\x00\x7f\x85"),
        ("\ud800", r"\ud800"),
        ("\ufeff\ufffe", r"\ufeff\ufffe"),
        ("näh × ≤ 数", "näh × ≤ 数"),
        ("\u2028", r"\u2028"),
    ],
)
def test_characters_that_cannot_be_seen_become_escapes(text: str, line: str) -> None:
    assert messages.visible(text) == line


def test_line_breaks_stay_where_lines_are_wanted() -> None:
    assert messages.visible("a\r\nb\tc\rd", lines=True) == "a\nb\tc\\x0dd"


@pytest.mark.parametrize("attribution", Attribution)
def test_every_attribution_has_words(attribution: Attribution) -> None:
    words = messages.who_is_off(Pair("left", "right", Verdict.FAIL, attribution, ""))
    assert words
    assert "{" not in words
    assert ("left is off" == words) == (attribution is Attribution.A_OFF)
    assert ("right is off" == words) == (attribution is Attribution.B_OFF)


def test_contract_kept_instead_of_the_promised_one_is_named() -> None:
    side = replace(bad_side("h200"), off_contract="tf32")
    assert "\n  off contract: breaks fp32acc, keeps tf32" in messages.side_message(fail_result(gemm_case()), side)
    noted = replace(side, note="outside fp32acc, which was promised, and inside tf32 (0.2 × its budget)")
    text = messages.side_message(fail_result(gemm_case()), noted)
    assert noted.note in text
    assert "off contract" not in text


def test_whole_text_of_a_tensor_starts_with_the_worst() -> None:
    lines = messages.result_message(fail_result(gemm_case())).split("\n")
    heads = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert heads == ["FAIL", "FAIL", "PASS"]


def test_label_less_side_of_a_single_check_has_no_empty_brackets() -> None:
    worst = (WorstElement((3,), 0x3F80, 0x3F81, 1.0, 1.0078125, 0.0078125, 1.0),)
    side = Side(
        "",
        "bfloat16",
        "",
        Verdict.FAIL,
        gates=(budget_gate(2.0),),
        worst=worst,
        diagnoses=(Diagnosis("gain", "scaled by 2", {"value": 2}),),
    )
    result = TensorResult("check", gemm_case(), "gemm", "default", "d", (4,), Verdict.FAIL, (side,))
    assert messages.side_message(result, side) == (
        "FAIL check output 'd' (bfloat16): error 2 × budget at [3] (gate budget)\n"
        "  actual 0x3F80 = 1, expected 0x3F81 = 1.008 (reference)\n"
        "  limit budget_max <= 1: running-error bound under the call's contract (docs/budgets.md)\n"
        "  cause gain: scaled by 2"
    )


def test_no_message_of_any_result_holds_a_raw_control_character() -> None:
    from support_results import hostile_results

    for results in (gemm_results(), hostile_results()):
        for result in results.tensors:
            text = messages.result_message(result)
            assert not [c for c in text if ord(c) < 32 and c != "\n"]
            assert all(line.startswith(("  ", "FAIL ", "PASS ", "WARN ")) for line in text.split("\n"))
