"""Numerics switches: set by the case, put back exactly, whatever state they were in."""

from __future__ import annotations

import json
import os
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support_fake_torch import fake_torch

from accuracy_eval.backends import flags, fp32
from accuracy_eval.backends.flags import case_flags
from accuracy_eval.backends.switches import SWITCHES, Switch, read_flags
from accuracy_eval.errors import AccuracyEvalError, UnsupportedCase, UsageError

GET, SET = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter


def visible() -> list[str]:
    """Every precision as torch itself uses it."""
    return [GET(*key) for key in fp32.KEYS]


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    """Each test ends with torch as it found it; a test that leaks a switch fails."""
    before, precision = read_flags(torch), fp32.capture(torch)
    yield
    after = read_flags(torch)
    fp32.restore(torch, precision)
    assert after == before or read_flags(torch) == before, {k: (before[k], after[k]) for k in before if before[k] != after[k]}


def set_precision(value: str) -> Callable[[], None]:
    return lambda: torch.set_float32_matmul_precision(value)


def set_new(backend: str, operation: str, value: str) -> Callable[[], None]:
    return lambda: SET(backend, operation, value)


# what someone may have done before; the last four make the two interfaces contradict each other
PRIOR: dict[str, list[Callable[[], None]]] = {
    "untouched": [],
    "precision medium": [set_precision("medium")],
    "precision high": [set_precision("high")],
    "precision highest": [set_precision("highest")],
    "old matmul on": [lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True)],
    "old cudnn off": [lambda: setattr(torch.backends.cudnn, "allow_tf32", False)],
    "new matmul ieee": [set_new("cuda", "matmul", "ieee")],
    "generic tf32": [set_new("generic", "all", "tf32")],
    "generic ieee, cuda tf32": [set_new("generic", "all", "ieee"), set_new("cuda", "all", "tf32")],
    "new matmul tf32 only": [set_new("cuda", "matmul", "tf32")],
    "old high, new ieee": [set_precision("high"), set_new("cuda", "matmul", "ieee")],
    "cpu bf16 only": [set_new("mkldnn", "matmul", "bf16")],
    "conv ieee only": [set_new("cuda", "conv", "ieee")],
}


@pytest.mark.parametrize("tf32", [False, True], ids=["ieee", "tf32"])
@pytest.mark.parametrize("prior", PRIOR)
def test_a_case_gets_its_precision_from_any_prior_state_and_leaves_that_state(prior: str, tf32: bool) -> None:
    for act in PRIOR[prior]:
        act()
    before, stored = visible(), fp32.capture(torch)
    with case_flags(torch, tf32=tf32):
        assert torch.backends.cuda.matmul.allow_tf32 is tf32
        assert torch.backends.cudnn.allow_tf32 is tf32
        assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")
        assert {GET(*key) for key in fp32.KEYS[3:]} == {"tf32" if tf32 else "ieee"}
    assert visible() == before
    assert fp32.capture(torch) == stored


def test_capture_restores_random_mixtures_of_both_interfaces_exactly() -> None:
    chance = random.Random(20)
    acts: list[Callable[[], None]] = [set_precision(p) for p in ("highest", "high", "medium")]
    acts += [lambda on=on: setattr(torch.backends.cuda.matmul, "allow_tf32", on) for on in (True, False)]  # type: ignore[misc]
    acts += [lambda on=on: setattr(torch.backends.cudnn, "allow_tf32", on) for on in (True, False)]  # type: ignore[misc]
    acts += [set_new(*key, value) for key in fp32.KEYS for value in ("none", "ieee", "tf32")]
    acts += [set_new("mkldnn", operation, "bf16") for operation in ("all", "matmul")]
    for step in range(500):
        chance.choice(acts)()
        before, stored = visible(), fp32.capture(torch)
        assert visible() == before, step
        fp32.apply(torch, tf32=bool(step % 2))
        fp32.restore(torch, stored)
        assert (visible(), fp32.capture(torch)) == (before, stored), step


def test_the_stored_value_is_told_from_the_inherited_one() -> None:
    SET("generic", "all", "tf32")
    assert GET("cuda", "matmul") == "tf32"
    assert dict(fp32.capture(torch).stored)["cuda", "matmul"] == "none"


def test_float32_products_on_the_cpu_are_float32_whatever_was_set() -> None:
    torch.set_float32_matmul_precision("medium")
    a = torch.full((64, 64), 1.0 + 2.0**-20)  # 2^-20 is lost in bfloat16 and in TF32
    with case_flags(torch, tf32=False):
        product = a @ torch.eye(64)
    assert bool((product == a).all())


SIMPLE: dict[str, Any] = {
    "cuda.matmul.allow_fp16_reduced_precision_reduction": [False, False],
    "cuda.matmul.allow_bf16_reduced_precision_reduction": [True, True],
    "cuda.matmul.allow_fp16_accumulation": True,
    "cpu.allow_fp16_reduced_precision_reduction": False,
    "preferred_blas_library": "ck",
    "deterministic_algorithms": [True, True],
    "deterministic.fill_uninitialized_memory": True,
    "cudnn.enabled": False,
    "cudnn.benchmark": True,
    "cudnn.deterministic": True,
    "miopen.immediate": True,
    "mkldnn.deterministic": True,
    "sdp.flash": False,
    "sdp.mem_efficient": False,
    "sdp.math": False,
    "sdp.cudnn": False,
    "sdp.allow_fp16_bf16_reduction_math": True,
    "autocast.cuda": True,
    "autocast.cpu": True,
    "cpu.flush_denormal": True,
}
NEUTRAL: dict[str, Any] = {
    "cuda.matmul.allow_fp16_reduced_precision_reduction": [False, True],
    "cuda.matmul.allow_bf16_reduced_precision_reduction": [False, True],
    "preferred_blas_library": "cublas",
    "deterministic_algorithms": [False, False],
    **dict.fromkeys(("cudnn.enabled", "sdp.flash", "sdp.mem_efficient", "sdp.math", "sdp.cudnn"), True),
}


@pytest.mark.parametrize("name", SIMPLE)
def test_a_case_does_not_inherit_a_switch_and_puts_it_back(name: str) -> None:
    switch = SWITCHES[name]
    assert switch.write is not None
    original = switch.read(torch)
    try:
        switch.write(torch, SIMPLE[name])
        with case_flags(torch, tf32=False):
            assert switch.read(torch) == NEUTRAL.get(name, False)
        assert switch.read(torch) == SIMPLE[name]
    finally:
        switch.write(torch, original)


def test_every_switch_that_can_be_written_is_set_by_a_case() -> None:
    """A switch added without a value for cases would be inherited: here it must be named as one of the few that are covered elsewhere."""
    elsewhere = {"preferred_linalg_library", "preferred_rocm_fa_library", "tunable.enabled"}
    assert {name for name, switch in SWITCHES.items() if switch.write} == set(SIMPLE) | elsewhere


def test_what_a_case_demands_is_what_it_gets() -> None:
    with case_flags(torch, tf32=False, fp16_reduced=True, bf16_reduced=True, fp16_accumulation=True, deterministic=True, sdp="math"):
        found = read_flags(torch)
    assert found["cuda.matmul.allow_fp16_reduced_precision_reduction"] == [True, True]
    assert found["cuda.matmul.allow_bf16_reduced_precision_reduction"] == [True, True]
    assert found["cuda.matmul.allow_fp16_accumulation"] is True
    assert found["deterministic_algorithms"] == [True, False]
    assert found["deterministic.fill_uninitialized_memory"] is False
    assert [found[f"sdp.{kind}"] for kind in ("flash", "mem_efficient", "math", "cudnn")] == [False, False, True, False]


def test_an_exception_in_the_block_climbs_and_everything_is_put_back() -> None:
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.benchmark = True
    with pytest.raises(ZeroDivisionError), case_flags(torch, tf32=False):
        _ = 1 / 0
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark) == ("medium", True)
    torch.backends.cudnn.benchmark = False


def test_cases_may_nest_and_the_inner_one_counts() -> None:
    with case_flags(torch, tf32=True):
        with case_flags(torch, tf32=False):
            assert torch.backends.cuda.matmul.allow_tf32 is False
        assert torch.backends.cuda.matmul.allow_tf32 is True


# reading


def test_every_switch_is_read_and_the_record_is_plain_json() -> None:
    found = read_flags(torch)
    assert set(found) == {*SWITCHES, "readings", "unavailable"}
    assert json.loads(json.dumps(found)) == found
    assert set(found["unavailable"]) == {"tunable.enabled", "tunable.tuning_enabled"}  # a CPU build has no tuning


def test_contradictory_precisions_are_still_read_and_the_way_is_recorded() -> None:
    SET("cuda", "matmul", "tf32")
    SET("mkldnn", "matmul", "bf16")
    with pytest.raises(RuntimeError):
        _ = torch.backends.cuda.matmul.allow_tf32
    found = read_flags(torch)
    assert found["cuda.matmul.allow_tf32"] is True
    assert found["float32_matmul_precision"] == "highest"
    assert set(found["readings"]) == {"float32_matmul_precision", "cuda.matmul.allow_tf32"}
    assert "_get_fp32_precision_getter" in found["readings"]["cuda.matmul.allow_tf32"]


def test_a_switch_that_cannot_be_read_is_null_with_a_reason() -> None:
    found = read_flags(types.SimpleNamespace())
    assert {found[name] for name in SWITCHES} == {None}
    assert set(found["unavailable"]) == set(SWITCHES)
    assert found["unavailable"]["cudnn.enabled"].startswith("AttributeError")


def test_flushed_subnormals_are_seen() -> None:
    if not torch.set_flush_denormal(True):
        pytest.fail("this processor cannot flush subnormals; the test needs one that can")
    try:
        assert read_flags(torch)["cpu.flush_denormal"] is True
        with case_flags(torch, tf32=False):
            assert float(torch.tensor(2.0**-149) * 1) == 2.0**-149
        assert read_flags(torch)["cpu.flush_denormal"] is True
    finally:
        torch.set_flush_denormal(False)


# pinning a library


@pytest.mark.parametrize(
    ("device", "blas", "member"),
    [
        ("mi300x", "hipblaslt", "Cublaslt"),
        ("mi300x", "rocblas", "Cublas"),
        ("mi300x", "ck", "Ck"),
        ("h200", "cublaslt", "Cublaslt"),
        ("h200", "cublas", "Cublas"),
    ],
)
def test_a_pinned_library_is_in_force_in_the_block_and_gone_after_it(device: str, blas: Any, member: str) -> None:
    with fake_torch(device) as fake:
        before = fake.backends.cuda.preferred_blas_library()
        with case_flags(fake, tf32=False, blas=blas, device="cuda:0"):
            assert fake.backends.cuda.preferred_blas_library().name == member
        assert fake.backends.cuda.preferred_blas_library() == before


def test_without_a_pin_the_framework_chooses_again() -> None:
    with fake_torch("mi300x") as fake:
        fake.backends.cuda.preferred_blas_library("ck")
        with case_flags(fake, tf32=False, device="cuda:0"):
            assert fake.backends.cuda.preferred_blas_library().name == "Cublaslt"  # the default on gfx942
        assert fake.backends.cuda.preferred_blas_library().name == "Ck"


@pytest.mark.parametrize(
    ("device", "blas", "where", "message"),
    [
        ("mi100", "hipblaslt", "cuda:0", r"preferred_blas_library did not take: asked for 'cublaslt', found 'cublas'"),
        (
            "rx-9070-xt",
            "ck",
            "cuda:0",
            r"preferred_blas_library could not be set .* to 'ck': RuntimeError: Cannot set preferred blas backend to CK",
        ),
        ("h200", "ck", "cuda:0", r"'ck' exists in ROCm builds of torch only"),
        ("h200", "hipblaslt", "cuda:0", r"'hipblaslt' exists in ROCm builds"),
        ("mi300x", "cublaslt", "cuda:0", r"'cublaslt' does not exist in a ROCm build of torch; name rocblas or hipblaslt"),
        ("h200", "cublaslt", "cpu", r"cannot be pinned for device cpu"),
    ],
)
def test_a_pin_that_cannot_hold_makes_the_case_unsupported(device: str, blas: Any, where: str, message: str) -> None:
    with fake_torch(device) as fake:
        before = read_flags(fake)
        with pytest.raises(UnsupportedCase, match=message), case_flags(fake, tf32=False, blas=blas, device=where):
            pytest.fail("the block must not run")
        assert read_flags(fake) == before


def test_unknown_names_are_refused_with_the_allowed_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown BLAS library 'mkl'; allowed: .*hipblaslt"), case_flags(torch, tf32=False, blas="mkl"):  # type: ignore[arg-type]
        pass
    with pytest.raises(UsageError, match=r"unknown attention implementation 'fast'"), case_flags(torch, tf32=False, sdp="fast"):  # type: ignore[arg-type]
        pass


def test_tuning_is_off_in_a_case_and_back_on_after_it() -> None:
    with fake_torch("mi300x") as fake:
        fake.cuda.tunable.enable(True)
        with case_flags(fake, tf32=False, device="cuda:0"):
            assert fake.cuda.tunable.is_enabled() is False
        assert fake.cuda.tunable.is_enabled() is True


def test_deterministic_products_on_cuda_need_the_workspace_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with fake_torch("h200") as fake:
        with pytest.raises(UnsupportedCase, match=r"CUBLAS_WORKSPACE_CONFIG set to one of :4096:8, :16:8"):
            case_flags(fake, tf32=False, deterministic=True, device="cuda:0").__enter__()
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        with case_flags(fake, tf32=False, deterministic=True, device="cuda:0"):
            assert fake.are_deterministic_algorithms_enabled()
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    with fake_torch("mi300x") as fake, case_flags(fake, tf32=False, deterministic=True, device="cuda:0"):
        assert fake.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


# older releases


@pytest.mark.parametrize(("release", "values"), [("2.8.0", 1), ("2.9.1", 1), ("2.10.0", 2), ("2.13.0", 2)])
@pytest.mark.parametrize("tf32", [False, True], ids=["ieee", "tf32"])
def test_every_supported_release_gets_the_precision_and_keeps_its_state(release: str, values: int, tf32: bool) -> None:
    with fake_torch("h200", version=release) as fake:
        fake.set_float32_matmul_precision("medium")
        fake.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
        with case_flags(fake, tf32=tf32, device="cuda:0"):
            assert fake.backends.cuda.matmul.allow_tf32 is tf32
            assert fake.get_float32_matmul_precision() == ("high" if tf32 else "highest")
            assert fake.backends.cuda.matmul.allow_bf16_reduced_precision_reduction is False
            assert fp32.effective(fake, "cuda", "matmul") == ("tf32" if tf32 else "ieee")
        assert fake.get_float32_matmul_precision() == "medium"
        assert fake.backends.cuda.matmul.allow_bf16_reduced_precision_reduction is True
        reduction = read_flags(fake)["cuda.matmul.allow_bf16_reduced_precision_reduction"]
        assert len(reduction) == values


def test_a_release_before_2_9_stores_no_precision_per_operation() -> None:
    with fake_torch("h200", version="2.8.0") as fake:
        assert not fp32.has_new_settings(fake)
        assert fp32.capture(fake).stored == ()
        fake.set_float32_matmul_precision("medium")
        assert fp32.effective(fake, "mkldnn", "matmul") == "bf16"
        assert fp32.effective(fake, "cuda", "matmul") == "tf32"
        assert fp32.effective(fake, "mkldnn", "conv") == "ieee"


# failures while restoring


def test_a_switch_that_cannot_be_put_back_is_an_error_and_the_others_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Switch("cudnn.benchmark", lambda t: t.backends.cudnn.benchmark, _only_off, "1.0", "sticks")
    monkeypatch.setitem(SWITCHES, "cudnn.benchmark", stuck)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.deterministic = True
    with pytest.raises(AccuracyEvalError, match=r"cudnn.benchmark to True \(RuntimeError: stuck\)"), case_flags(torch, tf32=False):
        pass
    assert torch.backends.cudnn.deterministic is True
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = False


def test_a_failed_restoration_is_noted_on_the_exception_that_climbs(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Switch("cudnn.benchmark", lambda t: t.backends.cudnn.benchmark, _only_off, "1.0", "sticks")
    monkeypatch.setitem(SWITCHES, "cudnn.benchmark", stuck)
    torch.backends.cudnn.benchmark = True
    with pytest.raises(ZeroDivisionError) as caught, case_flags(torch, tf32=False):
        _ = 1 / 0
    assert "not to be trusted" in caught.value.__notes__[0]
    torch.backends.cudnn.benchmark = False


def _only_off(module: Any, value: bool) -> None:
    if value:
        raise RuntimeError("stuck")
    module.backends.cudnn.benchmark = value


# variables that win over switches


@pytest.mark.parametrize(
    ("environ", "tf32", "sentences"),
    [
        ({}, True, []),
        ({"NVIDIA_TF32_OVERRIDE": "0"}, True, ["NVIDIA_TF32_OVERRIDE=0 forbids TF32 in every NVIDIA library"]),
        ({"NVIDIA_TF32_OVERRIDE": "0"}, False, []),
        ({"NVIDIA_TF32_OVERRIDE": "1"}, False, ["NVIDIA_TF32_OVERRIDE=1 forces TF32 in every NVIDIA library"]),
        ({"HIPBLASLT_OVERRIDE_COMPUTE_TYPE_XF32": "0"}, True, ["HIPBLASLT_OVERRIDE_COMPUTE_TYPE_XF32=0 computes TF32 matmul in float32"]),
        ({"HIPBLASLT_OVERRIDE_COMPUTE_TYPE_XF32": "-1"}, True, []),
        ({"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}, False, ["ONEDNN_DEFAULT_FPMATH_MODE lowers the precision of float32 matmul on the CPU"]),
        ({"ONEDNN_DEFAULT_FPMATH_MODE": "strict"}, False, []),
    ],
)
def test_variables_that_overrule_a_case_are_named(environ: dict[str, str], tf32: bool, sentences: list[str]) -> None:
    assert flags.overruled(environ, tf32=tf32) == sentences
