"""cross_entropy: the loss of rows of logits x [m, n] against classes target [m], forward and backward; label smoothing, ignored rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.contracts import parse_contract
from accuracy_eval.cpu_ref.loss import Label, Logits, gradient, losses
from accuracy_eval.cpu_ref.reduce import reduce, sum_budget
from accuracy_eval.cpu_ref.weight_factors import Weights, stored_log_of_sum, stored_logs
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import Format, Values, decode, get_format
from accuracy_eval.inputs import indices
from accuracy_eval.ops.autograd import gradients
from accuracy_eval.ops.panels import Lines, Part, by_rows, whole
from accuracy_eval.ops.spec import (
    FLOATS,
    Encoding,
    Exempt,
    Inputs,
    Operand,
    OpSpec,
    Option,
    Output,
    Reference,
    Size,
    float_contract,
    operand_formats,
    option_of,
    row_blocks,
)
from accuracy_eval.ops.weights import with_factors
from accuracy_eval.records import Case

OPTIONS = {
    "reduction": Option("mean", "of the rows' losses; none: a loss a row", ("mean", "sum", "none")),
    "smoothing": Option(0.0, "weight of all classes in the target; 0 up to but not 1"),
    "ignored": Option(False, "the second of every four rows counts for nothing"),
}
IGNORED = -100  # the class of rows that count for nothing
EVERY = 4  # rows of which the second is ignored
_option = partial(option_of, OPTIONS)


def _operands(case: Case, encoding: Encoding) -> tuple[Operand, ...]:
    m, n, fmt = case.dims["m"], case.dims["n"], operand_formats(case, 1, encoding)[0]
    found = Operand("x", (m, n), fmt, ("m", "n")), Operand("target", (m,), "int32", ("m",), below=n)
    if case.direction == "fwd":
        return found
    axes = ("m",) if _option(case, "reduction") == "none" else ()
    return (*found, Operand("grad_loss", tuple(case.dims[a] for a in axes), fmt, axes))


def _own_codes(case: Case, encoding: Encoding) -> dict[str, NDArray[Any]]:
    m, n = case.dims["m"], case.dims["n"]
    target = indices(case.op, "target", (m,), n, case.seed).astype(np.int64)
    if _option(case, "ignored"):
        target[1::EVERY] = IGNORED
    return {"target": target.astype(np.int32).view(np.uint32)}


def _outputs(case: Case, encoding: Encoding) -> tuple[Output, ...]:
    x = _operands(case, encoding)[0]
    if case.direction == "bwd":
        return (Output("dx", x.shape, x.format),)
    return (Output("loss", x.shape[:1] if _option(case, "reduction") == "none" else (), x.format),)


def _torch(torch: Any, case: Case, t: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    target, reduction, smoothing = t["target"].long(), _option(case, "reduction"), float(_option(case, "smoothing"))

    def loss(x: Mapping[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(x["x"], target, ignore_index=IGNORED, reduction=reduction, label_smoothing=smoothing)

    return {"loss": loss(t)} if case.direction == "fwd" else gradients(torch, loss, {"x": t["x"]}, t["grad_loss"])


def _reference(case: Case, inputs: Inputs, encoding: Encoding, contract: str) -> dict[str, Reference]:
    (output,), x, target = _outputs(case, encoding), inputs["x"], _classes(case, inputs)
    reduction, counted = _option(case, "reduction"), max(int((target >= 0).sum()), 1)

    def rows(first: int, end: int) -> Logits:
        return Logits(decode(x.codes[first:end], x.format), target[first:end], float(_option(case, "smoothing")), x.format)

    def forward(first: int, end: int) -> Part:
        return losses(rows(first, end))

    def reduced() -> dict[str, Part]:
        values, error = (np.concatenate(parts) for parts in zip(*(forward(*block) for block in row_blocks(x.shape)), strict=True))
        divisor = counted if reduction == "mean" else 1
        total, adding = reduce("sum", values), sum_budget(values, parse_contract(contract))
        return {"loss": (total / divisor, (error.sum() + adding) / divisor)}  # rows may err alike

    def backward(first: int, end: int) -> Lines:
        grad = decode(inputs["grad_loss"].codes, x.format)
        shared = grad / counted if reduction == "mean" else grad
        return gradient(rows(first, end), grad[first:end] if reduction == "none" else np.full(end - first, shared))

    exempt = _undecided(rows, output, (0, case.dims["m"]), mean=reduction == "mean")
    if case.direction == "bwd":
        found = by_rows(output, contract, x.shape, backward, exempt=exempt)
        narrow = get_format(x.format).bits <= 16
        return {output.name: with_factors(found, lambda: _weights(case, inputs, target)) if narrow else found}
    if reduction == "none":
        return {output.name: by_rows(output, contract, x.shape, forward, exempt=exempt)}
    return whole((output,), contract, reduced, exempt=lambda _: exempt)


def _logs(x: Values, fmt: Format) -> Iterator[Values]:
    """L as frameworks store its parts, and as one stored by itself."""
    yield from stored_log_of_sum(x, fmt)
    yield from stored_logs(x, fmt)


def _weights(case: Case, inputs: Inputs, target: NDArray[np.int64]) -> Weights:
    """Elements of rows that count, but those of the target."""
    x, fmt, m = inputs["x"], get_format(inputs["x"].format), len(target)
    grad = np.broadcast_to(decode(inputs["grad_loss"].codes, x.format), m)
    rows = max(int((target >= 0).sum()), 1) if _option(case, "reduction") == "mean" else 1
    label = Label(float(_option(case, "smoothing")), case.dims["n"])
    used = (target[:, None] != np.arange(case.dims["n"])) & (target >= 0)[:, None]
    ways = label.stored(grad, rows, fmt)
    return Weights(decode(x.codes, x.format), grad / rows, label.share, used, fmt, _logs, ways)


def _classes(case: Case, inputs: Inputs) -> NDArray[np.int64]:
    target = inputs["target"].codes.view(np.int32).astype(np.int64)
    wrong = target[(target != IGNORED) & ((target < 0) | (target >= case.dims["n"]))]
    if wrong.size:
        raise UsageError(f"cross_entropy: target holds {wrong[0]}; allowed: 0 to {case.dims['n'] - 1}, and {IGNORED} for rows to ignore")
    return target


def _undecided(rows: Callable[[int, int], Logits], output: Output, every: tuple[int, int], *, mean: bool) -> Exempt:
    """Inf or NaN where a step leaves the range of its format: a row with +Inf, a log-probability, a sum of them over classes or rows.
    The gradient of a row that counts for nothing is 0, or NaN where its softmax is. A mean over no row is 0, or NaN as 0/0 is."""
    largest = get_format(output.format).max

    def mask(codes: NDArray[Any], values: Values, first_row: int) -> NDArray[np.bool_] | None:
        found = decode(codes, output.format)
        odd = ~np.isfinite(found) & ~(np.isnan(found) & np.isnan(values))
        if not odd.any():
            return None
        gradient = output.name == "dx"
        a = rows(first_row, first_row + len(codes)) if gradient else rows(*every)
        with np.errstate(invalid="ignore", over="ignore"):
            logs = np.abs(a.log_softmax()[0])
            reached = logs.sum(axis=1) if a.smoothing else a.at_target(logs)[:, 0]
            reached = reached if gradient or output.shape else np.where(a.counted, reached, 0.0).sum()
            beyond = np.isposinf(a.x).any(axis=1) | (reached >= largest / 2)
        if gradient:
            return np.asarray(odd & (~np.isfinite(a.x).all(axis=1) & ~a.counted | beyond)[:, None])
        if mean and not a.counted.any():
            return np.asarray(np.isnan(found))
        return np.asarray(odd & (beyond if len(output.shape) else (beyond & a.counted).any()))

    return Exempt(mask, "elements Inf or NaN: a step leaves the range of its format there, or what they are of counts for nothing")


def _refuse(case: Case) -> str | None:
    if not case.dims["n"] or not case.dims["m"]:
        return "a loss needs at least one row and one class"
    if not 0 <= _option(case, "smoothing") < 1:
        return f"option smoothing={_option(case, 'smoothing')}; allowed: 0 up to but not including 1"
    return None


CROSS_ENTROPY = OpSpec(
    name="cross_entropy",
    family="loss",
    equation="L = log Σ e^x − x[target], its mean over rows",
    dims=(("m", "n"),),
    sizes={"m": Size("rows", 64), "n": Size("classes", 1000)},
    formats=FLOATS,
    operands=_operands,
    outputs=_outputs,
    torch=_torch,
    reference=_reference,
    contract=float_contract,
    options=OPTIONS,
    directions=("fwd", "bwd"),
    own_codes=_own_codes,
    refuse=_refuse,
)
