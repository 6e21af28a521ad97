"""The whole CUDA/ROCm backend driven on a CPU: a torch that claims the properties recorded from AMD and NVIDIA devices."""

import pytest
from support_fake_torch import fake_torch

from accuracy_eval.backends.reference import ReferenceBackend
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.compare import compare_dumps
from accuracy_eval.dump import dump
from accuracy_eval.errors import UsageError
from accuracy_eval.records import Attribution, Verdict
from accuracy_eval.store import Dump
from accuracy_eval.suite import parse_suite

SUITE = parse_suite(
    {
        "name": "rocm",
        "cases": [
            {
                "op": "gemm",
                "shape": "16x8x32",
                "layout": ["nt", "tn"],
                "format": ["float32", "bfloat16", "float16"],
                "lane": ["random", "exact"],
            },
            {"op": "gemm", "shape": "16x8x32", "format": "bfloat16", "direction": "bwd"},
            {"op": ["exp", "log"], "shape": "64", "format": "bfloat16"},
            {"op": "cast", "shape": "65536", "format": "bfloat16", "out_format": ["fp8_e4m3", "fp8_e5m2"], "input": "codes"},
            {"op": "quantize", "shape": "8x256", "format": "bfloat16", "recipe": ["tensorwise", "rowwise", "block1x128", "mxfp8"]},
        ],
    },
    "rocm",
)


def dump_of(device, path):
    with fake_torch(device) as torch:
        backend = TorchBackend("cuda:0", torch=torch)
        summary = dump(SUITE, backend, path)
        backend.close()
    assert not summary.errors
    return path


@pytest.mark.parametrize(
    ("device", "vendor", "arch", "encoding", "suffix"),
    [
        ("mi300x", "amd", "gfx942", "fnuz", "float8_e4m3fnuz"),
        ("mi355x", "amd", "gfx950", "ocp", "float8_e4m3fn"),
        ("h200", "nvidia", "sm_90", "ocp", "float8_e4m3fn"),
    ],
)
def test_a_dump_of_each_vendor_records_its_device_and_passes_the_reference(tmp_path, device, vendor, arch, encoding, suffix):
    path = dump_of(device, tmp_path / "a.h5")
    d = Dump.open(path)
    assert (d.platform["vendor"], d.platform["arch"], d.platform["fp8_encoding"]) == (vendor, arch, encoding)
    record = d.record("cast.n65536.bfloat16-fp8_e4m3.codes.s0")
    assert [t.format for t in record.tensors if t.role == "output"] == [suffix]
    results = compare_dumps(path)
    assert results.exit_code == 0, [t.case_id for t in results.tensors if t.verdict is Verdict.FAIL]


RECIPES = parse_suite(
    {
        "name": "recipes",
        "cases": [
            {"op": "gemm", "shape": "32x64x160", "format": "fp8_e4m3", "direction": ["fwd", "bwd"], "lane": ["random", "exact"],
             "recipe": ["tensorwise", "rowwise", "hybrid", "block1x128", "mxfp8", "mxfp8_training"]},
            {"op": "gemm", "shape": "160x64x256", "format": "fp8_e4m3", "lane": "coded",
             "recipe": ["tensorwise", "rowwise", "block1x128", "block1x128_both", "mxfp8", "mxfp8_training"]},
            {"op": "gemm", "shape": "160x64x256", "format": "fp4_e2m1", "lane": ["random", "coded"], "recipe": ["mxfp4", "nvfp4"]},
            {"op": "grouped_gemm", "shape": "3x32x32x64", "format": "fp8_e4m3", "recipe": ["tensorwise", "rowwise"],
             "direction": ["fwd", "bwd"], "options": {"lens": "zeros", "align": 16, "padding": 16}},
            {"op": "grouped_gemm", "shape": "3x32x32x64", "format": "bfloat16", "direction": ["fwd", "bwd"],
             "options": {"lens": "ragged", "padding": 8}},
        ],
    },
    "recipes",
)  # fmt: skip
# recipes that run on each device, of the coded lane where they have it
MX, BLOCKS, ALWAYS = {"mxfp8", "mxfp8_training"}, {"block1x128", "block1x128_both"}, {"tensorwise", "rowwise", "hybrid", ""}
TAKEN = {
    "mi300x": ALWAYS,
    "mi355x": ALWAYS | MX | {"mxfp4"},
    "h200": ALWAYS | BLOCKS,
    "b200": ALWAYS | MX | {"mxfp4", "nvfp4"},
}


@pytest.mark.parametrize("device", TAKEN)
def test_each_part_multiplies_its_own_encoding_and_block_scales_where_its_library_takes_them(tmp_path, device):
    with fake_torch(device) as torch:
        backend = TorchBackend("cuda:0", torch=torch)
        summary = dump(RECIPES, backend, tmp_path / "a.h5", candidates=["default"])
        backend.close()
    assert not summary.errors
    records = Dump.open(tmp_path / "a.h5").records
    assert {r.case.recipe for r in records if r.status == "done"} == TAKEN[device]
    suffix = "fnuz" if device == "mi300x" else "fn"
    formats = {t.format for r in records for t in r.tensors if t.role == "input" and t.name in ("a", "b") and "e4m3" in t.format}
    assert formats == {f"float8_e4m3{suffix}"}
    results = compare_dumps(tmp_path / "a.h5")
    assert results.exit_code == 0, [(t.case_id, t.verdict) for t in results.tensors if t.verdict is not Verdict.PASS]
    coded = {t.case.recipe for t in results.tensors if t.case.lane == "coded"}
    assert coded == TAKEN[device] - {"hybrid", ""}


def test_reasons_of_what_a_part_lacks_are_its_librarys(tmp_path):
    reasons = {}
    for device in TAKEN:
        with fake_torch(device) as torch:
            backend = TorchBackend("cuda:0", torch=torch)
            dump(RECIPES, backend, tmp_path / f"{device}.h5", candidates=["default"])
            backend.close()
        for r in Dump.open(tmp_path / f"{device}.h5").records:
            if r.status == "unsupported":
                reasons[device, r.case.op, r.case.recipe] = r.reason.removeprefix("torch.nn.functional.scaled_mm: ")
    assert reasons["mi300x", "gemm", "block1x128"] == "1x128 and 128x128 scaling not available with ROCm"
    assert reasons["mi300x", "gemm", "mxfp8"] == "Block-wise scaling for Float8_e8m0fnu is only supported on gfx950"
    assert reasons["mi355x", "gemm", "nvfp4"] == "NVFP4 scaling not supported on ROCM"
    assert reasons["h200", "gemm", "mxfp8"].startswith("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED")
    assert reasons["mi355x", "grouped_gemm", "rowwise"].startswith("torch._scaled_grouped_mm: torch._scaled_grouped_mm is only supported")


def test_an_fnuz_and_an_ocp_dump_join_and_are_each_judged_by_their_own_reference(tmp_path):
    results = compare_dumps(dump_of("mi300x", tmp_path / "a.h5"), dump_of("h200", tmp_path / "b.h5"))
    by_case = {(t.case_id, t.tensor): t for t in results.tensors}
    cast = by_case["cast.n65536.bfloat16-fp8_e4m3.codes.s0", "y"]
    assert [s.verdict for s in cast.sides] == [Verdict.PASS, Verdict.PASS]
    assert cast.pairs[0].attribution is Attribution.NOT_COMPARABLE
    assert by_case["gemm.m16.n8.k32.nt.bfloat16.exact.s0", "d"].pairs[0].attribution is Attribution.IDENTICAL
    assert results.exit_code == 0


def test_encodings_are_compared_by_value_on_request(tmp_path):
    paths = dump_of("mi300x", tmp_path / "a.h5"), dump_of("h200", tmp_path / "b.h5")
    results = compare_dumps(*paths, cross_format=True, cases=["cast.n65536.bfloat16-fp8_e5m2.codes.s0"])
    assert results.tensors[0].pairs[0].metrics["finite_pairs"] > 60000


def test_a_build_without_a_gpu_says_which_devices_there_are():
    with pytest.raises(UsageError, match="sees no GPU; allowed here: cpu, model:UNIT, reference"):
        TorchBackend("cuda:0")


def test_the_reference_dumps_fnuz_for_a_machine_without_any_gpu(tmp_path):
    dump(SUITE, ReferenceBackend("fnuz"), tmp_path / "r.h5")
    results = compare_dumps(dump_of("mi300x", tmp_path / "a.h5"), tmp_path / "r.h5")
    cast = next(t for t in results.tensors if t.case_id.startswith("cast"))
    assert cast.pairs[0].attribution is Attribution.IDENTICAL
