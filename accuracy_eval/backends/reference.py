"""The reference as a device: the float64 truth rounded once, by numpy, without torch. A dump of it needs no GPU and no framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.backends import platform
from accuracy_eval.backends.base import Outcome, Prepared, Result, Source
from accuracy_eval.backends.candidates import Candidate
from accuracy_eval.digests import sha256_codes
from accuracy_eval.errors import UnsupportedCase, UsageError
from accuracy_eval.formats import encode, get_format
from accuracy_eval.ops.operands import operand_codes, quantised_inputs, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Reference, rows_and_columns
from accuracy_eval.records import Case, Coded

if TYPE_CHECKING:
    from accuracy_eval.datapath.card import Call

Codes = NDArray[Any]


def ready(value: Any) -> Future[Any]:
    """A future that holds its value already."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _digested(name: str, coded: Coded) -> Source:
    return Source(name, coded.format, coded.shape, ready(sha256_codes(coded.codes)), ready(coded.codes).result)


def rounded_codes(reference: Reference) -> Codes:
    """The whole reference as codes of its output format: values rounded once to nearest even, codes as they are."""
    rows, columns = rows_and_columns(reference.shape)
    codes = np.zeros((rows, columns), get_format(reference.format).storage)
    for panel in reference.panels():
        end = panel.first_row + len(panel.values)
        codes[panel.first_row : end] = panel.values if reference.kind == "codes" else encode(panel.values, reference.format)
    return codes.reshape(reference.shape)


class ReferenceBackend:
    """Every case, computed by cpu_ref and rounded once."""

    name = "reference"

    def __init__(self, encoding: Literal["ocp", "fnuz"] = "ocp") -> None:
        self.encoding: Literal["ocp", "fnuz"] = encoding

    def platform(self) -> dict[str, Any]:
        return {**platform.detect_numpy(), "label": "rounded-reference", "fp8_encoding": self.encoding}

    def candidates(self, op: str) -> tuple[Candidate, ...]:
        def run(torch: Any, case: Case, tensors: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
            raise UnsupportedCase("the reference backend runs no torch expression")

        return (Candidate(op, "default", run, built_in=True),)

    def products(self) -> tuple[Call, ...]:
        """None: UsageError, as exact arithmetic rounded once has no order to ask about."""
        raise UsageError("the reference is exact arithmetic rounded once: there is nothing to probe; name a device (cuda, cpu, model:UNIT)")

    def healthy(self) -> bool:
        """Always: there is no device to lose."""
        return True

    def close(self) -> None:
        """Nothing to release."""

    def expect(self, cases: Iterable[Case]) -> None:
        """Nothing is made ahead: there is no device whose time could be used."""

    def prepare(self, case: Case) -> Prepared:
        spec = get_op(case.op)
        codes = operand_codes(spec, case, self.encoding)
        sources = tuple(
            Source(o.name, o.format, o.shape, ready(sha256_codes(codes[o.name])), ready(codes[o.name]).result)
            for o in spec.operands(case, self.encoding)
        )
        inputs = stored_inputs(spec, case, self.encoding, codes)
        made = quantised_inputs(spec, case, inputs)
        return Prepared(case, sources, inputs, tuple(_digested(name, coded) for name, coded in made.items()))

    def run(self, prepared: Prepared, candidate: Candidate, *, repeats: int, kernels: bool = False, certify: bool = False) -> Outcome:
        case = prepared.case
        spec = get_op(case.op)
        references = spec.reference(case, prepared.tensors, self.encoding, spec.contract(case))
        results = [
            Result(o.name, o.format, o.shape, (ready(rounded_codes(references[o.name])),)) for o in spec.outputs(case, self.encoding)
        ]
        return Outcome(tuple(results), 1)
