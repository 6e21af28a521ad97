from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import pytest
from support_results import gemm_results, hostile_results, passing_results

from accuracy_eval.errors import FileError, UsageError
from accuracy_eval.locking import in_turn
from accuracy_eval.report import WRITERS, write_reports
from accuracy_eval.report.files import MANIFEST, MAX_STEM, file_stem, publish, unique_stems


@pytest.mark.parametrize("form", WRITERS)
def test_every_form_is_written_whole_and_listed(form: str, tmp_path: Path) -> None:
    paths = write_reports(gemm_results(), tmp_path / "deep" / "folder", (form,))
    assert {p.name for p in paths} | {MANIFEST} == {p.name for p in (tmp_path / "deep" / "folder").iterdir()}
    assert all(p.stat().st_size for p in paths)


def test_same_results_give_the_same_bytes_of_every_form_on_another_day_for_another_user_elsewhere(tmp_path: Path) -> None:
    tests = Path(__file__).parent
    made = []
    for i, (now, zone, seed, user) in enumerate(((1_796_000_000, "UTC", "0", "me"), (1_930_012_345, "Asia/Tokyo", "7", "you"))):
        env = os.environ | {"TZ": zone, "PYTHONHASHSEED": seed, "USER": user, "LOGNAME": user, "PYTHONPATH": f"{tests.parent}:{tests}"}
        folder = tmp_path / f"run{i}"
        subprocess.run(
            [sys.executable, str(tests / "programs" / "every_report.py"), str(folder), str(now)], check=True, env=env, cwd=tmp_path
        )
        made.append({str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()})
    assert list(made[0]) == list(made[1])
    assert [name for name in made[0] if made[0][name] != made[1][name]] == []
    reports = {name for name in made[0] if name.startswith("reports/")}
    single = {"results.json", "report.html", "results.csv", "summary.md", "junit.xml", "summary.xlsx", MANIFEST}
    books = {"gemm-m512.n128.k256.xlsx", "gemm-m8192.n8192.k8192.xlsx", "special-n4096.xlsx"}
    assert reports == {f"reports/{name}" for name in single | books}
    assert {"nightly/history.html", "nightly/history.csv"} <= made[0].keys()


def test_failing_writer_leaves_the_earlier_report_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_reports(passing_results(), tmp_path, ("xlsx", "json"))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def fails(self: object) -> Path:
        raise RuntimeError("in the middle")

    monkeypatch.setattr("accuracy_eval.report.workbook.Book.save", fails)
    with pytest.raises(RuntimeError, match="in the middle"):
        write_reports(gemm_results(), tmp_path, ("json", "xlsx"))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_two_reports_of_one_folder_are_placed_one_after_the_other(tmp_path: Path) -> None:
    """Each removes what the one before has left behind: at once, they would remove each other's."""
    written = Event()

    def write(folder: Path) -> list[Path]:
        (folder / "a.txt").write_text("a")
        written.set()
        return [folder / "a.txt"]

    with in_turn(tmp_path):
        other = Thread(target=publish, args=(tmp_path, {"text": write}))
        other.start()
        assert written.wait(300)
        other.join(0.2)
        assert not (tmp_path / "a.txt").exists()
    other.join()
    assert (tmp_path / "a.txt").read_text() == "a"


def test_workbooks_of_an_earlier_report_do_not_stay(tmp_path: Path) -> None:
    write_reports(gemm_results(), tmp_path, ("xlsx", "json", "md"))
    assert (tmp_path / "gemm-m8192.n8192.k8192.xlsx").exists()
    write_reports(passing_results(), tmp_path, ("xlsx",))
    assert {p.name for p in tmp_path.iterdir()} == {"gemm-m512.n128.k256.xlsx", "summary.xlsx", "results.json", "summary.md", MANIFEST}


def test_file_changed_or_made_by_somebody_else_stays(tmp_path: Path) -> None:
    write_reports(gemm_results(), tmp_path, ("xlsx",))
    (tmp_path / "gemm-m8192.n8192.k8192.xlsx").write_bytes(b"my notes")
    (tmp_path / "other.xlsx").write_bytes(b"mine")
    write_reports(passing_results(), tmp_path, ("xlsx",))
    assert (tmp_path / "gemm-m8192.n8192.k8192.xlsx").read_bytes() == b"my notes"
    assert (tmp_path / "other.xlsx").read_bytes() == b"mine"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"xlsx": 5}', '{"xlsx": {"../victim.txt": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}']
)
def test_damaged_manifest_removes_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "victim.txt").write_bytes(b"")
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / MANIFEST).write_text(text)
    write_reports(passing_results(), folder, ("xlsx",))
    assert (tmp_path / "victim.txt").exists()


def test_unknown_form_names_all_forms(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown report form 'pdf'; allowed: csv, html, json, junit, md, xlsx"):
        write_reports(passing_results(), tmp_path / "x", ("pdf",))
    assert not (tmp_path / "x").exists()


def test_folder_that_is_a_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(FileError, match=r"x: cannot write a report there: .*; name a folder that can be written"):
        write_reports(passing_results(), tmp_path / "x", ("json",))


@pytest.mark.parametrize("form", WRITERS)
def test_hostile_text_reaches_no_file_name(form: str, tmp_path: Path) -> None:
    names = [p.name for p in write_reports(hostile_results(), tmp_path, (form,))]
    assert all(set(n) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") for n in names)


@pytest.mark.parametrize("text", ["gemm-m512.n128.k256", "attention-b1.h32.s4096.d128", "a_b"])
def test_safe_names_stay(text: str) -> None:
    assert file_stem(text) == text


@pytest.mark.parametrize(
    "text", ["../../etc/passwd", "con", "NUL", "com1.x", "a/b", "a\\b", "", ".hidden", "ends.", "x" * 300, "gemm:1", "ä", "\ud800"]
)
def test_unsafe_names_are_changed_and_carry_a_hash(text: str) -> None:
    stem = file_stem(text)
    assert stem != text
    assert len(stem) <= MAX_STEM
    assert stem[-13] == "_"
    assert stem[0] not in ".-"
    assert stem.split(".")[0].lower() not in ("con", "nul", "com1")


def test_names_that_differ_only_in_case_or_lost_characters_stay_apart() -> None:
    keys = {"a": "Gemm-m1", "b": "gemm-M1", "c": "summary", "d": "a/b", "e": "a:b", "f": "y" * 90 + "1", "g": "y" * 90 + "2"}
    stems = unique_stems(keys, taken=("summary",))
    assert len({s.lower() for s in stems.values()} | {"summary"}) == len(keys) + 1
    assert stems["a"] == "Gemm-m1"
    assert unique_stems(dict(reversed(keys.items())), taken=("summary",)).keys() == stems.keys()


def test_report_package_imports_no_spreadsheet_library() -> None:
    heavy = "('openpyxl', 'pandas', 'rich', 'numba', 'torch')"
    code = f"import sys, accuracy_eval.report, accuracy_eval.messages; sys.exit(any(m in sys.modules for m in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.getcwd()}, check=False).returncode == 0
