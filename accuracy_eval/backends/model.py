"""A model of a matrix unit as a device: GEMMs as that unit computes them, bit for bit, for parts one does not have. Needs no torch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from accuracy_eval.backends.base import Outcome, Prepared, Result
from accuracy_eval.backends.reference import ReferenceBackend, ready
from accuracy_eval.errors import UnsupportedCase, UsageError
from accuracy_eval.formats import get_format
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.spec import Output
from accuracy_eval.parts import part_named, resolve_unit

if TYPE_CHECKING:
    from accuracy_eval.datapath.card import Call


class ModelBackend(ReferenceBackend):
    """Products of one unit: one chain of its blocks per element in increasing k (fp8 sums of a short accumulator promoted every 128
    products, as the default calls of libraries do), scales, alpha, C and bias in float32 after it.

    A library on the part may cut or order k otherwise; its outputs then differ from these by rounding only.
    """

    def __init__(self, name: str) -> None:
        """`name` as `parts.resolve_unit` takes it: model:cdna3, MI300X, hopper/mma.sync. UsageError for one that names no unit.

        Dumps are labelled with the name that was asked for: who asks for an MI300X looks for it in reports.
        """
        self.unit, self.part, asked = resolve_unit(name), part_named(name), name.strip().removeprefix("model:").strip()
        self.name, self.label = f"model:{asked}", "model-" + re.sub(r"[^a-z0-9]+", "-", asked.lower()).strip("-")
        super().__init__((self.part.fp8 if self.part else None) or "ocp")

    def platform(self) -> dict[str, Any]:
        """The host's record, with the modelled part in place of a device: `backend` and `model.*` say that nothing ran on one."""
        from accuracy_eval.datapath.units import units_of

        arch = self.part.arch if self.part else self.unit
        rows = {
            f"model.{u.instruction}.{'+'.join(u.formats)}{'>float16' if u.out == 'float16' else ''}": f"{u.rule} ({u.certainty})"
            for u in units_of(self.unit)
            if u.rule is not None
        }
        return {
            **super().platform(),
            "vendor": self.part.vendor if self.part else "cpu",
            "arch": arch,
            "unit": self.unit.partition("/")[0],
            "device": self.name,
            "device_name": f"model of {self.unit} ({arch})",
            "backend": "model",
            "label": self.label,
            "fp8_encoding": self.encoding,
            **rows,
        }

    def products(self) -> tuple[Call, ...]:
        """One call per operand format of the unit, float32 operands also through its TF32 rule as its library feeds it."""
        from accuracy_eval.datapath.card import Call, model_matmul
        from accuracy_eval.datapath.predicting import tf32_conversion
        from accuracy_eval.datapath.units import units_of

        calls = []
        for row in units_of(self.unit):
            if row.rule is None or row.scales:
                continue
            for fmt in row.formats:
                if row.out == "float16" and fmt != "float16":
                    continue  # no answers are known to compare with
                mode = "float16 accumulator" if row.out == "float16" else ""
                if fmt == "tfloat32":
                    calls.append(Call("float32", row.out, model_matmul(f"{tf32_conversion(row)} {row.rule}", "float32"), "tf32"))
                elif get_format(fmt).bits >= 8:
                    calls.append(Call(fmt, row.out, model_matmul(row.name, fmt, row.out), mode))
        return tuple(calls)

    def run(self, prepared: Prepared, candidate: Any, *, repeats: int, kernels: bool = False, certify: bool = False) -> Outcome:
        """The case's outputs. UnsupportedCase for an op that is not made of products, and for formats the unit does not take."""
        outputs = get_op(prepared.case.op).outputs(prepared.case, self.encoding)
        return Outcome(tuple(Result(o.name, o.format, o.shape, (ready(self._output(prepared, o)),)) for o in outputs), 1)

    def _output(self, prepared: Prepared, output: Output) -> Any:
        from accuracy_eval.datapath.predicting import predict

        case = prepared.case
        op = get_op(case.op)
        products = op.products
        made = products(case, prepared.tensors, output.name) if products else ()
        if not made:
            what = f"output {output.name!r} is no matrix product" if products else "no matrix product"
            raise UnsupportedCase(f"{what}: the model of a matrix unit computes nothing else")
        codes = np.zeros(output.shape, get_format(output.format).storage)
        for product in made:
            try:
                codes[product.index] = predict(
                    product.gemm, self.unit, output.format, tf32=case.format == "tfloat32", promoted=op.contract(case) == "fp8promoted"
                )
            except UsageError as error:  # what the unit does not take, in the model's words
                raise UnsupportedCase(str(error)) from error
        return codes
