"""A case of an op with its operands and truth, what the CPU's framework computes for it, and the verdict on any result."""

from functools import cache

import numpy as np

from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import case_id, make_case
from accuracy_eval.formats import decode, encode
from accuracy_eval.gates import load_profile
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import side_of
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Coded, Verdict


class Known:
    """A case with its inputs as stored, their values by name, and the references by output."""

    def __init__(self, op, shape, **fields):
        spec = get_op(op)
        self.spec, self.case = spec, make_case(op, tuple(zip(spec.dims[0], shape, strict=True)), **fields)
        self.inputs = stored_inputs(spec, self.case, "ocp", operand_codes(spec, self.case, "ocp"))
        self.values = {n: decode(c.codes, c.format) for n, c in self.inputs.items()}
        self.references = spec.reference(self.case, self.inputs, "ocp", spec.contract(self.case))
        self.outputs = {o.name: o for o in spec.outputs(self.case, "ocp")}

    def truth(self, name):
        """The reference's values, in the output's shape."""
        return np.concatenate([p.values for p in self.references[name].panels()]).reshape(self.outputs[name].shape)

    def judged(self, name, values):
        """The judged side of a result given as numbers, rounded once."""
        output = self.outputs[name]
        return self.judged_codes(name, encode(np.reshape(values, output.shape), output.format))

    def judged_codes(self, name, codes):
        output, reference = self.outputs[name], self.references[name]
        side = side_of("me", Coded(codes, output.format), contract=reference.contract)
        subject, inputs = Subject.of(self.case, output), {"me": dict(self.inputs)}
        return judge_tensor(subject, [side], {"me": reference}, load_profile("default"), inputs=inputs).sides[0]

    def computed(self):
        """Codes by output of the framework on the CPU."""
        backend = _cpu()
        outcome = backend.run(backend.prepare(self.case), backend.candidates(self.case.op)[0], repeats=1)
        return {r.name: r.codes[0].result() for r in outcome.results}

    def healthy(self):
        """(id, output, verdict, budget used) of what the framework computes that does not pass; what extreme operands exempt passes."""
        sides = {name: self.judged_codes(name, codes) for name, codes in self.computed().items()}
        fine = {n: s.verdict is Verdict.PASS or (s.verdict in (Verdict.WARN, Verdict.INCONCLUSIVE) and s.note) for n, s in sides.items()}
        return [(case_id(self.case), n, str(s.verdict), s.metrics.get("budget_max")) for n, s in sides.items() if not fine[n]]


@cache
def _cpu():
    return TorchBackend("cpu")


def codes_of(side):
    """Names of a side's diagnoses."""
    return [d.code for d in side.diagnoses]
