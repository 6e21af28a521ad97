"""Other implementations of gemm than the framework's own choice: its libraries pinned, a compiler, a plain Triton kernel, JAX and CuPy.

Each is a row of GEMMS. Those that only multiply two matrices get their gradients as the products that they are, through the same
implementation.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from accuracy_eval.errors import UnsupportedCase
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Case

Multiply = Callable[[Any, Case, Any, Any], Any]  # (torch, case, x [m, k], y [k, n]) -> x·y, on tensors that may be transposed views
Run = Callable[[Any, Case, Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Implementation:
    """One way to compute a gemm; the fields are those of `Candidate`."""

    name: str
    run: Run
    needs: tuple[str, ...] = ()
    switches: Mapping[str, Any] = field(default_factory=dict)
    supports: Callable[[Case, Mapping[str, Any]], str | None] = lambda case, platform: None
    graph_safe: bool = True
    deterministic: bool | None = None

    def applies(self, case: Case) -> bool:
        """Quantised operands go through torch's scaled calls, not through a library's plain product."""
        return not case.recipe


def by_products(multiply: Multiply) -> Run:
    """Forward and gradients of D = op(A)·op(B), each one product, stored in its operand's layout."""

    def run(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
        a = t["a"] if case.layout[0] == "n" else t["a"].t()
        b = t["b"] if case.layout[1] == "n" else t["b"].t()
        if case.direction == "fwd":
            return {"d": multiply(torch, case, a, b)}
        g = t["grad_d"]
        da = multiply(torch, case, g, b.t()) if case.layout[0] == "n" else multiply(torch, case, b, g.t())
        db = multiply(torch, case, a.t(), g) if case.layout[1] == "n" else multiply(torch, case, g.t(), a)
        return {"da": da, "db": db}

    return run


def only(*formats: str) -> Callable[[Case, Mapping[str, Any]], str | None]:
    """A plain product of operands of these formats, stored in the same."""

    def supports(case: Case, platform: Mapping[str, Any]) -> str | None:
        if case.format not in formats:
            return f"takes {', '.join(formats)}; the operands are {case.format}"
        if case.options or case.out_format:
            return "a plain product: no alpha, beta, bias or other output format"
        return None

    return supports


def _default(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    return get_op("gemm").torch(torch, case, t, out)


@functools.cache
def _compiled(torch: Any) -> Any:
    return torch.compile(lambda x, y: x @ y, dynamic=False, fullgraph=True)


def _inductor(torch: Any, case: Case, x: Any, y: Any) -> Any:
    """Compiled for these shapes; without the limit on compilations, after which the compiler would quietly run the eager product."""
    with torch._dynamo.config.patch(recompile_limit=1 << 16, fail_on_recompile_limit_hit=True):
        return _compiled(torch)(x, y)


def _triton(torch: Any, case: Case, x: Any, y: Any) -> Any:
    from accuracy_eval.backends import triton_gemm

    return triton_gemm.multiply(torch, x, y)


def _jax(torch: Any, case: Case, x: Any, y: Any) -> Any:
    """XLA's product of the same memory. Highest precision: float32 operands are multiplied as float32."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or its first use takes three quarters of the GPU's memory
    import jax

    try:
        jax.devices("cpu" if x.device.type == "cpu" else "gpu")
    except RuntimeError as error:
        raise UnsupportedCase(f"this JAX does not reach the device: {str(error).splitlines()[0]}") from error
    arrays = [jax.dlpack.from_dlpack(v.contiguous()) for v in (x, y)]
    product = jax.numpy.matmul(*arrays, precision=jax.lax.Precision.HIGHEST)
    return torch.from_dlpack(product.block_until_ready())


def _cupy(torch: Any, case: Case, x: Any, y: Any) -> Any:
    import cupy

    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        return torch.from_dlpack(cupy.matmul(*(cupy.from_dlpack(v.contiguous()) for v in (x, y))))


_FLOATS = ("float64", "float32", "float16", "bfloat16")

GEMMS: tuple[Implementation, ...] = (
    Implementation("cublas", _default, ("nvidia",), {"blas": "cublas"}),
    Implementation("cublaslt", _default, ("nvidia",), {"blas": "cublaslt"}),
    Implementation("rocblas", _default, ("amd",), {"blas": "rocblas"}),
    Implementation("hipblaslt", _default, ("amd",), {"blas": "hipblaslt"}),
    Implementation("ck", _default, ("amd",), {"blas": "ck"}),
    Implementation("triton", by_products(_triton), ("gpu", "triton"), supports=only("float32", "float16", "bfloat16"), deterministic=True),
    Implementation("inductor", by_products(_inductor), ("compiler",), supports=only(*_FLOATS), graph_safe=False),
    Implementation("jax", by_products(_jax), ("jax",), supports=only("float32", "float16", "bfloat16"), graph_safe=False),
    Implementation("cupy", by_products(_cupy), ("gpu", "cupy"), supports=only("float64", "float32", "float16"), graph_safe=False),
)
