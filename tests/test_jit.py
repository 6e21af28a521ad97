"""Fused multiply-add and reinterpretation inside kernels, compiled and in exact arithmetic."""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
import threading

import numpy as np
import pytest

from accuracy_eval.jit import as_bits, as_float, exact_fma, fma, kernel, map_threads


@kernel
def fused(x, y, z, out):
    for i in range(out.shape[0]):
        out[i] = fma(x[i], y[i], z[i])


@kernel
def there_and_back(x, bits, out):
    for i in range(out.shape[0]):
        bits[i] = as_bits(x[i])
        out[i] = as_float(bits[i])


@pytest.mark.parametrize("width", [np.float32, np.float64])
def test_a_fused_multiply_add_is_rounded_once(width: type) -> None:
    e = np.finfo(width).eps
    x, y, z = (np.array([v], width) for v in (1 + e, 1 + e, -(1 + 2 * e)))
    out = np.zeros(1, width)
    fused(x, y, z, out)
    assert out[0] == e * e  # a rounded product would leave 0


@pytest.mark.parametrize("width", [np.float32, np.float64])
def test_the_compiled_form_equals_exact_arithmetic_over_all_bit_patterns(width: type) -> None:
    rng = np.random.default_rng(1)
    unsigned = np.uint32 if width is np.float32 else np.uint64
    x, y, z = rng.integers(0, np.iinfo(unsigned).max, (3, 3000), dtype=unsigned, endpoint=True).view(width)
    with np.errstate(all="ignore"):
        z[::3] = -(x[::3] * y[::3])  # sums that nearly cancel
    out = np.zeros(3000, width)
    fused(x, y, z, out)
    np.testing.assert_array_equal(out, [exact_fma(*t) for t in zip(x, y, z, strict=True)])


@pytest.mark.parametrize(
    ("x", "y", "z", "expected"),
    [
        (2.0, 3.0, -6.0, 0.0), (0.0, 1.0, -0.0, 0.0), (-0.0, 1.0, -0.0, -0.0), (2.0**127, 2.0, 0.0, math.inf),
        (-(2.0**127), 2.0, 0.0, -math.inf), (2.0**127, 2.0, -math.inf, -math.inf), (math.inf, 0.0, 1.0, math.nan),
        (2.0**-149, 0.5, 0.0, 0.0), (2.0**-149, 0.5, 2.0**-149, 2.0**-148),
    ],
)  # fmt: skip
def test_exact_fused_multiply_add_has_ieee_zeros_overflow_and_ties(x: float, y: float, z: float, expected: float) -> None:
    got = exact_fma(np.float32(x), np.float32(y), np.float32(z))
    np.testing.assert_array_equal(got, expected)
    assert math.isnan(expected) or math.copysign(1, got) == math.copysign(1, expected)


def test_bits_and_floats_are_the_same_64_bits() -> None:
    x = np.array([1.0, -0.0, 5e-324, math.inf])
    bits, out = np.zeros(4, np.int64), np.zeros(4)
    there_and_back(x, bits, out)
    np.testing.assert_array_equal(bits, x.view(np.int64))
    np.testing.assert_array_equal(out, x)


def test_a_map_inside_a_map_starts_no_threads_of_its_own() -> None:
    def inner(_: int) -> set[int]:
        return {threading.get_ident(), *map_threads(lambda _: threading.get_ident(), range(8), threads=4)}

    assert all(len(found) == 1 for found in map_threads(inner, range(4), threads=2))


HELPER = """
from accuracy_eval.jit import inline
{constant}
@inline
def helped(x):
    return {body}
"""
KERNEL = """
import sys
from accuracy_eval.jit import kernel
{imported}
@kernel
def answer(x):
    return {call}

print(answer(1.0), sum(answer.stats.cache_hits.values()))
"""


@pytest.mark.parametrize(
    ("imported", "call"),
    [
        ("from helper import helped", "helped(x)"),
        ("import helper", "helper.helped(x)"),
        ("from between import passed_on", "passed_on(x)"),
        ("from helper import FACTOR", "FACTOR * x"),
    ],
    ids=["by name", "by module", "through another", "a number"],
)
def test_a_cached_kernel_is_compiled_again_when_a_file_it_takes_from_changes(tmp_path, imported, call):
    def run(constant: str, body: str) -> list[str]:
        (tmp_path / "helper.py").write_text(HELPER.format(constant=constant, body=body))
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    (tmp_path / "between.py").write_text(
        "from accuracy_eval.jit import inline\nfrom helper import helped\n\n@inline\ndef passed_on(x):\n    return helped(x)\n"
    )
    (tmp_path / "main.py").write_text(KERNEL.format(imported=imported, call=call))
    assert run("FACTOR = 2.0", "2.0 * x") == ["2.0", "0"]
    assert run("FACTOR = 2.0", "2.0 * x") == ["2.0", "1"]
    assert run("FACTOR = 3.0", "3.0 * x") == ["3.0", "0"]
    assert run("FACTOR = 3.0", "3.0 * x") == ["3.0", "1"]


@pytest.fixture
def kernel_program(tmp_path):
    """(what runs a cached kernel and gives its result and cache hits, where files may have `limit` bytes; the cache's folder)"""
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)"
    (tmp_path / "main.py").write_text(KERNEL.format(imported=limited, call="2.0 * x"))
    cache = tmp_path / "cache"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(limit: int = resource.RLIM_INFINITY) -> list[str]:
        done = subprocess.run(
            [sys.executable, "main.py", str(limit)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    return run, cache


def test_a_kernel_is_told_of_when_it_is_compiled_and_not_when_the_cache_has_it(kernel_program, tmp_path):
    run, _ = kernel_program
    program = (tmp_path / "main.py").read_text()
    listening = "from accuracy_eval import compiling\n\nwith compiling.heard(lambda: print('compiling')):\n    answer(1.0)\n"
    (tmp_path / "main.py").write_text(program.replace("print(answer", f"{listening}print(answer"))
    assert run() == ["compiling", "2.0", "0"]
    assert run() == ["2.0", "1"]


def test_a_kernel_runs_where_the_disk_takes_no_cache(kernel_program):
    run, _ = kernel_program
    assert run(limit=10) == ["2.0", "0"]
    assert run() == ["2.0", "0"]
    assert run() == ["2.0", "1"]


@pytest.mark.parametrize("left", [b"", b"\x80\x05garbage"], ids=["empty", "garbage"])
def test_a_damaged_cache_of_a_kernel_is_made_again(kernel_program, left):
    run, cache = kernel_program
    assert run() == ["2.0", "0"]
    [damaged] = cache.rglob("*answer*.nbc")
    damaged.write_bytes(left)
    assert run() == ["2.0", "0"]
    assert run() == ["2.0", "1"]


@pytest.mark.parametrize("where", [0.4, 0.6, 0.9])
def test_a_flipped_byte_of_a_cached_kernel_is_not_run(kernel_program, where):
    """LLVM ends the process on some of them, and machine code that computes something else is not to be told from right code."""
    run, cache = kernel_program
    assert run() == ["2.0", "0"]
    [path] = cache.rglob("*answer*.nbc")
    code = bytearray(path.read_bytes())
    code[int(len(code) * where)] ^= 0xFF
    path.write_bytes(code)
    assert run() == ["2.0", "0"]
    assert run() == ["2.0", "1"]


TWO_AT_ONCE = """
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numba.core.caching import IndexDataCacheFile

from accuracy_eval.jit import kernel


@kernel
def first(x):
    return x[0]


who, dtype, *awaited = sys.argv[1:]
write = IndexDataCacheFile._open_for_write


@contextmanager
def write_in_turn(self, path):
    Path(f"{who} begins to write").touch()
    while awaited and not Path(awaited[0]).exists():
        time.sleep(0.01)
    with write(self, path) as file:
        yield file
    del awaited[:1]
    Path(f"{who} has written").touch()


IndexDataCacheFile._open_for_write = write_in_turn
print(first(np.array([1.5, 2.5]).astype(dtype)), sum(first.stats.cache_hits.values()))
Path(f"{who} is done").touch()
"""


def test_two_processes_that_compile_a_kernel_at_once_leave_the_code_of_both(tmp_path):
    """Both look for what is there before either writes. Then the second's first file, all of the first's, and the rest of the second's."""
    (tmp_path / "main.py").write_text(TWO_AT_ONCE)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}

    def begun(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "main.py", *arguments], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)

    processes = [
        begun("one", "int64", "two has written"),
        begun("two", "float64", "one begins to write", "one is done"),
    ]
    assert [p.communicate(timeout=300)[0].split() for p in processes] == [["1", "0"], ["1.5", "0"]]
    assert begun("three", "int64").communicate()[0].split() == ["1", "1"]
    assert begun("four", "float64").communicate()[0].split() == ["1.5", "1"]


def test_a_flushed_cache_of_a_kernel_is_empty(kernel_program, tmp_path):
    run, cache = kernel_program
    run()
    with (tmp_path / "main.py").open("a") as program:
        program.write("\nanswer._cache.flush()\n")
    assert run() == ["2.0", "0"]
    assert not list(cache.rglob("*answer*.nbc"))
