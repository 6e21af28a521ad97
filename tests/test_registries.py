"""Everything that is registered is complete: an addition is tested by being registered."""

import contextlib
import inspect
import itertools
import tomllib
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest

from accuracy_eval.cases import case_id, make_case, parse_case
from accuracy_eval.contracts import CONTRACTS, parse_contract
from accuracy_eval.cpu_ref.special_functions import FUNCTIONS
from accuracy_eval.digests import sha256_codes
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import FORMATS, decode, encode, get_format, is_nan
from accuracy_eval.gates import FACTS, builtin_profiles, load_profile
from accuracy_eval.inputs import INPUT_CLASSES, generate
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import side_of
from accuracy_eval.metrics.registry import KNOWN
from accuracy_eval.ops.operands import operand_codes, stored_inputs
from accuracy_eval.ops.registry import OPS
from accuracy_eval.ops.spec import rows_and_columns
from accuracy_eval.quantize import RECIPES, SCALE_RULES, dequantize, quantize
from accuracy_eval.records import Coded, Verdict
from accuracy_eval.report import WRITERS
from accuracy_eval.suite import builtin_suites, load_suite

every = pytest.mark.parametrize
SMALL = {1: (64,), 2: (6, 32), 3: (6, 5, 32), 4: (3, 4, 5, 32), 6: (1, 4, 2, 6, 6, 16)}


def small_cases(op):
    """A small case of the op for every format and recipe that go together, and with some recipes for every lane and direction."""
    out = "bfloat16" if op.name == "cast" else ""
    for letters, fmt, direction, lane in itertools.product(op.dims, op.formats, op.directions, op.lanes):
        shape = tuple(zip(letters, SMALL[len(letters)], strict=True))
        for recipe in op.recipes if (direction, lane) == ("fwd", "random") else op.recipes[:4]:
            with contextlib.suppress(UsageError):  # a combination the op refuses
                yield make_case(
                    op.name, shape, format=fmt, out_format=out, recipe=recipe, lane=lane, direction=direction, layout=op.layouts[-1]
                )  # fmt: skip


CASES = [c for op in OPS.values() for c in small_cases(op)]


EXTREME = [
    replace(c, input_class=name)
    for c in CASES
    if (c.lane, c.recipe, c.out_format) == ("random", "", "") and c.format in ("float64", "float32", "bfloat16")
    for name in ("specials", "wide", "subnormal", "huge")
]


def perfect(case):
    """(output, reference, correctly rounded codes) of every output of a case."""
    spec = OPS[case.op]
    references = spec.reference(case, stored_inputs(spec, case, "ocp", operand_codes(spec, case, "ocp")), "ocp", spec.contract(case))
    outputs = (*spec.outputs(case, "ocp"), *spec.derived(case, "ocp"))
    assert set(references) == {o.name for o in outputs}
    for output in outputs:
        values = np.concatenate([p.values for p in references[output.name].panels()])
        assert values.shape == rows_and_columns(output.shape)
        yield output, references[output.name], values if references[output.name].kind == "codes" else encode(values, output.format)


def judged(case, output, reference, codes):
    side = side_of("me", Coded(codes.reshape(output.shape), output.format), contract=reference.contract)
    return judge_tensor(Subject.of(case, output), [side], {"me": reference}, load_profile("default"))


@every("case", CASES, ids=case_id)
def test_a_perfect_result_of_every_op_passes_and_a_spoilt_one_fails(case):
    spec = OPS[case.op]
    assert parse_case(case_id(case)) == case
    codes = operand_codes(spec, case, "ocp")
    for o in spec.operands(case, "ocp"):
        assert codes[o.name].shape == o.shape
        assert codes[o.name].dtype == get_format(o.format).storage
    for output, reference, right in perfect(case):
        assert judged(case, output, reference, right).verdict is Verdict.PASS
        spoilt = encode(np.where(np.isfinite(decode(right, output.format)), -3.0, 0.0), output.format)
        assert judged(case, output, reference, spoilt).verdict is Verdict.FAIL


@every("case", EXTREME, ids=case_id)
def test_a_perfect_result_passes_without_a_warning_where_numbers_are_extreme(case):
    for output, reference, right in perfect(case):
        assert judged(case, output, reference, right).verdict.exit_code in (0, 2)  # nothing finite may be left to judge


@every("op", OPS.values(), ids=lambda o: o.name)
def test_every_op_says_what_it_is_and_takes_every_format_and_recipe_it_names(op):
    assert op.equation
    cases = list(small_cases(op))
    assert {f for c in cases for f in c.format.split("+")} == set(op.formats)
    assert {c.recipe for c in cases} == set(op.recipes)
    assert {c.lane for c in cases} == set(op.lanes)
    assert {c.direction for c in cases} == set(op.directions)
    assert op.family
    assert set(op.formats) | set(op.out_formats) <= {f.family for f in FORMATS.values()} | {"tfloat32"}
    case = next(small_cases(op))
    if op.contract(case):
        assert parse_contract(op.contract(case)).sentence


@every("f", FORMATS.values(), ids=lambda f: f.name)
def test_every_format_holds_one(f):
    one = encode([1.0], f)
    assert decode(one, f).tolist() == [1.0]
    assert not is_nan(one, f).any()


@every("name", INPUT_CLASSES)
def test_every_input_class_gives_the_same_bits_with_and_without_compiling(name):
    shape = (17, 33)
    for fmt in ("bfloat16", "float32", "float64"):
        compiled, plain = (generate("gemm", "a", shape, name, 3, fmt, axes=("m", "k"), compiled=c) for c in (True, False))
        assert sha256_codes(compiled) == sha256_codes(plain)
        assert compiled.shape == shape
    assert INPUT_CLASSES[name].sentence


@every("name", RECIPES)
def test_every_recipe_gives_ordinary_data_back_within_its_element_format(name):
    x = encode(np.linspace(-3, 3, 64 * 256).reshape(64, 256), "float32")
    q = quantize(x, "float32", name)
    assert RECIPES[name].rule in SCALE_RULES
    assert RECIPES[name].granularity
    if RECIPES[name].hadamard:
        return
    truth, back = decode(x, "float32"), dequantize(q)
    # e2m1, the coarsest element, is within a quarter of its value or of a block's smallest step
    assert np.abs(back - truth).max() <= 0.25 * np.abs(truth).max()


@every("c", CONTRACTS.values(), ids=lambda c: c.name)
def test_every_contract_states_its_promise_and_source(c):
    assert c.sentence
    assert c.source
    assert parse_contract(c.name) == c


@every("m", KNOWN.values(), ids=lambda m: m.name)
def test_every_metric_is_defined_in_a_sentence(m):
    assert m.definition
    assert m.better in ("lower", "higher", "info")
    assert m.number
    assert m.unit != "index" or m.better == "info"
    if m.index:
        assert KNOWN[m.index].unit == "index"


@every("name", builtin_profiles())
def test_every_gate_has_a_source_and_known_facts(name):
    profile = load_profile(name)
    assert profile.description
    for gate in profile.gates:
        assert len(gate.source) > 10
        assert set(gate.applies) <= set(FACTS)


@every("name", list(builtin_suites()))
def test_every_suite_describes_itself_and_expands(name):
    suite = load_suite(name, huge=True)
    assert suite.description.endswith(".") or suite.description.endswith("?")
    assert len({case_id(c) for c in suite.cases}) == len(suite.cases)
    data = tomllib.loads((resources.files("accuracy_eval") / "suites" / f"{name}.toml").read_text())
    assert data["name"] == name


@every("w", WRITERS.values(), ids=lambda w: w.name)
def test_every_report_writer_loads(w):
    assert list(inspect.signature(w.load()).parameters) == ["results", "folder"]
    assert w.description


@every("f", FUNCTIONS.values(), ids=lambda f: f.name)
def test_every_special_function_is_an_op_or_says_why_not(f):
    assert f.name in OPS
    assert len(f.wide) == f.arity
    assert f.ulps.source
