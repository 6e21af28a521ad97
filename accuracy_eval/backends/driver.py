"""Facts about a GPU from its kernel driver and vendor tools, without torch: sysfs and procfs, pynvml and amdsmi where installed.

Containers may hide any of it. Functions return what they find; what is absent is None.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)


def normal_pci(address: str) -> str | None:
    """A PCI address as sysfs writes it, `0000:c1:00.0`; None for what is none. NVIDIA tools write the domain with eight digits."""
    match = PCI.fullmatch(address.strip())
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}".lower() if match else None


def read(path: Path) -> str | None:
    """Text of a small file without surrounding space; None where it cannot be read or is empty."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


# AMD


def amd_driver(root: Path) -> dict[str, Any]:
    """driver_version (amdgpu module; None for the one inside the kernel) and rocm_release (of an installed ROCm, if any)."""
    releases = sorted(root.glob("opt/rocm*/.info/version"))
    release = next((text for path in releases if (text := read(path))), None)
    return {"driver_version": read(root / "sys/module/amdgpu/version"), "rocm_release": release}


def amd_chip(root: Path, pci: str | None, uuid: str | None) -> dict[str, Any]:
    """The chip itself, whatever the runtime says of it.

    kfd_arch (from gfx_target_version), chip_id, chip_revision, compute_units, compute_dies, compute_partition, memory_partition,
    vbios_version. The node is found by PCI address, else by unique id, else taken if it is the only GPU.
    """
    node = _kfd_node(root, pci, uuid)
    address = pci or (_kfd_pci(node) if node else None)
    device = root / "sys/bus/pci/devices" / address if address else None
    per_unit = node.get("simd_per_cu", 0) if node else 0
    return {
        "kfd_arch": gfx_name(node["gfx_target_version"]) if node and node.get("gfx_target_version") else None,
        "chip_id": (read(device / "device") if device else None)
        or (f"0x{node['device_id']:04x}" if node and "device_id" in node else None),
        "chip_revision": read(device / "revision") if device else None,
        "compute_units": node["simd_count"] // per_unit if node and per_unit else None,
        "compute_dies": node.get("num_xcc") if node else None,
        "compute_partition": read(device / "current_compute_partition") if device else None,
        "memory_partition": read(device / "current_memory_partition") if device else None,
        "vbios_version": read(device / "vbios_version") if device else None,
    }


def gfx_name(version: int) -> str:
    """Architecture of a KFD gfx_target_version: decimal major·10000 + minor·100 + step; 90010 is gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def kfd_nodes(root: Path) -> Iterator[dict[str, int]]:
    """Properties of every GPU in the kernel's compute topology, in its order."""
    for path in sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"), key=lambda p: int(p.parent.name)):
        properties = {}
        for line in (read(path) or "").splitlines():
            name, _, value = line.partition(" ")
            with contextlib.suppress(ValueError):
                properties[name] = int(value)
        if properties.get("simd_count"):  # a node without SIMDs is a CPU
            yield properties


def _kfd_node(root: Path, pci: str | None, uuid: str | None) -> dict[str, int] | None:
    nodes = list(kfd_nodes(root))
    for node in nodes:
        if pci and _kfd_pci(node) == pci:
            return node
    for node in nodes:
        if uuid and node.get("unique_id") and f"{node['unique_id']:016x}" == uuid.lower():
            return node
    return nodes[0] if len(nodes) == 1 and not pci and not uuid else None


def _kfd_pci(node: dict[str, int]) -> str | None:
    if "location_id" not in node:
        return None
    location = node["location_id"]
    return f"{node.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def amdsmi_facts(pci: str | None) -> dict[str, Any]:
    """smi.* fields of an AMD GPU through amdsmi; empty where it is not installed. Devices are matched by PCI address only."""
    try:
        smi = _import("amdsmi")
    except ImportError:
        return {}
    smi.amdsmi_init()
    try:
        handles = smi.amdsmi_get_processor_handles()
        handle = next((h for h in handles if pci and normal_pci(smi.amdsmi_get_gpu_device_bdf(h)) == pci), None)
        if handle is None:
            return {}
        return _each(
            {
                "smi.market_name": lambda: smi.amdsmi_get_gpu_asic_info(handle)["market_name"],
                "smi.compute_units": lambda: smi.amdsmi_get_gpu_asic_info(handle)["num_of_compute_units"],
                "smi.driver": lambda: smi.amdsmi_get_gpu_driver_info(handle)["driver_version"],
                "smi.vbios": lambda: smi.amdsmi_get_gpu_vbios_info(handle)["version"],
                "smi.power_limit_w": lambda: smi.amdsmi_get_power_cap_info(handle)["power_cap"] / 1e6,
                "smi.compute_partition": lambda: smi.amdsmi_get_gpu_compute_partition(handle),
                "smi.memory_partition": lambda: smi.amdsmi_get_gpu_memory_partition(handle),
                "smi.ecc_uncorrectable": lambda: smi.amdsmi_get_gpu_total_ecc_count(handle)["uncorrectable_count"],
            }
        )
    finally:
        smi.amdsmi_shut_down()


# NVIDIA


def nvidia_driver(root: Path) -> dict[str, Any]:
    """driver_version and driver_flavour ("open" or "proprietary")."""
    text = read(root / "proc/driver/nvidia/version") or ""
    match = re.search(r"Kernel Module\b.*?\s(\d+\.\d+(?:\.\d+)?)", text)
    return {
        "driver_version": match[1] if match else None,
        "driver_flavour": ("open" if "Open Kernel Module" in text else "proprietary") if match else None,
    }


def nvidia_chip(root: Path, pci: str | None) -> dict[str, Any]:
    """vbios_version and gsp_firmware from the driver's page of the GPU."""
    fields: dict[str, str] = {}
    for path in (root / "proc/driver/nvidia/gpus").glob("*/information"):
        if pci and normal_pci(path.parent.name) == pci:
            for line in (read(path) or "").splitlines():
                name, _, value = line.partition(":")
                fields[name.strip()] = value.strip()
    return {"vbios_version": fields.get("Video BIOS"), "gsp_firmware": fields.get("GPU Firmware")}


def pynvml_facts(pci: str | None, uuid: str | None) -> dict[str, Any]:
    """smi.* fields of an NVIDIA GPU through pynvml; empty where it is not installed. Matched by PCI address, else by uuid."""
    try:
        nvml = _import("pynvml")
    except ImportError:
        return {}
    nvml.nvmlInit()
    try:
        if pci:
            handle = nvml.nvmlDeviceGetHandleByPciBusId(pci.encode())
        elif uuid:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        else:
            return {}
        return _each(
            {
                "smi.driver": lambda: nvml.nvmlSystemGetDriverVersion(),
                "smi.vbios": lambda: nvml.nvmlDeviceGetVbiosVersion(handle),
                "smi.mig": lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
                "smi.ecc": lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0]),
                "smi.ecc_uncorrectable": lambda: nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                ),
                "smi.power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
                "smi.max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            }
        )
    finally:
        nvml.nvmlShutdown()


def _import(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pynvml announces its renaming
        return importlib.import_module(name)


def _each(readers: dict[str, Any]) -> dict[str, Any]:
    """Every field on its own: a value the tool has not (virtual machines, consumer cards) is None, like 0xFFFFFFFF, its mark for that."""
    values: dict[str, Any] = {}
    for name, reader in readers.items():
        try:
            value = reader()
        except Exception:  # noqa: BLE001 - each vendor tool has its own exceptions, and a missing value is normal
            value = None
        value = value.decode() if isinstance(value, bytes) else value
        values[name] = None if value in (0xFFFFFFFF, "N/A") else value
    return values
