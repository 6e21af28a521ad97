"""Accelerator parts as rows: what an architecture's matrix hardware computes with, and the unit whose arithmetic it has.

`PARTS` is keyed by the architecture string a runtime reports (`gfx942`, `sm_90`), never by a marketing name: names may be
generic ("AMD Radeon Graphics") or altered by virtualisation. Names serve only people who type them: `resolve_unit`.

A *unit* is a matrix unit's arithmetic; several parts share one. Sources: AMD CDNA and RDNA instruction set documents, ROCm
precision tables, CUDA programming guide (arithmetic throughput and compute capability tables).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from accuracy_eval.errors import unknown

Vendor = Literal["amd", "nvidia", "cpu"]
Fp8 = Literal["ocp", "fnuz"]
Tf32 = Literal["native", "truncating", "emulated", "none"]


@dataclass(frozen=True)
class Part:
    """One architecture.

    arch         as the runtime reports it, feature suffixes removed
    unit         canonical id of the matrix unit; "" where there is none
    names        marketing names, lower case without spaces, that `resolve_unit` accepts
    formats      operand formats of the matrix unit
    fp8          encoding of 8-bit floats ("fnuz": bias one higher, NaN only 0x80); None where the unit takes none
    mx           block-scaled formats the unit takes with their scales
    tf32         "native" · "truncating" (native, and inputs are cut, not rounded) · "emulated" (several bfloat16 products) · "none"
    fp64_matrix  whether the unit multiplies float64; None where unknown
    warp         threads that run in lockstep
    """

    arch: str
    vendor: Vendor
    unit: str
    names: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    fp8: Fp8 | None = None
    mx: tuple[str, ...] = ()
    tf32: Tf32 = "none"
    fp64_matrix: bool | None = False
    warp: int = 32
    source: str = ""


_HALF = ("float16",)
_HALVES = ("float16", "bfloat16")
_CDNA = (*_HALVES, "float32", "int8")
_WMMA = (*_HALVES, "int8", "int4")
_AMPERE = (*_HALVES, "tfloat32", "int8")
_ADA = (*_AMPERE, "fp8")
_BLACKWELL = (*_ADA, "fp6", "fp4")
_MX = ("mxfp8", "mxfp6", "mxfp4")
_CUDA = "CUDA programming guide, compute capabilities"

PARTS: dict[str, Part] = {
    part.arch: part
    for part in (
        Part("gfx900", "amd", "", ("vega10", "mi25"), warp=64, source="GCN5 ISA: no matrix instructions"),
        Part("gfx906", "amd", "", ("vega20", "mi50", "mi60"), warp=64, source="GCN5 ISA: dot products only"),
        Part("gfx908", "amd", "cdna1", ("mi100",), _CDNA, warp=64, source="CDNA1 ISA"),
        Part(
            "gfx90a", "amd", "cdna2", ("mi200", "mi210", "mi250", "mi250x"), (*_CDNA, "float64"), fp64_matrix=True, warp=64,
            source="CDNA2 ISA",
        ),
        *(
            Part(
                arch, "amd", "cdna3", names, (*_CDNA, "float64", "fp8", "tfloat32"), fp8="fnuz", tf32="truncating",
                fp64_matrix=True, warp=64, source="CDNA3 ISA",
            )
            for arch, names in (("gfx940", ()), ("gfx941", ()), ("gfx942", ("mi300", "mi300a", "mi300x", "mi308x", "mi325x")))
        ),
        Part(
            "gfx950", "amd", "cdna4", ("mi350", "mi350x", "mi355x"), (*_CDNA, "float64", "fp8", "fp6", "fp4"), fp8="ocp", mx=_MX,
            tf32="emulated", fp64_matrix=True, warp=64, source="CDNA4 ISA; TF32 by hipBLASLt",
        ),
        Part("gfx1030", "amd", "", ("rx6900xt", "rx6800xt", "w6800"), source="RDNA2 ISA: no matrix instructions"),
        *(
            Part(arch, "amd", "rdna3", names, _WMMA, source="RDNA3 ISA")
            for arch, names in (
                ("gfx1100", ("rx7900xtx", "rx7900xt", "w7900", "w7800")),
                ("gfx1101", ("rx7800xt", "rx7700xt", "w7700")),
                ("gfx1102", ("rx7600", "rx7600xt", "w7600")),
                ("gfx1103", ("780m", "760m")),
                ("gfx1150", ("890m",)),
                ("gfx1151", ("8060s", "8050s")),
                ("gfx1152", ("860m",)),
            )
        ),
        *(
            Part(arch, "amd", "rdna4", names, (*_WMMA, "fp8"), fp8="ocp", source="RDNA4 ISA")
            for arch, names in (("gfx1200", ("rx9060xt",)), ("gfx1201", ("rx9070", "rx9070xt", "r9700")))
        ),
        Part(
            "gfx1250", "amd", "gfx1250", (), (*_HALVES, "fp8", "fp6", "fp4"), fp8="ocp", mx=_MX, fp64_matrix=None,
            source="LLVM AMDGPU usage",
        ),
        Part("sm_60", "nvidia", "", ("p100",), source=_CUDA),
        Part("sm_61", "nvidia", "", ("p40", "gtx1080ti"), source=_CUDA),
        Part("sm_70", "nvidia", "volta", ("v100", "titanv"), _HALF, source=_CUDA),
        Part("sm_72", "nvidia", "volta", ("xavier",), (*_HALF, "int8"), source=_CUDA),
        Part("sm_75", "nvidia", "turing", ("t4", "rtx2080ti", "titanrtx"), (*_HALF, "int8"), source=_CUDA),
        Part("sm_80", "nvidia", "ampere", ("a100", "a30", "a800"), (*_AMPERE, "float64"), tf32="native", fp64_matrix=True, source=_CUDA),
        Part("sm_86", "nvidia", "ampere", ("a10", "a40", "a6000", "rtx3090"), _AMPERE, tf32="native", source=_CUDA),
        Part("sm_87", "nvidia", "ampere", ("orin",), _AMPERE, tf32="native", source=_CUDA),
        Part("sm_89", "nvidia", "ada", ("l4", "l40", "l40s", "rtx4090", "rtx4080"), _ADA, fp8="ocp", tf32="native", source=_CUDA),
        Part(
            "sm_90", "nvidia", "hopper", ("h20", "h100", "h200", "h800", "gh200"), (*_ADA, "float64"), fp8="ocp", tf32="native",
            fp64_matrix=True, source=_CUDA,
        ),
        *(
            Part(
                arch, "nvidia", "blackwell", names, _BLACKWELL, fp8="ocp", mx=(*_MX, "nvfp4"), tf32="native", fp64_matrix=fp64,
                source=_CUDA,
            )
            for arch, names, fp64 in (
                ("sm_100", ("b100", "b200", "gb200"), True),
                ("sm_103", ("b300", "gb300"), True),
                ("sm_110", ("thor",), None),
                ("sm_120", ("rtx5090", "rtx5080", "rtxpro6000blackwell"), False),
                ("sm_121", ("gb10",), False),
            )
        ),
    )
}  # fmt: skip

CPU_UNIT = "cpu"  # not a matrix unit: IEEE arithmetic in an order the library chooses


def part_of(arch: str | None) -> Part | None:
    """The row of an architecture string; feature suffixes (`:sramecc+`) are ignored. None where it is not in the table.

    An NVIDIA architecture newer than the table gets a row without a unit: 8-bit floats are OCP from 8.9 on and TF32 is native
    from 8.0 on, whatever the part.
    """
    if not arch:
        return None
    name = arch.split(":")[0].lower()
    if name in PARTS:
        return PARTS[name]
    if match := re.fullmatch(r"sm_(\d+)", name):
        number = int(match[1])
        return Part(name, "nvidia", "", fp8="ocp" if number >= 89 else None, tf32="native" if number >= 80 else "none", fp64_matrix=None)
    return None


def part_named(name: str) -> Part | None:
    """The part a unit's name stands for: the one named (`MI308X`, `sm_120`), else the unit's first on the market; None for the CPU's."""
    unit = resolve_unit(name).partition("/")[0]
    words = _plain(name.strip().removeprefix("model:").partition("/")[0])
    parts = [p for p in PARTS.values() if p.unit == unit]
    exact = [p for p in parts if words in {_plain(p.arch), *map(_plain, p.names)}]
    return next(iter([*exact, *(p for p in parts if p.names), *parts]), None)


@cache
def aliases() -> Mapping[str, str]:
    """Every accepted name of a unit, lower case without separators, to its canonical id."""
    table = {CPU_UNIT: CPU_UNIT}
    for part in PARTS.values():
        if part.unit:
            for name in (part.unit, part.arch, part.arch.replace("sm_", "sm"), part.arch.replace("sm_", "compute"), *part.names):
                table[_plain(name)] = part.unit
    return table


def resolve_unit(name: str) -> str:
    """Canonical unit id of any of its names: `hopper`, `sm_90`, `H200`, `model:hopper`, `NVIDIA H100 80GB HBM3`, `gfx942:sramecc+`.

    An instruction after a slash is kept: `H200/mma.sync` is `hopper/mma.sync`. Raises UsageError for a name that belongs to no unit
    or to several.
    """
    head, _, tail = name.strip().removeprefix("model:").strip().partition("/")
    found = _candidates(head) | _candidates(tail)  # "MI250X/MI250" is one name
    if len(found) != 1 or not _candidates(head):
        raise unknown("unit", name, [*aliases().values(), *aliases()], listed="units")
    unit = found.pop()
    return f"{unit}/{tail}" if tail and not _candidates(tail) else unit


def _candidates(text: str) -> set[str]:
    """Units named by any run of up to four neighbouring words of `text`; the longest runs that name something decide."""
    words = re.findall(r"[a-z0-9]+", text.split(":")[0].lower())
    table = aliases()
    for length in (4, 3, 2, 1):
        found = {table[run] for i in range(len(words) - length + 1) if (run := "".join(words[i : i + length])) in table}
        if found:
            return found
    return set()


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
