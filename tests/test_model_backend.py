"""A model of a matrix unit as a device: dumps of parts one does not have."""

from pathlib import Path

import numpy as np
import pytest

from accuracy_eval.backends.open import open_backend
from accuracy_eval.compare import compare_dumps
from accuracy_eval.datapath import dot
from accuracy_eval.dump import dump
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import encode
from accuracy_eval.inputs import generate
from accuracy_eval.records import Verdict
from accuracy_eval.store import Dump
from accuracy_eval.suite import parse_suite

SUITE = parse_suite(
    {
        "name": "model",
        "cases": [
            {"op": "gemm", "shape": "24x16x96", "layout": ["nt", "tn"], "format": ["bfloat16", "float32"], "lane": ["random", "exact"]},
            {"op": "gemm", "shape": "24x16x96", "format": "bfloat16", "out_format": "float32", "layout": "nt"},
            {"op": "gemm", "shape": "24x16x96", "format": ["bfloat16", "tfloat32"], "direction": "bwd"},
            {"op": "gemm", "shape": "24x16x96", "format": "bfloat16", "direction": "bwd", "options": {"bias": True}},
            {"op": "exp", "shape": "64", "format": "bfloat16"},
        ],
    },
    "model",
)


def dump_of(device: str, path: Path) -> Dump:
    dump(SUITE, open_backend(device), path)
    return Dump.open(path)


def test_a_model_dump_holds_the_dot_products_of_the_unit(tmp_path: Path) -> None:
    d = dump_of("model:MI300X", tmp_path / "m.h5")
    record = next(r for r in d.records if r.case.out_format == "float32")
    a, b = (generate("gemm", x, s, "normal", 0, "bfloat16", axes=(x, "k")) for x, s in (("a", (24, 96)), ("b", (16, 96))))
    i, j = np.repeat(np.arange(24), 16), np.tile(np.arange(16), 24)
    found = d.view(record, next(t for t in record.tensors if t.name == "d"), verify=True)
    np.testing.assert_array_equal(np.asarray(found[0:24]).reshape(-1), dot("cdna3", a[i], b[j], format="bfloat16"))


@pytest.mark.parametrize(
    ("device", "label", "vendor", "arch", "encoding"),
    [
        ("model:cdna3", "model-cdna3", "amd", "gfx942", "fnuz"), ("model:MI308X", "model-mi308x", "amd", "gfx942", "fnuz"),
        ("model:H200", "model-h200", "nvidia", "sm_90", "ocp"), ("model:sm_120", "model-sm-120", "nvidia", "sm_120", "ocp"),
        ("model:hopper/mma.sync", "model-hopper-mma-sync", "nvidia", "sm_90", "ocp"), ("model:cpu", "model-cpu", "cpu", "cpu", "ocp"),
    ],
)  # fmt: skip
def test_provenance_says_that_it_is_a_model_and_of_what(device: str, label: str, vendor: str, arch: str, encoding: str) -> None:
    record = open_backend(device).platform()
    assert (record["label"], record["vendor"], record["arch"], record["fp8_encoding"]) == (label, vendor, arch, encoding)
    assert record["backend"] == "model"
    assert record["device_name"].startswith("model of ")
    assert any(name.startswith("model.") for name in record)


def test_a_dump_of_which_nothing_was_judged_is_never_passed(tmp_path: Path) -> None:
    suite = parse_suite({"name": "one", "cases": [{"op": "gemm", "shape": "24x16x96", "layout": "nt", "format": "bfloat16"}]}, "one")
    for device, name in (("model:MI355X", "m.h5"), ("model:H200", "h.h5")):
        dump(suite, open_backend(device), tmp_path / name)
    reasons = [(r.status, r.reason) for r in Dump.open(tmp_path / "m.h5").records]
    results = compare_dumps(tmp_path / "m.h5", tmp_path / "h.h5")
    assert [t.verdict for t in results.tensors] == [Verdict.PASS]
    assert (results.verdict, results.exit_code) == (Verdict.INCONCLUSIVE, 2)
    assert [("unsupported", results.notes[0].removeprefix("nothing of model-mi355x could be judged: "))] == reasons


def test_what_a_unit_cannot_do_is_unsupported_with_the_reason(tmp_path: Path) -> None:
    reasons = {r.id: r.reason for r in dump_of("model:MI350X", tmp_path / "m.h5").records if r.status == "unsupported"}
    assert reasons["exp.n64.bfloat16.normal.s0"] == "no matrix product: the model of a matrix unit computes nothing else"
    assert "the arithmetic of cdna4/mfma for bfloat16 × bfloat16 is not known" in reasons["gemm.m24.n16.k96.nt.bfloat16.normal.s0"]
    bias = [r for ident, r in reasons.items() if "bias" in ident]
    assert len(bias) == 1
    assert not any(ident.startswith("gemm.m24.n16.k96.nt.float32") for ident in reasons)


@pytest.mark.parametrize("device", ["model:cdna3", "model:hopper", "model:ampere", "model:rdna4"])
def test_models_keep_the_budget_of_every_gemm(tmp_path: Path, device: str) -> None:
    results = compare_dumps(dump_of(device, tmp_path / "m.h5").path)
    assert {t.verdict for t in results.tensors} == {Verdict.PASS}
    assert results.exit_code == 0


def test_two_models_differ_in_the_last_bits_only_and_nobody_is_off(tmp_path: Path) -> None:
    results = compare_dumps(dump_of("model:cdna3", tmp_path / "a.h5").path, dump_of("model:hopper", tmp_path / "b.h5").path)
    found = {t.case_id: t.pairs[0].attribution for t in results.tensors}
    assert found["gemm.m24.n16.k96.nt.bfloat16-float32.normal.s0"] == "equivalent"
    assert found["gemm.m24.n16.k96.nt.bfloat16.exact.s0"] == "identical"


def test_a_name_that_is_no_unit_is_one_clear_error() -> None:
    with pytest.raises(UsageError, match="unknown unit 'model:mi999'"):
        open_backend("model:mi999")


def test_operands_are_cut_to_tf32_on_cdna3(tmp_path: Path) -> None:
    """The model's tf32 product of a lone 1 + 2^-11 + 2^-12 by 1 is 1: CDNA3 cuts where NVIDIA rounds."""
    suite = parse_suite({"name": "t", "cases": [{"op": "gemm", "shape": "16x16x16", "format": "tfloat32"}]}, "t")
    one, x = encode(np.eye(16), "float32"), encode(np.full((16, 16), 1 + 2.0**-11 + 2.0**-12), "float32")
    for device, expected in (("model:gfx942", 1.0), ("model:sm_90", 1 + 2.0**-10)):
        backend = open_backend(device)
        prepared = backend.prepare(suite.cases[0])
        tensors = {name: type(t)(x if name == "a" else one, "float32") for name, t in prepared.tensors.items()}
        outcome = backend.run(type(prepared)(prepared.case, prepared.sources, tensors), None, repeats=1)
        np.testing.assert_array_equal(outcome.results[0].codes[0].result().view(np.float32), np.float32(expected))


@pytest.mark.parametrize(
    ("device", "note"),
    [
        ("MI300X", "model:MI300X is the model of its matrix unit, cuda the GPU itself"),
        ("rocm", "cuda is the GPU that torch sees: an AMD one where torch is built for ROCm"),
        ("tpu", None),
    ],
)
def test_a_part_or_a_vendor_given_as_the_device_is_met_with_the_device_to_give(device: str, note: str | None) -> None:
    with pytest.raises(UsageError, match=f"unknown device '{device}'; allowed: auto, cpu, cuda, cuda:N, model:UNIT, reference") as caught:
        open_backend(device)
    assert getattr(caught.value, "__notes__", []) == ([note] if note else [])
