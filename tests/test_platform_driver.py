"""Facts that kernel drivers and vendor tools give about a GPU: recorded files in, fields out."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from support_platform import kfd_node, written

from accuracy_eval.backends import driver

MI300X = {"simd_count": 1216, "simd_per_cu": 4, "gfx_target_version": 90402, "num_xcc": 8, "device_id": 0x74A1}


def test_the_amd_chip_is_read_from_sysfs_by_pci_address(tmp_path: Path) -> None:
    device = "sys/bus/pci/devices/0000:c1:00.0"
    root = written(tmp_path, {
        **kfd_node(1, **MI300X, domain=0, location_id=0x05 << 8),
        **kfd_node(2, **MI300X, domain=0, location_id=0xC1 << 8),
        f"{device}/device": "0x74b5\n",
        f"{device}/revision": "0x00\n",
        f"{device}/current_compute_partition": "SPX\n",
        f"{device}/current_memory_partition": "NPS1\n",
    })  # fmt: skip
    assert driver.amd_chip(root, "0000:c1:00.0", None) == {
        "kfd_arch": "gfx942", "chip_id": "0x74b5", "chip_revision": "0x00", "compute_units": 304, "compute_dies": 8,
        "compute_partition": "SPX", "memory_partition": "NPS1", "vbios_version": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pci", "unique_id", "arch"),
    [
        (None, None, None),
        (None, "f330dc2a94b71e05", "gfx950"),
        (None, "0000000000001111", "gfx942"),
        (None, "2222", None),
        ("0000:c2:00.0", None, None),
    ],
)
def test_one_of_two_amd_chips_is_found_by_what_tells_them_apart_or_not_at_all(
    tmp_path: Path, pci: str | None, unique_id: str | None, arch: str | None
) -> None:
    first = kfd_node(1, simd_count=4, simd_per_cu=2, gfx_target_version=90402, unique_id=0x1111)
    second = kfd_node(2, simd_count=4, simd_per_cu=2, gfx_target_version=90500, unique_id=0xF330DC2A94B71E05)
    found = driver.amd_chip(written(tmp_path, first | second), pci, unique_id)
    assert found["kfd_arch"] == arch
    if arch is None:
        assert set(found.values()) == {None}


@pytest.mark.parametrize(
    ("version", "name"),
    [(90008, "gfx908"), (90010, "gfx90a"), (90402, "gfx942"), (90500, "gfx950"), (110000, "gfx1100"), (120001, "gfx1201")],
)
def test_a_kfd_version_number_is_its_architecture(version: int, name: str) -> None:
    assert driver.gfx_name(version) == name


@pytest.mark.parametrize(
    ("pci", "expected"),
    [
        ("0000:02:00.0", {"vbios_version": "96.00.BB", "gsp_firmware": "580.82.07"}),
        (None, {"vbios_version": None, "gsp_firmware": None}),
    ],
)
def test_the_nvidia_information_page_is_matched_by_pci_address(tmp_path: Path, pci: str | None, expected: dict[str, str | None]) -> None:
    page = "Model: \t\t NVIDIA H200\nVideo BIOS: \t {}\nGPU Firmware: \t 580.82.07\n"
    folder = "proc/driver/nvidia/gpus"
    files = {f"{folder}/0000:01:00.0/information": page.format("96.00.AA"), f"{folder}/0000:02:00.0/information": page.format("96.00.BB")}
    assert driver.nvidia_chip(written(tmp_path, files), pci) == expected


@pytest.mark.parametrize(
    ("address", "normal"),
    [("00000000:C1:00.0", "0000:c1:00.0"), ("0000:c1:00.0", "0000:c1:00.0"), ("c1:00.0", None)],
)
def test_pci_addresses_are_written_as_sysfs_writes_them(address: str, normal: str | None) -> None:
    assert driver.normal_pci(address) == normal


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
