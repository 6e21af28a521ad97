"""Kernel names and what they tell; the profiler may fail, the case may not."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from support_fake_torch import fake_torch

from accuracy_eval.backends.kernels import FAMILIES, parse_kernel, record_kernels

NAMES: list[tuple[str, dict[str, Any]]] = [
    (
        "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB0_AFC0_GSU4_SK3_ISA942_IU1_K1",
        {"library": "tensile", "role": "gemm", "types": "BBS", "blas_layout": "tn", "tile": [256, 256, 64], "instruction": [16, 16, 1],
         "split_k": 4, "stream_k": 3, "isa": "gfx942"},
    ),
    (
        "Cijk_Ailk_Bjlk_HHS_BH_MT128x128x16_SE_K1_GSU1_ISA90a_MI32x32x8x1_SU32",
        {"library": "tensile", "role": "gemm", "types": "HHS", "blas_layout": "nt", "tile": [128, 128, 16], "instruction": [32, 32, 8, 1],
         "split_k": 1, "isa": "gfx90a"},
    ),
    (
        "Cijk_Ailk_Bljk_S_MX_B_UserArgs_MT64x64x32_MI16x16x1_SN_GSUAMB_SK0_ISA950_WG32_8_1",
        {"library": "tensile", "role": "gemm", "types": "S_MX", "blas_layout": "nn", "tile": [64, 64, 32], "instruction": [16, 16, 1],
         "stream_k": 0, "isa": "gfx950"},
    ),
    ("Cijk_S_PostGSU8_VW4", {"library": "tensile", "role": "reduce", "split_k": 8}),
    ("void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm<int>>(x)", {"library": "ck", "role": "gemm"}),
    ("attn_fwd.kd", {"library": "aotriton", "role": "attention"}),
    ("bwd_kernel_dk_dv", {"library": "aotriton", "role": "attention"}),
    (
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopB_TNT",
        {"library": "nvjet", "role": "gemm", "types": "tst", "tile": [128, 256, 64], "blas_layout": "tnt"},
    ),
    (
        "nvjet_sm100_qqtst_64x8_64x16_4x1_v_bz_splitK_TNT",
        {"library": "nvjet", "role": "gemm", "types": "qqtst", "tile": [64, 8, 64], "blas_layout": "tnt", "split_k": True, "isa": "sm_100"},
    ),
    (
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>(Params)",
        {"library": "cutlass", "role": "gemm", "tile": [128, 128, 16], "instruction": [16, 8, 8], "blas_layout": "nn", "isa": "sm_80"},
    ),
    (
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        {"library": "xmma", "role": "gemm", "tile": [64, 64, 64], "blas_layout": "tn", "isa": "sm_90"},
    ),
    (
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x5_tn",
        {"library": "cublas", "role": "gemm", "tile": [128, 64, 32], "instruction": [16, 8, 16], "blas_layout": "tn", "isa": "sm_80"},
    ),
    ("ampere_sgemm_128x64_nn", {"library": "cublas", "role": "gemm", "tile": [128, 64], "blas_layout": "nn", "isa": "sm_80"}),
    (
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
        {"library": "cublas", "role": "gemm", "tile": [128, 128], "instruction": [8, 8, 4], "blas_layout": "nn", "isa": "sm_70"},
    ),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(x)", {"library": "cublas", "role": "reduce"}),
    (
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute_split_k_kernel__5x_cublas",
        {"library": "cublas", "role": "reduce", "tile": [32, 32, 8], "blas_layout": "nn", "isa": "sm_80"},
    ),
    ("nvjet_sm90_tst_64x16_64x16_1x1_h_bz_splitK_TNT",
     {"library": "nvjet", "role": "gemm", "types": "tst", "tile": [64, 16, 64], "blas_layout": "tnt", "split_k": True, "isa": "sm_90"}),
    ("void gemv2T_kernel_val<int, float>(x)", {"library": "cublas", "role": "gemm"}),
    ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>(x)", {"library": "flash", "role": "attention"}),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(x)", {"library": "cutlass", "role": "attention", "isa": "sm_80"}),
    ("void at::native::vectorized_elementwise_kernel<4>(x)", {"library": "aten", "role": "other"}),
    ("triton_poi_fused_add_0", {"library": "triton", "role": "other"}),
    ("my_own_kernel", {"library": "unknown", "role": "other"}),
    ("", {"library": "unknown", "role": "other"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), NAMES, ids=[name[:40] or "empty" for name, _ in NAMES])
def test_a_kernel_name_tells_what_it_says_and_nothing_else(name: str, expected: dict[str, Any]) -> None:
    assert parse_kernel(name) == {"name": name, **expected}


def test_every_library_with_a_matrix_product_has_an_example_here() -> None:
    covered = {(expected["library"], expected["role"]) for _, expected in NAMES}
    products = {(family.library, family.role) for family in FAMILIES if family.role in ("gemm", "reduce")}
    assert products - covered == {("rocblas", "gemm")}  # its names carry nothing to parse


def test_without_a_gpu_there_are_no_names_and_the_reason_is_told() -> None:
    ran: list[int] = []
    found = record_kernels(torch, lambda: ran.append(1))
    assert (found, found.reason, ran) == ([], "no GPU: kernels of CPU libraries have no names", [])


def event(name: str, start: int, kind: str = "DeviceType.CUDA") -> Any:
    return types.SimpleNamespace(name=name, device_type=kind, time_range=types.SimpleNamespace(start=start))


class _Profile:
    def __init__(self, events: list[Any] | Exception) -> None:
        self.found = events

    def __call__(self, **options: Any) -> _Profile:
        return self

    def __enter__(self) -> _Profile:
        if isinstance(self.found, Exception):
            raise self.found
        return self

    def __exit__(self, *exception: object) -> None: ...

    def events(self) -> list[Any]:
        assert isinstance(self.found, list)
        return self.found


def profiled(events: list[Any] | Exception, fn: Any = lambda: None) -> Any:
    with fake_torch("mi300x") as fake:
        fake._own["profiler"] = types.SimpleNamespace(profile=_Profile(events), ProfilerActivity=types.SimpleNamespace(CPU=0, CUDA=1))
        return record_kernels(fake, fn)


def test_kernels_are_listed_in_launch_order_without_copies_and_host_events() -> None:
    found = profiled(
        [event("second", 20), event("aten::mm", 1, "DeviceType.CPU"), event("first", 10), event("Memcpy HtoD", 5), event("first", 30)]
    )
    assert found == ["first", "second", "first"]
    assert found.reason == ""


def test_a_profiler_that_sees_nothing_says_so() -> None:
    found = profiled([event("aten::mm", 1, "DeviceType.CPU")])
    assert (found, found.reason) == ([], "the profiler saw no kernel: it may not be permitted here")


def test_a_profiler_that_cannot_start_gives_a_reason_not_an_error() -> None:
    found = profiled(RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"))
    assert (found, found.reason) == ([], "the profiler failed: RuntimeError: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")


def test_what_the_profiled_function_raises_is_raised() -> None:
    def fails() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        profiled([], fails)
