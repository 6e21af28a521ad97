"""A library's quantiser as a candidate: it runs where the library is installed, and its scales and codes are judged like a device's."""

from __future__ import annotations

import sys

import pytest

from accuracy_eval.backends import quantisers
from accuracy_eval.backends.candidates import registered
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import make_case
from accuracy_eval.compare import compare_dumps
from accuracy_eval.dump import dump
from accuracy_eval.messages import failed_errors
from accuracy_eval.suite import Suite

LIBRARY = '''
import enum
import torch

class ScaleCalculationMode(enum.Enum):
    FLOOR, RCEIL, CEIL, EVEN = "floor", "rceil", "ceil", "even"

def to_mx(x, dtype, block, mode):
    """The floor rule for every mode; of 4-bit codes two a byte."""
    blocks = x.float().reshape(x.shape[0], -1, block)
    top = 8 if dtype is torch.float8_e4m3fn else 2
    e = torch.floor(torch.log2(blocks.abs().amax(-1))).int() - top
    scaled = blocks * torch.exp2(-e.float())[..., None]
    scale = (e + 127).to(torch.uint8)
    if top == 8:
        return scale, scaled.clamp(-448, 448).to(dtype).reshape(x.shape)
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    size = scaled.abs()[..., None]
    codes = torch.where(torch.arange(7) % 2 == 1, size >= middles, size > middles).sum(-1) + 8 * scaled.signbit()
    codes = codes.reshape(x.shape).to(torch.uint8)
    return scale, codes[:, 0::2] | (codes[:, 1::2] << 4)
'''


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A torchao that has just the one function."""
    folder = tmp_path / "site" / "torchao" / "prototype" / "mx_formats"
    folder.mkdir(parents=True)
    for parent in (folder, folder.parent, folder.parent.parent):
        (parent / "__init__.py").touch()
    (folder / "mx_tensor.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    quantisers.installed.cache_clear()
    yield
    quantisers.installed.cache_clear()
    for name in [n for n in sys.modules if n.split(".")[0] == "torchao"]:
        del sys.modules[name]


def case_of(recipe, n=128, fmt="bfloat16"):
    return make_case("quantize", (("m", 32), ("n", n)), format=fmt, recipe=recipe)


def judged(folder, recipe):
    backend = TorchBackend("cpu")
    summary = dump(Suite("s", "", (case_of(recipe),), {}), backend, folder / "q.h5", candidates=("torchao",))
    backend.close()
    assert (summary.done, summary.error) == (1, 0)
    return {t.tensor: t.sides[0] for t in compare_dumps(folder / "q.h5").tensors}


@pytest.mark.torch
@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp4"])
def test_a_library_that_follows_the_recipe_passes(library, tmp_path, recipe):
    assert {s.verdict for s in judged(tmp_path, recipe).values()} == {"PASS"}


@pytest.mark.torch
def test_a_library_that_follows_another_rule_is_named_by_it(library, tmp_path):
    found = judged(tmp_path, "mxfp8_rceil")
    assert (found["scale"].scales.rule, found["scale"].scales.expected_rule) == ("floor", "rceil")
    assert failed_errors(found["codes"]) == ["scale"]


@pytest.mark.parametrize(("recipe", "n", "fmt", "applies"), [
    ("mxfp8", 128, "bfloat16", True), ("mxfp4_even", 96, "float32", True), ("nvfp4", 48, "bfloat16", True),
    ("mxfp8", 100, "bfloat16", False), ("mxfp8", 128, "float16", False), ("mxfp8_2d", 128, "bfloat16", False),
    ("rowwise", 128, "bfloat16", False), ("mxfp6", 128, "bfloat16", False),
])  # fmt: skip
def test_it_takes_what_the_library_takes(library, recipe, n, fmt, applies):
    (candidate,) = [c for c in registered("quantize") if c.name == "torchao"]
    assert candidate.applies(case_of(recipe, n, fmt)) == applies


def test_without_the_library_there_is_no_such_candidate(monkeypatch):
    monkeypatch.setattr(quantisers, "installed", lambda module: False)
    (candidate,) = [c for c in registered("quantize") if c.name == "torchao"]
    assert not candidate.applies(case_of("mxfp8"))
