"""Facts about the host: recorded files in, fields out."""

from __future__ import annotations

import hashlib
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from support_platform import written

from accuracy_eval.backends import host, libraries


def test_the_processor_is_read_from_the_first_entry(tmp_path: Path) -> None:
    name, flags = "model name\t: AMD EPYC 9654 96-Core Processor", "flags\t\t: fpu avx2 fma avx512f amx_tile"
    one = "processor\t: {}\nvendor_id\t: AuthenticAMD\n" + f"{name}\n{flags}\n\n"
    found = host.processor(written(tmp_path, {"proc/cpuinfo": one.format(0) + one.format(1).replace("9654", "0000")}))
    assert found["cpu_model"] == "AMD EPYC 9654 96-Core Processor"
    assert found["cpu_isa"] == "fma avx2 avx512f amx_tile"
    assert found["cpu_count"] >= 1


def test_an_arm_processor_without_model_name_is_named_by_its_numbers(tmp_path: Path) -> None:
    text = "processor\t: 0\nFeatures\t: fp asimd asimdhp sve bf16 i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"
    found = host.processor(written(tmp_path, {"proc/cpuinfo": text}))
    assert (found["cpu_model"], found["cpu_isa"]) == ("arm 0x41:0xd4f", "asimd asimdhp sve bf16 i8mm")


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
        ({"proc/1/cgroup": "0::/kubepods/besteffort/pod1\n"}, {}, "kubernetes"),
        ({"proc/1/cgroup": "0::/init.scope\n"}, {}, None),
        ({"proc/version": "Linux version 4.4.0 (gVisor)", ".dockerenv": ""}, {}, "gvisor"),
    ],
)
def test_containers_leave_signs(tmp_path: Path, files: dict[str, str], environ: dict[str, str], expected: str | None) -> None:
    assert host.container(written(tmp_path, files), environ) == expected


def test_variables_that_change_numbers_are_recorded_and_no_others() -> None:
    found = host.environment(
        {
            "NVIDIA_TF32_OVERRIDE": "0",
            "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
            "HSA_XNACK": "",
            "HOME": "/root",
            "PATH": "/bin",
            "LD_PRELOAD": "x.so",
        }
    )
    assert found == {"HSA_XNACK": "", "LD_PRELOAD": "x.so", "NVIDIA_TF32_OVERRIDE": "0", "TORCHINDUCTOR_MAX_AUTOTUNE": "1"}


@pytest.mark.parametrize(
    "name", ["VLLM_API_KEY", "NVIDIA_NGC_TOKEN", "TORCH_PASSWORD", "AMD_client_secret", "HIP_AUTHORIZATION", "GPU_CREDENTIALS"]
)
def test_secrets_are_never_recorded(name: str) -> None:
    assert host.environment({name: "hunter2"}) == {}


def test_a_password_inside_an_address_is_cut_out() -> None:
    assert host.environment({"TRITON_CACHE_URL": "https://me:hunter2@cache.example/x"}) == {"TRITON_CACHE_URL": "https://cache.example/x"}


def test_the_host_name_is_recorded_as_a_hash_only() -> None:
    assert host.hostname_hash("node17") == hashlib.sha256(b"node17").hexdigest()[:12]


def test_numpy_says_which_blas_it_was_built_with() -> None:
    found = host.numpy_build()
    assert found["numpy_version"] == np.__version__
    assert "blas" in found["numpy_blas"]


def test_thread_pools_are_listed_where_threadpoolctl_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = {"internal_api": "openblas", "version": "0.3.30", "architecture": "Zen", "num_threads": 4}
    monkeypatch.setitem(sys.modules, "threadpoolctl", types.SimpleNamespace(threadpool_info=lambda: [pool]))
    assert host.numpy_build()["numpy_threadpools"] == "openblas 0.3.30 Zen threads 4"


COMMIT = "0123456789abcdef0123456789abcdef01234567"


ON_MAIN = {".git/HEAD": "ref: refs/heads/main\n"}
PACKED = {".git/packed-refs": f"# pack-refs with: peeled\n{COMMIT} refs/heads/main\n{'f' * 40} refs/heads/other\n"}


@pytest.mark.parametrize(
    ("files", "commit"),
    [
        ({}, None),
        (ON_MAIN, None),
        ({".git/HEAD": COMMIT + "\n"}, COMMIT),
        (ON_MAIN | PACKED, COMMIT),
        (ON_MAIN | PACKED | {".git/refs/heads/main": "a" * 40 + "\n"}, "a" * 40),
    ],
    ids=["no-git", "branch-without-commits", "detached-head", "packed-branch", "loose-before-packed"],
)
def test_the_commit_of_a_folder_is_read_from_gits_files(tmp_path: Path, files: dict[str, str], commit: str | None) -> None:
    assert host.git_commit(written(tmp_path, files)) == commit


def test_no_folder_has_no_commit() -> None:
    assert host.git_commit(None) is None


def test_a_linked_worktree_finds_its_branch_in_the_common_folder(tmp_path: Path) -> None:
    linked = "main/.git/worktrees/w"
    files = {f"{linked}/HEAD": "ref: refs/heads/topic\n", f"{linked}/commondir": "../..\n", "main/.git/refs/heads/topic": COMMIT + "\n"}
    root = written(tmp_path, {**files, "w/.git": f"gitdir: {tmp_path}/{linked}\n"})
    assert host.git_commit(root / "w") == COMMIT


def mapped(*paths: str) -> dict[str, str]:
    """Libraries as a process has them in memory."""
    lines = (f"7f0000-7f1000 r-xp 00000000 08:01 42                         {path}\n" for path in paths)
    return {"proc/self/maps": "".join(lines) + "7f-80 rw-p 0 00:00 0\n"}


def test_loaded_libraries_are_found_by_their_mapped_path_and_never_loaded(tmp_path: Path) -> None:
    fake = tmp_path / "torch/lib/libcublasLt.so.13"
    fake.parent.mkdir(parents=True)
    fake.write_bytes(b"not a library")
    files = mapped(str(fake), "/usr/lib/libcublasLtwrong.so", "/opt/rocm/lib/librocblas.so.5.2.70200")
    found = libraries.loaded(written(tmp_path, files), hashes=True)
    assert found["library.cublaslt.version"] is None  # it is not loaded in this process, and asking must not load it
    assert found["library.cublaslt.file"] == "torch/lib/libcublasLt.so.13"
    assert found["library.cublaslt.size_bytes"] == 13
    assert found["library.cublaslt.sha256"] == hashlib.sha256(b"not a library").hexdigest()
    assert found["library.rocblas.size_bytes"] is None
    assert "library.cublas.version" not in found


def test_the_openblas_that_numpy_brought_tells_its_version() -> None:
    assert "OpenBLAS" in libraries.loaded()["library.openblas.version"]


class _Library:
    """A shared library that fills in out-parameters the way the real one does."""

    def __init__(self, **functions: object) -> None:
        self.__dict__.update(functions)


def _fills(*values: int, status: int = 0) -> object:
    def function(*arguments: object) -> int:
        for pointer, value in zip(arguments, values, strict=False):
            pointer._obj.value = value  # type: ignore[attr-defined]
        return status

    return function


def test_library_version_numbers_are_decoded_by_each_librarys_own_rule() -> None:
    def version(kind: int, pointer: object) -> int:
        pointer._obj.value = (13, 1, 0)[kind]  # type: ignore[attr-defined]
        return 0

    def answers(value: int) -> object:
        def function() -> int:
            return value

        return function

    ask = {name: row[1] for name, row in libraries.LIBRARIES.items()}
    assert ask["cublas"](_Library(cublasGetProperty=version)) == "13.1.0"  # type: ignore[misc,arg-type]
    assert ask["cublaslt"](_Library(cublasLtGetVersion=answers(130100))) == "13.1.0"  # type: ignore[misc,arg-type]
    assert ask["cudart"](_Library(cudaRuntimeGetVersion=_fills(12080))) == "12.8"  # type: ignore[misc,arg-type]
    assert ask["cudnn"](_Library(cudnnGetVersion=answers(91002))) == "9.10.2"  # type: ignore[misc,arg-type]
    assert ask["cudnn"](_Library(cudnnGetVersion=answers(8902))) == "8.9.2"  # type: ignore[misc,arg-type]
    assert ask["hip"](_Library(hipRuntimeGetVersion=_fills(70253211))) == "7.2.53211"  # type: ignore[misc,arg-type]
    assert ask["miopen"](_Library(miopenGetVersion=_fills(3, 5, 1))) == "3.5.1"  # type: ignore[misc,arg-type]


def test_a_library_that_answers_with_an_error_raises_and_is_recorded_without_version() -> None:
    with pytest.raises(OSError, match="hipRuntimeGetVersion failed"):
        libraries.LIBRARIES["hip"][1](_Library(hipRuntimeGetVersion=_fills(0, status=1)))  # type: ignore[misc,arg-type]
