"""Report files on disk: all of a report appears at once, names are safe everywhere, nothing stale stays behind."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from accuracy_eval.errors import FileError
from accuracy_eval.locking import in_turn

K = TypeVar("K")
MANIFEST = ".accuracy-eval-report.json"  # form -> {file name: sha256} of what was written here last
MAX_STEM = 80  # characters of a file name before its suffix: leaves room under Windows' 260 for a deep folder
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?\Z", re.IGNORECASE)


def publish(directory: Path, writers: Mapping[str, Callable[[Path], list[Path]]]) -> list[Path]:
    """Run every writer in a temporary folder inside `directory`, then rename all files into place and drop stale ones."""
    with _aside(directory) as folder:
        written = {form: write(folder) for form, write in writers.items()}
        with in_turn(directory):  # what another report has just placed there is not what is stale here
            before = _manifest(directory)
            after = before | {form: {file.name: _digest(file) for file in files} for form, files in written.items()}
            placed = [_place(file, directory) for files in written.values() for file in files]
            kept = {name for digests in after.values() for name in digests}
            for form in written:
                for name, digest in before.get(form, {}).items():
                    if name not in kept and _digest(directory / name) == digest:
                        (directory / name).unlink()
            record = folder / MANIFEST
            record.write_text(json.dumps(after, indent=1, sort_keys=True) + "\n", "utf-8")
            _place(record, directory)
    return placed


def write_texts(directory: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write texts as UTF-8 under their names into `directory`: each takes its name when it is whole and on disk."""
    with _aside(directory) as folder:
        for name, text in texts.items():
            (folder / name).write_text(text, "utf-8", newline="\n")
        return [_place(folder / name, directory) for name in texts]


@contextmanager
def _aside(directory: Path) -> Iterator[Path]:
    """A temporary folder inside `directory` (made if absent); what is placed from it is on disk at the end, and it is gone."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".report-", dir=directory))
    except OSError as error:
        raise FileError(f"{directory}: cannot write a report there: {error.strerror}; name a folder that can be written") from error
    try:
        yield folder
        _sync(directory)
    except OSError as error:
        where = error.filename or directory
        raise FileError(
            f"{where}: the report could not be written: {error.strerror}; an older report there is unchanged or whole"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _place(file: Path, directory: Path) -> Path:
    """Give a finished file its final place, once its bytes are on disk."""
    _sync(file)
    return file.replace(directory / file.name)


def _manifest(directory: Path) -> dict[str, dict[str, str]]:
    """What was written here last; {} when nothing was or the record is unreadable (then nothing counts as stale)."""
    try:
        data = json.loads((directory / MANIFEST).read_text("utf-8"))
        return {
            str(form): {str(n): str(d) for n, d in files.items() if Path(n).name == n}
            for form, files in data.items()
            if isinstance(files, dict)
        }
    except (OSError, ValueError, AttributeError):
        return {}


def _digest(file: Path) -> str:
    """sha256 of a file; "" when it is not there."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return ""


def _sync(path: Path) -> None:
    """Put a file's bytes, or a folder's entries, on disk; systems that cannot open a folder have no need to."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    except OSError:
        if path.is_file():
            raise
    finally:
        os.close(handle)


def file_stem(text: str) -> str:
    """`text` as a file name without suffix: letters, digits, '.', '_', '-'. What had to be changed or cut ends in a hash of the whole."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._-") or "report"
    if safe == text and len(safe) <= MAX_STEM and not _RESERVED.match(safe):
        return safe
    if _RESERVED.match(safe):  # Windows keeps these names for devices, whatever follows the first dot
        safe = f"report-{safe}"
    return f"{safe[: MAX_STEM - 13].rstrip('._-')}_{short_hash(text)}"


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def unique_stems(names: Mapping[K, str], taken: tuple[str, ...] = ()) -> dict[K, str]:
    """A file stem for every key from its wanted name, no two equal on a system that ignores case; `taken` are stems already in use."""
    used = {t.lower() for t in taken}
    stems = {}
    for key, name in names.items():
        stem = file_stem(name)
        if stem.lower() in used:
            stem = f"{stem[: MAX_STEM - 13]}_{short_hash(repr(key))}"
        used.add(stem.lower())
        stems[key] = stem
    return stems
