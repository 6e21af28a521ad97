from __future__ import annotations

import json
import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support_results import gemm_results, hostile_results, many_results, passing_results, quantised_result, results_of, special_result

from accuracy_eval.concluding import Tally
from accuracy_eval.json_data import to_json
from accuracy_eval.kept import KeptResults, Packed, packed
from accuracy_eval.records import Results, Verdict
from accuracy_eval.report import console_table, write_reports

BATCH = 3  # not a divisor of what is packed: the last batch is short


def as_text(results: Results) -> Results:
    """The same with every result packed, a few together."""
    tensors = results.tensors
    batches = [packed(tensors[i : i + BATCH]) for i in range(0, len(tensors), BATCH)]
    return replace(results, tensors=KeptResults([p for batch in batches for p in batch]))


SAMPLES: dict[str, Callable[[], Results]] = {
    "gemm": gemm_results,
    "hostile": hostile_results,
    "passing": passing_results,
    "special": lambda: results_of((special_result(),)),
    "quantised": lambda: results_of((quantised_result(gemm_results().tensors[0].case),)),
}


@pytest.fixture(params=SAMPLES)
def plain(request: pytest.FixtureRequest) -> Results:
    return SAMPLES[request.param]()


def test_packed_results_are_the_same_in_their_order(plain: Results):
    kept = as_text(plain).tensors
    assert len(kept) == len(plain.tensors)
    assert [json.dumps(to_json(t)) for t in kept] == [json.dumps(to_json(t)) for t in plain.tensors]
    assert list(kept.texts()) == [json.dumps(to_json(t)) for t in plain.tensors]


def test_what_a_verdict_asks_is_known_without_reading_a_text(plain: Results):
    assert as_text(plain).tensors.tally() == KeptResults(plain.tensors).tally() == Tally.of(plain.tensors)


def test_a_text_that_is_not_read_is_not_unpacked():
    unreadable = [replace(p, batch=b"no text") for p in packed(gemm_results().tensors)]
    assert KeptResults(unreadable).tally() == Tally.of(gemm_results().tensors)


def test_a_sequence_of_them_is_one_of_results():
    plain = many_results(8).tensors
    kept = as_text(many_results(8)).tensors
    assert kept == plain
    assert plain == kept
    assert kept == KeptResults(plain)
    assert kept not in (plain[:-1], (*plain[1:], plain[0]), list(plain))
    assert kept[1:3] == plain[1:3]
    assert kept[-1] == plain[-1]
    assert plain[5] in kept
    with pytest.raises(IndexError):
        kept[len(plain)]


def test_results_packed_together_are_sent_once():
    alone = sum(len(pickle.dumps(packed([t]))) for t in many_results(16).tensors)
    together = len(pickle.dumps(packed(many_results(16).tensors)))
    assert together < alone / 3


@pytest.mark.parametrize("form", ["json", "html", "csv", "md", "junit"])
def test_reports_do_not_tell_how_results_are_held(plain: Results, form: str, tmp_path: Path):
    written = [
        {path.name: path.read_bytes() for path in write_reports(results, tmp_path / name, to=(form,))}
        for name, results in (("plain", plain), ("text", as_text(plain)))
    ]
    assert written[0] == written[1]


@pytest.mark.parametrize("verbose", [False, True])
def test_neither_does_the_console(plain: Results, verbose: bool):
    assert console_table(as_text(plain), verbose=verbose) == console_table(plain, verbose=verbose)


def held_bytes(make: Callable[[], object]) -> float:
    """Memory of what `make` returns."""
    tracemalloc.start()
    try:
        kept = make()
        return tracemalloc.get_traced_memory()[0] if kept else 0
    finally:
        tracemalloc.stop()


def test_text_takes_a_fraction_of_the_memory():
    def batches() -> list[Packed]:
        return [p for i in range(0, 160, 16) for p in packed(many_results(160).tensors[i : i + 16])]

    assert held_bytes(batches) < held_bytes(lambda: many_results(160).tensors) / 4


def test_a_tally_names_the_dumps_of_which_nothing_was_judged():
    tally = Tally.of(gemm_results().tensors)
    assert tally.verdicts[Verdict.PASS] == sum(t.verdict is Verdict.PASS for t in gemm_results().tensors) > 0
    assert tally.unjudged(["h200", "mi300x", "cpu"]) == ["mi300x"]
    assert [Tally().nothing_judged, tally.nothing_judged] == [True, False]
