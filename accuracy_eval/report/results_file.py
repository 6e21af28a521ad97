"""results.json: the Results of a comparison, one line per tensor so that it can be searched and compared by line. See docs/results.md."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accuracy_eval.errors import FileError, SchemaError
from accuracy_eval.json_data import from_json, to_json
from accuracy_eval.kept import KeptResults, json_line
from accuracy_eval.records import RESULTS_SCHEMA, DumpInfo, GateInfo, NotCompared, Results, TensorResult
from accuracy_eval.report.consistency import contradictions

NAME = "results.json"
_LISTS = {"gates": GateInfo, "dumps": DumpInfo, "tensors": TensorResult, "not_compared": NotCompared}
_REMEDY = "write it again with accuracy-eval compare"


def write(results: Results, folder: Path) -> list[Path]:
    """Write results.json into `folder`."""
    path = folder / NAME
    with path.open("w", encoding="ascii", newline="\n") as stream:
        stream.writelines(pieces(results))
    return [path]


def pieces(results: Results) -> Iterator[str]:
    """The text of results.json, a result at a time: that of all would be most of the memory of a large comparison."""
    separator = "{\n"
    for field in dataclasses.fields(results):
        value = getattr(results, field.name)
        yield f"{separator} {json.dumps(field.name)}: "
        if field.name in _LISTS and value:
            lines = value.texts() if isinstance(value, KeptResults) else map(_line, value)
            for i, line in enumerate(lines):
                yield f"{',' if i else '['}\n  {line}"
            yield "\n ]"
        else:
            yield _line(value)
        separator = ",\n"
    yield "\n}\n"


def _line(value: Any) -> str:
    return json_line(to_json(value))


def read(path: Path) -> Results:
    """The Results of a results.json (or of the folder that holds it)."""
    file = path / NAME if path.is_dir() else path
    try:
        data = json.loads(file.read_text("utf-8"), parse_constant=_refuse)
    except OSError as error:
        raise FileError(f"{file}: cannot be read: {error.strerror}; expected a {NAME} written by accuracy-eval compare") from error
    except RecursionError:
        raise FileError(f"{file}: nested too deeply to be a {NAME}; {_REMEDY}") from None
    except ValueError as error:
        raise FileError(f"{file}: not JSON ({error}); expected a {NAME} written by accuracy-eval compare") from error
    if not isinstance(data, dict) or "schema" not in data:
        raise FileError(f'{file}: JSON without a "schema" key, so not a {NAME}; expected schema {RESULTS_SCHEMA}')
    _check_schema(file, data["schema"])
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Results):
        name = field.name
        if name not in data:
            if field.default is dataclasses.MISSING:
                raise FileError(f"{file}: key {name!r} is missing; the file is not whole, {_REMEDY}")
            continue
        if name in _LISTS:
            if not isinstance(data[name], list):
                raise FileError(f"{file}: {name} is {type(data[name]).__name__}, expected an array; {_REMEDY}")
            values[name] = tuple(_item(file, name, i, item) for i, item in enumerate(data[name]))
        else:
            values[name] = data[name]
    results: Results = _item(file, "", 0, values)
    if wrong := next(contradictions(results), ""):
        raise FileError(f"{file}: {wrong}; the file was changed by hand or is damaged: {_REMEDY}")
    return results


def dumps_before(folder: Path) -> list[str]:
    """Files of the dumps that the results.json in `folder` is of, read no further than that; none where there is no such file."""
    found: list[str] = []
    try:
        with (folder / NAME).open(encoding="ascii") as stream:
            head = itertools.takewhile(lambda line: not line.startswith(' "tensors"'), stream)
            for line in itertools.dropwhile(lambda line: not line.startswith(' "dumps"'), head):
                if line.startswith("  {"):
                    found.append(str(json.loads(line.rstrip(",\n"))["file"]))
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return found


def _item(file: Path, name: str, i: int, item: Any) -> Any:
    where = f"{name}[{i}]" if name else "the top level"
    try:
        if name:
            return from_json(_LISTS[name], item)
        plain = {k: v for k, v in item.items() if k not in _LISTS}
        head = from_json(Results, {**plain, **{k: [] for k in _LISTS}})
        return dataclasses.replace(head, **{k: item[k] for k in _LISTS})
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        text = re.sub(r"\w+\.__init__\(\) ", "", str(error))
        raise FileError(f"{file}: {where} cannot be read ({type(error).__name__}: {text}); {_REMEDY}") from error


def _check_schema(file: Path, found: Any) -> None:
    name, _, version = RESULTS_SCHEMA.partition("/")
    match = re.fullmatch(rf"{re.escape(name)}/(\d+)\.(\d+)", found) if isinstance(found, str) else None
    if match is None:
        raise SchemaError(f"{file}: schema is {found!r}, expected {RESULTS_SCHEMA}; {_REMEDY}")
    major = int(version.split(".")[0])
    if int(match[1]) != major:
        newer = int(match[1]) > major
        remedy = "install a newer accuracy-eval" if newer else _REMEDY
        raise SchemaError(f"{file}: schema is {found}, this version reads {name}/{major}.x; {remedy}")


def _refuse(token: str) -> Any:
    raise ValueError(f"the bare token {token}; accuracy-eval writes it as a string")
