"""One process at a time: also where the one before renames or removes what it had locked while the next one opens it."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from accuracy_eval.backends.open import open_backend
from accuracy_eval.compare.journal import Journal
from accuracy_eval.dump import dump
from accuracy_eval.dump.resuming import only_writer
from accuracy_eval.errors import UsageError
from accuracy_eval.locking import locked
from accuracy_eval.suite import parse_suite
from accuracy_eval.transfer.fetching import _only_writer


def suite():
    return parse_suite({"name": "test", "cases": [{"op": "gemm", "shape": ["8x6x32", "16x6x64"], "format": "float32"}]}, "test")


def opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


@pytest.fixture
def before_the_lock(monkeypatch: pytest.MonkeyPatch):
    """What another process does between this one's opening and its first locking."""
    flock, left = fcntl.flock, []

    def delayed(descriptor, how):
        while left:
            left.pop()()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", delayed)
    return left.append


def test_what_another_has_locked_is_refused(tmp_path: Path) -> None:
    descriptor = locked(tmp_path / "a", lambda: opened(tmp_path / "a"))
    with pytest.raises(BlockingIOError):
        locked(tmp_path / "a", lambda: opened(tmp_path / "a"))
    os.close(descriptor)
    os.close(locked(tmp_path / "a", lambda: opened(tmp_path / "a")))


def test_a_file_that_is_removed_meanwhile_is_opened_anew(tmp_path: Path, before_the_lock) -> None:
    path = tmp_path / "a"
    before_the_lock(path.unlink)
    descriptor = locked(path, lambda: opened(path))
    with pytest.raises(BlockingIOError):
        locked(path, lambda: opened(path))
    os.close(descriptor)


def test_what_never_is_what_was_opened_is_given_up(tmp_path: Path) -> None:
    def opened_and_removed() -> int:
        descriptor = opened(tmp_path / "a")
        (tmp_path / "a").unlink()
        return descriptor

    with pytest.raises(BlockingIOError, match="is not what was opened there"):
        locked(tmp_path / "a", opened_and_removed)


def test_a_fetch_does_not_write_into_the_file_that_another_has_finished_meanwhile(tmp_path: Path, before_the_lock) -> None:
    part, target = tmp_path / "a.part", tmp_path / "a"
    part.write_bytes(b"whole")
    before_the_lock(lambda: os.replace(part, target))
    with _only_writer(part) as file:
        file.truncate(0)
    assert target.read_bytes() == b"whole"
    assert part.read_bytes() == b""


def test_a_dump_that_was_packed_meanwhile_leaves_its_folder_to_nobody(tmp_path: Path, before_the_lock) -> None:
    parts = tmp_path / "a.h5.parts"
    before_the_lock(parts.rmdir)
    with only_writer(parts), pytest.raises(UsageError, match="another dump is writing there"), only_writer(parts):
        pass


def test_a_comparison_keeps_its_journal_where_the_one_before_has_just_removed_its_own(tmp_path: Path, before_the_lock) -> None:
    path = tmp_path / "compare.journal"
    before_the_lock(path.unlink)
    with Journal(path, "of these dumps"):
        assert path.exists()


def test_a_folder_that_another_dump_made_under_the_same_name_stays(tmp_path: Path) -> None:
    parts = tmp_path / "a.h5.parts"
    with only_writer(parts):
        parts.rename(tmp_path / "a.h5.parts.packed")  # as packing does; then another dump begins
        parts.mkdir()
    assert parts.is_dir()


def test_a_dump_that_goes_on_touches_nothing_of_one_that_runs(tmp_path: Path) -> None:
    """The older results in the finished file would take the place of those that the other has just made again."""
    out, parts = tmp_path / "a.h5", tmp_path / "a.h5.parts"
    backend = open_backend("reference")
    dump(suite(), backend, out)
    with only_writer(parts):
        with pytest.raises(UsageError, match="another dump is writing there"):
            dump(suite(), backend, out, resume=True)
        assert list(parts.iterdir()) == []


def test_a_dump_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    backend = open_backend("reference")
    dump(suite(), backend, tmp_path / "a.h5")
    with pytest.raises(UsageError, match="exists already"):
        dump(suite(), backend, tmp_path / "a.h5")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5"]


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with only_writer(tmp_path / "a.h5.parts"):
        assert (tmp_path / "a.h5.parts").is_dir()
    with _only_writer(tmp_path / "a.h5.part") as file:
        file.write(b"codes")
    with Journal(tmp_path / "compare.journal", "one") as journal:
        assert not journal.judged


def test_other_errors_of_a_lock_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", broken)
    with pytest.raises(OSError, match="Input/output"):
        locked(tmp_path / "a", lambda: opened(tmp_path / "a"))
