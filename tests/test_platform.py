"""The platform record: every recorded device, vendors, labels, holes."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from support_fake_torch import device_names, device_record, fake_torch

from accuracy_eval.backends import driver, platform
from accuracy_eval.json_data import to_json

EMPTY = Path("/nonexistent")


def detected(
    name: str, device: str = "cuda:0", root: Path = EMPTY, environ: dict[str, str] | None = None, **options: Any
) -> dict[str, Any]:
    with fake_torch(name, **options) as fake:
        return platform.detect(fake, device, root=root, environ=environ or {})


# device: arch, capability, unit, fp8 encoding, TF32, label; from the vendors' tables
EXPECTED = {
    "mi100": ("gfx908", "9.0", "cdna1", None, "none", "mi100"),
    "mi210": ("gfx90a", "9.0", "cdna2", None, "none", "mi210"),
    "mi250": ("gfx90a", "9.0", "cdna2", None, "none", "mi250-mcm-oam-ac-mba"),
    "mi250x": ("gfx90a", "9.0", "cdna2", None, "none", "mi250x"),
    "mi250x-or-mi250": ("gfx90a", "9.0", "cdna2", None, "none", "mi250x-mi250"),
    "mi300a": ("gfx942", "9.4", "cdna3", "fnuz", "truncating", "mi300a"),
    "mi300a-xnack": ("gfx942", "9.4", "cdna3", "fnuz", "truncating", "mi300a"),
    "mi300x": ("gfx942", "9.4", "cdna3", "fnuz", "truncating", "mi300x"),
    "mi300x-vf": ("gfx942", "9.4", "cdna3", "fnuz", "truncating", "mi300x-vf"),
    "mi300x-hf": ("gfx942", "9.4", "cdna3", "fnuz", "truncating", "mi300x-hf"),
    "mi308x": ("gfx942", "9.4", "cdna3", "fnuz", "truncating", "mi308x"),
    "mi308x-cpx": ("gfx942", "9.4", "cdna3", "fnuz", "truncating", "mi308x"),
    "mi325x": ("gfx942", "9.4", "cdna3", "fnuz", "truncating", "mi325x"),
    "mi350x": ("gfx950", "9.5", "cdna4", "ocp", "emulated", "mi350x"),
    "mi350x-vf": ("gfx950", "9.5", "cdna4", "ocp", "emulated", "mi350x-vf"),
    "mi355x": ("gfx950", "9.5", "cdna4", "ocp", "emulated", "mi355x"),
    "rx-7900-xtx": ("gfx1100", "11.0", "rdna3", None, "none", "rx-7900-xtx"),
    "w7900": ("gfx1100", "11.0", "rdna3", None, "none", "pro-w7900"),
    "rx-9070-xt": ("gfx1201", "12.0", "rdna4", "ocp", "none", "rx-9070-xt"),
    "radeon-graphics-gfx1103": ("gfx1103", "11.0", "rdna3", None, "none", "radeon-graphics-gfx1103"),
    "radeon-8060s": ("gfx1151", "11.5", "rdna3", None, "none", "radeon-8060s-graphics"),
    "radeon-780m": ("gfx1103", "11.0", "rdna3", None, "none", "radeon-780m-graphics"),
    "v100-sxm2-16gb": ("sm_70", "7.0", "volta", None, "none", "v100-sxm2-16gb"),
    "a100-sxm4-80gb": ("sm_80", "8.0", "ampere", None, "native", "a100-sxm4-80gb"),
    "a100-sxm4-40gb": ("sm_80", "8.0", "ampere", None, "native", "a100-sxm4-40gb"),
    "a100-pcie-40gb": ("sm_80", "8.0", "ampere", None, "native", "a100-pcie-40gb"),
    "a100-mig-1g-10gb": ("sm_80", "8.0", "ampere", None, "native", "a100-80gb-pcie-mig-1g-10gb"),
    "l40s": ("sm_89", "8.9", "ada", "ocp", "native", "l40s"),
    "rtx-4090": ("sm_89", "8.9", "ada", "ocp", "native", "rtx-4090"),
    "h100-sxm": ("sm_90", "9.0", "hopper", "ocp", "native", "h100-80gb-hbm3"),
    "h100-pcie": ("sm_90", "9.0", "hopper", "ocp", "native", "h100-pcie"),
    "h20": ("sm_90", "9.0", "hopper", "ocp", "native", "h20"),
    "h200": ("sm_90", "9.0", "hopper", "ocp", "native", "h200"),
    "gh200": ("sm_90", "9.0", "hopper", "ocp", "native", "gh200-480gb"),
    "b200": ("sm_100", "10.0", "blackwell", "ocp", "native", "b200"),
    "rtx-5090": ("sm_120", "12.0", "blackwell", "ocp", "native", "rtx-5090"),
    "rtx-5080": ("sm_120", "12.0", "blackwell", "ocp", "native", "rtx-5080"),
}


def test_every_recorded_device_has_an_expectation_here() -> None:
    assert sorted(EXPECTED) == device_names()


@pytest.mark.parametrize("name", device_names())
def test_a_recorded_device_is_detected_as_what_it_is(name: str) -> None:
    found = detected(name)
    shown = tuple(found[key] for key in ("arch", "capability", "unit", "fp8_encoding", "matrix_tf32", "label"))
    assert shown == EXPECTED[name]
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
    for field, attribute in (
        ("multi_processor_count", "multi_processor_count"),
        ("total_memory_bytes", "total_memory"),
        ("l2_cache_bytes", "L2_cache_size"),
    ):
        assert found[field] == properties.get(attribute)


def test_gfx90a_and_sm_90_share_a_capability_and_nothing_else() -> None:
    amd, nvidia = detected("mi250x"), detected("h100-sxm")
    assert amd["capability"] == nvidia["capability"] == "9.0"
    assert (amd["vendor"], amd["unit"], amd["fp8_encoding"]) == ("amd", "cdna2", None)
    assert (nvidia["vendor"], nvidia["unit"], nvidia["fp8_encoding"]) == ("nvidia", "hopper", "ocp")


@pytest.mark.parametrize("name", ["NVIDIA H100", "", "Some Virtual Display"])
def test_a_misleading_or_empty_name_changes_neither_vendor_nor_architecture(name: str) -> None:
    with fake_torch("mi300x") as fake:
        fake.cuda.get_device_properties("cuda:0").name = name
        found = platform.detect(fake, "cuda:0", root=EMPTY, environ={})
    assert (found["vendor"], found["arch"], found["unit"]) == ("amd", "gfx942", "cdna3")


def test_architecture_suffixes_are_kept_apart_from_the_architecture() -> None:
    found = detected("mi300a-xnack")
    assert (found["arch"], found["arch_full"]) == ("gfx942", "gfx942:sramecc+:xnack+")


def test_a_cuda_build_that_mirrors_the_name_into_gcn_arch_name_is_not_misread() -> None:
    assert device_record("h200")["properties"]["gcnArchName"] == "NVIDIA H200"
    assert detected("h200")["arch_full"] == "sm_90"


def test_amd_fields_are_null_on_nvidia_and_the_other_way_round() -> None:
    amd, nvidia = detected("mi300x"), detected("h200")
    assert amd["mig"] is None
    assert amd["cudnn_version"] is None
    assert amd["miopen_version"] is not None
    assert nvidia["arch_spoofed"] is None
    assert nvidia["miopen_version"] is None
    assert nvidia["mig"] is False


def test_a_mig_slice_is_seen() -> None:
    assert detected("a100-mig-1g-10gb")["mig"] is True


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
    assert platform.uuid_text(printed, vendor) == expected


def test_pci_address_comes_from_the_three_numbers() -> None:
    with fake_torch("mi300x") as fake:
        properties = fake.cuda.get_device_properties(0)
        properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id = 1, 0xC1, 0
        found = platform.detect(fake, "cuda:0", root=EMPTY, environ={})
    assert found["pci"] == "0001:c1:00.0"


def test_an_overridden_instruction_set_is_flagged() -> None:
    found = detected("rx-7900-xtx", environ={"HSA_OVERRIDE_GFX_VERSION": "11.0.0"})
    assert (found["arch_override"], found["arch_spoofed"]) == ("11.0.0", True)
    assert detected("rx-7900-xtx")["arch_spoofed"] is False


def kfd(root: Path, node: int, **properties: int) -> None:
    folder = root / f"sys/class/kfd/kfd/topology/nodes/{node}"
    folder.mkdir(parents=True)
    (folder / "properties").write_text("".join(f"{name} {value}\n" for name, value in properties.items()))


def test_an_arch_other_than_the_chips_own_is_flagged_without_the_variable(tmp_path: Path) -> None:
    kfd(tmp_path, 0, simd_count=0, gfx_target_version=0)
    kfd(tmp_path, 1, simd_count=32, simd_per_cu=2, gfx_target_version=110003)
    found = detected("rx-7900-xtx", root=tmp_path)
    assert (found["kfd_arch"], found["arch"], found["arch_spoofed"], found["compute_units"]) == ("gfx1103", "gfx1100", True, 16)


def test_the_amd_chip_is_read_from_sysfs_by_pci_address(tmp_path: Path) -> None:
    for node, bus in ((1, 0x05), (2, 0xC1)):
        kfd(
            tmp_path,
            node,
            simd_count=1216,
            simd_per_cu=4,
            gfx_target_version=90402,
            location_id=bus << 8,
            domain=0,
            num_xcc=8,
            device_id=0x74A1,
        )
    device = tmp_path / "sys/bus/pci/devices/0000:c1:00.0"
    device.mkdir(parents=True)
    for name, value in {
        "device": "0x74b5",
        "revision": "0x00",
        "current_compute_partition": "SPX",
        "current_memory_partition": "NPS1",
    }.items():
        (device / name).write_text(value + "\n")
    found = driver.amd_chip(tmp_path, "0000:c1:00.0", None)
    assert found == {
        "kfd_arch": "gfx942", "chip_id": "0x74b5", "chip_revision": "0x00", "compute_units": 304, "compute_dies": 8,
        "compute_partition": "SPX", "memory_partition": "NPS1", "vbios_version": None,
    }  # fmt: skip


def test_two_amd_chips_and_nothing_to_tell_them_apart_give_nulls(tmp_path: Path) -> None:
    kfd(tmp_path, 1, simd_count=4, simd_per_cu=2, gfx_target_version=90402)
    kfd(tmp_path, 2, simd_count=4, simd_per_cu=2, gfx_target_version=90500)
    assert set(driver.amd_chip(tmp_path, None, None).values()) == {None}


def test_the_amd_chip_is_found_by_unique_id_where_there_is_no_pci_address(tmp_path: Path) -> None:
    kfd(tmp_path, 1, simd_count=4, simd_per_cu=2, gfx_target_version=90402, unique_id=0x1111)
    kfd(tmp_path, 2, simd_count=4, simd_per_cu=2, gfx_target_version=90500, unique_id=0xF330DC2A94B71E05)
    assert driver.amd_chip(tmp_path, None, "f330dc2a94b71e05")["kfd_arch"] == "gfx950"


@pytest.mark.parametrize(
    ("version", "name"),
    [(90008, "gfx908"), (90010, "gfx90a"), (90402, "gfx942"), (90500, "gfx950"), (110000, "gfx1100"), (120001, "gfx1201")],
)
def test_a_kfd_version_number_is_its_architecture(version: int, name: str) -> None:
    assert driver.gfx_name(version) == name


def test_amd_driver_and_rocm_release_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("6.14.14\n")
    (tmp_path / "opt/rocm-7.2.0/.info").mkdir(parents=True)
    (tmp_path / "opt/rocm-7.2.0/.info/version").write_text("7.2.0-53211\n")
    found = detected("mi300x", root=tmp_path)
    assert (found["driver_version"], found["rocm_release"]) == ("6.14.14", "7.2.0-53211")


@pytest.mark.parametrize(
    ("line", "version", "flavour"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build  (root@host)  Wed", "580.82.07", "open"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05", "proprietary"),
    ],
)
def test_the_nvidia_driver_version_is_read_from_its_page(tmp_path: Path, line: str, version: str, flavour: str) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(line + "\nGCC version:  gcc version 13.3.0\n")
    found = detected("h200", root=tmp_path)
    assert (found["driver_version"], found["driver_flavour"]) == (version, flavour)


def test_the_nvidia_information_page_is_matched_by_pci_address(tmp_path: Path) -> None:
    for address, vbios in (("0000:01:00.0", "96.00.AA"), ("0000:02:00.0", "96.00.BB")):
        folder = tmp_path / f"proc/driver/nvidia/gpus/{address}"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H200\nVideo BIOS: \t {vbios}\nGPU Firmware: \t 580.82.07\n")
    assert driver.nvidia_chip(tmp_path, "0000:02:00.0") == {"vbios_version": "96.00.BB", "gsp_firmware": "580.82.07"}
    assert driver.nvidia_chip(tmp_path, None) == {"vbios_version": None, "gsp_firmware": None}


def test_nvml_writes_eight_digit_pci_domains() -> None:
    assert driver.normal_pci("00000000:C1:00.0") == driver.normal_pci("0000:c1:00.0") == "0000:c1:00.0"
    assert driver.normal_pci("c1:00.0") is None


class _Smi(types.ModuleType):
    """amdsmi of a virtual machine: some calls raise, some answer 'not available'."""

    closed = False

    def amdsmi_init(self) -> None: ...

    def amdsmi_shut_down(self) -> None:
        self.closed = True

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["first", "second"]

    def amdsmi_get_gpu_device_bdf(self, handle: str) -> str:
        return {"first": "0000:05:00.0", "second": "0000:C1:00.0"}[handle]

    def amdsmi_get_gpu_asic_info(self, handle: str) -> dict[str, Any]:
        return {"market_name": f"AMD Instinct MI300X ({handle})", "num_of_compute_units": 0xFFFFFFFF}

    def amdsmi_get_power_cap_info(self, handle: str) -> dict[str, Any]:
        return {"power_cap": 750_000_000}


def test_amdsmi_is_matched_by_pci_address_and_every_value_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    smi = _Smi("amdsmi")
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    found = driver.amdsmi_facts("0000:c1:00.0")
    assert (found["smi.market_name"], found["smi.power_limit_w"]) == ("AMD Instinct MI300X (second)", 750.0)
    assert found["smi.compute_units"] is None
    assert found["smi.driver"] is None
    assert driver.amdsmi_facts(None) == {}
    assert smi.closed


def test_a_collector_that_raises_leaves_nulls_and_a_reason_and_nothing_else_changes() -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("driver too old\nsecond line")

    with fake_torch("mi300x") as fake:
        fake.cuda._own["tunable"] = types.SimpleNamespace(get_validators=broken, is_enabled=broken, tuning_is_enabled=broken)
        fake.cuda._own["get_arch_list"] = broken
        found = platform.detect(fake, "cuda:0", root=EMPTY, environ={})
    assert found["torch_arch_list"] is None
    assert found["unavailable"]["torch_arch_list"] == "RuntimeError: driver too old"
    assert found["unavailable"]["tunable"] == "RuntimeError: driver too old"
    assert found["unit"] == "cdna3"


@pytest.mark.parametrize("collector", platform.COLLECTORS, ids=lambda c: "+".join(c.fields[:2]))
def test_any_collector_may_fail_without_losing_the_record(collector: platform.Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: platform.Host) -> Any:
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
        where = platform.Host(fake, "cuda:0", Path("/"), {"HIP_X": "1"})
        for collector in platform.COLLECTORS:
            if collector.applies(where):
                for field in collector.collect(where):
                    assert field in collector.fields or field.startswith(tuple(f for f in collector.fields if f.endswith(".")) or "\0"), (
                        field
                    )


def test_tunable_validators_give_the_library_versions_of_rocm() -> None:
    found = detected("mi300x")
    assert found["tunable.HIPBLASLT_VERSION"] == "100200-bf2c3184"
    assert found["tunable.GCN_ARCH_NAME"] == "gfx942:sramecc+:xnack-"


def test_a_second_device_is_asked_by_its_index() -> None:
    assert detected("h200", "cuda:1", count=2)["device"] == "cuda:1"
    absent = detected("h200", "cuda:2", count=2)
    assert absent["arch"] is None
    assert "invalid device ordinal" in absent["unavailable"]["device_name"]


def test_cuda_without_index_is_the_current_device() -> None:
    with fake_torch("h200", count=2) as fake:
        fake.cuda.set_device(1)
        assert platform.Host(fake, "cuda").index == 1


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
