"""TOML files that users write: read, and held to the keys and kinds of value a table may have."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from accuracy_eval.errors import UsageError, unknown

LARGEST = 1 << 63  # integers of TOML are signed, of 64 bits


def _is(kind: type) -> Callable[[Any], bool]:
    """Of that type; true and false are no numbers."""
    return lambda value: isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _number(value: Any) -> bool:
    """NaN is none: no limit can be held to it."""
    return _either(_is(int), _is(float))(value) and not math.isnan(value)


def _list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(_is(kind), value))


def _either(*checks: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: any(check(value) for check in checks)


# what a value may be, with the words for it
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "text": (_is(str), "a string"),
    "integer": (_is(int), "an integer"),
    "number": (_number, "a number"),
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
        document = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{what} {path}: {error.strerror}") from error
    except RecursionError as error:
        raise UsageError(f"{what} {path}: not TOML: brackets stand in each other too often") from error
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError, and what Python says of integers of thousands of digits
        raise UsageError(f"{what} {path}: not TOML: {error}") from error
    for place, value in _integers(document, ""):
        if not -LARGEST <= value < LARGEST:
            raise UsageError(f"{what} {path}: {place}: an integer beyond the 64 bits that TOML has")
    return document


def _integers(value: Any, place: str) -> Iterator[tuple[str, int]]:
    """Every integer of a document, with the keys that lead to it."""
    if isinstance(value, int):
        yield place, value
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value, 1):
            yield from _integers(inner, f"{place}.{key}" if place else str(key))


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
