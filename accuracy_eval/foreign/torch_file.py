"""Tensors in a torch.save file, read without torch and without running anything the file says.

The file is a zip: data.pkl describes the objects, data/0, data/1, … hold the storages. The description is a program for a stack machine;
the machine here knows containers, numbers, strings and the two records a tensor is made of. Anything else is refused by name.
"""

from __future__ import annotations

import math
import pickletools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accuracy_eval.errors import CorruptFile, HostileFile
from accuracy_eval.foreign.integers import Wide, coded_integers
from accuracy_eval.formats import FORMATS, get_format
from accuracy_eval.records import Coded

LARGEST = 1 << 36  # bytes of one storage
LARGEST_EXPANSION = 1 << 26  # elements of a tensor that shows elements of its storage more than once
DEEPEST = 64  # containers in each other
MOST_VALUES = 1 << 20  # in all containers; more is containers that repeat each other
STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16", "CharStorage": "int8",
    "ByteStorage": "uint8", "IntStorage": "int32", "LongStorage": "int64",
}  # fmt: skip
_MARK = object()
_ENCRYPTED = 1  # bit of a zip entry's flags


@dataclass(frozen=True)
class _Name:
    """A global the file names: looked at, never called."""

    module: str
    name: str


@dataclass(frozen=True)
class _Storage:
    """dtype "" is a storage of bytes, of which `count` counts bytes: the tensor says what they are."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch_file(path: Path) -> dict[str, Coded | Wide]:
    """Every tensor of the file by its key ("tensor" for a lone one; nested keys joined by "/"), as codes; Wide for 64-bit integers that
    int32 does not hold.

    HostileFile for a description that asks for anything but tensors in containers, or for far more of them than the file holds;
    CorruptFile for a file that is no torch zip, whose storages do not hold what it says, or with two tensors of one name.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise CorruptFile(f"{path}: not a torch.save zip ({error}); files of torch before 1.6 must be saved again") from error
    with archive:
        names = {n.split("/", 1)[1]: n for n in archive.namelist() if "/" in n}
        if "data.pkl" not in names:
            raise CorruptFile(f"{path}: a zip without data.pkl: not a torch.save file")
        if "byteorder" in names and _read(path, archive, names["byteorder"]) != b"little":
            raise CorruptFile(f"{path}: storages are not little-endian")
        root = _Machine(path).run(_read(path, archive, names["data.pkl"]))
        return {name: _codes(path, archive, names, name, t) for name, t in _tensors(path, root).items()}


def _read(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    entry = archive.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & _ENCRYPTED:
        raise CorruptFile(f"{path}: {name} is compressed or encrypted; torch.save does neither")
    try:
        return archive.read(entry)
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise CorruptFile(f"{path}: {name} cannot be read: {error}") from error


def _tensors(path: Path, root: Any) -> dict[str, _Tensor]:
    """Tensors by name, in the order of their containers; a walk of bounded length, as containers may hold themselves."""
    found: dict[str, _Tensor] = {}
    pending: list[tuple[tuple[str, ...], Any]] = [((), root)]
    for _ in range(MOST_VALUES):
        if not pending:
            return found
        keys, value = pending.pop()
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
        if isinstance(value, _Tensor):
            name = "/".join(keys) or "tensor"
            if name in found:
                raise CorruptFile(f"{path}: two tensors are named {name!r}; rename one")
            found[name] = value
        elif len(keys) >= DEEPEST and items:
            break
        pending += reversed([((*keys, str(key)), item) for key, item in items])
    raise HostileFile(f"{path}: containers nested over {DEEPEST} deep, or over {MOST_VALUES} values in them; does one hold itself?")


def _codes(path: Path, archive: zipfile.ZipFile, names: dict[str, str], name: str, t: _Tensor) -> Coded | Wide:
    entry = names.get(f"data/{t.storage.key}")
    if not t.storage.dtype:
        raise CorruptFile(f"{path}: tensor {name}: bytes without a type")
    wide = t.storage.dtype == "int64"
    width = 8 if wide else get_format(t.storage.dtype).storage.itemsize
    size = archive.getinfo(entry).file_size if entry else -1
    numbers = (*t.shape, *t.strides, t.offset)
    if not entry or size != t.storage.count * width or size > LARGEST or min(numbers) < 0:
        raise CorruptFile(f"{path}: tensor {name}: storage {t.storage.key} of {t.storage.count} elements is not in the file as such")
    if len(t.shape) != len(t.strides) or len(t.shape) > 32 or max(numbers) > LARGEST:
        raise CorruptFile(f"{path}: tensor {name}: no tensor has shape {list(t.shape)} and strides {list(t.strides)}")
    elements = math.prod(t.shape)
    reach = t.offset + sum((n - 1) * s for n, s in zip(t.shape, t.strides, strict=True)) + 1 if elements else 0
    if reach > t.storage.count:
        raise CorruptFile(f"{path}: tensor {name}: shape {list(t.shape)} reaches beyond its storage of {t.storage.count} elements")
    if elements > max(t.storage.count, LARGEST_EXPANSION):
        raise HostileFile(f"{path}: tensor {name}: {elements} elements out of a storage of {t.storage.count}; save a contiguous tensor")
    flat = np.frombuffer(_read(path, archive, entry), "<i8" if wide else get_format(t.storage.dtype).storage)
    strides = [s * flat.itemsize for s in t.strides]
    view = np.lib.stride_tricks.as_strided(flat[t.offset :], t.shape, strides, writeable=False)
    return coded_integers(view) if wide else Coded(np.ascontiguousarray(view), t.storage.dtype)


class _Machine:
    """The stack machine: opcodes of protocol 2 to 4 that data need, and no others."""

    def __init__(self, path: Path) -> None:
        self.path, self.stack, self.memo = path, [], {}  # type: Path, list[Any], dict[int, Any]

    def run(self, program: bytes) -> Any:
        try:
            for opcode, argument, _ in pickletools.genops(program):
                if opcode.name == "STOP":
                    return self.stack.pop()
                step = _STEPS.get(opcode.name)
                if step is None:
                    raise HostileFile(f"{self.path}: data.pkl uses {opcode.name}; a file of tensors needs no such step")
                step(self, argument)
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise CorruptFile(f"{self.path}: data.pkl is damaged: {error}") from error
        raise CorruptFile(f"{self.path}: data.pkl does not end")

    def marked(self) -> list[Any]:
        """What was put on the stack since the last mark."""
        at = len(self.stack) - 1 - self.stack[::-1].index(_MARK)
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def named(self, text: str) -> None:
        module, _, name = text.partition(" ")
        self.stack.append(_Name(module, name))

    def global_of_two(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(_Name(module, name))

    def storage(self) -> None:
        kind, of, key, _, count = self.stack.pop()
        if kind != "storage" or not isinstance(of, _Name) or of.module not in ("torch", "torch.storage"):
            raise HostileFile(f"{self.path}: data.pkl refers to {kind!r} {of!r}; allowed: storages of torch")
        if of.name not in STORAGES and of.name != "UntypedStorage":
            raise HostileFile(f"{self.path}: storage of type {of.name}; allowed: {', '.join(STORAGES)}, UntypedStorage")
        self.stack.append(_Storage(str(key), STORAGES.get(of.name, ""), int(count)))

    def call(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if function == _Name("torch._utils", "_rebuild_tensor_v2"):
            storage, offset, shape, strides = arguments[:4]
            self.tensor(storage, offset, shape, strides)
        elif function == _Name("torch._utils", "_rebuild_tensor_v3"):
            storage, offset, shape, strides, _, _, of = arguments[:7]
            if not isinstance(of, _Name) or of.name not in FORMATS:
                raise HostileFile(f"{self.path}: tensor of dtype {getattr(of, 'name', of)}; allowed: {', '.join(FORMATS)}")
            self.tensor(_Storage(storage.key, of.name, storage.count // get_format(of.name).storage.itemsize), offset, shape, strides)
        elif function == _Name("collections", "OrderedDict"):
            self.stack.append({})
        else:
            name = f"{function.module}.{function.name}" if isinstance(function, _Name) else repr(function)
            raise HostileFile(f"{self.path}: data.pkl calls {name}; allowed: tensors and ordered dictionaries")

    def tensor(self, storage: Any, offset: Any, shape: Any, strides: Any) -> None:
        if not isinstance(storage, _Storage):
            raise TypeError(f"a tensor of {type(storage).__name__}, not of a storage")
        self.stack.append(_Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides))))

    def put(self, items: list[Any]) -> None:
        self.stack[-1].update(zip(items[0::2], items[1::2], strict=True))


def _push(make: Callable[[Any], Any]) -> Callable[[_Machine, Any], None]:
    return lambda machine, argument: machine.stack.append(make(argument))


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    def step(machine: _Machine, _: Any) -> None:
        items = tuple(machine.stack[-count:])
        del machine.stack[-count:]
        machine.stack.append(items)

    return step


def _nothing(machine: _Machine, _: Any) -> None:
    """Protocol and frame marks."""


def _memoize(machine: _Machine, _: Any) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _remember(machine: _Machine, at: Any) -> None:
    machine.memo[int(at)] = machine.stack[-1]


def _set_two(machine: _Machine, _: Any) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.put([key, value])


def _append(machine: _Machine, _: Any) -> None:
    value = machine.stack.pop()
    machine.stack[-1].append(value)


def _discard_state(machine: _Machine, _: Any) -> None:
    machine.stack.pop()  # attributes of an ordered dictionary, such as a module's version numbers


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), _nothing),
    **dict.fromkeys(
        ("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINSTRING", "SHORT_BINSTRING"),
        _push(lambda argument: argument),
    ),
    "NONE": _push(lambda _: None), "NEWTRUE": _push(lambda _: True), "NEWFALSE": _push(lambda _: False),
    "EMPTY_DICT": _push(lambda _: {}), "EMPTY_LIST": _push(lambda _: []), "EMPTY_TUPLE": _push(lambda _: ()),
    "MARK": _push(lambda _: _MARK),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.marked())), "TUPLE1": _tuple_of(1), "TUPLE2": _tuple_of(2), "TUPLE3": _tuple_of(3),
    "MEMOIZE": _memoize, "BINPUT": _remember, "LONG_BINPUT": _remember,
    "BINGET": lambda m, at: m.stack.append(m.memo[int(at)]), "LONG_BINGET": lambda m, at: m.stack.append(m.memo[int(at)]),
    "GLOBAL": lambda m, text: m.named(text), "STACK_GLOBAL": lambda m, _: m.global_of_two(),
    "BINPERSID": lambda m, _: m.storage(), "REDUCE": lambda m, _: m.call(), "BUILD": _discard_state,
    "SETITEM": _set_two, "SETITEMS": lambda m, _: m.put(m.marked()), "APPEND": _append,
    "APPENDS": lambda m, _: (lambda items: m.stack[-1].extend(items))(m.marked()),
}  # fmt: skip
