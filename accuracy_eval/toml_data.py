"""TOML files that users write: read, and held to the keys and kinds of value a table may have."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from accuracy_eval.errors import UsageError, unknown


def _is(kind: type) -> Callable[[Any], bool]:
    """Of that type; true and false are no numbers."""
    return lambda value: isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(_is(kind), value))


def _either(*checks: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: any(check(value) for check in checks)


# what a value may be, with the words for it
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "text": (_is(str), "a string"),
    "integer": (_is(int), "an integer"),
    "number": (_either(_is(int), _is(float)), "a number"),
    "flag": (_is(bool), "true or false"),
    "table": (_is(dict), "a table"),
    "texts": (_list_of(str), "a list of strings"),
    "tables": (_list_of(dict), "tables, each begun by its name in double brackets"),
    "text or texts": (_either(_is(str), _list_of(str)), "a string or a list of them"),
    "integer or integers": (_either(_is(int), _list_of(int)), "an integer or a list of them"),
    "table or tables": (_either(_is(dict), _list_of(dict)), "a table, or tables begun by their name in double brackets"),
    "any": (lambda value: True, "a value"),
}


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """The document in a file. UsageError where it cannot be read or is not TOML; `what` says what the file describes."""
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{what} {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{what} {path}: not TOML: {error}") from error


def check_table(table: Mapping[str, Any], kinds: Mapping[str, str], where: str, *, required: Iterable[str] = ()) -> None:
    """UsageError naming the first key of `table` that is unknown, of another kind than `kinds` says, or required and not there.

    kinds  key -> one of KINDS
    """
    for key, value in table.items():
        if key not in kinds:
            raise unknown(f"key in {where}:", key, kinds)
        fits, words = KINDS[kinds[key]]
        if not fits(value):
            raise UsageError(f"{where}: {key} = {value!r}; expected {words}")
    for key in required:
        if key not in table:
            raise UsageError(f"{where}: no {key}; expected {KINDS[kinds[key]][1]}")
