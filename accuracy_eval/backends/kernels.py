"""Which kernels computed a case, and what their names tell: library, tile, instruction, split of k.

The same call may run different kernels on devices of one kind (other library version, tuning, compute units), and a kernel's
tile and split decide the order of its sums, hence its bits. Names are recorded whole; what is parsed from them is a help.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from accuracy_eval.backends.switches import reason


@dataclass(frozen=True)
class Family:
    """Kernels of one library, known by a pattern in their name. `role` is what they do in a product: the product itself ("gemm"),
    a sum over its parts ("reduce"), attention, convolution, or anything else ("other").
    """

    library: str
    role: str
    pattern: re.Pattern[str]


def _family(library: str, role: str, pattern: str) -> Family:
    return Family(library, role, re.compile(pattern))


# The first that matches names the kernel: helpers before products, specific before general.
FAMILIES: tuple[Family, ...] = (
    _family("tensile", "reduce", r"^Cijk_.*_PostGSU"),
    _family("tensile", "gemm", r"^Cijk_"),
    _family("ck", "gemm", r"\bck(_tile)?::.*gemm|_ZN2ck.*gemm"),
    _family("ck", "attention", r"\bck_tile::.*[Ff]mha|fmha_(fwd|bwd)_d\d+"),
    _family("ck", "other", r"\bck(_tile)?::"),
    _family("aotriton", "attention", r"^(attn_fwd|bwd_kernel_|bwd_preprocess|debug_simulate_encoded_softmax)"),
    _family("miopen", "convolution", r"^(miopen|igemm_|naive_conv|gfx\w+_.*conv|Im2[dD2]Col)"),
    _family("rocblas", "gemm", r"^(void )?rocblas_(gemm|gemv|dot)"),
    _family("rocblas", "other", r"^(void )?rocblas_"),
    _family("nvjet", "gemm", r"^nvjet_"),
    _family("cublas", "reduce", r"splitKreduce_kernel|splitK_?[Rr]educe|xmma_gemm\w*_execute_split_k_kernel"),
    _family("cudnn", "attention", r"^cudnn_generated_\w*sdpa|sdpa_\w*flash"),
    _family("cudnn", "convolution", r"cudnn|implicit_convolve|xmma_(fprop|dgrad|wgrad)|winograd"),
    _family("flash", "attention", r"flash_(fwd|bwd)"),
    _family("cutlass", "attention", r"fmha_cutlass|AttentionKernel"),
    _family("xmma", "gemm", r"xmma_gemm"),
    _family("cutlass", "gemm", r"cutlass"),
    _family(
        "cublas", "gemm", r"^(ampere|volta|turing|maxwell|sm\d+)_\w*gemm|gemmSN|gemmk1|^(void )?(gemv|dot_kernel|cublas)|gemvNSP|gemv2"
    ),
    _family("triton", "other", r"^triton_"),
    _family("aten", "other", r"at::native|at_cuda_detail"),
)

_TENSILE_TILE = re.compile(r"_MT(\d+)x(\d+)x(\d+)")
_TENSILE_INSTRUCTION = re.compile(r"_MI(\d+)x(\d+)x(\d+)(?:x(\d+))?(?=_|$)")
_TENSILE_NUMBERS = {"split_k": re.compile(r"_(?:Post)?GSU(\d+)(?=_|$)"), "stream_k": re.compile(r"_SK(\d+)(?=_|$)")}
_ISA = re.compile(r"_ISA(\w+?)(?=_|$)")
_TENSILE_HEAD = re.compile(r"^Cijk_([A-Z][a-z]{2,4})_([A-Z][a-z]{2,4})_([A-Z0-9]+(?:_MX)?)(?=_|$)")
_SM = re.compile(r"(?:^|[^a-z])(?:sm|cutlass_|cutlass3x_sm)(\d{2,3})(?=_|$|[^\d])")
_NVJET = re.compile(r"^nvjet_(?:sm\d+_)?([a-z]+)_(\d+)x(\d+)_(\d+)x(\d+)_(\d+)x(\d+)")
_XMMA_TILE = re.compile(r"_tilesize(\d+)x(\d+)x(\d+)")
_CUTLASS_TILE = re.compile(r"_(\d+)x(\d+)_(\d+)x(\d+)(?=_|$|>)")
_AMPERE_TILE = re.compile(r"_(\d+)x(\d+)(?:_\w*?stages_(\d+)x(\d+))?")
_INSTRUCTION = re.compile(r"_[a-z]*?(884|1688|16816|16832|161616|64x\d+x\d+)(?:tf32)?gemm")
_LAYOUT = re.compile(r"_([nt]{2})(?=_|$|>)|_([NT]{2,3})$")
_GENERATIONS = {"volta": "sm_70", "turing": "sm_75", "ampere": "sm_80"}


def parse_kernel(name: str) -> dict[str, Any]:
    """What a kernel's name tells; keys that it does not tell are absent.

    name · library · role · types (the library's own letters) · blas_layout (column-major BLAS letters) · tile [m, n, k] ·
    instruction [m, n, k(, blocks)] · split_k (parts of k that are summed afterwards; True where
    the name does not say how many) · stream_k (mode) · isa ("gfx942", "sm_90": what the code was made for)
    """
    found: dict[str, Any] = {"name": name}
    family = next((family for family in FAMILIES if family.pattern.search(name)), None)
    found["library"] = family.library if family else "unknown"
    found["role"] = family.role if family else "other"
    if found["library"] == "tensile":
        _parse_tensile(name, found)
    elif found["library"] in ("nvjet", "cutlass", "xmma", "cublas"):
        _parse_nvidia(name, found)
    return found


def _parse_tensile(name: str, found: dict[str, Any]) -> None:
    if head := _TENSILE_HEAD.match(name):
        # Fast index first, l is the summed one; column-major A is [i, l] untransposed, B is [l, j].
        found["blas_layout"] = ("t" if head[1][1] == "l" else "n") + ("n" if head[2][1] == "l" else "t")
        found["types"] = head[3]
    if tile := _TENSILE_TILE.search(name):
        found["tile"] = [int(number) for number in tile.groups()]
    if instruction := _TENSILE_INSTRUCTION.search(name):
        found["instruction"] = [int(number) for number in instruction.groups() if number]
    for key, pattern in _TENSILE_NUMBERS.items():
        if number := pattern.search(name):
            found[key] = int(number[1])
    if isa := _ISA.search(name):
        found["isa"] = "gfx" + isa[1]


def _parse_nvidia(name: str, found: dict[str, Any]) -> None:
    if jet := _NVJET.match(name):
        found["types"] = jet[1]
        found["tile"] = [int(jet[2]), int(jet[3]), int(jet[4])]
    elif tile := _XMMA_TILE.search(name):
        found["tile"] = [int(number) for number in tile.groups()]
    elif tile := _CUTLASS_TILE.search(name):
        found["tile"] = [int(number) for number in tile.groups()[:3]]
    elif (tile := _AMPERE_TILE.search(name)) and found["role"] == "gemm":
        found["tile"] = [int(number) for number in tile.groups()[:3] if number]
    if instruction := _INSTRUCTION.search(name):
        found["instruction"] = _SHAPES.get(instruction[1]) or [int(n) for n in instruction[1].split("x")]
    if layout := _LAYOUT.search(name):
        found["blas_layout"] = (layout[1] or layout[2]).lower()
    if re.search(r"split_?k", name, re.IGNORECASE) and found["role"] == "gemm":
        found["split_k"] = True
    generation = _GENERATIONS.get(name.partition("_")[0])
    if sm := _SM.search(name):
        found["isa"] = f"sm_{sm[1]}"
    elif generation:
        found["isa"] = generation


_SHAPES = {"884": [8, 8, 4], "1688": [16, 8, 8], "16816": [16, 8, 16], "16832": [16, 8, 32], "161616": [16, 16, 16]}


class Recording(list[str]):
    """Kernel names in the order they ran; `reason` says why there are none."""

    def __init__(self, names: list[str] | None = None, reason: str = "") -> None:
        super().__init__(names or [])
        self.reason = reason


_NOT_KERNELS = ("Memcpy", "Memset", "memcpy", "memset", "hipMemcpy", "CopyHostToDevice", "CopyDeviceToHost")


def record_kernels(torch: Any, fn: Callable[[], object]) -> Recording:
    """Run `fn` once under torch's profiler and return the GPU kernels it launched; copies are left out.

    Never raises for the profiler's sake: without a GPU, without the right to profile, or where nothing was seen, the list is
    empty and its `reason` says why (`fn` may then not have run). What `fn` raises is raised.
    """
    if not torch.cuda.is_available():
        return Recording(reason="no GPU: kernels of CPU libraries have no names")
    failure: list[BaseException] = []

    def run() -> None:
        try:
            fn()
            torch.cuda.synchronize()
        except BaseException as error:
            failure.append(error)
            raise

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            profiler = torch.profiler
            with profiler.profile(activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]) as profile:
                run()
            events = [event for event in profile.events() if str(event.device_type).endswith("CUDA")]
    except Exception as error:  # noqa: BLE001 - a profiler that fails must not fail the case
        if failure:
            raise failure[0] from None
        return Recording(reason=f"the profiler failed: {reason(error)}")
    events.sort(key=lambda event: event.time_range.start)
    names = [str(event.name) for event in events if not str(event.name).startswith(_NOT_KERNELS)]
    return Recording(names, "" if names else "the profiler saw no kernel: it may not be permitted here")
