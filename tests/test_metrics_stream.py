"""Results do not depend on panels, threads or memory layout, and memory stays bounded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accuracy_eval.formats import encode
from accuracy_eval.json_data import to_json
from accuracy_eval.metrics import arguments, ledger
from accuracy_eval.metrics.measured import Measured
from accuracy_eval.metrics.meter import Meter, measure
from accuracy_eval.records import Coded

SPECS = ((1e-2, 1e-3),)


def same(one: Measured, other: Measured) -> None:
    assert to_json(one) == to_json(other)


def sides(shape: tuple[int, int]) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(7)
    e = rng.standard_normal(shape)
    a = encode(e * (1 + 1e-2 * rng.standard_normal(shape)), "bfloat16")
    a.reshape(-1)[:: max(1, a.size // 5)] = 0x7FC0
    return a, e, np.abs(rng.standard_normal(shape))


@pytest.mark.parametrize("shape", [(700, 300), (1, 5000), (5000, 1), (3000, 7), (129, 128), (40, 20000)])
@pytest.mark.parametrize("height", [1, 13, 128, 500])
def test_results_do_not_depend_on_panel_heights(shape: tuple[int, int], height: int) -> None:
    a, e, b = sides(shape)
    whole = measure(Coded(a, "bfloat16"), e, budget=b, allclose=SPECS)
    meter = Meter(shape, "bfloat16", reference=True, allclose=SPECS)
    step = height if shape[0] / height < 300 else shape[0] // 7 + 1
    for row in range(0, shape[0], step):
        meter.update(row, a[row : row + step], e[row : row + step], b[row : row + step])
    same(meter.result(), whole)


def test_results_do_not_depend_on_the_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    a, e, b = sides((1000, 900))
    results = []
    for threads in ("1", "3", "7"):
        monkeypatch.setenv("ACCURACY_EVAL_THREADS", threads)
        results.append(measure(Coded(a, "bfloat16"), e, budget=b, allclose=SPECS))
    same(results[0], results[1])
    same(results[0], results[2])


def test_wide_rows_are_held_in_lower_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    a, e, b = sides((300, 200))
    tall = measure(Coded(a, "bfloat16"), e, budget=b)
    monkeypatch.setattr(arguments, "WIDEST_BAND", 200 * 32)
    monkeypatch.setattr(arguments, "THIN", 1)
    low = measure(Coded(a, "bfloat16"), e, budget=b)
    assert tall.tiles is not None
    assert low.tiles is not None
    np.testing.assert_allclose(low.tiles.error, tall.tiles.error, rtol=1e-13)
    np.testing.assert_array_equal(low.tiles.mismatches, tall.tiles.mismatches)
    assert low.tiles.max_abs is not None
    assert tall.tiles.max_abs is not None
    np.testing.assert_array_equal(low.tiles.max_abs, tall.tiles.max_abs)
    for name, value in tall.metrics.items():
        if isinstance(value, float):
            assert low.metrics[name] == pytest.approx(value, rel=1e-12), name
        else:
            assert low.metrics[name] == value, name


def test_any_memory_layout_gives_the_same_result() -> None:
    a, e, _ = sides((200, 300))
    plain = measure(Coded(a, "bfloat16"), e)
    odd = np.zeros(a.nbytes + 1, np.uint8)[1:].view(np.uint16).reshape(a.shape)
    odd[:] = a
    readonly = a.copy()
    readonly.flags.writeable = False
    for other in (np.asfortranarray(a), np.repeat(a, 2, axis=1)[:, ::2], odd, readonly):
        same(measure(Coded(other, "bfloat16"), np.asfortranarray(e)), plain)


def test_many_units_add_up_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """More units than are kept apart; the sums are those of fewer, to the last digits."""
    a, e, _ = sides((2000, 400))
    few = measure(Coded(a, "bfloat16"), e).metrics
    monkeypatch.setattr(arguments, "UNIT", 128)
    monkeypatch.setattr(arguments, "WIDEST_BAND", 800)
    monkeypatch.setattr(arguments, "THIN", 1)
    many = measure(Coded(a, "bfloat16"), e).metrics
    for name, value in few.items():
        assert many[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), name


def test_long_thin_arrays_keep_no_map_of_a_million_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MOST_PARTS", 100)
    monkeypatch.setattr(ledger, "MOST_TILES", 1)
    a, e, _ = sides((300, 5))
    m = measure(Coded(a, "bfloat16"), e)
    assert m.rows is None
    assert m.tiles is None
    assert (m.metrics["worst_row"], m.metrics["worst_tile_nsr"]) == (None, None)
    assert m.cols is not None


SCRIPT = """
import resource, sys
import numpy as np
from accuracy_eval.metrics.meter import Meter, measure
from accuracy_eval.records import Coded
c = np.zeros((2, 2), np.uint16)
measure(Coded(c, "bfloat16"), Coded(c, "bfloat16"))
files = [np.memmap(name, np.uint16, "r", shape=(32768, 16384)) for name in sys.argv[1:]]
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 400 * 2**20,) * 2)
meter = Meter((32768, 16384), "bfloat16")
for row in range(0, 32768, 192):
    meter.update(row, files[0][row : row + 192], files[1][row : row + 192])
m = meter.result()
print(m.metrics["count"], m.metrics["max_abs"], m.metrics["max_abs_index"])
"""


def test_a_gigabyte_pair_is_measured_in_400_megabytes(tmp_path: Path) -> None:
    names = [str(tmp_path / n) for n in ("a", "e")]
    for name in names:
        with open(name, "wb") as file:
            file.truncate(2**30)
    with open(names[0], "r+b") as file:
        file.seek(2 * (20000 * 16384 + 77))
        file.write(b"\x80\x3f")
    run = subprocess.run([sys.executable, "-c", SCRIPT, *names], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "536870912 1.0 [20000, 77]\n"
