"""A case's operands and references, and one of its outputs judged as compare judges a dump's."""

from accuracy_eval.gates import load_profile
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import side_of
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Coded


def known(case):
    """Inputs as stored, and references by output under the op's own contract."""
    spec = get_op(case.op)
    inputs = stored_inputs(spec, case, "ocp", operand_codes(spec, case, "ocp"))
    return inputs, spec.reference(case, inputs, "ocp", spec.contract(case))


def judged(case, name, codes, references, **options):
    """The result of one output by its reference; `options` as of judge_tensor."""
    output = next(o for o in get_op(case.op).outputs(case, "ocp") if o.name == name)
    side = side_of("me", Coded(codes.reshape(output.shape), output.format), contract=references[name].contract)
    return judge_tensor(Subject.of(case, output), [side], {"me": references[name]}, load_profile("default"), **options)
