"""Profiles of special functions, and the page that puts platforms side by side."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import mpmath
import numpy as np
import pytest

from accuracy_eval.atlas import SWEEP, atlas
from accuracy_eval.backends.base import Outcome
from accuracy_eval.backends.model import ModelBackend
from accuracy_eval.backends.reference import ReferenceBackend, ready
from accuracy_eval.cli import run
from accuracy_eval.cpu_ref.special import rounded
from accuracy_eval.cpu_ref.special_profile import profile
from accuracy_eval.dump import dump
from accuracy_eval.errors import FileError, UsageError
from accuracy_eval.formats import decode, encode
from accuracy_eval.json_data import to_json
from accuracy_eval.suite import parse_suite

CODES = np.arange(1 << 16, dtype=np.uint16)
SUITE = parse_suite(
    {"name": "a", "cases": [{"op": ["exp", "tanh", "sqrt", "cos"], "shape": "65536", "format": "bfloat16", "input": "codes"}]}, "a"
)


def right(fn: str, fmt: str = "bfloat16", x: np.ndarray = CODES) -> np.ndarray:
    return rounded(fn, decode(x, fmt), fmt)


@pytest.mark.parametrize("fn", ["exp", "tanh", "sqrt", "rsqrt", "reciprocal", "cos", "erf", "silu"])
def test_correctly_rounded_results_have_no_fault_of_any_kind(fn: str) -> None:
    p = profile(fn, CODES, right(fn), "bfloat16")
    assert p.operands == (1 << 16) - 2 * 127  # every code but the NaNs
    assert p.worst.ulp_max <= 0.5 + 1e-12
    assert [r.inexact + r.beyond for r in p.ranges] == [0, 0, 0]
    assert (p.classes, p.outside) == (0, 0)
    assert p.breaks in (0, None)
    assert p.asymmetries in (0, None)
    assert (p.breaks is None) == (fn in ("cos", "silu"))
    assert (p.asymmetries is None) == (fn not in ("tanh", "reciprocal", "cos", "erf"))


def test_an_error_is_measured_in_ulps_of_the_true_value_at_its_operand() -> None:
    x = encode(np.linspace(0.5, 2, 400), "float32")
    y = right("exp", "float32", x)
    y[100] += 3
    p = profile("exp", x, y, "float32", vendor="cuda")
    at = mpmath.mpf(float(decode(x, "float32")[100]))
    value = mpmath.exp(at)
    expected = abs(mpmath.mpf(float(decode(y, "float32")[100])) - value) / mpmath.mpf(2) ** (mpmath.floor(mpmath.log(value, 2)) - 23)
    assert p.worst.at == float(at)
    assert math.isclose(p.worst.ulp_max, float(expected), rel_tol=1e-9)
    assert (p.worst.inexact, p.worst.beyond) == (1, 1)
    assert p.limit_ulps == 2.5  # the CUDA guide's 2 against the correctly rounded result
    assert p.breaks == 0  # three codes are less than a step of x moves exp


def test_ranges_are_told_apart() -> None:
    x = encode(np.linspace(-88, 2, 2000), "float32")
    y = right("exp", "float32", x)
    y[0] += 1  # the smallest results are subnormal
    core, tail, subnormal = profile("exp", x, y, "float32").ranges
    assert (core.inexact, tail.count, subnormal.inexact) == (0, 0, 1)
    assert core.count + subnormal.count == 2000
    assert profile("sigmoid", x, right("sigmoid", "float32", x), "float32").ranges[1].count == 0
    far = encode(np.array([-90.0, -89.0, 1.0]), "float32")
    assert profile("sigmoid", far, right("sigmoid", "float32", far), "float32").ranges[1].count + 0 <= 2


def test_a_function_that_turns_back_is_asymmetric_or_leaves_its_values_is_counted() -> None:
    y = right("tanh")
    i = int(encode(np.array([0.5]), "bfloat16")[0])
    y[i] = encode(np.array([1.25]), "bfloat16")[0]
    p = profile("tanh", CODES, y, "bfloat16")
    assert (p.breaks, p.asymmetries, p.outside) == (1, 1, 1)
    y[i] = encode(np.array([np.nan]), "bfloat16")[0]
    p = profile("tanh", CODES, y, "bfloat16")
    assert (p.breaks, p.asymmetries, p.outside, p.classes) == (0, 1, 0, 1)


def test_a_profile_is_of_functions_of_one_operand() -> None:
    with pytest.raises(UsageError, match="pow takes 2 operands; a profile is of functions of one"):
        profile("pow", CODES, CODES, "bfloat16")


class OneCodeHigh(ReferenceBackend):
    """A device whose exp is one code too high everywhere it can be."""

    def platform(self):
        return {**super().platform(), "label": "high", "vendor": "nvidia", "device_name": "<b>a & b</b>"}

    def run(self, prepared, candidate, **how):
        outcome = super().run(prepared, candidate, **how)
        if prepared.case.op != "exp":
            return outcome
        (r,) = outcome.results
        codes = r.codes[0].result().copy()
        codes[(codes > 0x0100) & (codes < 0x7F00)] += 1
        return Outcome((type(r)(r.name, r.format, r.shape, (ready(codes),)),), 1)


class Page(HTMLParser):
    """Every tag closed in order; text collected."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        assert not {"src", "href"} & {name for name, value in attrs if value and value.startswith(("http", "//"))}
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_shows_cards_functions_and_differences_and_needs_no_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump(SUITE, OneCodeHigh(), tmp_path / "a.h5")
    dump(SUITE, ReferenceBackend(), tmp_path / "b.h5")
    gemm = parse_suite({"name": "g", "cases": [{"op": "gemm", "shape": "16x16x16", "format": "bfloat16"}]}, "g")
    dump(gemm, ModelBackend("MI300X"), tmp_path / "c.h5", probe=True)
    out = tmp_path / "page.html"
    assert run(["atlas", *(str(tmp_path / f"{n}.h5") for n in "abc"), "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: 3 platforms, 1 numerics card, 4 rows of special functions\n"
    page = Page()
    page.feed(out.read_text())
    assert page.open == []
    text = re.sub(r"\s+", " ", " ".join(page.text))
    assert "<b>a & b</b>" in text  # a name is text, never markup
    assert "matches cdna3 in 5 of 5 ways to multiply" in text
    assert "64 in order, 8 at a time" in text
    (table,) = atlas([tmp_path / "a.h5", tmp_path / "b.h5", tmp_path / "c.h5"]).tables
    assert (table.columns, table.ranges) == ([0, 1], [0, 2])  # the third computed no function, and none of these has a tail
    assert "function high rounded-reference core subnormal documented core subnormal documented exp" in text
    found = atlas([tmp_path / "a.h5", tmp_path / "b.h5"])
    (row,) = [d for d in found.differences if d.range == "core"]
    assert (row.function, row.a, row.b, row.steps, row.allowed) == ("exp", "high", "rounded-reference", 1, 1.0)
    assert {d.function for d in found.differences} == {"exp"}
    exp = next(r for r in found.functions if r.function == "exp")
    assert exp.cells[0].worst.ulp_max > 1 > exp.cells[1].worst.ulp_max
    assert [r.function for r in found.functions] == ["exp", "sqrt", "tanh", "cos"]


def test_a_sweep_over_every_operand_stands_beside_dumps(tmp_path: Path) -> None:
    dump(SUITE, ReferenceBackend(), tmp_path / "b.h5")
    p = profile("exp", CODES, right("exp"), "bfloat16")
    sweep = {"kind": SWEEP, "label": "h200", "device": "NVIDIA H200", "software": "torch 2.11", "profiles": [to_json(p)]}
    (tmp_path / "s.json").write_text(json.dumps(sweep))
    found = atlas([tmp_path / "s.json", tmp_path / "b.h5"])
    assert [r.cells for r in found.functions if r.operands == "every operand"] == [(p, None)]
    (tmp_path / "s.json").write_text("{}")
    with pytest.raises(FileError, match="expected kind 'accuracy-eval-sweep/1', found None"):
        atlas([tmp_path / "s.json"])


def test_dumps_without_cards_and_functions_are_refused(tmp_path: Path) -> None:
    gemm = parse_suite({"name": "g", "cases": [{"op": "gemm", "shape": "16x16x16", "format": "bfloat16"}]}, "g")
    dump(gemm, ReferenceBackend(), tmp_path / "c.h5")
    with pytest.raises(UsageError, match="no numerics card and no special function; dump with --probe"):
        atlas([tmp_path / "c.h5"])
