"""Operands a caller hands over, fitted to an op: sizes from shapes, and where they do not fit, what to pass; and the truths they make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

from accuracy_eval.cases import make_case
from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.formats import get_format
from accuracy_eval.judge import Subject
from accuracy_eval.ops.on_arrays import encoding_of
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Encoding, Operand, OpSpec, Output, Reference, validate
from accuracy_eval.records import Case, Coded, OptionValue

T = TypeVar("T")
Options = Mapping[str, OptionValue]
Shapes = Mapping[str, tuple[tuple[int, ...], str]]  # name -> shape and format
PRIMES = (1009, 1013, 1019, 1021, 1031, 1033, 1039)  # sizes that tell of which letters a dimension is made
PRODUCT_LAYOUT = "nn"  # layout of products whose caller states none
MOST_ADDED = 2  # options that are tried at once


def fitted(spec: OpSpec, given: Mapping[str, Coded], layout: str, options: Options, encoding: Encoding) -> Case:
    """The forward case whose operands have these shapes and formats. UsageError says which operand does not fit, and what to pass.

    layout  "" is nn for ops that have it, none for ops without layouts, and an error for others
    """
    chosen = "" if spec.layouts == ("",) else layout or PRODUCT_LAYOUT
    if chosen not in spec.layouts and layout:
        raise unknown(f"layout of op {spec.name}", layout, spec.layouts)
    call = _Call(spec, given, chosen, {**spec.implied(given), **options}, encoding)
    if chosen not in spec.layouts:
        fitting = next(call.ways(spec.layouts), "")
        some = f"; these inputs fit {fitting}" if fitting else ""
        raise UsageError(f"op {spec.name} needs layout=, one of {', '.join(spec.layouts)}{some}")
    case = call.solved()
    if case is not None and call.wanted(case) == call.found:
        return case
    where = f" (layout {chosen})" if chosen and case is not None else ""
    expected = _texts(call.wanted(case)) if case is not None else call.names()
    advice = call.rank() or next(call.ways((chosen, *(x for x in spec.layouts if x != chosen))), "")
    passing = f"; pass {advice}" if advice else ""
    raise UsageError(f"inputs of op {spec.name}{where}: found {_texts(call.found)}; expected {expected}{passing}")


@dataclass(frozen=True)
class Truth:
    """What one output or gradient must be, and the operands it follows from."""

    subject: Subject
    reference: Reference
    inputs: Mapping[str, Coded]


def truths_of(spec: OpSpec, case: Case, inputs: Mapping[str, Coded], contract: str, encoding: Encoding) -> dict[str, Truth]:
    """Of every output of a case, by name. `contract` "" is the op's own."""
    references = spec.reference(case, inputs, encoding, contract or spec.contract(case))
    return {o.name: Truth(Subject.of(case, o, ""), references[o.name], inputs) for o in spec.outputs(case, encoding)}


def truth_of(op: str, actual: Coded, inputs: Mapping[str, Coded], layout: str, options: Options, contract: str, output: str) -> Truth:
    """What an array must be that an op gave for these operands: an output, or with an upstream gradient (grad_…) a gradient.

    output  its name; "" where its shape, and whether it holds integers, tell
    UsageError for operands that do not fit, and for an array that may be several outputs or none.
    """
    spec = get_op(op)
    encoding = encoding_of(actual.format, *(c.format for c in inputs.values()))
    upstream = _upstream(inputs)
    case = fitted(spec, {n: c for n, c in inputs.items() if n not in upstream}, layout, options, encoding)
    if upstream:
        case = replace(case, direction="bwd")
        validate(spec, case)
        wanted, found = _upstream(_wanted(spec, case, encoding)), _upstream(_shapes(inputs))
        if wanted != found:
            raise UsageError(f"gradients of op {op}: found {_texts(found)}; expected {_texts(wanted)}")
    chosen = _output(spec, case, actual, output, encoding)
    family = get_format(actual.format).family
    if get_format(chosen.format).family != family and family in (*spec.out_formats, *spec.formats):
        case = replace(case, out_format=family)
        validate(spec, case)
    return truths_of(spec, case, inputs, contract, encoding)[chosen.name]


def _output(spec: OpSpec, case: Case, actual: Coded, stated: str, encoding: Encoding) -> Output:
    outputs = {o.name: o for o in spec.outputs(case, encoding)}
    if stated:
        if stated not in outputs:
            raise unknown(f"output of op {spec.name}", stated, outputs)
        return outputs[stated]
    fitting = [o for o in outputs.values() if (o.shape, get_format(o.format).kind) == (actual.shape, get_format(actual.format).kind)]
    fitting = fitting if len(outputs) > 1 else list(outputs.values())  # the only one may be wrong in both
    if len(fitting) != 1:
        which = _texts({o.name: (o.shape, o.format) for o in outputs.values()})
        raise UsageError(f"op {spec.name}: actual is {list(actual.shape)}; its outputs are {which}; say which it is with output=")
    return fitting[0]


@dataclass(frozen=True)
class _Call:
    """What a caller says of the operands it gives."""

    spec: OpSpec
    given: Mapping[str, Coded]
    layout: str
    options: Options
    encoding: Encoding

    @property
    def found(self) -> Shapes:
        return _shapes(self.given)

    @property
    def format(self) -> str:
        return next((get_format(c.format).family for c in self.given.values()), "float32")

    def wanted(self, case: Case) -> Shapes:
        return _wanted(self.spec, case, self.encoding)

    def solved(self) -> Case | None:
        """The case whose sizes follow from the operands' shapes; None where they leave one open."""
        for letters in self.spec.dims:
            sizes = self._sizes(letters)
            if set(sizes) == set(letters):
                shape = tuple((d, sizes[d]) for d in letters)
                return make_case(self.spec.name, shape, layout=self.layout, format=self.format, options=self._stated(letters), huge=True)
        return None

    def _stated(self, letters: Sequence[str]) -> dict[str, OptionValue]:
        return {name: value for name, value in self.options.items() if name not in letters}

    def _operands(self, letters: Sequence[str]) -> tuple[Operand, ...]:
        """The op's operands where every letter is a prime; not by make_case: an op may refuse such sizes."""
        stated = tuple(sorted(self._stated(letters).items()))
        layout = self.layout if self.layout in self.spec.layouts else self.spec.layouts[0]
        case = Case(self.spec.name, tuple(zip(letters, PRIMES, strict=False)), layout, self.format, options=stated)
        return self.spec.operands(case, self.encoding)

    def _sizes(self, letters: Sequence[str]) -> dict[str, int]:
        """Sizes by letter, of options that state them and of shapes; the first that shows one decides.

        Dimensions of one letter come first: a product of several may be 0 by any of them.
        """
        primes = tuple(zip(letters, PRIMES, strict=False))

        def made_of(factor: int) -> list[tuple[str, int]]:
            return [x for x in primes if factor % x[1] == 0]

        sizes = {d: int(self.options[d]) for d in letters if d in self.options}
        given = [(o.stored, self.given[o.name].shape) for o in self._operands(letters) if o.name in self.given]
        dimensions = [pair for stored, shape in given for pair in zip(stored, shape, strict=False)]
        for factor, size in sorted(dimensions, key=lambda x: len(made_of(x[0]))):
            for letter, prime in made_of(factor):
                if size * prime % factor == 0:
                    sizes.setdefault(letter, size * prime // factor)
        return sizes

    def names(self) -> str:
        """The operands the op takes, and the sizes that none of them shows."""
        letters = self.spec.dims[-1]
        names, sizes = [o.name for o in self._operands(letters)], self._sizes(letters)
        unseen = [d for d in letters if d not in sizes] if sorted(names) == sorted(self.given) else []
        return ", ".join(names) + "".join(f"; and option {d}, which no input shows" for d in unseen)

    def rank(self) -> str:
        """The operand of another number of dimensions than the op's."""
        for o in self._operands(self.spec.dims[0]):
            if o.name in self.given and len(self.given[o.name].shape) != len(o.stored):
                return f"{o.name} of {len(o.stored)} dimensions, not {len(self.given[o.name].shape)}: reshape it"
        return ""

    def ways(self, layouts: Sequence[str]) -> Iterator[str]:
        """What makes the operands fit, in words, the least first: another of `layouts`, options that add the operands that are given.

        The first layout need not be said.
        """
        for count in range(MOST_ADDED + 1):
            for added in map(dict, combinations(self._adding(), count)):
                fitting = [x for x in layouts if replace(self, layout=x, options={**self.options, **added}).fits()]
                if not fitting:
                    continue
                named = "" if added and fitting[0] == layouts[0] else " or ".join(f'layout="{x}"' for x in fitting)
                yield " and ".join(filter(None, [named, f"options={_literal(added)}" if added else ""]))

    def _adding(self) -> list[tuple[str, OptionValue]]:
        """Options that are not stated and, switched on, add operands all of which are given."""
        without = {o.name for o in self._operands(self.spec.dims[0])}
        found = []
        for name, option in self.spec.options.items():
            if name in self.options or not isinstance(option.default, bool | float) or option.default:
                continue
            value: OptionValue = True if isinstance(option.default, bool) else 1.0
            more = {o.name for o in replace(self, options={**self.options, name: value})._operands(self.spec.dims[0])} - without
            if more and more <= set(self.given):
                found.append((name, value))
        return found

    def fits(self) -> bool:
        try:
            case = self.solved()
        except UsageError:  # sizes or options that the op refuses
            return False
        return case is not None and self.wanted(case) == self.found


def _shapes(given: Mapping[str, Coded]) -> Shapes:
    return {name: (c.shape, c.format) for name, c in given.items()}


def _wanted(spec: OpSpec, case: Case, encoding: Encoding) -> Shapes:
    return {o.name: (o.stored, o.format) for o in spec.operands(case, encoding)}


def _upstream(given: Mapping[str, T]) -> dict[str, T]:
    return {name: x for name, x in given.items() if name.startswith("grad_")}


def _texts(operands: Shapes) -> str:
    return ", ".join(f"{n} {list(shape)} {fmt}" for n, (shape, fmt) in operands.items())


def _literal(options: Options) -> str:
    """As Python source with double quotes."""
    return "{" + ", ".join(f'"{name}": {value!r}' for name, value in options.items()) + "}"
