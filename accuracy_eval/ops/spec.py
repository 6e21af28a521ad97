"""What an op is: operands, outputs, a torch expression, a reference. One OpSpec per op, registered in `ops.registry`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.cpu_ref.reach import Reach, reached
from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.formats import Format, Values, concrete, get_family, get_format
from accuracy_eval.metrics.rounding_bias import Alike
from accuracy_eval.records import Case, Coded, OptionValue

if TYPE_CHECKING:
    from accuracy_eval.cpu_ref.operands import Gemm
    from accuracy_eval.cpu_ref.sampling import Sample
    from accuracy_eval.ops.relations import Relation

Encoding = Literal["ocp", "fnuz"]
FLOATS = ("float32", "float64", "float16", "bfloat16")  # families of ops whose arithmetic is float32's, float64's for float64
PANEL_ELEMENTS = 1 << 22  # elements per panel of a reference: 32 MiB of float64


@dataclass(frozen=True)
class Operand:
    """One input of a case.

    shape    as generated, in the op's canonical orientation (gemm: a [m, k], b [n, k], whatever the layout)
    format   concrete format of the codes
    axes     dimension letter of each axis
    domain   how generated values are brought into the op's domain ("any": not at all); "nan": NaN everywhere, since the op must not
             read it
    below    of indices, one more than the largest there may be; 0 for all other operands
    stored   shape the op receives: `shape`, or with its last two axes swapped
    """

    name: str
    shape: tuple[int, ...]
    format: str
    axes: tuple[str, ...] = ()
    domain: str = "any"
    transposed: bool = False
    below: int = 0

    @property
    def stored(self) -> tuple[int, ...]:
        return (*self.shape[:-2], *self.shape[:-3:-1]) if self.transposed else self.shape


@dataclass(frozen=True)
class Output:
    """One output of a case: name, shape, concrete format.

    exact    any differing code fails, whatever the contract; None: it has no right code of its own and is judged by its total error
             alone
    written  leading rows of the 2-D view that the op writes; those behind may stay as they were and otherwise must be zero.
             None: all
    """

    name: str
    shape: tuple[int, ...]
    format: str
    exact: bool | None = False
    written: int | None = None


@dataclass(frozen=True)
class Panel:
    """Rows first_row … first_row + len(values) - 1 of a reference, as 2-D [r, cols].

    values  float64 truth before rounding, or codes of the output format (Reference.kind says which)
    budget  largest |error before output rounding| the contract allows, per element; None where codes must be equal
    typical the same for many elements together, in the root mean square; None where only single elements have a limit
    """

    first_row: int
    values: NDArray[Any]
    budget: NDArray[np.float64] | None = None
    typical: NDArray[np.float64] | None = None


def bounded(values: Values, budget: Values) -> tuple[Values, Values]:
    """Both, the budget without NaN: 0 where the truth is not finite, which the class table judges; Inf where it has left float64."""
    return values, np.where(np.isfinite(values), np.where(np.isnan(budget), np.inf, budget), 0.0)


@dataclass(frozen=True)
class Exempt:
    """Elements that may differ from the truth because more than one answer is right.

    mask  (codes [r, cols], truth [r, cols], first row) -> which elements those are, None for none
    why   a clause after their count: "elements Inf or NaN: …"
    """

    mask: Callable[[NDArray[Any], NDArray[Any], int], NDArray[np.bool_] | None]
    why: str


def reaching(reach_of: Callable[[], Reach], out_format: str, undetermined: Callable[[], NDArray[np.bool_]] | None = None) -> Exempt:
    """Infinities, NaN and zeros that follow from a composite op's steps that overflow on a healthy device; asked for where any are seen.
    `undetermined` as in `reached`."""
    why = "elements Inf, NaN or zero (or finite for Inf): a step before them may overflow there"
    asked = lru_cache(maxsize=1)(undetermined) if undetermined else None
    return Exempt(partial(reached, lru_cache(maxsize=1)(reach_of), out_format, undetermined=asked), why)


@dataclass(frozen=True)
class Reference:
    """The truth about one output, streamed in row panels of its 2-D view [prod(shape[:-1]), shape[-1]]; none of an output without elements.

    problem     the GEMM behind it (cpu_ref.operands.Gemm), for what a lost product would change; None for other ops
    resolution  what certainly fails, where no budget says it: exact and coded companions, casts, codes
    exempt      elements that are right although they differ from this truth; None: there are none
    sample      a part of the truth to judge by where the whole costs too much; None: the panels are the truth
    unquantised the result of the operands before they were quantised, float64, in panels of the same rows: what total error is
                measured against; None where nothing was quantised, or the operands are not known
    source      the product of the unquantised operands, where it is one
    alike       which elements of a 16-bit output may be rounded alike, where their last rounding is to nearest and those before it are
                no more than each element's or line's own (metrics.rounding_bias); None: not said
    shared      (codes of the whole 2-D view) -> what many elements have in common, metrics of metrics.registry.DERIVED; None: not known
    """

    kind: Literal["values", "codes"]
    format: str
    shape: tuple[int, ...]
    contract: str
    panels: Callable[[], Iterator[Panel]]
    problem: Any = None
    resolution: Mapping[str, Any] = field(default_factory=dict)
    exempt: Exempt | None = None
    sample: Callable[[], Sample] | None = None
    unquantised: Callable[[], Iterator[Panel]] | None = None
    source: Gemm | None = None
    alike: Alike | None = None
    shared: Callable[[NDArray[Any]], Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        if math.prod(self.shape) == 0:
            object.__setattr__(self, "panels", lambda: iter(()))


Inputs = Mapping[str, Coded]


@dataclass(frozen=True)
class Joint:
    """What the outputs of one side say only together.

    metrics   by output: metrics of metrics.registry.DERIVED
    tensors   by derived output: rows (first, end) -> codes of its 2-D view
    rules     by output that holds scale factors: names of the rules that give exactly these
    """

    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tensors: Mapping[str, Callable[[int, int], NDArray[Any]]] = field(default_factory=dict)
    rules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Product:
    """One matrix product whose result is an output, or a part of it: what a matrix unit does for the op.

    gemm   the product (cpu_ref.operands.Gemm); its result before anything that follows it
    index  where its [m, n] result lies in the output: the matrix of a batch, the rows of a group; () the whole output
    """

    gemm: Gemm
    index: tuple[int | slice, ...] = ()


class Size(NamedTuple):
    """What a dimension letter counts, and a size to try it with."""

    says: str
    example: int


@dataclass(frozen=True)
class Option:
    """A setting of an op: what cases have that do not state it, what it does, the texts it may be (empty: any value of its type)."""

    default: OptionValue
    says: str
    allowed: tuple[str, ...] = ()


def option_of(options: Mapping[str, Option], case: Case, name: str) -> Any:
    """The case's value of an option, else its default."""
    return case.option(name, options[name].default)


@dataclass(frozen=True)
class OpSpec:
    """One operation.

    dims        tuples of dimension letters the op accepts, in the order of their sizes, e.g. (("n",), ("m", "n"))
    sizes       what each letter counts
    formats     families its operands may have; out_formats: families its output may have besides the operands' own
    options     by name; a case states only what differs from the defaults
    operands    (case, encoding) -> operands in order
    own_codes   (case, encoding) -> codes of the operands that no input class generates as they are, by name: indices, and all
                operands of an exact or coded case; None: there are none
    outputs     (case, encoding) -> outputs in order
    torch       (torch, case, tensors by operand name, out by output name) -> tensors by output name; `out` holds poisoned tensors
                the expression writes to where torch offers `out=`, and is ignored where it does not
    ranks       (case) -> processes that compute it together; `torch` is then what one of them does, on its row of operands and outputs.
                None: one process has all of it
    reference   (case, inputs as stored, encoding, contract) -> Reference by output name
    products    (case, inputs as stored, output name) -> the matrix products that make that output; empty where none does, or where they are
                not all there is to it. None: the op multiplies no matrices
    contract    what a call of this case promises, when the case and candidate state nothing else
    implied     (operands by name, as a caller holds them) -> sizes and options that several of them show only together
    received    (case, operands by name in canonical orientation, encoding, compiled) -> what a case with a recipe multiplies, by name
                and as stored: element codes and scales. None: ops that receive their operands as they are
    relation    (case) -> the metamorphic relation of a case of that lane, None for others
    refuse      (case) -> why this combination does not exist, or None
    derived     (case, encoding) -> tensors that follow from the outputs: judged, never stored; `reference` knows them as well
    joint       (case, inputs as stored, encoding, a side's outputs) -> what those say together; needed where there are derived ones
    """

    name: str
    family: str
    equation: str
    dims: tuple[tuple[str, ...], ...]
    sizes: Mapping[str, Size]
    formats: tuple[str, ...]
    operands: Callable[[Case, Encoding], tuple[Operand, ...]]
    outputs: Callable[[Case, Encoding], tuple[Output, ...]]
    torch: Callable[[Any, Case, Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    reference: Callable[[Case, Inputs, Encoding, str], dict[str, Reference]]
    contract: Callable[[Case], str]
    ranks: Callable[[Case], int] | None = None
    products: Callable[[Case, Inputs, str], tuple[Product, ...]] | None = None
    layouts: tuple[str, ...] = ("",)
    out_formats: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ("",)
    options: Mapping[str, Option] = field(default_factory=dict)
    lanes: tuple[str, ...] = ("random",)
    implied: Callable[[Inputs], Mapping[str, int]] = lambda inputs: {}
    relation: Callable[[Case], Relation | None] = lambda case: None
    directions: tuple[str, ...] = ("fwd",)
    own_codes: Callable[[Case, Encoding], dict[str, NDArray[Any]]] | None = None
    received: Callable[[Case, Inputs, Encoding, bool], dict[str, Coded]] | None = None
    refuse: Callable[[Case], str | None] = lambda case: None
    derived: Callable[[Case, Encoding], tuple[Output, ...]] = lambda case, encoding: ()
    joint: Callable[[Case, Inputs, Encoding, Mapping[str, Coded]], Joint] | None = None

    def option(self, case: Case, name: str) -> Any:
        """The case's value of an option, else the op's default."""
        return option_of(self.options, case, name)


def validate(op: OpSpec, case: Case) -> None:
    """UsageError naming the first thing about `case` the op does not allow, and everything it does allow."""
    letters = tuple(name for name, _ in case.shape)
    if letters not in op.dims:
        raise unknown(f"{op.name} shape letters", "".join(letters), ["".join(d) for d in op.dims])
    for name, size in case.shape:
        if size < 0:
            raise UsageError(f"{op.name} shape: {name}={size} is negative; sizes are 0 or more")
    if case.layout not in op.layouts:
        raise unknown(f"{op.name} layout", case.layout, op.layouts)
    for part in case.format.split("+"):
        if get_family(part) not in op.formats:
            raise unknown(f"{op.name} format", part, op.formats)
    if case.out_format and get_family(case.out_format) not in (*op.out_formats, *op.formats):
        raise unknown(f"{op.name} output format", case.out_format, {*op.out_formats, *op.formats})
    if case.recipe not in op.recipes:
        raise unknown(f"{op.name} recipe", case.recipe, [r for r in op.recipes if r] or ["(none)"])
    for option, value in case.options:
        if option not in op.options:
            raise unknown(f"{op.name} option", option, op.options or ["(none)"])
        default, allowed = op.options[option].default, op.options[option].allowed
        kind = float | int if isinstance(default, float) else type(default)
        if not isinstance(value, kind) or isinstance(value, bool) != isinstance(default, bool):
            raise UsageError(f"{op.name} option {option}={value!r}: expected a {type(default).__name__} like {default!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{op.name} option {option}={value!r}; allowed: finite numbers")
        if allowed and value not in allowed:
            raise UsageError(f"{op.name} option {option}={value!r}; allowed: {', '.join(allowed)}")
    if case.lane not in op.lanes:
        raise unknown(f"{op.name} lane", case.lane, op.lanes)
    if case.direction not in op.directions:
        raise unknown(f"{op.name} direction", case.direction, op.directions)
    reason = op.refuse(case)
    if reason:
        raise UsageError(f"{op.name}: {reason}")


def operand_formats(case: Case, count: int, encoding: Encoding) -> list[str]:
    """Concrete format of each of `count` operands; "tfloat32" operands are stored as float32."""
    parts = [get_family(p) for p in case.format.split("+")]
    parts = parts * count if len(parts) == 1 else parts
    if len(parts) != count:
        raise UsageError(f"{case.op} format {case.format!r} names {len(parts)} formats; the op has {count} operands")
    return [concrete("float32" if p == "tfloat32" else p, encoding).name for p in parts]


def output_format(case: Case, default: str, encoding: Encoding) -> str:
    """Concrete format of the output: the case's, else `default` (a concrete name)."""
    if not case.out_format:
        return default
    return concrete("float32" if case.out_format == "tfloat32" else case.out_format, encoding).name


def float_contract(case: Case) -> str:
    """What ops on FLOATS promise: sums in float32, in float64 for float64 operands."""
    return "fp64" if case.format == "float64" else "fp32acc"


def format_of(tensor: Any) -> Format:
    """The format of a torch tensor, by its dtype's name."""
    return get_format(str(tensor.dtype).removeprefix("torch."))


def rows_and_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    """The 2-D view every panel uses: [prod(shape[:-1]), shape[-1]]; a 1-D array is one row, a 0-D array 1 × 1."""
    if not shape:
        return 1, 1
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return rows, shape[-1]


def row_blocks(shape: tuple[int, ...], multiple: int = 128) -> Iterator[tuple[int, int]]:
    """(first row, end row) of panels of about PANEL_ELEMENTS elements, heights a multiple of `multiple`."""
    rows, columns = rows_and_columns(shape)
    height = max(multiple, PANEL_ELEMENTS // max(columns, 1) // multiple * multiple)
    for first in range(0, rows, height):
        yield first, min(rows, first + height)
