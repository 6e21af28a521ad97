"""Records as JSON data, and back.

Dataclasses become objects, tuples arrays, enumerations their strings; NaN and infinities the strings "NaN", "Inf", "-Inf".
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np

from accuracy_eval.errors import UsageError

T = TypeVar("T")
_NUMBERS = {"NaN": math.nan, "Inf": math.inf, "-Inf": -math.inf}
_WORDS = {str: "a text", int: "an integer", bool: "true or false", list: "an array", dict: "an object"}  # JSON types in messages
_PLAIN = frozenset({str, int, bool, type(None)})


def to_json(value: Any) -> Any:
    """Plain JSON data of a record: dataclasses become objects, tuples arrays, NaN/±Inf the strings "NaN"/"Inf"/"-Inf"."""
    kind = type(value)
    return value if kind in _PLAIN else _WRITERS[kind](value)


class _Writers(dict[type, Callable[[Any], Any]]):
    """What turns a value of a type into JSON data, made once per type: the results of 10,000 cases ask fifteen million times.

    Begins with base classes; a type takes the first that it descends from. Threads may ask for types at once.
    """

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        if dataclasses.is_dataclass(kind):
            found = _record_writer(kind)
        else:
            found = next((write for base, write in list(self.items()) if issubclass(kind, base)), _refused)
        return self.setdefault(kind, found)


def _record_writer(kind: Any) -> Callable[[Any], Any]:
    names = [f.name for f in dataclasses.fields(kind)]
    return lambda record: {n: v if type(v := getattr(record, n)) in _PLAIN else _WRITERS[type(v)](v) for n in names}


def _object(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(k): v if type(v) in _PLAIN else _WRITERS[type(v)](v) for k, v in value.items()}


def _array(value: Iterable[Any]) -> list[Any]:
    return [v if type(v) in _PLAIN else _WRITERS[type(v)](v) for v in value]


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Inf" if value > 0 else "-Inf")


def _refused(value: Any) -> Any:
    raise UsageError(f"a {type(value).__name__} cannot be written to JSON: {value!r}")


_WRITERS = _Writers(
    {
        StrEnum: str,
        Mapping: _object,
        list: _array,
        tuple: _array,
        np.ndarray: lambda value: to_json(value.tolist()),
        np.generic: lambda value: to_json(value.item()),
        float: _float,
        int: lambda value: value,
        str: lambda value: value,
        bytes: _refused,
        Sequence: _array,
    }
)


def written_as_array(kind: type[T]) -> type[T]:
    """Class decorator: its objects are iterables that `to_json` writes as an array."""
    _WRITERS[kind] = _array
    return kind


def from_json(kind: type[T], data: Any) -> T:
    """The record of class `kind` that `to_json` wrote; unknown keys are ignored (newer minor schema), missing ones take defaults.

    TypeError, ValueError: "key: key: what was expected and found", down to where `data` holds another kind of value.
    """
    of_type: Any = kind
    return typing.cast(T, _builder(of_type)(data))


@functools.cache
def _builder(kind: Any) -> Callable[[Any], Any]:
    """What turns JSON data into a `kind`, made once per type: a dump of 10,000 cases asks half a million times."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _record_builder(kind)
    if origin is Sequence:
        item = _builder(*arguments)
        return lambda data: tuple(map(item, _of_kind(list, data)))
    if origin is tuple:
        items = [_builder(a) for a in arguments if a is not Ellipsis]
        if arguments[-1:] == (Ellipsis,):
            return lambda data: tuple(map(items[0], _of_kind(list, data)))
        return lambda data: tuple(build(v) for build, v in zip(items, _of_kind(list, data), strict=True))
    if origin in (typing.Union, types.UnionType):
        return _union_builder(arguments)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind
    if kind is float:
        return _number
    if kind in _WORDS:
        return lambda data: _of_kind(kind, data)
    if origin is Mapping:
        return lambda data: _plain(_of_kind(dict, data))
    return _any if kind is Any else _plain


def _of_kind(kind: type, data: Any) -> Any:
    if type(data) is not kind:
        raise TypeError(f"expected {_WORDS[kind]}, found {data!r:.40}")
    return data


def _number(data: Any) -> float:
    if type(data) in (int, float):
        return float(data)
    if isinstance(data, str) and data in _NUMBERS:
        return _NUMBERS[data]
    raise TypeError(f"expected a number, found {data!r:.40}")


def _record_builder(kind: Any) -> Callable[[Any], Any]:
    hints = typing.get_type_hints(kind)
    builders = {f.name: _builder(hints[f.name]) for f in dataclasses.fields(kind)}

    def build(data: Any) -> Any:
        values = {}
        for name, value in _of_kind(dict, data).items():
            if name in builders:
                try:
                    values[name] = builders[name](value)
                except (TypeError, ValueError) as error:
                    raise type(error)(f"{name}: {error}") from error
        return kind(**values)

    return build


def _union_builder(arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    concrete = [a for a in arguments if a is not type(None)]
    only = _builder(concrete[0]) if len(concrete) == 1 else None
    words = ", ".join(_WORDS.get(a, "a number") for a in concrete)

    def build(data: Any) -> Any:
        if data is None and type(None) in arguments:
            return None
        if only is not None:
            return only(data)
        if isinstance(data, str) and float in arguments:
            return _NUMBERS.get(data, data)
        if type(data) not in concrete:
            raise TypeError(f"expected {words}, found {data!r:.40}")
        return data

    return build


def _any(data: Any) -> Any:
    """Untyped data: as it is, but the strings that stand for NaN and infinities become numbers."""
    return _NUMBERS.get(data, data) if isinstance(data, str) else _plain(data)


def _plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: _any(v) for k, v in data.items()}
    return [_any(v) for v in data] if isinstance(data, list) else data
