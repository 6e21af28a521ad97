"""The one place that touches numba: a typed decorator for compiled kernels, and threads over fixed chunks.

Kernels release the GIL and are compiled once per signature, cached on disk. They are never `parallel=True`: work is cut into
chunks whose number depends on the data alone and handed to a thread pool, so results do not depend on the thread count.

A cached kernel is used as long as nothing it was compiled from has changed: its own file, the files of the kernels it may call, and the
numbers its module holds, which compiled code contains.
"""

from __future__ import annotations

import glob
import hashlib
import math
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic

from accuracy_eval import compiling
from accuracy_eval.threads import map_threads, thread_count

__all__ = ["as_bits", "as_float", "exact_fma", "fma", "inline", "kernel", "map_threads", "thread_count"]

_UNCOMPILED = bool(vars(numba.core.config)["DISABLE_JIT"])

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile `function` on first call (nopython, no GIL, IEEE division), cached on disk.

    No fast-math: kernels are the yardstick. NUMBA_DISABLE_JIT=1 runs them as plain Python.
    """
    return _compiled(function)


def inline(function: F) -> F:
    """As `kernel`, for small helpers called inside kernels: always inlined by LLVM, so a helper costs no call."""
    return _compiled(function, forceinline=True)


def _compiled(function: F, *, forceinline: bool = False) -> F:
    made: Any = numba.njit(nogil=True, error_model="numpy", forceinline=forceinline)(function)
    if not _UNCOMPILED:
        made._cache = _Cache(function)  # as Dispatcher.enable_caching does
    return cast(F, made)


class _Cache(FunctionCache):
    """numba's cache of a function on disk, which watches the function's own file, made to watch all that it is compiled from.

    It saves time and nothing else: where it cannot be written (a full disk), or what it holds cannot be read, the kernel is compiled.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        stamp = self._impl.locator.get_source_stamp(), *_compiled_from(function.__module__)
        self._cache_file = _CodeFiles(self._cache_path, self._impl.filename_base, stamp)

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = None
        with suppress(Exception):  # whatever a damaged file raises where it is unpickled
            found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        if found is None:
            compiling.tell()
        return found


class _CodeFiles(IndexDataCacheFile):
    """A file for each signature of a function, which says itself what it holds: any number of processes may read and write it.

    numba's own are numbered by an index beside them. Of two processes that compile a function at once, for two signatures or before and
    after a change of its source, both take the same next number: a later process then runs the code of one on the arguments of the other.
    """

    def __init__(self, folder: str, base: str, stamp: Any) -> None:
        super().__init__(folder, base, stamp)  # type: ignore[no-untyped-call]
        self._folder, self._base = Path(folder), base

    def save(self, key: Any, data: Any) -> None:
        with self._open_for_write(self._path(key)) as file:
            code = self._dump(data)  # type: ignore[no-untyped-call]
            file.write(self._dump((self._made_of(key), hashlib.sha256(code).digest())) + code)  # type: ignore[no-untyped-call]

    def load(self, key: Any) -> Any:
        with suppress(FileNotFoundError), self._path(key).open("rb") as file:
            made_of, digest = pickle.load(file)  # noqa: S301  as numba does: the folder is the program's own
            code = file.read()
            if made_of == self._made_of(key) and hashlib.sha256(code).digest() == digest:  # damaged, it would crash LLVM or compute wrongly
                return pickle.loads(code)  # noqa: S301
        return None

    def flush(self) -> None:
        for path in self._folder.glob(f"{glob.escape(self._base)}.*.nbc"):
            path.unlink(missing_ok=True)

    def _path(self, key: Any) -> Path:
        signature, target, (_, closure) = key  # not the bytecode: what is compiled after a change takes the place of what was before
        name = hashlib.sha256(repr((signature, target, closure)).encode(), usedforsecurity=False).hexdigest()[:16]
        return self._folder / f"{self._base}.{name}.nbc"

    def _made_of(self, key: Any) -> tuple[Any, ...]:
        return self._version, self._source_stamp, key


def _compiled_from(module: str) -> tuple[str, ...]:
    """What kernels of a module are compiled from beside its own file, as text: digests of the files of kernels that it imports and of
    this file, and the numbers that it and those hold."""
    modules = list(_imported(module, {module}))
    files = [f"{name} {_digest(str(vars(sys.modules[name])['__file__']))}" for name in modules[1:]]
    numbers = [
        f"{name}.{key} {value!r}"
        for name in modules
        for key, value in vars(sys.modules[name]).items()
        if all(isinstance(v, int | float) for v in (value if isinstance(value, tuple) else (value,)))
    ]
    return (_digest(__file__), *sorted(files), *sorted(numbers))


def _imported(module: str, seen: set[str]) -> Iterator[str]:
    """The module and, through each other, those whose kernels it has imported, by name or as a module."""
    yield module
    for value in list(vars(sys.modules[module]).values()):
        if isinstance(value, Dispatcher):
            name = value.py_func.__module__
        elif isinstance(value, ModuleType) and _has_kernels(value):
            name = value.__name__
        else:
            continue
        if name not in seen:
            seen.add(name)
            yield from _imported(name, seen)


@cache
def _has_kernels(module: ModuleType) -> bool:
    return any(isinstance(value, Dispatcher) for value in vars(module).values())


@cache
def _digest(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]


def _intrinsic(generator: Callable[..., Any], python: Callable[..., Any]) -> Callable[..., Any]:
    """`generator` as a function for kernels; `python`, which does the same, where kernels run uncompiled."""
    return python if _UNCOMPILED else cast(Callable[..., Any], intrinsic(generator))


def _fused(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
    """LLVM's fma of three floats of one width: one instruction where the host has it, the C library's function where not."""
    return (x(x, y, z), lambda context, builder, signature, args: builder.fma(*args)) if x == y == z else None


def _reinterpret(target: Any) -> Callable[..., Any]:
    def generator(typing_context: Any, x: Any) -> Any:
        return target(x), lambda context, builder, signature, args: builder.bitcast(args[0], context.get_value_type(target))

    return generator


def exact_fma(x: Any, y: Any, z: Any) -> Any:
    """x·y + z rounded once to the width of `x` (numpy float32 or float64 scalars), in exact arithmetic: slow, for uncompiled kernels."""
    width = np.float32 if isinstance(x, np.float32) else np.float64
    values = float(x), float(y), float(z)
    with np.errstate(all="ignore"):
        if math.isfinite(values[0]) and math.isfinite(values[1]) and not math.isfinite(values[2]):
            return z
        if not all(map(math.isfinite, values)):
            return width(np.float64(x) * np.float64(y) + np.float64(z))
        total = Fraction(values[0]) * Fraction(values[1]) + Fraction(values[2])
        if total == 0:  # the sign of an exact zero follows IEEE addition
            return width(values[0] * values[1] + values[2]) if 0 in values[:2] else width(0.0)
        bits, lowest, highest = (24, -149, 128) if width is np.float32 else (53, -1074, 1024)
        exponent = total.numerator.bit_length() - total.denominator.bit_length()  # |total| lies within a factor 2 of 2^exponent
        exponent -= abs(total) < Fraction(2) ** exponent
        unit = Fraction(2) ** max(exponent - bits + 1, lowest)
        rounded = abs(round(total / unit) * unit)  # Fraction rounds ties to even
        return width(math.copysign(math.inf if rounded >= Fraction(2) ** highest else float(rounded), 1 if total > 0 else -1))


# For use inside kernels. fma: x·y + z of float32 or float64 scalars of one width, rounded once.
# as_float, as_bits: an int64's 64 bits as a float64, and back.
fma = _intrinsic(_fused, exact_fma)
as_float = _intrinsic(_reinterpret(numba.types.float64), lambda x: np.int64(x).view(np.float64))
as_bits = _intrinsic(_reinterpret(numba.types.int64), lambda x: np.float64(x).view(np.int64))
