"""The platform record: every recorded device, vendors, labels, holes."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support_fake_torch import device_names, device_record, fake_torch
from support_platform import kfd_node, written

from accuracy_eval.backends import platform
from accuracy_eval.backends.machine import Machine, uuid_text
from accuracy_eval.json_data import to_json

EMPTY = Path("/nonexistent")


def detected(
    name: str,
    device: str = "cuda:0",
    root: Path = EMPTY,
    environ: Mapping[str, str] | None = None,
    change: Callable[[Any], None] = lambda fake: None,
    **options: Any,
) -> dict[str, Any]:
    """The record of a recorded device, after `change` was made to the torch that shows it."""
    with fake_torch(name, **options) as fake:
        change(fake)
        return platform.detect(fake, device, root=root, environ=environ or {})


def fields(found: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(found[name] for name in names)


# from the vendors' tables: capability, unit, fp8 encoding, TF32
ARCHITECTURES = {
    "gfx908": ("9.0", "cdna1", None, "none"),
    "gfx90a": ("9.0", "cdna2", None, "none"),
    "gfx942": ("9.4", "cdna3", "fnuz", "truncating"),
    "gfx950": ("9.5", "cdna4", "ocp", "emulated"),
    "gfx1100": ("11.0", "rdna3", None, "none"),
    "gfx1201": ("12.0", "rdna4", "ocp", "none"),
    "gfx1103": ("11.0", "rdna3", None, "none"),
    "gfx1151": ("11.5", "rdna3", None, "none"),
    "sm_70": ("7.0", "volta", None, "none"),
    "sm_80": ("8.0", "ampere", None, "native"),
    "sm_89": ("8.9", "ada", "ocp", "native"),
    "sm_90": ("9.0", "hopper", "ocp", "native"),
    "sm_100": ("10.0", "blackwell", "ocp", "native"),
    "sm_120": ("12.0", "blackwell", "ocp", "native"),
}
# recorded device: architecture, label
DEVICES = {
    "mi100": ("gfx908", "mi100"),
    "mi210": ("gfx90a", "mi210"),
    "mi250": ("gfx90a", "mi250-mcm-oam-ac-mba"),
    "mi250x": ("gfx90a", "mi250x"),
    "mi250x-or-mi250": ("gfx90a", "mi250x-mi250"),
    "mi300a": ("gfx942", "mi300a"),
    "mi300a-xnack": ("gfx942", "mi300a"),
    "mi300x": ("gfx942", "mi300x"),
    "mi300x-vf": ("gfx942", "mi300x-vf"),
    "mi300x-hf": ("gfx942", "mi300x-hf"),
    "mi308x": ("gfx942", "mi308x"),
    "mi308x-cpx": ("gfx942", "mi308x"),
    "mi325x": ("gfx942", "mi325x"),
    "mi350x": ("gfx950", "mi350x"),
    "mi350x-vf": ("gfx950", "mi350x-vf"),
    "mi355x": ("gfx950", "mi355x"),
    "rx-7900-xtx": ("gfx1100", "rx-7900-xtx"),
    "w7900": ("gfx1100", "pro-w7900"),
    "rx-9070-xt": ("gfx1201", "rx-9070-xt"),
    "radeon-graphics-gfx1103": ("gfx1103", "radeon-graphics-gfx1103"),
    "radeon-8060s": ("gfx1151", "radeon-8060s-graphics"),
    "radeon-780m": ("gfx1103", "radeon-780m-graphics"),
    "v100-sxm2-16gb": ("sm_70", "v100-sxm2-16gb"),
    "a100-sxm4-80gb": ("sm_80", "a100-sxm4-80gb"),
    "a100-sxm4-40gb": ("sm_80", "a100-sxm4-40gb"),
    "a100-pcie-40gb": ("sm_80", "a100-pcie-40gb"),
    "a100-mig-1g-10gb": ("sm_80", "a100-80gb-pcie-mig-1g-10gb"),
    "l40s": ("sm_89", "l40s"),
    "rtx-4090": ("sm_89", "rtx-4090"),
    "h100-sxm": ("sm_90", "h100-80gb-hbm3"),
    "h100-pcie": ("sm_90", "h100-pcie"),
    "h20": ("sm_90", "h20"),
    "h200": ("sm_90", "h200"),
    "gh200": ("sm_90", "gh200-480gb"),
    "b200": ("sm_100", "b200"),
    "rtx-5090": ("sm_120", "rtx-5090"),
    "rtx-5080": ("sm_120", "rtx-5080"),
}


def test_every_recorded_device_has_an_expectation_here() -> None:
    assert sorted(DEVICES) == device_names()


@pytest.mark.parametrize("name", device_names())
def test_a_recorded_device_is_detected_as_what_it_is(name: str) -> None:
    found = detected(name)
    assert (found["arch"], found["label"]) == DEVICES[name]
    assert fields(found, "capability", "unit", "fp8_encoding", "matrix_tf32") == ARCHITECTURES[found["arch"]]
    assert found["vendor"] == device_record(name)["vendor"]
    assert found["device_name"] == device_record(name)["properties"]["name"]


@pytest.mark.parametrize("name", device_names())
def test_a_record_is_plain_json_and_needs_nothing_of_the_machine(name: str) -> None:
    found = detected(name)
    assert json.loads(json.dumps(to_json(found))) == found
    assert set(found["unavailable"]) == {"library"}  # /proc is the one thing a folder that does not exist cannot give


@pytest.mark.parametrize("name", device_names())
def test_recorded_properties_are_kept_and_absent_ones_are_null(name: str) -> None:
    found, properties = detected(name), device_record(name)["properties"]
    kept = {"multi_processor_count": "multi_processor_count", "total_memory_bytes": "total_memory", "l2_cache_bytes": "L2_cache_size"}
    assert {field: found[field] for field in kept} == {field: properties.get(attribute) for field, attribute in kept.items()}


@pytest.mark.parametrize("name", ["NVIDIA H100", "", "Some Virtual Display"])
def test_a_misleading_or_empty_name_changes_neither_vendor_nor_architecture(name: str) -> None:
    found = detected("mi300x", change=lambda fake: setattr(fake.cuda.get_device_properties(0), "name", name))
    assert fields(found, "vendor", "arch", "unit") == ("amd", "gfx942", "cdna3")


FIELDS = {
    "gfx90a-has-the-capability-of-sm_90": ("mi250x", {"capability": "9.0", "vendor": "amd", "unit": "cdna2", "fp8_encoding": None}),
    "sm_90-has-the-capability-of-gfx90a": ("h100-sxm", {"capability": "9.0", "vendor": "nvidia", "unit": "hopper", "fp8_encoding": "ocp"}),
    "suffixes-are-kept-apart": ("mi300a-xnack", {"arch": "gfx942", "arch_full": "gfx942:sramecc+:xnack+"}),
    "amd-fields-are-null-on-nvidia": ("h200", {"mig": False, "arch_spoofed": None, "miopen_version": None}),
    "nvidia-fields-are-null-on-amd": ("mi300x", {"mig": None, "cudnn_version": None, "miopen_version": 3005000}),
    "tunable-validators-give-library-versions": (
        "mi300x", {"tunable.HIPBLASLT_VERSION": "100200-bf2c3184", "tunable.GCN_ARCH_NAME": "gfx942:sramecc+:xnack-"},
    ),
    "an-architecture-of-its-own": ("rx-7900-xtx", {"arch_spoofed": False}),
    "a-mig-slice": ("a100-mig-1g-10gb", {"mig": True}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), FIELDS.values(), ids=FIELDS)
def test_fields_of_a_recorded_device(name: str, expected: dict[str, Any]) -> None:
    found = detected(name)
    assert {key: found[key] for key in expected} == expected


def test_a_cuda_build_that_mirrors_the_name_into_gcn_arch_name_is_not_misread() -> None:
    assert device_record("h200")["properties"]["gcnArchName"] == "NVIDIA H200"
    assert detected("h200")["arch_full"] == "sm_90"


@pytest.mark.parametrize(
    ("printed", "vendor", "expected"),
    [
        # the characters "f330dc2a94b71e05", 16 of them, printed as hex bytes in uuid grouping
        ("66333330-6463-3261-3934-623731653035", "amd", "f330dc2a94b71e05"),
        ("58580000-0000-0000-0000-000000000000", "amd", None),
        ("1ed7c2a1-9c0e-0c9c-3e1a-5b2f3c4d5e6f", "nvidia", "GPU-1ed7c2a1-9c0e-0c9c-3e1a-5b2f3c4d5e6f"),
        ("GPU-1ed7c2a1-9c0e", "nvidia", "GPU-1ed7c2a1-9c0e"),
        ("not-hex", "amd", "not-hex"),
    ],
)
def test_uuids_read_as_the_vendors_tools_print_them(printed: str, vendor: Any, expected: str | None) -> None:
    assert uuid_text(printed, vendor) == expected


def test_pci_address_comes_from_the_three_numbers() -> None:
    def placed(fake: Any) -> None:
        properties = fake.cuda.get_device_properties(0)
        properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id = 1, 0xC1, 0

    assert detected("mi300x", change=placed)["pci"] == "0001:c1:00.0"


def test_an_overridden_instruction_set_is_flagged() -> None:
    found = detected("rx-7900-xtx", environ={"HSA_OVERRIDE_GFX_VERSION": "11.0.0"})
    assert fields(found, "arch_override", "arch_spoofed") == ("11.0.0", True)


NVRM = "NVRM version: {}\nGCC version:  gcc version 13.3.0\n"
OPEN = "NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build  (root@host)  Wed"
PROPRIETARY = "NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023"


@pytest.mark.parametrize(
    ("name", "files", "expected"),
    [
        (
            "rx-7900-xtx",  # the chip is a gfx1103, which no variable says
            kfd_node(0, simd_count=0, gfx_target_version=0) | kfd_node(1, simd_count=32, simd_per_cu=2, gfx_target_version=110003),
            {"kfd_arch": "gfx1103", "arch": "gfx1100", "arch_spoofed": True, "compute_units": 16},
        ),
        ("mi300x", {"sys/module/amdgpu/version": "6.14.14\n"}, {"driver_version": "6.14.14", "rocm_release": None}),
        ("mi300x", {"opt/rocm-7.2.0/.info/version": "7.2.0-53211\n"}, {"driver_version": None, "rocm_release": "7.2.0-53211"}),
        ("h200", {"proc/driver/nvidia/version": NVRM.format(OPEN)}, {"driver_version": "580.82.07", "driver_flavour": "open"}),
        (
            "h200",
            {"proc/driver/nvidia/version": NVRM.format(PROPRIETARY)},
            {"driver_version": "535.104.05", "driver_flavour": "proprietary"},
        ),
    ],
    ids=["another-chip", "amd-driver", "rocm-release", "open-nvidia-driver", "proprietary-nvidia-driver"],
)
def test_files_of_the_host_fill_fields(tmp_path: Path, name: str, files: dict[str, str], expected: dict[str, Any]) -> None:
    found = detected(name, root=written(tmp_path, files))
    assert {key: found[key] for key in expected} == expected


def test_a_collector_that_raises_leaves_nulls_and_a_reason_and_nothing_else_changes() -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("driver too old\nsecond line")

    def change(fake: Any) -> None:
        fake.cuda._own["tunable"] = types.SimpleNamespace(get_validators=broken, is_enabled=broken, tuning_is_enabled=broken)
        fake.cuda._own["get_arch_list"] = broken

    found = detected("mi300x", change=change)
    assert found["torch_arch_list"] is None
    assert found["unavailable"]["torch_arch_list"] == "RuntimeError: driver too old"
    assert found["unavailable"]["tunable"] == "RuntimeError: driver too old"
    assert found["unit"] == "cdna3"


@pytest.mark.parametrize("collector", platform.COLLECTORS, ids=lambda c: "+".join(c.fields[:2]))
def test_any_collector_may_fail_without_losing_the_record(collector: platform.Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Machine) -> Any:
        raise KeyError("gone")

    spoiled = tuple(platform.Collector(c.fields, c.needs, broken if c is collector else c.collect) for c in platform.COLLECTORS)
    monkeypatch.setattr(platform, "COLLECTORS", spoiled)
    for name in ("mi300x", "h200"):
        found = detected(name)
        assert found["label"]
        assert set(platform.fields()) >= {key for key in found if "." not in key}


@pytest.mark.parametrize("name", ["mi300x", "h200"])
def test_collectors_write_only_the_fields_they_declare(name: str) -> None:
    with fake_torch(name) as fake:
        where = Machine(fake, "cuda:0", Path("/"), {"HIP_X": "1"})
        for collector in platform.COLLECTORS:
            open_ended = tuple(f for f in collector.fields if f.endswith("."))
            if collector.applies(where):
                assert [f for f in collector.collect(where) if f not in collector.fields and not f.startswith(open_ended)] == []


def test_a_second_device_is_asked_by_its_index() -> None:
    assert detected("h200", "cuda:1", count=2)["device"] == "cuda:1"
    absent = detected("h200", "cuda:2", count=2)
    assert absent["arch"] is None
    assert "invalid device ordinal" in absent["unavailable"]["device_name"]


def test_cuda_without_index_is_the_current_device() -> None:
    with fake_torch("h200", count=2) as fake:
        fake.cuda.set_device(1)
        assert Machine(fake, "cuda").index == 1


def test_the_cpu_is_no_matrix_unit_and_has_no_fp8_encoding() -> None:
    found = platform.detect(torch, "cpu")
    assert (found["vendor"], found["unit"], found["fp8_encoding"], found["capability"]) == ("cpu", "cpu", None, None)
    assert found["torch_version"] == torch.__version__
    assert found["torch_cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert found["unavailable"] == {}
    assert found["label"].endswith("-cpu")


def test_the_numpy_record_neither_needs_nor_imports_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from accuracy_eval.backends import platform\n"
        "p = platform.detect_numpy()\n"
        "assert p['vendor'] == 'cpu' and p['backend'] == 'reference' and p['torch_version'] is None, p\n"
        "assert p['numpy_version'] and p['unavailable'] == {}, p\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("vendor", "name", "arch", "label"),
    [
        ("nvidia", "NVIDIA GeForce RTX 4090", "sm_89", "rtx-4090"),
        ("nvidia", "Tesla V100-SXM2-16GB", "sm_70", "v100-sxm2-16gb"),
        ("nvidia", "NVIDIA Graphics Device", "sm_100", "graphics-device-sm100"),
        ("nvidia", "H200", "sm_90", "h200"),
        ("nvidia", "", "sm_90", "sm90"),
        ("nvidia", None, None, "gpu"),
        ("amd", "AMD Instinct MI300X VF", "gfx942", "mi300x-vf"),
        ("amd", "AMD Radeon Graphics", "gfx1103", "radeon-graphics-gfx1103"),
        ("amd", "AMD Radeon(TM) 8060S Graphics", "gfx1151", "radeon-8060s-graphics"),
        ("amd", "AMD Radeon PRO W7900", "gfx1100", "pro-w7900"),
        ("amd", "MI250X/MI250", "gfx90a", "mi250x-mi250"),
        ("amd", "../../etc/passwd", "gfx942", "etc-passwd-gfx942"),
        ("amd", "名前", "gfx942", "gfx942"),
        ("cpu", "AMD EPYC 9654 96-Core Processor", "x86_64", "epyc-9654-cpu"),
        ("cpu", "AMD EPYC", "x86_64", "epyc-cpu"),
        ("cpu", "Intel(R) Xeon(R) Platinum 8480C", "x86_64", "xeon-platinum-8480c-cpu"),
        ("cpu", "13th Gen Intel(R) Core(TM) i7-13700K @ 3.40GHz", "x86_64", "core-i7-13700k-cpu"),
        ("cpu", None, "aarch64", "aarch64-cpu"),
        ("cpu", "", "", "unknown-cpu"),
    ],
)
def test_labels_survive_odd_names(vendor: str, name: str | None, arch: str | None, label: str) -> None:
    assert platform.short_label({"vendor": vendor, "device_name": name, "arch": arch}) == label


def test_a_very_long_name_gives_a_bounded_label() -> None:
    label = platform.short_label({"vendor": "nvidia", "device_name": "x" * 40 + " 1" * 40, "arch": "sm_90"})
    assert len(label) <= 48
    assert not label.endswith("-")


def test_the_label_of_nothing_is_not_empty() -> None:
    assert platform.short_label({}) == "gpu"
