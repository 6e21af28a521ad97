"""The Triton kernels without a GPU: compiled for the parts of both vendors, and run by Triton's interpreter on this CPU.

The interpreter rounds bfloat16 stores towards zero and multiplies it wrongly: bfloat16 is compiled, and read, but not multiplied here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from accuracy_eval.backends import certificate_kernel, triton_gemm
from accuracy_eval.inputs.exact import NOT_AN_INTEGER


@dataclass(frozen=True)
class Part:
    """A GPU as Triton names it, and the instructions that its assembly must hold for 16-bit products and for float32 ones."""

    backend: str
    arch: int | str
    lanes: int
    narrow: str
    single: str

    @property
    def assembly(self) -> str:
        return "ptx" if self.backend == "cuda" else "amdgcn"


PARTS = [
    Part("cuda", 80, 32, r"mma\.sync\S*\.(bf16|f16)\.", r"fma\.rn\.f32"),
    Part("cuda", 90, 32, r"wgmma\.mma_async\S*\.(bf16|f16)\s", r"fma\.rn\.f32"),
    Part("hip", "gfx90a", 64, r"v_mfma_f32_\w+(bf16|f16)", r"v_mfma_f32_\w+f32\b|v_(pk_)?fma"),
    Part("hip", "gfx942", 64, r"v_mfma_f32_\w+(bf16|f16)", r"v_mfma_f32_\w+f32\b|v_(pk_)?fma"),
    Part("hip", "gfx950", 64, r"v_mfma_f32_\w+(bf16|f16)", r"v_mfma_f32_\w+f32\b|v_(pk_)?fma"),
    Part("hip", "gfx1100", 32, r"v_wmma_f32_\w+(bf16|f16)", r"v_(dual_)?fma"),
]
REDUCED = r"tf32|xf32"
by_part = pytest.mark.parametrize("part", PARTS, ids=lambda p: str(p.arch))


def compiled(part: Part, kernel: Any, types: dict[str, str], constants: dict[str, Any]) -> str:
    signature = types | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature, constexprs=constants)
    return str(triton.compile(source, target=GPUTarget(part.backend, part.arch, part.lanes)).asm[part.assembly])


def product(part: Part, element: str) -> str:
    types = dict.fromkeys("xyd", f"*{element}") | dict.fromkeys(["m", "n", "k", "x_row", "x_column", "y_row", "y_column"], "i32")
    tiles = {"tile_m": triton_gemm.TILE_M, "tile_n": triton_gemm.TILE_N, "tile_k": triton_gemm.TILE_K}
    return compiled(part, triton_gemm._kernel, types, {"precise": element == "fp32", **tiles})


@by_part
@pytest.mark.parametrize("element", ["bf16", "fp16"])
def test_16_bit_products_run_on_the_matrix_unit(part: Part, element: str) -> None:
    assert re.search(part.narrow, product(part, element))


@by_part
def test_float32_products_never_run_in_tf32(part: Part) -> None:
    assembly = product(part, "fp32")
    assert re.search(part.single, assembly)
    assert not re.search(REDUCED, assembly)


@by_part
@pytest.mark.parametrize("element", ["bf16", "fp32"])
def test_certificates_compile_to_64_bit_atomics(part: Part, element: str) -> None:
    types = {"d": f"*{element}", "x": "*i32", "w": "*i32", "across": "*i64", "down": "*i64"}
    types |= dict.fromkeys(["m", "n", "row", "column"], "i32")
    fixed = {"per_unit": 0.5, "no_integer": NOT_AN_INTEGER, "wide_x": True, "wide_w": False, "ptx": part.backend == "cuda"}
    tiles = {"tile": certificate_kernel.TILE, "step": certificate_kernel.STEP, "span": certificate_kernel.SPAN}
    assembly = compiled(part, certificate_kernel._kernel, types, fixed | tiles)
    if part.backend == "cuda":  # 64-bit factors would be four instructions an element and sum
        assert assembly.count("mul.wide.s32") >= 2 * certificate_kernel.TILE * certificate_kernel.STEP // (32 * 4)  # 4 warps
    assert re.search(r"(atom|red)\.\S*add\S*\.u64|global_atomic_add(_x2|_u64)", assembly)


def interpreted(body: str) -> str:
    """What `body` prints where kernels are interpreted; Triton decides that when a kernel is defined, so in a process of its own."""
    start = "import os; os.environ['TRITON_INTERPRET'] = '1'\nimport torch\ntorch.manual_seed(7)\n"
    ran = subprocess.run([sys.executable, "-c", start + body], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_products_of_integers_are_exact_at_ragged_shapes_and_any_stride(dtype: str) -> None:
    assert (
        interpreted(f"""
from accuracy_eval.backends import triton_gemm
for m, n, k in (97, 130, 70), (1, 65, 33), (64, 64, 32), (3, 1, 1):
    x, y = (torch.randint(-5, 6, shape).to(torch.{dtype}) for shape in ((k, m), (n, k)))
    d = triton_gemm.multiply(torch, x.T, y.T)
    print(d.dtype, torch.equal(d.double(), x.T.double() @ y.T.double()))
""")
        == f"torch.{dtype} True\n" * 4
    )


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 1.0), ("float16", 0.5), ("bfloat16", 2.0), ("bfloat16", 1.0), ("float32", 0.25)])
def test_certificate_sums_are_those_of_python_integers(dtype: str, unit: float) -> None:
    """Modulo 2^64, of an output that is stored transposed and holds elements that are no multiple of the unit."""
    assert (
        interpreted(f"""
from accuracy_eval.backends import certificate_kernel
from accuracy_eval.inputs.exact import NOT_AN_INTEGER
m, n, unit = 67, 131, {unit}
d = (torch.randint(-90, 91, (n, m)) * unit).to(torch.{dtype}).T
d[66, 130] = 2 ** (11 if d.dtype == torch.float16 else 21) * unit
def sums(d, x, w, wide):
    across, down = torch.full((m,), 3), torch.full((n,), -5)
    certificate_kernel.add_sums(torch, d, across, down, x=x, w=w, wide_x=wide, wide_w=wide, unit=unit, no_integer=NOT_AN_INTEGER)
    return (across - 3).tolist(), (down + 5).tolist()
def wrapped(v):
    return (v + 2**63) % 2**64 - 2**63
ints = [[int(v / unit) for v in row] for row in d.double().tolist()]
for bits in (64, 32):
    x, w = (torch.randint(-2**(bits - 2), 2**(bits - 2), (size,)) for size in (n, m))
    across = [wrapped(sum(v * k for v, k in zip(row, x.tolist()))) for row in ints]
    down = [wrapped(sum(v * k for v, k in zip(column, w.tolist()))) for column in zip(*ints)]
    for stored in (d, d.contiguous()):
        print(sums(stored, x, w, bits == 64) == (across, down), end=" ")
        print(sums(stored, x, None, bits == 64) == (across, [0] * n), sums(stored, None, w, bits == 64) == ([0] * m, down))
""")
        == "True True True\n" * 4
    )


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 1.0), ("float16", 0.5), ("bfloat16", 2.0), ("bfloat16", 1.0), ("float32", 0.25)])
def test_what_is_no_integer_counts_as_a_number_that_no_sum_is(dtype: str, unit: float) -> None:
    """One such element a row and column: its number is what the sum with an odd weight says, as odd weights have an inverse modulo 2^64.

    Subnormal numbers are left out: the interpreter reads those of bfloat16 as zeros.
    """
    printed = interpreted(f"""
from accuracy_eval.backends import certificate_kernel
from accuracy_eval.inputs.exact import NOT_AN_INTEGER
exponents = [-126, -60, *range(-9, 33), 60, 127]  # about the largest sums, the largest integers of float32 and of 31 bits, and the ends
powers = [s * 2.0**e for e in exponents for s in (1, -1, 1.25, -1.5)]
values = torch.tensor([float("inf"), float("-inf"), float("nan"), *powers], dtype=torch.float64).to(torch.{dtype})
size = len(values)
d = torch.diag(values)
x, w = (torch.randint(-2**30, 2**30, (size,)) * 2 + 1 for _ in range(2))
across, down = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64)
fixed = dict(wide_x=False, wide_w=False, unit={unit}, no_integer=NOT_AN_INTEGER)
certificate_kernel.add_sums(torch, d, across, down, x=x, w=w, **fixed)
def quotient(total, weight):
    return (total * pow(weight, -1, 2**64) + 2**63) % 2**64 - 2**63
for value, *sums in zip(values.double().tolist(), zip(across.tolist(), x.tolist()), zip(down.tolist(), w.tolist())):
    print(value / {unit}, *(quotient(*pair) for pair in sums))
""")
    rows = [(float(v), int(a), int(b)) for v, a, b in (line.split() for line in printed.splitlines())]
    assert len(rows) == 3 + 4 * 46
    most = 2**24 if dtype == "float32" else 2**22 - 1
    for value, across, down in rows:
        assert across == down
        if abs(value) <= most and value.is_integer():
            assert across == value
        else:
            assert most <= abs(across) <= 2**31, value
