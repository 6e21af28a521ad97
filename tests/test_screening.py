"""A fleet screened by digests: groups of equals, the odd one out, ties, what is absent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accuracy_eval import store
from accuracy_eval.cases import case_id
from accuracy_eval.cli import run
from accuracy_eval.digests import sha256_codes
from accuracy_eval.errors import UsageError
from accuracy_eval.records import Case, CaseRecord, TensorRecord
from accuracy_eval.screening import screen

CERTIFY = "  a device without another of its kind is screened by exact products: accuracy-eval dump screen --certify -o FILE"
H200 = {"vendor": "nvidia", "arch": "sm_90", "device_name": "NVIDIA H200", "backend": "torch", "torch_version": "2.11",
        "library.cublas.version": "13.1.0", "flag.cuda.matmul.allow_tf32": False, "library.openblas.version": "0.3"}  # fmt: skip


def record(k: int, *values: int, a: int = 0, **fields: Any) -> CaseRecord:
    """A gemm of 1 × 1 × k whose distinct results are `values`, from an operand that is `a`."""
    case = Case("gemm", (("m", 1), ("n", 1), ("k", k)), "nt")
    outputs = [
        TensorRecord("d" if i == 0 else f"d#{i + 1}", "output", "float32", (1, 1), sha256_codes(np.full((1, 1), v, np.uint32)))
        for i, v in enumerate(values)
    ]
    source = TensorRecord("a", "source", "float32", (1, k), sha256_codes(np.full((1, k), a, np.uint32)))
    return CaseRecord(case_id(case), case, "default", fields.pop("status", "done"), tensors=(source, *outputs), **fields)


def dumped(folder: Path, name: str, *records: CaseRecord, **platform: Any) -> str:
    for r in records:
        store.write_part(folder / name, r, {}, info={"suite": "s"}, platform={**H200, **platform})
    return str(folder / name)


def fleet(folder: Path, values: Mapping[str, int]) -> list[str]:
    return [dumped(folder, name, record(1, 10), record(2, value)) for name, value in values.items()]


def test_equal_dumps_agree(tmp_path: Path) -> None:
    found = screen(fleet(tmp_path, {"a": 5, "b": 5, "c": 5}))
    assert (found.agreed, found.odd, found.ties, found.absent, found.exit_code) == (2, (), (), {}, 0)


def test_a_file_does_not_agree_with_itself(tmp_path: Path) -> None:
    (path,) = fleet(tmp_path, {"a": 5})
    (tmp_path / "b").symlink_to(path)
    with pytest.raises(
        UsageError, match="^a and b are the same file .*b, which agrees with itself whatever it holds; give each dump once$"
    ):
        screen([path, tmp_path / "b"])


def test_the_minority_is_named_with_the_case_and_what_else_is_its_own(tmp_path: Path) -> None:
    paths = fleet(tmp_path, {"a": 5, "b": 5})
    paths.append(dumped(tmp_path, "c", record(1, 10), record(2, 6), driver_version="580.1", uuid="GPU-7"))
    found = screen(paths)
    (odd,) = found.odd
    assert (odd.dump, odd.where.case_id, odd.where.tensor) == ("c", record(2, 0).id, "d")
    assert (odd.found, odd.expected) == tuple(sha256_codes(np.full((1, 1), v, np.uint32)) for v in (6, 5))
    assert (odd.agree, odd.of, found.agreed, found.exit_code) == (2, 3, 1, 1)
    assert found.differs == {"c": ("driver_version 580.1 (absent)",)}


def test_several_may_be_odd_in_different_ways(tmp_path: Path) -> None:
    found = screen(fleet(tmp_path, {"a": 5, "b": 6, "c": 5, "d": 7, "e": 5}))
    assert [o.dump for o in found.odd] == ["b", "d"]


@pytest.mark.parametrize("values", [{"a": 5, "b": 6}, {"a": 5, "b": 5, "c": 6, "d": 7}, {"a": 5, "b": 5, "c": 6, "d": 6}])
def test_without_more_than_half_nobody_is_named(tmp_path: Path, values: dict[str, int]) -> None:
    found = screen(fleet(tmp_path, values))
    assert (found.odd, len(found.ties), found.exit_code) == ((), 1, 2)
    assert sum(len(names) for names in found.ties[0].results.values()) == len(values)


@pytest.mark.parametrize(
    "other",
    [
        {"device_name": "NVIDIA H100"},
        {"library.cublas.version": "13.2.0"},
        {"flag.cuda.matmul.allow_tf32": True},
        {"torch_version": "2.12"},
    ],
    ids=lambda d: next(iter(d)),
)
def test_other_parts_libraries_and_flags_are_other_groups(tmp_path: Path, other: dict[str, Any]) -> None:
    found = screen([*fleet(tmp_path, {"a": 5, "b": 5}), dumped(tmp_path, "c", record(1, 10), record(2, 6), **other)])
    assert (found.odd, found.agreed, found.alone, [names for _, names in found.groups]) == ((), 2, 2, [("a", "b"), ("c",)])


def test_a_hosts_own_libraries_do_not_part_gpus(tmp_path: Path) -> None:
    other = {"library.openblas.version": "0.4", "hostname_hash": "x"}
    found = screen([*fleet(tmp_path, {"a": 5, "b": 5}), dumped(tmp_path, "c", record(1, 10), record(2, 6), **other)])
    assert [o.dump for o in found.odd] == ["c"]


def test_other_operands_and_other_kernels_are_not_compared(tmp_path: Path) -> None:
    kernels = {"notes": {"kernels": [{"name": "nvjet_a"}]}}
    paths = [*fleet(tmp_path, {"a": 5, "b": 5}), dumped(tmp_path, "c", record(1, 11, a=1), record(2, 6, **kernels))]
    found = screen(paths)
    assert (found.odd, found.agreed, found.alone, found.absent) == ((), 2, 2, {})


def test_what_ranks_computed_is_compared_under_equal_transport_alone(tmp_path: Path) -> None:
    carried = {"notes": {"transport": "nccl"}}
    versions = {"a": "2.27", "b": "2.27", "c": "2.28", "d": "2.28"}
    paths = [
        dumped(tmp_path, name, record(1, 10), record(2, 5 if version == "2.27" else 6, **carried), nccl_version=version)
        for name, version in versions.items()
    ]
    found = screen(paths)
    assert (found.agreed, found.odd, found.ties) == (3, (), ())  # products whatever NCCL there is, sums under each version
    odd = dumped(tmp_path, "e", record(1, 10), record(2, 6, **carried), nccl_version="2.27")
    assert [(o.dump, o.agree, o.of) for o in screen([*paths, odd]).odd] == [("e", 2, 3)]


def test_repeats_that_differ_on_one_device_make_it_odd(tmp_path: Path) -> None:
    found = screen([*fleet(tmp_path, {"a": 5, "b": 5}), dumped(tmp_path, "c", record(1, 10), record(2, 5, 6))])
    assert [(o.dump, o.found.partition(" results ")[0]) for o in found.odd] == [("c", "2")]


def test_what_a_dump_has_not_is_counted_and_what_raised_is_no_vote(tmp_path: Path) -> None:
    failed = record(2, status="error", reason="RuntimeError: illegal access")
    found = screen([*fleet(tmp_path, {"a": 5, "b": 5}), dumped(tmp_path, "c", record(1, 10), failed)])
    assert (found.agreed, found.absent, found.exit_code) == (2, {"c": 1}, 1)


def test_a_dump_like_no_other_is_named_with_what_sets_it_apart_and_never_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lone = dumped(tmp_path, "c", record(1, 10), record(2, 5), **{"library.cublas.version": "13.2.0"})
    paths = [*fleet(tmp_path, {"a": 5, "b": 5}), lone]
    assert screen(paths).unchecked == ("c",)
    assert run(["screen", *paths]) == 2
    said = capsys.readouterr().out.splitlines()
    assert said[1:3] == [
        "  2 × NVIDIA H200, sm_90, torch 2.11, library.cublas.version 13.1.0: a, b",
        "  1 × NVIDIA H200, sm_90, torch 2.11, library.cublas.version 13.2.0: c",
    ]
    assert said[-2:] == ["not screened, no other of its kind: c", CERTIFY]


def test_a_fleet_of_two_kinds_is_screened_kind_by_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    amd = {"vendor": "amd", "arch": "gfx942", "device_name": "AMD Instinct MI300X"}
    like = [
        dumped(tmp_path, f"m{i}", record(1, 30), record(2, 6), **amd) for i in range(2)
    ]  # unlike the others throughout, like each other
    paths = [*fleet(tmp_path, {"a": 5, "b": 5, "c": 5}), *like]
    assert run(["screen", *paths]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "5 dumps, 4 outputs compared by digest: 4 agree",
        "  3 × NVIDIA H200, sm_90, torch 2.11: a, b, c",
        "  2 × AMD Instinct MI300X, gfx942, torch 2.11: m0, m1",
    ]
    odd = dumped(tmp_path, "m2", record(1, 30), record(2, 5), **amd)  # what H200s have is no excuse
    assert run(["screen", *paths, odd]) == 1
    assert "odd_one_out m2: 1 output differs from what most dumps like it have\n" in capsys.readouterr().out
    assert run(["screen", *paths, odd, dumped(tmp_path, "d", record(1, 10), record(2, 6))]) == 1
    assert capsys.readouterr().out.startswith("7 dumps, 4 outputs compared by digest: 2 agree\n")  # one output is odd among each kind


def test_why_a_dump_was_not_screened_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = fleet(tmp_path, {"a": 5, "b": 5})
    paths.append(dumped(tmp_path, "other", record(1, 10), arch="sm_100"))
    paths.append(dumped(tmp_path, "elsewhere", record(3, 10)))
    paths.append(dumped(tmp_path, "raised", record(2, status="error", reason="RuntimeError: illegal access")))
    assert run(["screen", *paths]) == 2
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "not screened, no other of its kind: other",
        "not screened, no result in common with others of its kind: elsewhere",
        "not screened, without any result: raised",
        CERTIFY,
    ]


def test_a_dump_in_which_everything_raised_never_passes(tmp_path: Path) -> None:
    failed = dumped(tmp_path, "c", record(2, status="error", reason="RuntimeError: illegal access"))
    found = screen([*fleet(tmp_path, {"a": 5, "b": 5}), failed])
    assert (found.agreed, found.unchecked, found.exit_code) == (2, ("c",), 2)


def test_one_dump_alone_passes_by_its_certificates_and_only_by_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certified = dumped(tmp_path, "a", record(1, 10, notes={"certificate": {"runs": 20, "wrong": []}}))
    assert run(["screen", certified]) == 0
    assert "  certified where they were made: 20 runs, none wrong\n" in capsys.readouterr().out
    assert run(["screen", dumped(tmp_path, "b", record(1, 10))]) == 2


def test_nothing_in_common_is_never_an_agreement(tmp_path: Path) -> None:
    found = screen([dumped(tmp_path, "a", record(1, 10)), dumped(tmp_path, "b", record(2, 5))])
    assert (found.agreed, found.alone, found.exit_code) == (0, 2, 2)


def test_the_text_and_the_exit_code_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = fleet(tmp_path, {"a": 5, "b": 5, "c": 6})
    assert run(["screen", *paths, "-q"]) == 1
    assert capsys.readouterr().out == ""
    assert run(["screen", *paths]) == 1
    five, six = (sha256_codes(np.full((1, 1), v, np.uint32))[:12] for v in (5, 6))
    assert capsys.readouterr().out == (
        "3 dumps, 2 outputs compared by digest: 1 agree\n"
        "  3 × NVIDIA H200, sm_90, torch 2.11: a, b, c\n"
        "odd_one_out c: 1 output differs from what most dumps like it have\n"
        f"  {record(2, 0).id} d: {six}; 2 of 3 have {five}\n"
        f"  next, with the codes at hand: accuracy-eval compare {paths[2]} {paths[0]} --case {record(2, 0).id}\n"
    )
    assert run(["screen", *paths, "--json", "--op", "gemm"]) == 1
    assert json.loads(capsys.readouterr().out)["odd"][0]["dump"] == "c"
    assert run(["screen", paths[0], paths[0]]) == 2
    assert "two dumps are called 'a'" in capsys.readouterr().err
