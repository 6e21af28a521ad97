"""References kept on disk between comparisons: `compare --reference-cache DIR`.

An entry is named by the SHA-256 of everything its numbers follow from: op, shape, layout, formats, recipe, options, the digests of the
operands as stored, and the sources of the package that make references; a changed program or operand asks for another name, so nothing
stale is ever served. Values do not depend on a contract and are stored once; budgets have an entry for each contract.

An entry is float64 panels, little-endian, one after the other, then a JSON footer (identity, rows and SHA-256 of each panel), its length
as 8 bytes and a mark of 8 bytes. It is written under a name of its own and renamed when it is whole, so that any number of processes may
share the folder. Every panel is verified as it is read; a file that is not what its name says is a CorruptFile error, never recomputed
silently: somebody changed it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.digests import sha256_codes
from accuracy_eval.errors import CorruptFile, FileError
from accuracy_eval.ops.spec import Encoding, Inputs, Panel, Reference
from accuracy_eval.records import Case

MARK = b"AERefer1"
SOURCES = ("contracts.py", "formats.py", "cpu_ref", "ops", "quantize")  # what a reference's numbers are made by
LARGEST_FOOTER = 1 << 26


class ReferenceCache:
    """A folder of references. FileError where it cannot be made or is no folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"reference cache {folder}: {error.strerror}; give a folder that can be written to") from error

    def kept(self, references: Mapping[str, Reference], case: Case, encoding: Encoding, inputs: Inputs) -> dict[str, Reference]:
        """The references of a case, each read from the folder where it is there, and written to it when it has been computed whole.

        References that are codes, or sampled, cost little and are left alone.
        """
        if all(r.kind == "codes" or r.sample for r in references.values()):
            return dict(references)
        identity = _identity(case, encoding, inputs)
        return {name: self._kept(r, {**identity, "output": name, "format": r.format}) for name, r in references.items()}

    def _kept(self, r: Reference, identity: Mapping[str, Any]) -> Reference:
        if r.kind == "codes" or r.sample:
            return r
        kept = replace(r, panels=lambda: self._panels(r.panels, r.contract, {**identity, "truth": "of the stored operands"}))
        if r.unquantised is None:
            return kept
        source = r.unquantised
        return replace(kept, unquantised=lambda: self._panels(source, r.contract, {**identity, "truth": "of the unquantised operands"}))

    def _panels(self, computed: Callable[[], Iterator[Panel]], contract: str, identity: Mapping[str, Any]) -> Iterator[Panel]:
        whose = {"values": {**identity, "part": "values"}, "budgets": {**identity, "part": "budgets", "contract": contract}}
        paths = {part: self._path(who) for part, who in whose.items()}
        if all(p.exists() for p in paths.values()):
            values, budgets = (_read(paths[part], whose[part]) for part in ("values", "budgets"))
            for (first, v), (_, b) in zip(values, budgets, strict=True):
                yield Panel(first, v, *_apart(b, v.shape[1]))
            return
        with ExitStack() as stack:
            missing = {part: stack.enter_context(_Writer(p, whose[part])) for part, p in paths.items() if not p.exists()}
            for panel in computed():
                for part, writer in missing.items():
                    writer.add(panel.first_row, panel.values if part == "values" else _beside(panel))
                yield panel
            for writer in missing.values():
                writer.finish()

    def _path(self, identity: Mapping[str, Any]) -> Path:
        return self.folder / f"{hashlib.sha256(_plain(identity)).hexdigest()}.reference"


def _identity(case: Case, encoding: Encoding, inputs: Inputs) -> dict[str, Any]:
    """What the truth of a case follows from. How its operands were generated does not matter: their digests say what they are."""
    return {
        "op": case.op, "shape": [list(d) for d in case.shape], "layout": case.layout, "formats": [case.format, case.out_format],
        "recipe": case.recipe, "options": [list(o) for o in case.options], "lane": case.lane, "direction": case.direction,
        "encoding": encoding, "made_by": sources_digest(),
        "inputs": {n: [c.format, list(c.shape), sha256_codes(c.codes)] for n, c in sorted(inputs.items())},
    }  # fmt: skip


@cache
def sources_digest() -> str:
    """SHA-256 over the sources that references are made by, and the version of numpy whose sums they are."""
    digest = hashlib.sha256(np.__version__.encode())
    package = resources.files("accuracy_eval")
    for name in SOURCES:
        entry = package / name
        files = [entry] if entry.is_file() else sorted((f for f in entry.iterdir() if f.name.endswith(".py")), key=lambda f: f.name)
        for file in files:
            digest.update(f"{name}/{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def _beside(panel: Panel) -> NDArray[np.float64] | None:
    """The budgets of a panel as one matrix: those of single elements, then the typical ones where it has them."""
    if panel.budget is None or panel.typical is None:
        return panel.budget
    return np.concatenate([panel.budget, panel.typical], axis=1)


def _apart(budgets: NDArray[np.float64], columns: int) -> list[NDArray[np.float64]]:
    """What `_beside` joined: the budgets of single elements, and the typical ones where there are some."""
    return [budgets] if budgets.shape[1] == columns else [np.ascontiguousarray(half) for half in np.hsplit(budgets, 2)]


def _plain(identity: Mapping[str, Any]) -> bytes:
    return json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=True).encode()


class _Writer:
    """One entry being written; without `finish` nothing is left of it."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path, self._identity = path, identity
        self._panels: list[dict[str, Any]] = []
        self._columns = 0
        self._whole = True

    def __enter__(self) -> _Writer:
        self._unfinished = self._path.with_name(f".unfinished-{secrets.token_hex(8)}")
        self._file = self._unfinished.open("xb")  # as others may read it: a temporary file of the library's is its owner's alone
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._unfinished.unlink(missing_ok=True)

    def add(self, first_row: int, values: NDArray[np.float64] | None) -> None:
        if values is None:  # a reference without budgets is not kept: there is nothing to join its values with
            self._whole = False
            return
        data = np.ascontiguousarray(values, "<f8").reshape(-1).view(np.uint8).data
        self._panels.append({"first_row": first_row, "rows": len(values), "sha256": hashlib.sha256(data).hexdigest()})
        self._columns = values.shape[1]
        self._write(data)

    def finish(self) -> None:
        if not self._whole:
            return
        footer = _plain({"identity": self._identity, "columns": self._columns, "panels": self._panels})
        self._write(footer + len(footer).to_bytes(8, "little") + MARK)
        self._file.flush()
        os.replace(self._unfinished, self._path)

    def _write(self, data: Any) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise FileError(f"reference cache {self._path.parent}: {error.strerror}; free some space or leave the cache out") from error


def _read(path: Path, identity: Mapping[str, Any]) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """(first row, panel) in order; CorruptFile where the file is not the entry of that identity, whole and unchanged."""
    try:
        with path.open("rb") as file:
            footer = _footer(file, path)
            if footer["identity"] != json.loads(_plain(identity)):
                raise _corrupt(path, "it holds the reference of another case")
            file.seek(0)
            for panel in footer["panels"]:
                values = np.empty((panel["rows"], footer["columns"]), "<f8")
                data = values.reshape(-1).view(np.uint8).data
                if file.readinto(data) != values.nbytes or hashlib.sha256(data).hexdigest() != panel["sha256"]:
                    raise _corrupt(path, f"the digest of its rows from {panel['first_row']} on does not match their bytes")
                yield panel["first_row"], values
    except OSError as error:
        raise FileError(f"reference cache {path}: {error.strerror}") from error


def _footer(file: BinaryIO, path: Path) -> dict[str, Any]:
    size = file.seek(0, os.SEEK_END)
    if size < 16:
        raise _corrupt(path, f"it has {size} bytes")
    file.seek(size - 16)
    length, mark = int.from_bytes(file.read(8), "little"), file.read(8)
    if mark != MARK or not 0 < length <= min(size - 16, LARGEST_FOOTER):
        raise _corrupt(path, "it does not end as a reference does")
    file.seek(size - 16 - length)
    try:
        footer: dict[str, Any] = json.loads(file.read(length))
        held = sum(p["rows"] for p in footer["panels"]) * footer["columns"] * 8
        footer["identity"]
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(path, f"its footer cannot be read ({error})") from error
    if held != size - 16 - length:
        raise _corrupt(path, f"its footer describes {held} bytes of panels, there are {size - 16 - length}")
    return footer


def _corrupt(path: Path, what: str) -> CorruptFile:
    return CorruptFile(f"reference cache {path}: {what}; the file was changed or belongs elsewhere. Delete it: it is computed again.")
