"""The table of parts and the names of units."""

from __future__ import annotations

import pytest
from support_fake_torch import device_names, device_record

from accuracy_eval.errors import UsageError
from accuracy_eval.parts import PARTS, aliases, part_of, resolve_unit


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("hopper", "hopper"),
        ("sm_90", "hopper"),
        ("SM90", "hopper"),
        ("H100", "hopper"),
        ("H200", "hopper"),
        ("model:hopper", "hopper"),
        ("model:sm_90", "hopper"),
        ("NVIDIA H100 80GB HBM3", "hopper"),
        ("hopper/mma.sync", "hopper/mma.sync"),
        ("H200/mma.sync", "hopper/mma.sync"),
        ("gfx942", "cdna3"),
        ("gfx942:sramecc+:xnack-", "cdna3"),
        ("cdna3", "cdna3"),
        ("CDNA 3", "cdna3"),
        ("MI300X", "cdna3"),
        ("AMD Instinct MI300X VF", "cdna3"),
        ("mi355x", "cdna4"),
        ("MI250X/MI250", "cdna2"),
        ("AMD Instinct MI250X/MI250", "cdna2"),
        ("RX 7900 XTX", "rdna3"),
        ("RTX 4090", "ada"),
        ("rtx-4090", "ada"),
        ("NVIDIA A100-SXM4-80GB", "ampere"),
        ("Tesla V100-SXM2-16GB", "volta"),
        ("cpu", "cpu"),
    ],
)
def test_every_way_to_name_a_unit_resolves(name: str, unit: str) -> None:
    assert resolve_unit(name) == unit


@pytest.mark.parametrize("name", ["", "model:", "h9000", "gpu", "AMD Radeon Graphics", "sm_61", "hopper or cdna3", "mma.sync", "/hopper"])
def test_a_name_of_no_unit_or_of_several_is_refused_with_the_allowed_ones(name: str) -> None:
    with pytest.raises(UsageError, match=r"unknown unit .*allowed: .*(cdna3.*hopper|hopper.*cdna3).* more: accuracy-eval list units"):
        resolve_unit(name)


@pytest.mark.parametrize("part", PARTS.values(), ids=lambda part: part.arch)
def test_no_name_belongs_to_two_units(part: object) -> None:
    table = aliases()
    row = PARTS[part.arch]  # type: ignore[attr-defined]
    for name in (row.unit, row.arch, *row.names):
        if row.unit:
            assert table[name.replace("_", "")] == row.unit
            assert resolve_unit(name) == row.unit


@pytest.mark.parametrize("part", PARTS.values(), ids=lambda part: part.arch)
def test_a_part_is_consistent_with_itself(part: object) -> None:
    row = PARTS[part.arch]  # type: ignore[attr-defined]
    assert row.source
    assert (row.vendor == "amd") == row.arch.startswith("gfx")
    assert ("fp8" in row.formats) == (row.fp8 is not None)
    assert bool(row.unit) == bool(row.formats)
    assert (row.fp64_matrix is True) <= ("float64" in row.formats or row.unit in ("blackwell",))
    assert (row.tf32 in ("native", "truncating")) == ("tfloat32" in row.formats)


@pytest.mark.parametrize("name", device_names())
def test_warp_sizes_agree_with_recorded_devices(name: str) -> None:
    properties = device_record(name)["properties"]
    arch = properties["gcnArchName"] if device_record(name)["vendor"] == "amd" else f"sm_{properties['major']}{properties['minor']}"
    part = part_of(arch)
    assert part is not None
    assert part.warp == properties["warp_size"]


@pytest.mark.parametrize(
    ("arch", "fp8", "tf32"), [("sm_88", None, "native"), ("sm_95", "ocp", "native"), ("sm_130", "ocp", "native"), ("sm_53", None, "none")]
)
def test_an_unknown_nvidia_part_gets_what_its_generation_guarantees_and_no_unit(arch: str, fp8: str | None, tf32: str) -> None:
    part = part_of(arch)
    assert part is not None
    assert (part.fp8, part.tf32, part.unit) == (fp8, tf32, "")


@pytest.mark.parametrize("arch", [None, "", "gfx9999", "x86_64"])
def test_other_unknown_architectures_have_no_part(arch: str | None) -> None:
    assert part_of(arch) is None


def test_only_cdna3_takes_the_fnuz_encoding() -> None:
    assert {part.unit for part in PARTS.values() if part.fp8 == "fnuz"} == {"cdna3"}
