"""What fast 8-bit accumulation costs, and under which promise that is a fault: Hopper's unit, modelled, at K = 4096."""

import numpy as np
import pytest

from accuracy_eval.cases import make_case
from accuracy_eval.datapath import dot
from accuracy_eval.formats import decode
from accuracy_eval.gates import load_profile
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import side_of
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import OPS
from accuracy_eval.records import Coded, Verdict

GEMM = OPS["gemm"]
CASE = make_case("gemm", (("m", 48), ("n", 32), ("k", 4096)), format="fp8_e4m3", recipe="rowwise", out_format="float32", seed=42)
INPUTS = stored_inputs(GEMM, CASE, "ocp", operand_codes(GEMM, CASE, "ocp"))


def output(promote):
    """Every dot product of the unit, parts of `promote` products added in float32, then both scales; codes of float32."""
    a = np.repeat(INPUTS["a"].codes, 32, axis=0)
    b = np.tile(INPUTS["b"].codes, (48, 1))
    total = np.zeros(len(a), np.float32)
    for k in range(0, 4096, promote):
        part = slice(k, k + promote)
        total += decode(dot("hopper", a[:, part], b[:, part], format="float8_e4m3fn", out="float32"), "float32").astype(np.float32)
    scales = [INPUTS[f"{n}_scale"].codes.view(np.float32) for n in "ab"]
    return (total.reshape(48, 32) * scales[0][:, None] * scales[1]).view(np.uint32)


FAST, PROMOTED = output(4096), output(128)


def judged(codes, contract):
    def under(label, name):
        return GEMM.reference(CASE, INPUTS, "ocp", name)["d"]

    side = side_of("hopper", Coded(codes, "float32"), contract=contract)
    subject, references = Subject.of(CASE, GEMM.outputs(CASE, "ocp")[0], "fast_accum"), {"hopper": under("", contract)}
    return judge_tensor(subject, [side], references, load_profile("default"), under=under, inputs={"hopper": INPUTS}).sides[0]


@pytest.mark.parametrize(("codes", "contract", "snr_db"), [(FAST, "fp8fast", 58.1), (PROMOTED, "fp8promoted", 78.1)])
def test_each_way_to_accumulate_passes_under_its_own_contract_with_the_noise_that_is_known_of_it(codes, contract, snr_db):
    side = judged(codes, contract)
    assert side.verdict is Verdict.PASS
    assert side.metrics["snr_db"] == pytest.approx(snr_db, abs=1.0)  # measured on H200: 58.1 and 78.1 dB
    assert 0.01 < side.metrics["budget_max"] < 0.6


@pytest.mark.parametrize(
    ("codes", "promised", "kept"), [(FAST, "fp32acc", "fp8fast"), (FAST, "fp8promoted", "fp8fast"), (PROMOTED, "fp32acc", "fp8promoted")]
)
def test_a_shorter_accumulator_than_promised_is_a_fault_with_a_name(codes, promised, kept):
    side = judged(codes, promised)
    assert (side.verdict, side.off_contract) == (Verdict.FAIL, kept)
    assert side.metrics["budget_max"] > 1
