"""A comparison that is interrupted goes on where it stopped, and gives the bytes of one that was not."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from support_interrupts import HEARING

from accuracy_eval.backends.open import open_backend
from accuracy_eval.cli import run
from accuracy_eval.compare import compare_dumps, comparison, judging
from accuracy_eval.dump import dump
from accuracy_eval.errors import FileError, UsageError
from accuracy_eval.report import write_reports
from accuracy_eval.suite import parse_suite

TABLE = {"op": "gemm", "shape": ["8x6x32", "16x6x64", "7x9x33"], "format": ["float32", "bfloat16"], "lane": ["random", "exact"]}


def many(path, device="cpu", seeds=3, **table):
    cases = [{**TABLE, "seed": list(range(seeds)), **table}, {"op": "exp", "shape": "64", "format": "bfloat16"}]
    with closing(open_backend(device)) as backend:
        dump(parse_suite({"name": "many", "cases": cases}, "many"), backend, path)
    return path


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    return many(folder / "a.h5"), many(folder / "b.h5", "reference", seeds=2)


def results_of(results, folder):
    folder.mkdir(exist_ok=True)
    write_reports(results, folder, to=("json",))
    return (folder / "results.json").read_bytes()


class Stopped(Exception):
    pass


def stop_after(cases):
    def progress(done, total, ident):
        if done >= cases:
            raise Stopped

    return progress


def begun(pair, journal, cases=20):
    """A comparison that ends after some cases, as by Ctrl-C."""
    with pytest.raises(Stopped):
        compare_dumps(*pair, workers=1, journal=journal, progress=stop_after(cases))
    return journal.read_bytes().splitlines(keepends=True)


@pytest.fixture
def judged(monkeypatch):
    """Ids of the cases that are judged, not taken over."""
    seen = []
    compare_case = judging.compare_case

    def watched(entries, records, *how):
        seen.append(next(iter(records.values())).id)
        return compare_case(entries, records, *how)

    monkeypatch.setattr(comparison, "compare_case", watched)
    return seen


def test_what_was_judged_is_taken_over_and_the_results_are_the_same_bytes(tmp_path, pair, judged):
    whole = results_of(compare_dumps(*pair, workers=1), tmp_path / "whole")
    every = list(judged)
    judged.clear()
    lines = begun(pair, tmp_path / "journal")
    assert len(lines) == 1 + 20
    judged.clear()
    seen = []
    again = compare_dumps(*pair, workers=1, journal=tmp_path / "journal", progress=lambda *step: seen.append(step[:2]))
    assert judged == every[20:]
    assert seen == [(i + 1, len(every)) for i in range(20, len(every))]
    assert results_of(again, tmp_path / "again") == whole
    judged.clear()
    assert results_of(compare_dumps(*pair, journal=tmp_path / "journal"), tmp_path / "third") == whole
    assert judged == []


@pytest.mark.parametrize("damage", ["half a line", "a changed line", "a line of another comparison", "no newline", "garbage"])
def test_a_line_that_is_not_whole_is_judged_again_and_all_behind_it(tmp_path, pair, judged, damage):
    whole = results_of(compare_dumps(*pair, workers=1), tmp_path / "whole")
    every = list(judged)
    journal = tmp_path / "journal"
    lines = begun(pair, journal)
    other = begun(pair[:1], tmp_path / "other")[7]
    bad = {
        "half a line": lines[7][: len(lines[7]) // 2],
        "a changed line": lines[7].replace(b'"PASS"', b'"WARN"') + b"".join(lines[8:]),
        "a line of another comparison": other + b"".join(lines[8:]),
        "no newline": lines[7][:-1],
        "garbage": os.urandom(300),
    }[damage]
    assert bad != lines[7]
    journal.write_bytes(b"".join(lines[:7]) + bad)
    judged.clear()
    assert results_of(compare_dumps(*pair, workers=1, journal=journal), tmp_path / "again") == whole
    assert judged == every[6:]  # the first line names the comparison
    assert len(journal.read_bytes().splitlines()) == 1 + len(every)


@pytest.mark.parametrize("change", ["limits", "program", "dump", "option", "label"])
def test_nothing_is_taken_over_from_another_comparison(tmp_path, pair, judged, monkeypatch, change):
    journal, options, dumps = tmp_path / "journal", {}, list(pair)
    begun(pair, journal)
    judged.clear()
    compare_dumps(*pair, workers=1)
    every = list(judged)
    if change == "limits":
        options["gates"] = "strict"
    elif change == "program":
        monkeypatch.setattr(comparison, "program_digest", lambda: "another")
    elif change == "dump":
        dumps[1] = many(tmp_path / "b.h5", "reference", seeds=2, format=["float32", "bfloat16", "float16"])
    elif change == "option":
        options["reference"] = "full"
    else:
        options["labels"] = ("one", "other")
    judged.clear()
    compare_dumps(*dumps, workers=1, journal=journal, **options)
    assert set(judged) >= set(every)


def test_a_case_that_could_not_be_judged_is_tried_again(tmp_path, pair, monkeypatch):
    def refuses(self, record, *args, **kwargs):
        raise UsageError("not today")

    with monkeypatch.context() as patched:
        patched.setattr(judging, "stored_side", refuses)
        failed = compare_dumps(*pair, workers=1, journal=tmp_path / "journal")
    assert not failed.tensors
    again = compare_dumps(*pair, workers=1, journal=tmp_path / "journal")
    assert again == compare_dumps(*pair, workers=1)


def test_two_comparisons_cannot_write_one_journal(tmp_path, pair):
    def second(done, total, ident):
        with pytest.raises(UsageError, match="another comparison is writing there"):
            compare_dumps(*pair, journal=tmp_path / "journal")
        raise Stopped

    with pytest.raises(Stopped):
        compare_dumps(*pair, workers=1, journal=tmp_path / "journal", progress=second)


def test_a_disk_that_is_full_costs_the_journal_and_not_the_comparison(tmp_path, pair, capsys):
    whole = results_of(compare_dumps(*pair, workers=1), tmp_path / "whole")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (10, 100_000):  # not even the first line, and some cases
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            found = compare_dumps(*pair, workers=1, journal=tmp_path / "journal")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert results_of(found, tmp_path / "again") == whole
        said = (
            f"compare: {tmp_path / 'journal'}: {os.strerror(errno.EFBIG)}; judged results are not kept any more, and nothing else changes\n"
        )
        assert capsys.readouterr().err == said
        assert not (tmp_path / "journal").exists()


@pytest.mark.parametrize(
    ("kind", "what"),
    [("link", "a symbolic link"), ("pipe", "a pipe"), ("folder", "a folder"), ("file", "a file of 9 bytes that is not a journal")],
)
def test_what_is_no_journal_is_left_as_it_is(tmp_path, pair, kind, what):
    journal, precious = tmp_path / "journal", tmp_path / "precious"
    precious.write_bytes(b"precious\n")
    make = {
        "link": lambda: journal.symlink_to(precious),
        "pipe": lambda: os.mkfifo(journal),
        "folder": journal.mkdir,
        "file": lambda: os.link(precious, journal),
    }
    make[kind]()
    before = journal.lstat()
    with pytest.raises(FileError, match=f"{journal}: {what}.*, where a comparison keeps what it has judged; move it away, or name"):
        compare_dumps(*pair, workers=1, journal=journal)
    assert journal.lstat().st_ino == before.st_ino
    assert precious.read_bytes() == b"precious\n"


def test_an_empty_file_becomes_the_journal(tmp_path, pair):
    (tmp_path / "journal").touch()
    assert len(begun(pair, tmp_path / "journal")) == 21


# the command, and a real process


def lines_in(journal):
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


@pytest.fixture(scope="module")
def more(tmp_path_factory):
    folder = tmp_path_factory.mktemp("more")
    return many(folder / "a.h5", seeds=8), many(folder / "b.h5", "reference", seeds=8)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_process_is_gone_on_from_where_it_was(tmp_path, more, sent, workers):
    a, b = more
    out, journal = tmp_path / "out", tmp_path / "out" / "compare.journal"
    command = ["compare", str(a), str(b), "--to", "json,csv", "--workers", workers]
    process = subprocess.Popen([*HEARING, *command, "-o", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while lines_in(journal) < 12 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(sent)
    _, said = process.communicate(timeout=300)
    assert process.returncode == (130 if sent == signal.SIGINT else -9)
    kept = lines_in(journal)
    assert 12 <= kept < 1 + 97
    if sent == signal.SIGINT:
        assert f"compare: what is judged so far is kept in {journal}; the same command goes on from there" in said
    journal.write_bytes(journal.read_bytes()[:-7])  # and a record that was half written
    assert run([*command, "-o", str(out), "-q"]) == 0
    assert run([*command, "-o", str(tmp_path / "whole"), "-q"]) == 0
    files = sorted(p.name for p in out.iterdir())
    assert files == sorted(p.name for p in (tmp_path / "whole").iterdir())  # the journal is gone
    assert "results.json" in files
    for name in files:
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_the_journal_goes_when_the_reports_are_written(tmp_path, pair, capsys):
    command = ["compare", *map(str, pair), "--to", "json", "-o", str(tmp_path / "out")]
    assert run(command) == 1  # cases that only one of the dumps has
    assert (tmp_path / "out" / "results.json").exists()
    assert not (tmp_path / "out" / "compare.journal").exists()
    begun(pair, tmp_path / "out" / "compare.journal")
    capsys.readouterr()
    assert run(command) == 1
    assert f"that {tmp_path / 'out' / 'compare.journal'} holds are not judged again" in capsys.readouterr().err
    assert json.loads(Path(tmp_path / "out" / "results.json").read_text())["verdict"] == "MISSING"


def test_reports_that_are_written_leave_no_journal_where_nobody_reads_the_table(pair, tmp_path):
    """`compare … | head`: the pipe is closed before the table is printed."""
    command = [sys.executable, "-m", "accuracy_eval", "compare", *map(str, pair), "--to", "json", "-o", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdout.close()
        process.wait()
    assert {p.name for p in tmp_path.iterdir() if not p.name.startswith(".")} == {"results.json"}
