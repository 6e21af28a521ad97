"""What changed since a baseline, and a metric over dated results."""

from __future__ import annotations

import csv
import errno
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support_results import CPU, H200, MI300X, fail_result, gemm_case, metrics, not_compared, pass_result, results_of

from accuracy_eval.cli import run
from accuracy_eval.errors import FileError, UsageError
from accuracy_eval.history import KINDS, changes, dated_results, noise_floor, other_dumps, series, summary, versions_at, write_history
from accuracy_eval.records import Results, TensorResult, Verdict
from accuracy_eval.report import load_results, write_reports

A, B, C = (gemm_case(layout=letters) for letters in ("nn", "nt", "tn"))


def moved(result: TensorResult, rel_fro: float, digest: str = "77" * 32) -> TensorResult:
    """The result with other bytes of its first side and another relative error."""
    side = replace(result.sides[0], sha256=digest, metrics=metrics(rel_fro))
    return replace(result, sides=(side, *result.sides[1:]))


def lines(before: Results, now: Results) -> list[str]:
    return [c.line for c in changes(before, now)]


def test_equal_results_have_no_changes() -> None:
    results = results_of((pass_result(A), fail_result(B)), not_compared())
    assert changes(results, results) == []
    assert summary([], "old.json") == "since old.json: nothing changed"


def test_new_failures_come_first_with_who_is_off_and_why() -> None:
    before = results_of((fail_result(A), pass_result(B)))
    now = results_of((pass_result(A), fail_result(B)))
    assert lines(before, now) == [
        "new failure: gemm.m512.n128.k256.nt.bfloat16.normal.s42 d: PASS, now FAIL: h200 error 6.9 × budget at [12, 301] "
        "(contract fp32acc, B 3.1e-4; gate budget)",
        "fixed: gemm.m512.n128.k256.nn.bfloat16.normal.s42 d: FAIL: h200 error 6.9 × budget at [12, 301] "
        "(contract fp32acc, B 3.1e-4; gate budget); now PASS",
    ]
    assert summary(changes(before, now), "old.json") == "since old.json: 1 new failure, 1 fixed"


def test_a_baseline_of_other_dumps_is_said_to_be_one() -> None:
    before, same = results_of((pass_result(A),)), results_of((fail_result(A),))
    assert other_dumps(before, same) == ""
    another = replace(H200, suite="edge", suite_digest="5" * 64)
    now = results_of((pass_result(B),), dumps=(another, MI300X))
    said = "cpu there only; mi300x here only; h200 of suite smoke there, edge here; no result in common"
    assert other_dumps(before, now) == said
    assert summary(changes(before, now), "old.json", said) == f"since old.json, whose dumps are others ({said}): 1 gone, 1 new"
    seed = results_of((pass_result(A),), dumps=tuple(replace(d, suite_digest="5" * 64) for d in before.dumps))
    assert other_dumps(before, seed) == "h200, cpu of other cases or seeds of suite smoke"


def test_other_bytes_within_the_noise_are_not_a_drift() -> None:
    # 512 × 128 elements: 5·√2·√0.8/(2·256) = 1.24 %
    assert noise_floor(65536) == pytest.approx(0.01235, rel=1e-3)
    before = results_of((pass_result(A),))
    assert [c.kind for c in changes(before, results_of((moved(pass_result(A), 1.6e-3 * 1.01),)))] == ["other bytes"]
    assert [c.kind for c in changes(before, results_of((moved(pass_result(A), 1.6e-3 * 1.02),)))] == ["drift"]
    assert [c.kind for c in changes(before, results_of((moved(pass_result(A), 1.6e-3 * 0.98),)))] == ["drift"]


def test_the_noise_floor_holds_for_rounding_errors_drawn_at_random() -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    norms = np.sqrt((rng.uniform(-0.5, 0.5, (2000, 4096)) ** 2).sum(axis=1))
    apart = np.abs(norms[::2] - norms[1::2]) / np.maximum(norms[::2], norms[1::2])
    assert apart.max() < noise_floor(4096)
    assert apart.max() > noise_floor(4096) / 3  # and is not so wide that it says nothing


def test_a_changed_metric_of_the_same_bytes_is_no_change() -> None:
    before = results_of((pass_result(A),))
    now = results_of((moved(pass_result(A), 0.5, digest=pass_result(A).sides[0].sha256),))
    assert changes(before, now) == []


def test_cases_that_came_and_went_are_named() -> None:
    found = changes(results_of((pass_result(A), pass_result(B))), results_of((pass_result(B), pass_result(C)), not_compared()[1:2]))
    assert [(c.kind, c.key[0].split(".")[4]) for c in found] == [("gone", "nn"), ("new", "tn"), ("new", "tt")]


def test_a_case_that_is_missing_now_is_a_failure_where_it_was_left_out_before() -> None:
    skipped = not_compared()[2]  # unsupported
    found = changes(results_of((), (skipped,)), results_of((), (replace(skipped, verdict=Verdict.ERROR, reason="out of memory"),)))
    assert [c.line.split(": ")[0] for c in found] == ["new failure"]
    assert found[0].text == "UNSUPPORTED, now ERROR: out of memory"


def test_dumps_with_no_label_in_common_are_refused() -> None:
    other = results_of((pass_result(A),), dumps=(replace(H200, label="x"), replace(CPU, label="y")))
    with pytest.raises(UsageError, match="the baseline holds x, y, this comparison h200, cpu: no dump to compare with"):
        changes(other, results_of((pass_result(A),)))


@pytest.fixture
def nightly(tmp_path: Path) -> Path:
    """Three dated results: a new torch on the second day, a failure on the third."""
    for day, torch, tensor in (
        ("2026-11-28", "2.12.0", pass_result(A)),
        ("2026-11-29", "2.13.0", moved(pass_result(A), 3.2e-3)),
        ("2026-11-30", "2.13.0", replace(fail_result(A), case_id=pass_result(A).case_id)),
    ):
        dump = replace(H200, platform={**H200.platform, "torch_version": torch})
        write_reports(results_of((tensor,), dumps=(dump, CPU)), tmp_path / day, ("json",))
    return tmp_path


def test_dated_results_are_read_in_the_order_of_their_dates(nightly: Path) -> None:
    (nightly / "20261127T0630").mkdir()
    (nightly / "2026-11-30" / "results.json").rename(nightly / "20261127T0630" / "results.json")
    (nightly / "notes.json").write_text("{}")
    assert [d.date for d in dated_results(nightly)] == ["2026-11-27T06:30", "2026-11-28", "2026-11-29"]


def test_series_that_moved_most_come_first(nightly: Path) -> None:
    found = series(dated_results(nightly), "rel_fro")
    assert [(s.label, [v for _, v, _ in s.points]) for s in found] == [("h200", [1.6e-3, 3.2e-3, 0.0712]), ("cpu", [1.6e-3] * 3)]
    assert found[0].spread == pytest.approx(44.5)


def test_library_versions_are_named_where_they_change(nightly: Path) -> None:
    found = versions_at(dated_results(nightly), "h200")
    assert list(found) == [0, 1]
    assert found[1].startswith("torch 2.13.0, CUDA 13.0")


def test_the_page_is_well_formed_and_has_a_point_a_date(nightly: Path, tmp_path: Path) -> None:
    dated = dated_results(nightly)
    html, table = write_history(dated, "rel_fro", series(dated, "rel_fro"), tmp_path / "out")
    text = html.read_text()
    root = ElementTree.fromstring("<r>" + text[text.index("<figure>") : text.rindex("</figure>") + 9] + "</r>")
    titles = [t.text for t in root[0].iter("title")]
    assert titles == ["2026-11-28: 0.0016 (PASS)", "2026-11-29: 0.0032 (PASS)", "2026-11-30: 0.0712 (FAIL)"]
    heights = [float(c.attrib["cy"]) for c in root[0].iter("circle")]
    assert heights == sorted(heights, reverse=True)  # larger errors stand higher
    assert "torch 2.12.0" in text
    assert len(list(root[0].iter("line"))) == 2 + 1  # two ticks, and one change of versions: the first date is none
    assert [child.tag for child in root[0]] == ["figcaption", "svg"]
    assert text.count("<figure>") == 1
    flat = ElementTree.fromstring(text[text.index("<details>") : text.index("</details>") + 10])
    assert flat[0].text == "1 series neither moved nor failed"
    _, row = flat.iter("tr")
    assert [c.text for c in row][1:] == ["0.0016", "3", "PASS"]
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [(r["date"], r["dump"], r["rel_fro"]) for r in rows][:2] == [("2026-11-28", "h200", "0.0016"), ("2026-11-29", "h200", "0.0032")]


def test_the_command_charts_and_says_how_much_moved(nightly: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history", str(nightly), "--metric", "snr_db"]) == 0
    assert capsys.readouterr().out.startswith("3 results, 2026-11-28 to 2026-11-30: snr_db moved in 1 of 2 series")


def test_one_result_is_counted_in_the_singular(nightly: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for later in ("2026-11-29", "2026-11-30"):
        (nightly / later / "results.json").unlink()
    assert run(["history", str(nightly)]) == 0
    assert capsys.readouterr().out.startswith("1 result, 2026-11-28 to 2026-11-28: rel_fro moved in 0 of 0 series")
    assert (nightly / "history.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--metric", "snr"], "unknown metric 'snr'"), (["--case", "x"], "case x: none of 3 results has rel_fro of it")],
)
def test_an_unknown_metric_or_case_is_one_error(
    nightly: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["history", str(nightly), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_dates_is_an_error(tmp_path: Path) -> None:
    write_reports(results_of((pass_result(A),)), tmp_path / "a", ("json",))
    with pytest.raises(UsageError, match="no results.json with a date in its path"):
        dated_results(tmp_path)
    with pytest.raises(FileError, match="not a folder"):
        dated_results(tmp_path / "none")


def test_compare_says_what_changed_since_a_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = [
        "dump",
        "--op",
        "gemm",
        "--shape",
        "16x8x32",
        "--format",
        "float32",
        "--format",
        "bfloat16",
        "--lane",
        "random",
        "--device",
        "reference",
        "-q",
    ]
    assert run([*dump, "-o", str(tmp_path / "ref.h5")]) == 0
    assert run(["compare", str(tmp_path / "ref.h5"), "--to", "json", "-q", "-o", str(tmp_path / "old")]) == 0
    old = tmp_path / "old" / "results.json"
    results = load_results(old)
    first, second = results.tensors
    failed = replace(first, verdict=Verdict.FAIL, sides=(replace(first.sides[0], verdict=Verdict.FAIL),))
    other = replace(second, sides=(replace(second.sides[0], sha256="00" * 32),))
    write_reports(replace(results, tensors=(failed, other), verdict=Verdict.FAIL, exit_code=1), old.parent, ("json",))
    capsys.readouterr()
    assert run(["compare", str(tmp_path / "ref.h5"), "--to", "none", "--baseline", str(old)]) == 0
    text = capsys.readouterr().out
    assert "note: since old/results.json: 1 fixed, 1 other bytes" in text
    assert "\nfixed: gemm.m16.n8.k32." in text


def test_every_kind_of_change_is_explained() -> None:
    assert all(KINDS.values())


def test_the_same_results_give_the_same_bytes_wherever_they_are_written(nightly: Path, tmp_path: Path) -> None:
    made = []
    for folder in ("one", "another"):
        dated = dated_results(nightly)
        made.append([path.read_bytes() for path in write_history(dated, "rel_fro", series(dated, "rel_fro"), tmp_path / folder)])
    assert made[0] == made[1]


@pytest.mark.parametrize("failing", ["history.html", "history.csv"])
def test_a_history_that_cannot_be_written_leaves_the_earlier_one(
    failing: str, nightly: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dated = dated_results(nightly)
    write_history(dated, "rel_fro", series(dated, "rel_fro"), tmp_path / "out")
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    write = Path.write_text

    def full(self: Path, text: str, *args: Any, **more: Any) -> int:
        if self.name != failing:
            return write(self, text, *args, **more)
        write(self, text[: len(text) // 2], *args, **more)
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(FileError, match="could not be written: No space left on device; an older report there is unchanged or whole"):
        write_history(dated, "snr_db", series(dated, "snr_db"), tmp_path / "out")
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before
