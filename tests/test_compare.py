"""compare: who is off, judged from dumps whose faults are known."""

import math
import re
from contextlib import closing

import h5py
import numpy as np
import pytest
from support_deadly_judge import DeadlyJudge

from accuracy_eval.backends.open import open_backend
from accuracy_eval.backends.reference import ReferenceBackend
from accuracy_eval.cases import case_id, make_case
from accuracy_eval.cli import run
from accuracy_eval.compare import compare_dumps, judging
from accuracy_eval.compare.workers import dealt
from accuracy_eval.digests import sha256_codes
from accuracy_eval.dump import dump
from accuracy_eval.errors import CorruptFile, UsageError
from accuracy_eval.formats import decode, encode
from accuracy_eval.json_data import from_json, to_json
from accuracy_eval.ops.operands import operand_codes
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Attribution, CaseRecord, Results, TensorRecord, Verdict
from accuracy_eval.report.findings import findings
from accuracy_eval.report.summaries import attribution_sentence
from accuracy_eval.store import Dump, write_part
from accuracy_eval.suite import parse_suite

SHAPE = (("m", 96), ("n", 64), ("k", 512))


def dump_with(folder, label, case, change, *, contract="", candidate="default", notes=None, digest_of=None):
    """A dump of one gemm case whose float64 result is passed through `change(values, a, b)` and rounded once.

    digest_of  another change, whose result's digest the record states: a file that was altered
    """
    codes = operand_codes(get_op("gemm"), case, "ocp")
    formats = {o.name: o.format for o in get_op("gemm").operands(case, "ocp")}
    a, b = (decode(codes[n], formats[n]) for n in "ab")
    output = get_op("gemm").outputs(case, "ocp")[0]
    d = encode(change(a @ b.T, a, b), output.format)
    digest = sha256_codes(d if digest_of is None else encode(digest_of(a @ b.T, a, b), output.format))
    tensors = [TensorRecord(n, "source", formats[n], codes[n].shape, sha256_codes(codes[n])) for n in codes]
    record = CaseRecord(case_id(case), case, candidate, "done", "",
                        (*tensors, TensorRecord("d", "output", output.format, output.shape, digest)),
                        contract or get_op("gemm").contract(case), 1, {"d": 1}, notes or {})  # fmt: skip
    write_part(folder / label, record, {"d": d}, info={"suite": "s", "suite_digest": "d"}, platform={"label": label})
    return folder / label


def right(values, a, b):
    return values


def tf32(values, a, b):
    def cut(x):
        bits = x.astype(np.float32).view(np.uint32)
        return ((bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)

    return cut(a) @ cut(b).T


def lost_k(values, a, b):
    return values - np.outer(a[:, 17], b[:, 17])


def nan(values, a, b):
    values = values.copy()
    values[3, 4] = np.nan
    return values


def zero(values, a, b):
    return np.zeros_like(values)


def pair(folder, case, change_a, change_b, **more):
    (result,) = compare_dumps(dump_with(folder, "a", case, change_a), dump_with(folder, "b", case, change_b), **more).tensors
    return result


def test_two_right_results_with_the_same_bytes_are_identical(tmp_path):
    result = pair(tmp_path, make_case("gemm", SHAPE), right, right)
    assert (result.verdict, result.pairs[0].attribution) == (Verdict.PASS, Attribution.IDENTICAL)


def test_results_within_the_contract_are_equivalent(tmp_path):
    result = pair(tmp_path, make_case("gemm", SHAPE), right, lambda v, a, b: v + 1e-6)
    assert (result.verdict, result.pairs[0].attribution) == (Verdict.PASS, Attribution.EQUIVALENT)
    assert result.pairs[0].metrics["mismatch_count"] > 0


@pytest.mark.parametrize("fmt", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("fault", [lost_k, nan, zero], ids=lambda f: f.__name__)
def test_the_side_that_is_off_is_named(tmp_path, fmt, fault):
    case = make_case("gemm", SHAPE, format=fmt)
    result = pair(tmp_path, case, fault, right)
    assert (result.verdict, result.pairs[0].attribution) == (Verdict.FAIL, Attribution.A_OFF)
    assert [s.verdict for s in result.sides] == [Verdict.FAIL, Verdict.PASS]
    result = pair(tmp_path / "other way", case, right, fault)
    assert result.pairs[0].attribution is Attribution.B_OFF
    assert result.pairs[0].sentence == "b is off; a is right"


def test_the_same_wrong_bytes_on_both_sides_are_identical_and_still_fail(tmp_path):
    result = pair(tmp_path, make_case("gemm", SHAPE), lost_k, lost_k)
    assert (result.verdict, result.pairs[0].attribution) == (Verdict.FAIL, Attribution.IDENTICAL)


def test_a_failure_beside_an_empty_case_exits_with_the_higher_code(tmp_path):
    failing, empty = make_case("gemm", SHAPE), make_case("gemm", (("m", 0), ("n", 64), ("k", 512)))
    assert compare_dumps(dump_with(tmp_path, "a", failing, lost_k)).exit_code == 1
    results = compare_dumps(dump_with(tmp_path, "a", empty, right))
    assert {t.verdict for t in results.tensors} == {Verdict.FAIL, Verdict.INCONCLUSIVE}
    assert (results.verdict, results.exit_code) == (Verdict.FAIL, 2)


def test_two_different_faults_leave_both_off(tmp_path):
    result = pair(tmp_path, make_case("gemm", SHAPE), lost_k, zero)
    assert result.pairs[0].attribution is Attribution.BOTH_OFF


def test_tf32_where_float32_was_promised_is_a_failure_with_a_name(tmp_path):
    result = pair(tmp_path, make_case("gemm", SHAPE), tf32, right)
    assert result.verdict is Verdict.FAIL
    assert result.pairs[0].attribution is Attribution.OFF_CONTRACT
    assert result.pairs[0].sentence == "a keeps tf32 instead of fp32acc"
    assert result.sides[0].off_contract == "tf32"


@pytest.mark.parametrize("labels", [["a"], ["a", "b"]], ids=["alone", "beside a right one"])
def test_a_finding_says_which_contract_is_kept_instead(tmp_path, labels):
    case = make_case("gemm", SHAPE)
    dumps = [dump_with(tmp_path, label, case, tf32 if label == "a" else right) for label in labels]
    (finding,) = findings(compare_dumps(*dumps))
    assert finding.who == "a keeps tf32 instead of fp32acc"


def test_sides_with_different_promises_are_each_judged_by_their_own(tmp_path):
    case = make_case("gemm", SHAPE)
    a = dump_with(tmp_path, "a", case, tf32, contract="tf32")
    b = dump_with(tmp_path, "b", case, right)
    (result,) = compare_dumps(a, b).tensors
    assert (result.verdict, result.pairs[0].attribution) == (Verdict.PASS, Attribution.DIFFERENT_CONTRACTS)


def test_the_exact_lane_sees_a_single_wrong_integer(tmp_path):
    case = make_case("gemm", SHAPE, format="bfloat16", lane="exact")

    def off_by_one(values, a, b):
        values = values.copy()
        values[50, 60] += 1
        return values

    result = pair(tmp_path, case, off_by_one, right)
    assert result.sides[0].verdict is Verdict.FAIL
    assert result.sides[0].worst[0].index == (50, 60)
    assert result.pairs[0].attribution is Attribution.A_OFF


def test_candidates_pair_with_their_namesakes_only(tmp_path):
    case = make_case("gemm", SHAPE)
    a = dump_with(tmp_path, "a", case, right, candidate="mine")
    b = dump_with(tmp_path, "b", case, right)
    results = compare_dumps(a, b)
    assert not [p for t in results.tensors for p in t.pairs]
    assert {(n.candidate, n.label, n.verdict) for n in results.not_compared} == {("default", "a", Verdict.MISSING)}
    assert results.exit_code == 1


def test_a_candidate_that_the_suite_expects_is_missing_where_it_did_not_run(tmp_path):
    table = {"op": "gemm", "shape": "8x8x8", "format": "float32"}
    suite = parse_suite({"name": "one", "cases": [table], "expected": {"gemm": ["mine"]}}, "one")
    dump(suite, ReferenceBackend(), tmp_path / "b.h5")
    a = dump_with(tmp_path, "a", suite.cases[0], right, candidate="mine")
    missing = {(n.candidate, n.label) for n in compare_dumps(a, tmp_path / "b.h5").not_compared}
    assert missing == {("mine", "rounded-reference"), ("default", "a")}


def test_without_a_reference_bytes_speak_and_nobody_is_named(tmp_path):
    same = pair(tmp_path / "1", make_case("gemm", SHAPE), right, right, reference="none")
    assert (same.verdict, same.pairs[0].attribution) == (Verdict.PASS, Attribution.IDENTICAL)
    assert {s.verdict for s in same.sides} == {Verdict.INCONCLUSIVE}
    off = pair(tmp_path / "2", make_case("gemm", SHAPE), lost_k, right, reference="none")
    assert (off.verdict, off.pairs[0].attribution) == (Verdict.FAIL, Attribution.UNDETERMINED)


@pytest.mark.parametrize("fmt", ["float32", "float16", "bfloat16"])
def test_without_a_reference_one_element_that_no_norm_shows_still_fails(tmp_path, fmt):
    def one(values, a, b):
        values[1, 2] += 0.6 * np.sqrt(np.mean(values**2))
        return values

    case = make_case("gemm", SHAPE, format=fmt)
    a, b, c = (dump_with(tmp_path, n, case, f) for n, f in (("a", right), ("b", one), ("c", lambda v, a, b: v * (1 + 1e-7))))
    (result,) = compare_dumps(a, b, reference="none").tensors
    assert result.verdict is Verdict.FAIL
    assert re.fullmatch(
        r"1 of 6144 elements are further apart than both budgets allow: [\d.e]+ × at \[1, 2\]; .*", result.pairs[0].sentence
    )
    assert compare_dumps(a, c, reference="none").verdict is Verdict.PASS


def test_without_a_reference_a_side_that_was_never_written_still_fails(tmp_path):
    case = make_case("gemm", SHAPE)
    paths = [dump_with(tmp_path, name, case, right, notes={"never_written": {"d": 5}}) for name in ("a", "b")]
    (result,) = compare_dumps(*paths, reference="none").tensors
    assert result.verdict is Verdict.FAIL


def test_a_record_that_makes_no_sense_costs_its_case_and_not_the_report(tmp_path):
    case = make_case("gemm", SHAPE)
    good = dump_with(tmp_path, "a", case, right)
    bad = dump_with(tmp_path, "b", make_case("gemm", (("m", 8), ("n", 8), ("k", 8))), right, contract="fp17acc")
    results = compare_dumps(good, bad)
    assert [t.verdict for t in results.tensors] == [Verdict.PASS]
    assert any("unknown contract 'fp17acc'" in n.reason and n.verdict is Verdict.ERROR for n in results.not_compared)
    assert results.exit_code == 1


def test_bytes_that_were_not_verified_are_never_taken_for_equal(tmp_path):
    case = make_case("gemm", SHAPE)
    paths = [dump_with(tmp_path, "a", case, right), dump_with(tmp_path, "b", case, lost_k, digest_of=right)]
    (result,) = compare_dumps(*paths, verify=False).tensors
    assert [s.verdict for s in result.sides] == [Verdict.PASS, Verdict.FAIL]


def test_three_dumps_give_every_pair(tmp_path):
    case = make_case("gemm", SHAPE)
    paths = [dump_with(tmp_path, name, case, change) for name, change in (("a", right), ("b", lost_k), ("c", right))]
    (result,) = compare_dumps(*paths).tensors
    assert [(p.a, p.b, p.attribution) for p in result.pairs] == [
        ("a", "b", Attribution.B_OFF),
        ("a", "c", Attribution.IDENTICAL),
        ("b", "c", Attribution.A_OFF),
    ]


def test_labels_are_numbered_or_given_and_never_equal(tmp_path):
    case = make_case("gemm", SHAPE)
    paths = [dump_with(tmp_path / str(i), "mi300x", case, right) for i in range(2)]
    assert [d.label for d in compare_dumps(*paths).dumps] == ["mi300x", "mi300x-2"]
    assert [d.label for d in compare_dumps(*paths, labels=["before", "after"]).dumps] == ["before", "after"]
    with pytest.raises(UsageError, match="two are equal"):
        compare_dumps(*paths, labels=["x", "x"])
    with pytest.raises(UsageError, match="1 label for 2 dumps"):
        compare_dumps(*paths, labels=["x"])
    with pytest.raises(UsageError, match="label reference: reports call so what every dump is judged by"):
        compare_dumps(*paths, labels=["x", "reference"])
    with pytest.raises(UsageError, match="a label is empty; a report could not say which dump it means"):
        compare_dumps(*paths, labels=["before", " "])


def test_a_folder_of_reports_has_a_name_that_a_file_system_takes(tmp_path, monkeypatch, capsys):
    case = make_case("gemm", SHAPE)
    monkeypatch.chdir(tmp_path)
    labels = ["node" * 30 + letter for letter in "abc"]
    paths = [str(dump_with(tmp_path / letter, "mi300x", case, right)) for letter in "abc"]
    command = ["compare", *paths, "--to", "json", "-q"]
    assert run([*command, *(word for label in labels for word in ("--label", label))]) == 0
    assert run([*command, *(word for label in (*labels[:2], "other") for word in ("--label", label))]) == 0
    names = sorted(p.name for p in (tmp_path / "reports").iterdir())
    assert len(names) == 2
    assert all(len(name) < 255 and name.startswith(f"{labels[0]}-vs-node") for name in names)


def test_dumps_of_different_suites_are_joined_with_a_note(tmp_path):
    for name, shapes in (("one", ["8x8x8"]), ("two", ["8x8x8", "8x8x16"])):
        dump(parse_suite({"name": name, "cases": [{"op": "gemm", "shape": shapes}]}, name), ReferenceBackend(), tmp_path / f"{name}.h5")
    results = compare_dumps(tmp_path / "one.h5", tmp_path / "two.h5")
    assert "different suites (one, two)" in results.notes[0]
    assert [n.verdict for n in results.not_compared] == [Verdict.MISSING]


@pytest.mark.parametrize("profile", ["turbo", "l3", "exact", "default"])
def test_every_profile_passes_a_right_result_and_fails_a_wrong_one(tmp_path, profile):
    case = make_case("gemm", (("m", 32), ("n", 32), ("k", 64)), format="bfloat16")
    assert pair(tmp_path / "1", case, right, right, gates=profile).verdict is Verdict.PASS
    assert pair(tmp_path / "2", case, lambda v, a, b: 2 * v, right, gates=profile).verdict is Verdict.FAIL


def test_an_unknown_case_is_an_error(tmp_path):
    path = dump_with(tmp_path, "a", make_case("gemm", SHAPE), right)
    with pytest.raises(UsageError, match=r"case gemm\.m1: in none of the dumps"):
        compare_dumps(path, cases=["gemm.m1"])


@pytest.mark.parametrize("fmt", ["float32", "float16", "bfloat16"])
def test_metrics_agree_with_an_independent_computation_to_1e_12(tmp_path, fmt):
    case = make_case("gemm", (("m", 512), ("n", 128), ("k", 256)), format=fmt, seed=42)
    noise = np.random.default_rng(7)
    path = dump_with(tmp_path, "a", case, lambda v, a, b: v * (1 + 1e-7 * noise.standard_normal(v.shape)))
    (result,) = compare_dumps(path).tensors
    codes = operand_codes(get_op("gemm"), case, "ocp")
    # products of formats of at most 32 bits are exact in float64; fsum adds them without any error
    a, b = (decode(codes[n], fmt) for n in "ab")
    truth = np.array([[math.fsum(p) for p in row * b] for row in a])
    with Dump.open(path) as d:
        actual = decode(d.read(d.records[0], "d"), fmt)
    error = (actual - truth).ravel()
    ee, dd = math.fsum(truth.ravel() ** 2), math.fsum(error**2)
    aa, ae = math.fsum(actual.ravel() ** 2), math.fsum((actual * truth).ravel())
    metrics = result.sides[0].metrics
    assert metrics["rel_fro"] == pytest.approx(math.sqrt(dd / ee), rel=1e-12)
    assert metrics["snr_db"] == pytest.approx(10 * math.log10(ee / dd), rel=1e-12)
    assert metrics["cosine"] == pytest.approx(ae / math.sqrt(aa * ee), rel=1e-12)
    assert metrics["max_abs"] == pytest.approx(np.abs(error).max(), rel=1e-12)
    assert metrics["gain"] == pytest.approx(ae / ee, rel=1e-12)


def many(tmp_path, name, device, **table):
    cases = {"op": "gemm", "shape": ["8x6x32", "16x6x64"], "format": ["float32", "bfloat16"], "seed": list(range(9)), **table}
    with closing(open_backend(device)) as backend:
        dump(parse_suite({"name": "many", "cases": [cases]}, "many"), backend, tmp_path / name)
    return tmp_path / name


def test_several_processes_give_the_same_results_in_the_same_order(tmp_path):
    a, b = many(tmp_path, "a.h5", "cpu"), many(tmp_path, "b.h5", "reference", seed=list(range(8)))
    seen = []
    alone = compare_dumps(a, b, workers=1)
    shared = compare_dumps(a, b, workers=2, progress=lambda done, total, ident: seen.append((done, total, ident)))
    assert shared == alone
    assert [n.case_id for n in shared.not_compared]  # seed 8 is in one dump only
    assert [(done, total) for done, total, _ in seen] == [(i + 1, 36) for i in range(36)]


@pytest.mark.parametrize("workers", [1, 2, 16])
def test_candidates_of_a_case_are_dealt_together(workers):
    keys = [(f"case {i}", candidate) for i in range(100) for candidate in ("default", "math", "eager")]
    batches = dealt(keys, workers)
    assert [key for batch in batches for key in batch] == keys
    assert all(len({c for i, c in batch if i == ident}) == 3 for batch in batches for ident, _ in batch)
    assert max(map(len, batches)) < 16 + 3


def test_a_case_that_ends_its_process_is_an_error_of_that_case_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("accuracy_eval.compare.workers.Judge", DeadlyJudge)
    monkeypatch.setattr("accuracy_eval.compare.comparing.dealt", lambda keys, workers: [keys[:7], keys[7:]])
    a = many(tmp_path, "a", "reference", seed=list(range(10)), shape="8x8x8", format="float32", lane="random")
    alone = compare_dumps(a, workers=1)
    shared = compare_dumps(a, workers=2)
    assert [t for t in alone.tensors if not t.case_id.endswith(".s3")] == list(shared.tensors)
    (lost,) = shared.not_compared
    assert (lost.case_id.rpartition(".")[2], lost.verdict) == ("s3", Verdict.ERROR)
    assert "SIGKILL" in lost.reason
    assert shared.exit_code == 1


def test_gradients_of_rows_without_columns_are_inconclusive(tmp_path):
    results = compare_dumps(many(tmp_path, "a.h5", "reference", op="embedding", shape="3x5x0", direction="bwd", format="bfloat16", seed=0))
    assert [(t.tensor, t.verdict) for t in results.tensors] == [("dweight", Verdict.INCONCLUSIVE)]
    assert results.not_compared == ()


def test_a_mistake_of_this_program_in_one_case_is_an_error_of_that_case_alone(tmp_path, monkeypatch):
    a = many(tmp_path, "a.h5", "reference", shape="8x8x8", format="float32")
    whole = compare_dumps(a)
    judge = judging.judge_tensor

    def mistaken(subject, *rest, **options):
        if subject.case.seed == 3:
            raise ValueError("cannot reshape array of size 0")
        return judge(subject, *rest, **options)

    monkeypatch.setattr(judging, "judge_tensor", mistaken)
    results = compare_dumps(a)
    assert list(results.tensors) == [t for t in whole.tensors if t.case.seed != 3]
    (lost,) = results.not_compared
    assert (lost.case.seed, lost.verdict, results.exit_code) == (3, Verdict.ERROR, 1)
    said = r"could not be judged: ValueError: cannot reshape array of size 0 \(a mistake of accuracy-eval, at compare/judging\.py:\d+\)"
    assert re.fullmatch(said, lost.reason)


def test_what_is_wrong_with_a_file_is_said_by_whichever_process_reads_it(tmp_path):
    a = many(tmp_path, "a.h5", "reference")
    record = Dump.open(a).records[20]
    with h5py.File(a, "r+") as file:
        dataset = file[next(t.path for t in record.tensors if t.path)]
        codes = dataset[...]
        codes.flat[0] ^= 1
        dataset[...] = codes
    with pytest.raises(CorruptFile, match=re.escape(record.id)):
        compare_dumps(a, workers=2)


@pytest.mark.parametrize(
    ("shape", "fmt", "said"), [((2, 3), "float32", "d#2 [2, 3] of float32"), ((8, 6), "float16", "d#2 [8, 6] of float16")]
)
def test_results_of_repeated_runs_have_one_shape_and_format(tmp_path, shape, fmt, said):
    case = make_case("gemm", (("m", 8), ("n", 6), ("k", 16)), layout="nt")
    codes = operand_codes(get_op("gemm"), case, "ocp")
    d = encode(decode(codes["a"], "float32") @ decode(codes["b"], "float32").T, "float32")
    other = encode(np.zeros(shape), fmt)
    tensors = [TensorRecord(n, "source", "float32", codes[n].shape, sha256_codes(codes[n])) for n in codes]
    tensors += [TensorRecord(n, "output", f, c.shape, sha256_codes(c)) for n, f, c in (("d", "float32", d), ("d#2", fmt, other))]
    record = CaseRecord(case_id(case), case, "default", "done", "", tuple(tensors), "fp32acc", 2, {"d": 2}, {})
    write_part(tmp_path / "x", record, {"d": d, "d#2": other}, info={"suite": "s", "suite_digest": "d"}, platform={"label": "x"})
    (refused,) = compare_dumps(tmp_path / "x").not_compared
    assert refused.verdict is Verdict.ERROR
    assert f"holds d [8, 6] of float32 and {said}; distinct results of repeated runs have one shape and format" in refused.reason


def test_notes_speak_of_the_cases_that_were_asked_for_alone(tmp_path):
    cases = [make_case("gemm", SHAPE, format=f) for f in ("float32", "bfloat16")]
    for case in cases:
        dump_with(tmp_path, "x", case, right)
    dump_with(tmp_path, "x", cases[1], right, candidate="mine")
    both = compare_dumps(tmp_path / "x")
    assert both.notes == ("besides default ran: x mine 1 (compare -v lists every candidate)",)
    assert both.candidates == ("x: gemm: default 2, mine 1",)
    for one in (
        compare_dumps(tmp_path / "x", cases=[case_id(cases[0])]),
        compare_dumps(tmp_path / "x", keep=lambda c: c.format == "float32"),
    ):
        assert one.notes == one.candidates == ()


def test_who_is_off_names_the_candidate_and_the_command_the_profile(tmp_path):
    case = make_case("gemm", SHAPE, layout="nt", format="bfloat16")
    dump_with(tmp_path, "x", case, right)
    path = dump_with(tmp_path, "x", case, lost_k, candidate="mine")
    mine = tmp_path / "mine.toml"
    mine.write_text('name = "mine"\nextends = "default"\n')
    results = compare_dumps(path, gates=str(mine))
    (finding,) = findings(results)
    assert finding.who == "x (mine) is off"
    assert f" --case {case_id(case)} --gates {mine}" in finding.steps[0]
    assert attribution_sentence(results.tensors) == "x (mine) fails 1 of 1 against the reference; no pair of dumps was compared."
    assert from_json(Results, to_json(results)) == results
