"""The fake device refuses what a real one refuses: a backend that passes on it has obeyed the rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch as real
from support_fake_torch import device_names, device_record, fake_torch


def test_every_device_record_says_where_it_comes_from() -> None:
    for name in device_names():
        record = device_record(name)
        assert record["origin"], name
        assert record["vendor"] in ("amd", "nvidia"), name
        assert (record["torch"]["hip"] is None) == (record["vendor"] == "nvidia"), name


def test_outside_the_block_torch_is_itself_again() -> None:
    with fake_torch("h200") as fake:
        assert fake.cuda.is_available()
        assert fake.version.cuda == "13.0"
    assert not real.cuda.is_available()
    with pytest.raises((AssertionError, RuntimeError)):
        real.ones(2, device="cuda")


def test_a_tensor_knows_its_device_and_results_stay_on_it() -> None:
    with fake_torch("h200", count=2) as fake:
        x = fake.arange(6, device="cuda", dtype=fake.float32).reshape(2, 3)
        for tensor in (x, x.t(), x[0], x + 1, x @ x.t(), fake.empty_like(x), x.to(fake.bfloat16), fake.cat([x, x]), x.clone().add_(1)):
            assert tensor.device == real.device("cuda", 0)
            assert tensor.is_cuda
        assert x.to("cuda:1").device.index == 1
        for tensor in (x.cpu(), x.to("cpu"), fake.ones(3), x.to(device="cpu", dtype=fake.float64)):
            assert tensor.device.type == "cpu"
            assert not tensor.is_cuda


def test_host_and_device_do_not_share_memory() -> None:
    with fake_torch("h200") as fake:
        host = fake.zeros(3)
        device = host.to("cuda")
        device.add_(1)
        assert host.tolist() == [0, 0, 0]
        back = device.cpu()
        device.add_(1)
        assert back.tolist() == [1, 1, 1]


def test_a_copy_into_a_host_buffer_stays_on_the_host() -> None:
    with fake_torch("h200") as fake:
        buffer = fake.empty(3, pin_memory=True)
        buffer.copy_(fake.ones(3, device="cuda"), non_blocking=True)
        assert buffer.numpy().tolist() == [1, 1, 1]


def test_device_tensors_have_no_numpy_view() -> None:
    with fake_torch("h200") as fake, pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        fake.ones(2, device="cuda").numpy()


def test_tensors_of_two_devices_do_not_mix_but_numbers_do() -> None:
    with fake_torch("h200") as fake:
        x = fake.ones(2, device="cuda")
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            _ = x + fake.ones(2)
        assert (x * fake.tensor(2.0)).device.type == "cuda"


def test_gradients_are_on_the_device_of_their_tensor() -> None:
    with fake_torch("h200") as fake:
        x = fake.ones(2, 2, device="cuda").requires_grad_()
        (x @ x).sum().backward()
        assert x.grad.device.type == "cuda"


@pytest.mark.parametrize(
    ("name", "message"), [("h200", "CUDA error: invalid device ordinal"), ("mi300x", "HIP error: invalid device ordinal")]
)
def test_a_device_that_is_not_there_is_refused(name: str, message: str) -> None:
    with fake_torch(name) as fake, pytest.raises(RuntimeError, match=message):
        fake.ones(2, device="cuda:1")


def product(fake: Any, a_format: str, b_format: str | None = None, out: Any = None, **options: Any) -> Any:
    m, n, k = options.pop("shape", (16, 32, 64))
    a = fake.ones(m, k, device="cuda").to(getattr(fake, a_format))
    b = (fake.ones(n, k, device="cuda") * 2).to(getattr(fake, b_format or a_format)).t()
    scale_a = fake.full(options.pop("scale_a_shape", ()), 0.5, device="cuda")
    scale_b = fake.full(options.pop("scale_b_shape", ()), 0.25, device="cuda")
    return fake._scaled_mm(a, b, scale_a, scale_b, out_dtype=out or fake.bfloat16, **options)


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        ("mi300x", "float8_e4m3fnuz", None),
        ("mi300x", "float8_e5m2fnuz", "float8_e4m3fnuz"),
        ("mi300x", "float8_e5m2fnuz", None),
        ("mi355x", "float8_e4m3fn", None),
        ("mi355x", "float8_e5m2", None),
        ("rx-9070-xt", "float8_e4m3fn", None),
        ("h200", "float8_e4m3fn", None),
        ("h200", "float8_e5m2", "float8_e4m3fn"),
        ("l40s", "float8_e4m3fn", None),
        ("b200", "float8_e4m3fn", None),
    ],
)
def test_fp8_products_of_the_devices_own_encoding_are_computed(name: str, a: str, b: str | None) -> None:
    with fake_torch(name) as fake:
        result = product(fake, a, b)
        assert result.device.type == "cuda"
        assert result.tolist() == [[64 * 2 * 0.5 * 0.25] * 32] * 16  # k ones times twos, times both scales


@pytest.mark.parametrize(
    ("name", "a", "b", "message"),
    [
        ("mi300x", "float8_e4m3fn", None, "HIPBLAS_STATUS_NOT_SUPPORTED"),
        ("mi300x", "float8_e4m3fnuz", "float8_e4m3fn", "HIPBLAS_STATUS_NOT_SUPPORTED"),
        ("mi355x", "float8_e4m3fnuz", None, "could not find valid hipblaslt solution"),
        ("h200", "float8_e4m3fnuz", None, "Cannot convert ScalarType Float8_e4m3fnuz to cudaDataType"),
        ("h200", "float8_e5m2", None, "Multiplication of two Float8_e5m2 matrices is not supported"),
        ("h200", "float16", None, "Invalid scaling configuration|Expected mat1 to be Float8"),
        ("a100-sxm4-80gb", "float8_e4m3fn", None, r"only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300\+"),
        ("mi250x", "float8_e4m3fnuz", None, r"or ROCm MI300\+"),
        ("rx-7900-xtx", "float8_e4m3fn", None, r"or ROCm MI300\+"),
    ],
)
def test_fp8_products_of_a_wrong_encoding_or_device_are_refused(name: str, a: str, b: str | None, message: str) -> None:
    with fake_torch(name) as fake, pytest.raises((RuntimeError, ValueError), match=message):
        product(fake, a, b)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("h200", {"shape": (16, 32, 24)}, r"divisible by 16 but got mat1 shape: \(16x24\)"),
        ("h200", {"shape": (16, 24, 64)}, r"mat2 shape \(64x24\) must be divisible by 16"),
        ("mi300x", {"scale_a_shape": (16, 1)}, "Invalid scaling configuration"),
        (
            "mi300x",
            {"scale_a_shape": (16, 1), "scale_b_shape": (1, 32), "out": real.float32},
            "rowwise _scaled_mm only supports BFloat16 output",
        ),
        ("b200", {"scale_a_shape": (16, 2), "scale_b_shape": (2, 32), "shape": (16, 32, 256)}, "CUBLAS_STATUS_NOT_SUPPORTED"),
        ("mi300x", {"scale_a_shape": (16, 2), "scale_b_shape": (2, 32), "shape": (16, 32, 256)}, "could not find valid hipblaslt solution"),
    ],
)
def test_shapes_scales_and_outputs_a_device_does_not_take_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with fake_torch(name) as fake, pytest.raises((RuntimeError, ValueError), match=message):
        product(fake, "float8_e4m3fnuz" if name == "mi300x" else "float8_e4m3fn", **options)


def test_a_row_major_second_operand_is_refused_on_hopper_only() -> None:
    for name, refused in (("h200", True), ("b200", False)):
        with fake_torch(name) as fake:
            a, one = fake.ones(16, 16, device="cuda").to(fake.float8_e4m3fn), fake.ones((), device="cuda")
            if refused:
                with pytest.raises(RuntimeError, match="row-major and column-major"):
                    fake._scaled_mm(a, a, one, one, out_dtype=fake.bfloat16)
            else:
                assert fake._scaled_mm(a, a, one, one, out_dtype=fake.bfloat16)[0, 0] == 16


def test_older_rocm_refuses_ocp_formats_that_newer_takes() -> None:
    with (
        fake_torch("rx-9070-xt", hip="6.4.43480") as fake,
        pytest.raises(RuntimeError, match=r"Float8_e4m3fn is only supported for ROCm 6.5"),
    ):
        product(fake, "float8_e4m3fn")


@pytest.mark.parametrize("name", ["h200", "mi355x"])
def test_a_bias_follows_the_output_format(name: str) -> None:
    with fake_torch(name) as fake:
        bias = fake.ones(32, device="cuda", dtype=fake.float16)
        with pytest.raises(RuntimeError, match="Bias must be BFloat16 to compute BFloat16 output, but got Half"):
            product(fake, "float8_e4m3fn", bias=bias)
        with pytest.raises(RuntimeError, match="Bias is not supported when out_dtype is set to Float32"):
            product(fake, "float8_e4m3fn", out=fake.float32, bias=bias)


def test_wide_outputs_of_16_bit_products_exist_on_cuda_builds_and_can_be_allowed_on_rocm() -> None:
    for name, options, works in (("h200", {}, True), ("mi300x", {}, False), ("mi300x", {"takes_out_dtype": True}, True)):
        with fake_torch(name, **options) as fake:  # type: ignore[arg-type]
            a = fake.ones(4, 4, device="cuda", dtype=fake.bfloat16)
            if works:
                assert fake.mm(a, a, out_dtype=fake.float32).dtype == fake.float32
            else:
                with pytest.raises(RuntimeError, match="out_dtype is not available"):
                    fake.mm(a, a, out_dtype=fake.float32)
            with pytest.raises(RuntimeError):
                fake.mm(a, a, out_dtype=fake.float16)


def test_what_cannot_be_imitated_says_so() -> None:
    with fake_torch("mi355x") as fake:
        a = fake.ones(32, 128, device="cuda").to(fake.float8_e4m3fn)
        scale = fake.ones(128 * 4, device="cuda").to(fake.float8_e8m0fnu)
        with pytest.raises(NotImplementedError, match="no arithmetic for scales"):
            fake._scaled_mm(a, a.t(), scale, scale, out_dtype=fake.bfloat16)
        with pytest.raises(NotImplementedError, match="no random numbers"):
            fake.Generator(device="cuda")


def test_events_streams_and_memory_calls_exist() -> None:
    with fake_torch("mi300x") as fake:
        start, end = fake.cuda.Event(enable_timing=True), fake.cuda.Event(enable_timing=True)
        with fake.cuda.stream(fake.cuda.Stream()):
            start.record()
            end.record(fake.cuda.current_stream())
        fake.cuda.synchronize()
        assert start.elapsed_time(end) > 0
        assert end.query()
        with pytest.raises(ValueError, match="enable_timing=True"):
            fake.cuda.Event().elapsed_time(end)
        fake.cuda.empty_cache()
        assert fake.cuda.mem_get_info()[1] == device_record("mi300x")["properties"]["total_memory"]


def test_tf32_and_bf16_support_follow_the_vendor() -> None:
    expected = {
        "v100-sxm2-16gb": (False, False),
        "a100-sxm4-80gb": (True, True),
        "mi250x": (False, True),
        "mi300x": (True, True),
        "mi355x": (True, True),
    }
    for name, (tf32, bf16) in expected.items():
        with fake_torch(name) as fake:
            assert (fake.cuda.is_tf32_supported(), fake.cuda.is_bf16_supported()) == (tf32, bf16), name
