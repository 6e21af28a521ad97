"""The metamorphic lane: kernels that contradict themselves are caught without a reference, sound ones pass."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import support_kernels

from accuracy_eval.backends import candidates
from accuracy_eval.backends.open import open_backend
from accuracy_eval.backends.reference import ReferenceBackend
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cases import case_id, make_case, parse_case
from accuracy_eval.compare import compare_dumps
from accuracy_eval.digests import sha256_codes
from accuracy_eval.dump import dump
from accuracy_eval.errors import UsageError
from accuracy_eval.formats import decode
from accuracy_eval.messages import result_message
from accuracy_eval.ops.operands import operand_codes
from accuracy_eval.ops.registry import get_op
from accuracy_eval.ops.relations import PADDING, RELATIONS
from accuracy_eval.records import Verdict
from accuracy_eval.store import Dump
from accuracy_eval.store.parts import write_part
from accuracy_eval.suite import load_suite

SUITE = load_suite("metamorphic")


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.setattr(candidates, "_USER", {})
    support_kernels.register_unsteady()


def run(path, *, names=("default",), formats=("float32", "bfloat16"), layout="nt", backend=None):
    """The relations that fail, and the results, by the lane alone."""
    cases = tuple(c for c in SUITE.cases if c.format in formats and c.layout == layout)
    dump(replace(SUITE, cases=cases), backend or TorchBackend("cpu"), path, candidates=names)
    results = compare_dumps(path, reference="none", keep=lambda c: c.lane == "metamorphic")
    assert results.tensors
    assert not results.not_compared
    return {str(t.case.option("relation", "scaled")) for t in results.tensors if t.verdict is Verdict.FAIL}, results


@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_torch_on_a_cpu_keeps_every_relation(tmp_path, layout):
    failed, results = run(tmp_path / "cpu.h5", formats=("float32", "float16", "bfloat16"), layout=layout)
    assert failed == set()
    assert {t.verdict for t in results.tensors} == {Verdict.PASS}
    assert {str(t.case.option("relation", "scaled")) for t in results.tensors} == set(RELATIONS)
    assert results.exit_code == 0


@pytest.mark.parametrize("share", range(7))
def test_a_share_is_judged_by_itself(tmp_path, share):
    dump(SUITE, ReferenceBackend(), tmp_path / "share.h5", shard=(share, 7))
    results = compare_dumps(tmp_path / "share.h5", reference="none", keep=lambda c: c.lane == "metamorphic")
    assert {t.verdict for t in results.tensors} == {Verdict.PASS}
    assert not results.not_compared


def test_the_reference_keeps_every_relation(tmp_path):
    assert run(tmp_path / "ref.h5", backend=ReferenceBackend())[0] == set()


@pytest.mark.parametrize(
    ("kernel", "broken"),
    [
        ("reads-padding", {"padding_nan", "padding_max"}),
        ("by-batch", {"batch"}),
        ("no-tail", {"padded_k", "permuted_k"}),
    ],
)
def test_a_kernel_that_contradicts_itself_is_caught_by_the_lane_alone(tmp_path, kernels, kernel, broken):
    failed, results = run(tmp_path / "bad.h5", names=(kernel,))
    assert broken <= failed
    assert failed.isdisjoint({"scaled", "negated"})
    assert results.exit_code == 1
    bad = next(t for t in results.tensors if t.case.option("relation", "scaled") in broken)
    (side,) = bad.sides
    assert side.diagnoses[0].code == "relation-broken"
    assert side.diagnoses[0].evidence["relation"] in broken
    assert RELATIONS[str(bad.case.option("relation", ""))].sentence in result_message(bad)


def test_a_broken_relation_says_where(tmp_path, kernels):
    _, results = run(tmp_path / "bad.h5", names=("reads-padding",), formats=("float32",))
    bad = next(t for t in results.tensors if t.case.option("relation", "") == "padding_max")
    # the element after each row of A meets the first column of B: every row is wrong, and an element is named
    index = bad.sides[0].diagnoses[0].evidence["index"]
    assert len(index) == 2
    assert index[0] < 48
    assert index[1] < 40


def test_a_base_that_is_not_in_the_dump_leaves_the_relation_open(tmp_path):
    cases = tuple(c for c in SUITE.cases if c.lane == "metamorphic" and c.format == "float32" and c.layout == "nt")
    dump(replace(SUITE, cases=cases), ReferenceBackend(), tmp_path / "d.h5")
    results = compare_dumps(tmp_path / "d.h5")
    assert {n.verdict for n in results.not_compared} == {Verdict.INCONCLUSIVE}
    (why,) = {n.reason for n in results.not_compared if n.case and n.case.option("relation", "scaled") == "batch"}
    assert why == "relation batch compares with case gemm.m48.n40.k100.nt.float32.normal.s0, of which d.h5 holds no result"
    assert results.exit_code == 2


def rewritten(source, folder, change):
    """A dump whose outputs are `change(record, codes)`."""
    held = Dump.open(source)
    for r in held.records:
        (stored,) = (t for t in r.tensors if t.role == "output")
        codes = np.ascontiguousarray(change(r, held.view(r, stored).reshape(stored.shape)))
        made = replace(stored, shape=codes.shape, sha256=sha256_codes(codes))
        tensors = tuple(made if t == stored else t for t in r.tensors)
        write_part(folder, replace(r, tensors=tensors), {stored.name: codes}, info=dict(held.info), platform=dict(held.platform))
    return folder


@pytest.fixture
def sound(tmp_path):
    cases = tuple(c for c in SUITE.cases if c.format == "float32" and c.layout == "nn")
    dump(replace(SUITE, cases=cases), ReferenceBackend(), tmp_path / "sound.h5")
    return tmp_path / "sound.h5"


@pytest.mark.parametrize("relation", ["scaled", "negated"])
def test_anything_but_zero_beside_a_base_of_zeros_breaks_the_relation(tmp_path, sound, relation):
    path = rewritten(sound, tmp_path / "x", lambda r, codes: codes * (r.case.lane != "random"))
    (result,) = (t for t in compare_dumps(path, reference="none").tensors
                 if t.case.lane == "metamorphic" and t.case.option("relation", "scaled") == relation)  # fmt: skip
    assert (result.verdict, result.sides[0].diagnoses[0].code) == (Verdict.FAIL, "relation-broken")


@pytest.mark.parametrize(("lane", "verdict"), [("metamorphic", Verdict.FAIL), ("random", Verdict.INCONCLUSIVE)])
def test_results_of_another_shape_cost_their_relation_and_not_the_report(tmp_path, sound, lane, verdict):
    path = rewritten(sound, tmp_path / "x", lambda r, codes: codes[:-1] if r.case.lane == lane else codes)
    results = compare_dumps(path, keep=lambda c: c.option("relation", "scaled") in ("scaled", "negated", "batch"))
    found = [r for r in (*results.tensors, *results.not_compared) if r.case and r.case.lane == "metamorphic"]
    assert {r.verdict for r in found} == {verdict}


@pytest.mark.parametrize("relation", RELATIONS.values(), ids=lambda r: r.name)
def test_exact_products_keep_the_relation_exactly(relation):
    spec = get_op("gemm")
    case = make_case("gemm", (("m", 3), ("n", 2), ("k", 40)), lane="metamorphic", options={"relation": relation.name})
    assert parse_case(case_id(case)) == case

    def product(c):
        codes = operand_codes(spec, c, "ocp")
        a, b = (decode(codes[n], "float32").tolist() for n in ("a", "b"))
        assert all(codes[o.name].shape == o.shape for o in spec.operands(c, "ocp"))
        return np.array([[sum(Fraction(x) * Fraction(y) for x, y in zip(row, col, strict=True)) for col in b] for row in a])

    base = product(relation.base(case))
    if relation.partner:
        base = base - product(replace(case, options=(("relation", relation.partner),)))
    if relation.name == "scaled":
        assert (product(case) == base * 16).all()
    else:
        assert (product(case) == relation.result(base)).all()


def test_sign_flips_are_bitwise_but_on_units_that_round_the_signs_apart():
    negated, scaled = RELATIONS["negated"], RELATIONS["scaled"]
    assert negated.exact_on("sm_90")
    assert negated.exact_on("gfx950")
    assert not any(negated.exact_on(arch) for arch in ("gfx942", "gfx1100", "gfx1201"))
    assert scaled.exact_on("gfx942")
    assert not RELATIONS["batch"].exact_on("sm_90")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"options": {"relation": "scled"}}, "relation='scled'; allowed: scaled, negated, "),
        ({"options": {"relation": "batch", "alpha": 2.0}}, "no option besides relation"),
        ({"direction": "bwd"}, "forward, no recipe"),
        ({"options": {"relation": "padded_k"}}, f"needs k of {PADDING} or more"),
        ({"lane": "random", "options": {"relation": "batch"}}, "option relation belongs to the metamorphic lane"),
    ],
)
def test_what_no_relation_is_for_is_refused(more, message):
    with pytest.raises(UsageError, match=message):
        make_case("gemm", (("m", 8), ("n", 8), ("k", 16)), **{"lane": "metamorphic", **more})


def test_a_dump_of_the_lane_alone_holds_what_it_is_compared_with(tmp_path, capsys):
    from accuracy_eval.cli import run as command

    out = str(tmp_path / "d.h5")
    assert (
        command(
            ["dump", "metamorphic", "--lane", "metamorphic", "--format", "float32", "--layout", "nn", "--device", "reference", "-o", out]
        )
        == 0
    )
    assert command(["compare", out, "--lane", "metamorphic", "--to", "json", "-o", str(tmp_path / "report")]) == 0
    text = capsys.readouterr().out
    assert "gemm float32 metamorphic" in text
    assert "random" not in text


@pytest.mark.parametrize("part", ["MI300X", "H100", "gfx1100"])
def test_models_of_matrix_units_keep_every_relation(tmp_path, part):
    failed, results = run(tmp_path / "model.h5", formats=("bfloat16",), backend=open_backend(f"model:{part}"))
    assert failed == set()
    (negated,) = [t for t in results.tensors if t.case.option("relation", "") == "negated"]
    # CDNA3 and RDNA3 round the two signs apart: there the budget judges
    assert negated.sides[0].gates[0].gate == ("relation" if part == "H100" else "budget")
