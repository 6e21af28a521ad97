"""Where numbers came from: one flat record of device, driver, libraries, host and settings.

`COLLECTORS` is the one place to add a field. Collectors are independent: one that raises leaves its fields null and its reason in
`platform["unavailable"]`, and the record is written all the same. The vendor is decided by the build (`torch.version.hip`), the
architecture by what the runtime reports; names are recorded, never decided by. Holds no time and no host name.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from accuracy_eval.backends import driver, host, libraries, switches
from accuracy_eval.backends.machine import Machine
from accuracy_eval.parts import CPU_UNIT
from accuracy_eval.version import __version__

Needs = Literal["host", "torch", "gpu", "amd", "nvidia"]


@dataclass(frozen=True)
class Collector:
    """One group of fields that are read together.

    fields   names written; one ending in "." is a prefix for names only known when reading
    needs    where the group exists: elsewhere its fields are null without a reason
    collect  reads them; what it leaves out is null
    """

    fields: tuple[str, ...]
    needs: Needs
    collect: Callable[[Machine], Mapping[str, Any]]

    def applies(self, where: Machine) -> bool:
        match self.needs:
            case "host":
                return True
            case "torch":
                return where.torch is not None
            case "gpu":
                return where.on_gpu
            case vendor:
                return where.on_gpu and where.vendor == vendor


def _identity(w: Machine) -> dict[str, Any]:
    return {"vendor": w.vendor, "device": w.device, "backend": "reference" if w.torch is None else "torch"}


def _name(w: Machine) -> dict[str, Any]:
    return {"device_name": str(w.torch.cuda.get_device_name(w.index)) if w.on_gpu else host.processor(w.root)["cpu_model"]}


def _arch(w: Machine) -> dict[str, Any]:
    if not w.on_gpu:
        return {"arch": host.operating_system(w.root)["machine"]}
    full = w.arch_full
    return {"arch": full.split(":")[0] if full else None, "arch_full": full}


def _capability(w: Machine) -> dict[str, Any]:
    major, minor = w.torch.cuda.get_device_capability(w.index)
    return {"capability": f"{major}.{minor}"}


_PROPERTIES = {
    "multi_processor_count": "multi_processor_count",
    "total_memory_bytes": "total_memory",
    "l2_cache_bytes": "L2_cache_size",
    "warp_size": "warp_size",
    "threads_per_multi_processor": "max_threads_per_multi_processor",
    "shared_memory_per_block_bytes": "shared_memory_per_block",
    "shared_memory_per_multi_processor_bytes": "shared_memory_per_multiprocessor",
    "clock_rate_khz": "clock_rate",
    "memory_clock_rate_khz": "memory_clock_rate",
    "memory_bus_width_bits": "memory_bus_width",
    "integrated": "is_integrated",
}


def _properties(w: Machine) -> dict[str, Any]:
    values = {name: w.shown(attribute) for name, attribute in _PROPERTIES.items()}
    values["integrated"] = None if values["integrated"] is None else bool(values["integrated"])
    return values


def _part(w: Machine) -> dict[str, Any]:
    part = w.part
    if part is None:
        return {"unit": CPU_UNIT if w.vendor == "cpu" else None}
    return {
        "unit": part.unit or None,
        "fp8_encoding": part.fp8,
        "matrix_formats": " ".join(part.formats) or None,
        "matrix_mx": " ".join(part.mx) or None,
        "matrix_tf32": part.tf32,
        "matrix_fp64": part.fp64_matrix,
    }


def _spoofed(w: Machine) -> dict[str, Any]:
    """Whether the runtime was told another instruction set than the chip has: then the arch is what code ran as, not the chip."""
    override = w.environ.get("HSA_OVERRIDE_GFX_VERSION") or None
    kfd = driver.amd_chip(w.root, w.pci, w.uuid)["kfd_arch"]
    reported = (w.arch_full or "").split(":")[0]
    return {"arch_override": override, "arch_spoofed": bool(override) or bool(kfd and reported and kfd != reported)}


def _mig(w: Machine) -> dict[str, Any]:
    return {"mig": " MIG " in f" {w.shown('name') or ''} " or (w.uuid or "").startswith("MIG-")}


def _torch(w: Machine) -> dict[str, Any]:
    version = w.torch.version
    return {
        "torch_version": str(w.torch.__version__),
        "torch_cuda": getattr(version, "cuda", None),
        "torch_hip": getattr(version, "hip", None),
        "torch_rocm": getattr(version, "rocm", None),
        "torch_git": getattr(version, "git_version", None),
        "torch_debug": getattr(version, "debug", None),
    }


def _torch_build(w: Machine) -> dict[str, Any]:
    text = str(w.torch.__config__.show())
    patterns = {
        "torch_mkl": r"Math Kernel Library Version (\S+)",
        "torch_onednn": r"MKL-DNN v(\S+)",
        "torch_blas": r"BLAS_INFO=(\w+)",
        "torch_compiler": r"- ((?:GCC|clang|MSVC) [\d.]+)",
    }
    return {name: match[1] if (match := re.search(pattern, text)) else None for name, pattern in patterns.items()}


def _arch_list(w: Machine) -> dict[str, Any]:
    return {"torch_arch_list": " ".join(w.torch.cuda.get_arch_list()) or None}


def _dnn(w: Machine) -> dict[str, Any]:
    return {"miopen_version" if w.vendor == "amd" else "cudnn_version": w.torch.backends.cudnn.version()}


def _nccl(w: Machine) -> dict[str, Any]:
    version = w.torch.cuda.nccl.version()
    text = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
    return {"rccl_version" if w.vendor == "amd" else "nccl_version": text}


def _tunable(w: Machine) -> dict[str, Any]:
    """The validators of tuned results: on ROCm the one place that tells hipBLASLt's version."""
    return {f"tunable.{entry[0]}": str(entry[1]) for entry in w.torch.cuda.tunable.get_validators()}


def _workspaces(w: Machine) -> dict[str, Any]:
    names = [name for name in ("cublas_workspace_size", "cublaslt_workspace_size") if hasattr(w.torch.backends.cuda, name)]
    return {f"{name}_bytes": int(getattr(w.torch.backends.cuda, name)()) for name in names}


def _torch_threads(w: Machine) -> dict[str, Any]:
    return {"torch_threads": int(w.torch.get_num_threads()), "torch_interop_threads": int(w.torch.get_num_interop_threads())}


def _torch_cpu(w: Machine) -> dict[str, Any]:
    return {"torch_cpu_capability": str(w.torch.backends.cpu.get_cpu_capability())}


def _torch_flags(w: Machine) -> dict[str, Any]:
    """The process's own settings, for the record: cases set theirs."""
    read = switches.read_flags(w.torch)
    return {f"flag.{name}": value for name, value in read.items() if name in switches.SWITCHES and value is not None}


def _prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}{name}": value for name, value in values.items()}


COLLECTORS: tuple[Collector, ...] = (
    Collector(("vendor", "device", "backend"), "host", _identity),
    Collector(("device_name",), "host", _name),
    Collector(("arch", "arch_full"), "host", _arch),
    Collector(("capability",), "gpu", _capability),
    Collector(("unit", "fp8_encoding", "matrix_formats", "matrix_mx", "matrix_tf32", "matrix_fp64"), "host", _part),
    Collector(tuple(_PROPERTIES), "gpu", _properties),
    Collector(("uuid",), "gpu", lambda w: {"uuid": w.uuid}),
    Collector(("pci",), "gpu", lambda w: {"pci": w.pci}),
    Collector(("arch_override", "arch_spoofed"), "amd", _spoofed),
    Collector(("mig",), "nvidia", _mig),
    Collector(("driver_version", "rocm_release"), "amd", lambda w: driver.amd_driver(w.root)),
    Collector(("driver_version", "driver_flavour"), "nvidia", lambda w: driver.nvidia_driver(w.root)),
    Collector(
        ("kfd_arch", "chip_id", "chip_revision", "compute_units", "compute_dies", "compute_partition", "memory_partition", "vbios_version"),
        "amd",
        lambda w: driver.amd_chip(w.root, w.pci, w.uuid),
    ),
    Collector(("vbios_version", "gsp_firmware"), "nvidia", lambda w: driver.nvidia_chip(w.root, w.pci)),
    Collector(("smi.",), "amd", lambda w: driver.amdsmi_facts(w.pci)),
    Collector(("smi.",), "nvidia", lambda w: driver.pynvml_facts(w.pci, w.uuid)),
    Collector(("torch_version", "torch_cuda", "torch_hip", "torch_rocm", "torch_git", "torch_debug"), "torch", _torch),
    Collector(("torch_mkl", "torch_onednn", "torch_blas", "torch_compiler"), "torch", _torch_build),
    Collector(("torch_threads", "torch_interop_threads"), "torch", _torch_threads),
    Collector(("torch_cpu_capability",), "torch", _torch_cpu),
    Collector(("torch_arch_list",), "gpu", _arch_list),
    Collector(("cudnn_version", "miopen_version"), "gpu", _dnn),
    Collector(("nccl_version", "rccl_version"), "gpu", _nccl),
    Collector(("tunable.",), "gpu", _tunable),
    Collector(("cublas_workspace_size_bytes", "cublaslt_workspace_size_bytes"), "gpu", _workspaces),
    Collector(("flag.",), "torch", _torch_flags),
    Collector(("library.",), "host", lambda w: libraries.loaded(w.root, hashes=w.hash_libraries)),
    Collector(("cpu_model", "cpu_vendor", "cpu_isa", "cpu_count"), "host", lambda w: host.processor(w.root)),
    Collector(("numpy_version", "numpy_blas", "numpy_threadpools"), "host", lambda w: host.numpy_build()),
    Collector(("package.",), "host", lambda w: _prefixed("package.", host.packages())),
    Collector(("os", "kernel", "libc", "machine", "python"), "host", lambda w: host.operating_system(w.root)),
    Collector(("hostname_hash",), "host", lambda w: {"hostname_hash": host.hostname_hash()}),
    Collector(("container",), "host", lambda w: {"container": host.container(w.root, w.environ)}),
    Collector(("env.",), "host", lambda w: _prefixed("env.", host.environment(w.environ))),
    Collector(("accuracy_eval_version",), "host", lambda w: {"accuracy_eval_version": __version__}),
    Collector(("accuracy_eval_commit",), "host", lambda w: {"accuracy_eval_commit": host.git_commit(host.checkout())}),
)


def fields() -> tuple[str, ...]:
    """Every field of a record, in order; prefixes end in "."."""
    names = dict.fromkeys(name for collector in COLLECTORS for name in collector.fields)
    return (*names, "label", "unavailable")


def detect(
    torch: Any = None,
    device: str = "cpu",
    *,
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    hash_libraries: bool = False,
) -> dict[str, Any]:
    """The platform record of one device: name → JSON value, null where unknown, `unavailable` {group: reason} where reading failed.

    torch     the module; None describes the host for the numpy backend
    device    "cpu", "cuda", "cuda:1"; ROCm devices are "cuda" too
    root, environ    another file system root and other variables than this process's (recorded machines)
    hash_libraries   also sha256 of the GPU libraries (seconds)
    """
    where = Machine(torch, device if torch is not None else "cpu", root, os.environ if environ is None else environ, hash_libraries)
    values: dict[str, Any] = {name: None for name in fields() if not name.endswith(".")}
    unavailable: dict[str, str] = {}
    for collector in COLLECTORS:
        if not collector.applies(where):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = collector.collect(where)
        except Exception as error:  # noqa: BLE001 - any field may be missing on any machine; the record is written all the same
            unavailable[collector.fields[0].rstrip(".")] = switches.reason(error)
            continue
        prefixes = tuple(name for name in collector.fields if name.endswith("."))
        for name, value in found.items():
            if name in collector.fields or (prefixes and name.startswith(prefixes)):
                values[name] = value
    values["label"] = short_label(values)
    values["unavailable"] = unavailable
    return values


def detect_numpy(*, root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The platform record of this host for the numpy backend: no torch needed or imported."""
    return detect(root=root, environ=environ)


# Words that say who sells it or that it is what it is; what identifies the part stays.
_NOISE = {
    "nvidia", "amd", "ati", "intel", "advanced", "micro", "devices", "inc", "corporation", "instinct", "geforce", "tesla", "quadro",
    "processor", "cpu", "r", "tm", "c", "gen",
}  # fmt: skip
_LABEL_LENGTH = 48


def short_label(platform: Mapping[str, Any]) -> str:
    """A short name for files and columns: `h200`, `mi300x-vf`, `rtx-4090`, `epyc-9654-cpu`.

    Made of a-z, 0-9 and "-", never empty. A name without any digit ("AMD Radeon Graphics") names no part and gets the architecture.
    """
    vendor = platform.get("vendor") or "gpu"
    name = re.sub(r"\((r|tm|c)\)", " ", str(platform.get("device_name") or ""), flags=re.IGNORECASE)
    name = re.sub(r"@.*|\b\d+-core\b|\b\d+(st|nd|rd|th)\b", " ", name, flags=re.IGNORECASE)
    words = [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _NOISE]
    if words[:1] == ["radeon"] and words[1:2] in (["rx"], ["pro"]):
        del words[0]
    arch = re.sub(r"[^a-z0-9]", "", str(platform.get("arch") or "").lower())
    if vendor == "cpu":
        return "-".join([*(words or [arch or "unknown"]), "cpu"])[-_LABEL_LENGTH:].strip("-")
    if not any(character.isdigit() for word in words for character in word):
        words.append(arch or ("gpu" if not words else ""))
    return "-".join(word for word in words if word)[:_LABEL_LENGTH].strip("-")
