"""gemm: D = alpha · op(A) · op(B) + beta · C + bias, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from accuracy_eval.contracts import default_contract
from accuracy_eval.cpu_ref.gemm import gradient, panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.cpu_ref.overflow import Overflows, product_overflows, taken_as_right
from accuracy_eval.errors import UnsupportedCase, first_sentence
from accuracy_eval.formats import get_family, get_format
from accuracy_eval.inputs.coded import CodedOperands, coded_gemm
from accuracy_eval.inputs.exact import ExactOperands, exact_gemm, integer_codes
from accuracy_eval.ops import quantised, relations
from accuracy_eval.ops.autograd import gradients
from accuracy_eval.ops.operands import Codes, nan_codes
from accuracy_eval.ops.panels import of_product
from accuracy_eval.ops.spec import (
    Encoding,
    Exempt,
    Inputs,
    Operand,
    OpSpec,
    Option,
    Output,
    Panel,
    Product,
    Reference,
    Size,
    operand_formats,
    output_format,
    row_blocks,
    rows_and_columns,
)
from accuracy_eval.records import Case

LAYOUTS = ("nt", "nn", "tn", "tt")
FORMATS = ("float64", "float32", "tfloat32", "float16", "bfloat16")
SIZES = {"m": Size("rows of A and D", 512), "n": Size("columns of op(B) and D", 128), "k": Size("terms of every sum", 256)}
OPTIONS = {
    "alpha": Option(1.0, "factor of the product; the exact lane takes 0 and powers of two"),
    "beta": Option(0.0, "factor of C; 0 leaves operand c [m, n] away"),
    "bias": Option(False, "adds operand bias [n]; not beside C"),
    "c": Option("values", "nan: C holds NaN, which beta = 0 must ignore", ("values", "nan")),
    **quantised.OPTIONS,
    **relations.OPTIONS,
}


def _has_c(case: Case) -> bool:
    return bool(GEMM.option(case, "beta") != 0.0 or GEMM.option(case, "c") == "nan")


def _operands(case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    m, n, k = (case.dims[d] for d in "mnk")
    fa, fb = [quantised.source_format(case)] * 2 if case.recipe else operand_formats(case, 2, encoding)
    a = Operand("a", (m, k), fa, ("m", "k"), transposed=case.layout[0] == "t")
    b = Operand("b", (n, k), fb, ("n", "k"), transposed=case.layout[1] == "n")
    fd = output_format(case, fa, encoding)
    if case.direction == "bwd":
        return a, b, Operand("grad_d", (m, n), fa if case.recipe else fd, ("m", "n"))
    more = []
    if _has_c(case):
        more.append(Operand("c", (m, n), fd, ("m", "n"), domain="nan" if GEMM.option(case, "c") == "nan" else "any"))
    if GEMM.option(case, "bias"):
        more.append(Operand("bias", (n,), fd, ("n",)))
    return (a, b, *more)


def _own_codes(case: Case, encoding: Encoding) -> dict[str, Codes]:
    """The integers of an exact case, the codes of a coded one."""
    if case.lane == "coded" and case.recipe:
        return quantised.coded_sources(case)
    if case.lane == "coded":
        coded = coded_companion(case, _operands(case, encoding)[0].format)
        return {"a": coded.a, "b": coded.b}
    if case.lane != "exact":
        return {}
    exact = exact_companion(case)
    made = {o: getattr(exact, o.name) for o in _operands(case, encoding)}
    return {o.name: nan_codes(o) if integers is None else integer_codes(integers, o.format) for o, integers in made.items()}


@lru_cache(maxsize=1)
def exact_companion(case: Case) -> ExactOperands:
    """The integers of an exact case: operands, and the product they must give. One case is remembered."""
    m, n, k = (case.dims[d] for d in "mnk")
    out = get_format(case.out_format) if case.out_format else None
    limit = 256 if out is None or out.bits > 8 else 2 << out.fraction_bits  # the integers an output of 8 bits holds
    return exact_gemm(
        m, n, k, direction="bwd" if case.direction == "bwd" else "fwd", seed=case.seed, limit=limit,
        alpha=float(GEMM.option(case, "alpha")) * float(GEMM.option(case, "result_scale")), beta=float(GEMM.option(case, "beta")),
        has_bias=GEMM.option(case, "bias"),
    )  # fmt: skip


@lru_cache(maxsize=1)
def coded_companion(case: Case, fmt: str) -> CodedOperands:
    """The one-hot A and counting B of a coded case. One case is remembered."""
    m, n, k = (case.dims[d] for d in "mnk")
    return coded_gemm(m, n, k, fmt, seed=case.seed)


def _outputs(case: Case, encoding: Encoding) -> tuple[Output, ...]:
    operands = {o.name: o for o in _operands(case, encoding)}
    a, b = operands["a"], operands["b"]
    if case.direction == "fwd":
        return (Output("d", (case.dims["m"], case.dims["n"]), output_format(case, a.format, encoding)),)
    fa, fb = [output_format(case, a.format, encoding)] * 2 if case.recipe else (a.format, b.format)
    grads = [Output("da", a.stored, fa), Output("db", b.stored, fb)]
    if GEMM.option(case, "bias"):
        grads.append(Output("dbias", (case.dims["n"],), operands["grad_d"].format))
    return tuple(grads)


def _product(torch: Any, case: Case, t: Mapping[str, Any], out: Any = None) -> Any:
    """The forward expression on torch tensors as stored; `out` is a poisoned tensor or None (autograd needs None)."""
    a = t["a"] if case.layout[0] == "n" else t["a"].t()
    b = t["b"] if case.layout[1] == "n" else t["b"].t()
    alpha, beta = GEMM.option(case, "alpha"), GEMM.option(case, "beta")
    keep: dict[str, Any] = {} if out is None else {"out": out}
    wide = bool(case.out_format) and case.out_format != get_family(case.format.split("+")[0])
    if wide:
        keep["out_dtype"] = getattr(torch, case.out_format)
    base = t.get("bias", t.get("c"))
    if base is None and alpha == 1.0:
        return torch.mm(a, b, **keep)
    if base is None:
        base, beta = torch.zeros((), dtype=a.dtype, device=a.device), 0.0
        base = base.expand(a.shape[0], b.shape[1])
    return torch.addmm(base, a, b, beta=1.0 if "bias" in t else beta, alpha=alpha, **keep)


def _torch(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    if case.recipe:
        return quantised.torch_products(torch, case, t, out)
    if case.direction == "fwd":
        try:
            return {"d": _product(torch, case, t, out.get("d"))}
        except (TypeError, NotImplementedError) as error:
            if case.out_format:
                raise UnsupportedCase(f"torch.mm with out_dtype={case.out_format}: {first_sentence(error)}") from error
            raise
    leaves = {name: t[name] for name in ("a", "b")}
    if GEMM.option(case, "bias"):
        leaves["bias"] = torch.zeros(case.dims["n"], dtype=t["grad_d"].dtype, device=t["grad_d"].device)
    return gradients(torch, lambda tracked: _product(torch, case, tracked), leaves, t["grad_d"])


def _reference(case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    outputs = _outputs(case, encoding)
    if case.lane not in ("random", "metamorphic"):
        return {
            o.name: Reference(
                "codes", o.format, o.shape, contract, partial(_companion_panels, case, o, encoding), resolution=_seen(case, o, encoding)
            )
            for o in outputs
        }
    references = {o.name: replace(product_reference(_problem(case, inputs, o.name), contract, o.format), shape=o.shape) for o in outputs}
    if not case.recipe:
        return references
    sources = {o.name: quantised.unquantised(case, inputs, o.name) for o in outputs}
    before = {o.name: partial(_panels, sources[o.name], "", o.format) for o in outputs}
    return {name: replace(r, unquantised=before[name], source=sources[name]) for name, r in references.items()}


def overflowing(overflows: Overflows | None, contract: str, out_format: str) -> Exempt | None:
    """Infinities and NaN of running sums that overflow on their way to another result."""
    if overflows is None:
        return None
    why = f"elements Inf or NaN: a running sum of {contract} may overflow there in some order"
    return Exempt(partial(taken_as_right, overflows, out_format), why)


def product_reference(problem: Gemm, contract: str, out_format: str) -> Reference:
    """The truth about a product, with budgets under the contract."""
    return Reference(
        "values", out_format, (problem.m, problem.n), contract, partial(_panels, problem, contract, out_format), problem,
        exempt=overflowing(product_overflows(problem, contract), contract, out_format),
    )  # fmt: skip


def _products(case: Case, inputs: Inputs, output: str) -> tuple[Product, ...]:
    """A gradient of the bias is a sum of rows, which libraries do not multiply for."""
    return () if output == "dbias" else (Product(_problem(case, inputs, output)),)


def _problem(case: Case, inputs: Inputs, output: str) -> Gemm:
    """The product whose result is the output: the forward one, or a gradient's."""
    if case.recipe:
        return quantised.problem(case, inputs, output)
    alpha, beta = float(GEMM.option(case, "alpha")), float(GEMM.option(case, "beta"))
    forward = Gemm(inputs["a"], inputs["b"], case.layout, alpha, beta, inputs.get("c"), inputs.get("bias"))
    return forward if case.direction == "fwd" else gradient(output, forward, inputs["grad_d"])


def _panels(problem: Gemm, contract: str, out_format: str) -> Iterator[Panel]:
    return of_product(panels(problem, contract=contract, out_format=out_format))


def _seen(case: Case, output: Output, encoding: Encoding) -> dict[str, Any]:
    """What a companion shows: any element one step off, and the k whose loss changes an element."""
    if case.lane == "coded":
        made = quantised.coded_companion(case, encoding) if case.recipe else coded_companion(case, output.format)
        unseen, total = made.unseen_k, case.dims["k"]
        return {"element": "one code", "k_seen": total - len(unseen), "k_total": total, "k_unseen": int(unseen[0]) if len(unseen) else None}
    exact = exact_companion(case)
    unseen, axis = {"d": (exact.unseen_k, "k"), "da": (exact.unseen_n, "n")}.get(output.name, (exact.unseen_m, "m"))
    total = case.dims[axis]
    step = float(exact.unit if output.name == "d" else 1.0 if output.name == "dbias" else exact.alpha)
    return {"element": step, "k_seen": total - len(unseen), "k_total": total, "k_unseen": int(unseen[0]) if len(unseen) else None}


def _companion_panels(case: Case, output: Output, encoding: Encoding) -> Iterator[Panel]:
    """The codes a companion case must give: integers by classes of k, or B's own codes; no product is taken."""
    if case.lane == "coded" and case.recipe:
        codes = quantised.coded_result(case, encoding, output.format)
    elif case.lane == "coded":
        coded = coded_companion(case, output.format)
        codes = coded.b.T[coded.sigma]
    else:
        exact = exact_companion(case)
        whole = getattr(exact, output.name)()
        if (output.name == "da" and case.layout[0] == "t") or (output.name == "db" and case.layout[1] == "n"):
            whole = whole.T
        unit = exact.unit if output.name == "d" else 1.0 if output.name == "dbias" else exact.alpha
        codes = integer_codes(whole, output.format, unit)
    rows = codes.reshape(rows_and_columns(output.shape))
    for first, end in row_blocks(output.shape):
        yield Panel(first, rows[first:end])


def _contract(case: Case) -> str:
    return quantised.contract(case) if case.recipe else default_contract(case.format.split("+"))


def _refuse(case: Case) -> str | None:
    reason = relations.refuse(case)
    if reason:
        return reason
    if case.recipe:
        return quantised.refuse(case, (case.dims["m"],))
    narrow = [f for f in case.format.split("+") if get_family(f) not in FORMATS]
    if narrow:
        return f"{narrow[0]} operands need a recipe that says how they are scaled, such as tensorwise or unit"
    if any(name in dict(case.options) for name in quantised.OPTIONS):
        return "options source and result_scale belong to quantised products; state a recipe"
    if GEMM.option(case, "bias") and _has_c(case):
        return "bias and C together are two roundings in every library; take one of them"
    if GEMM.option(case, "c") == "nan" and GEMM.option(case, "beta") != 0.0:
        return "c=nan asks whether beta=0 ignores C; it needs beta=0"
    powers = [float(GEMM.option(case, name)) for name in ("alpha", "beta")]
    if case.lane == "exact" and any(x and math.frexp(abs(x))[0] != 0.5 for x in powers):
        return (
            f"alpha={powers[0]} and beta={powers[1]} in the exact lane; every product must stay an integer: allowed are 0 and powers of two"
        )
    if case.lane == "coded" and (case.options or case.direction != "fwd"):
        return "the coded lane moves codes of B through a one-hot A: no options, forward only"
    wide = case.out_format and case.out_format != get_family(case.format.split("+")[0])
    if wide and (case.format not in ("float16", "bfloat16") or case.out_format != "float32" or case.direction == "bwd"):
        return f"output {case.out_format} from {case.format} operands; allowed: the operands' own format, or float32 from 16-bit forward"
    return None


GEMM = OpSpec(
    name="gemm",
    family="gemm",
    equation="D = alpha · op(A) · op(B) + beta · C + bias",
    dims=(("m", "n", "k"),),
    sizes=SIZES,
    formats=(*FORMATS, *quantised.FORMATS),
    operands=_operands,
    own_codes=_own_codes,
    outputs=_outputs,
    torch=_torch,
    reference=_reference,
    contract=_contract,
    products=_products,
    layouts=LAYOUTS,
    out_formats=("float32", "fp8_e4m3", "fp8_e5m2"),
    recipes=("", *quantised.GEMM_RECIPES),
    received=quantised.received,
    options=OPTIONS,
    lanes=("random", "exact", "coded", "metamorphic"),
    relation=relations.relation_of,
    directions=("fwd", "bwd"),
    refuse=_refuse,
)
