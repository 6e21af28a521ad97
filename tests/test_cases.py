import pytest

from accuracy_eval.cases import builtin_suites, case_id, filter_cases, load_suite, make_case, parse_case, parse_suite, shape_text
from accuracy_eval.errors import UsageError
from accuracy_eval.records import Case

MNK = (("m", 512), ("n", 128), ("k", 256))


def test_the_id_is_readable_and_leaves_defaults_out():
    case = make_case("gemm", MNK, format="bfloat16", options={"alpha": 1.0, "bias": False}, seed=42)
    assert case_id(case) == "gemm.m512.n128.k256.nt.bfloat16.normal.s42"
    assert shape_text(case) == "m512.n128.k256"


def test_the_id_holds_every_field_that_changes_the_numbers():
    case = make_case("gemm", MNK, layout="tn", format="bf16", out_format="fp32", options={"beta": 1, "alpha": 1.5}, lane="random", seed=7)
    assert case_id(case) == "gemm.m512.n128.k256.tn.bfloat16-float32.alpha=3ff8000000000000.beta=3ff0000000000000.normal.s7"
    backward = make_case("gemm", MNK, format="float32", direction="bwd", lane="exact")
    assert case_id(backward) == "gemm.m512.n128.k256.nt.float32.exact.bwd.s0"


def test_encodings_of_one_family_share_the_case():
    ids = {
        case_id(make_case("cast", (("n", 8),), format="bfloat16", out_format=f)) for f in ("float8_e4m3fn", "float8_e4m3fnuz", "fp8_e4m3")
    }
    assert ids == {"cast.n8.bfloat16-fp8_e4m3.normal.s0"}


def test_a_companion_does_not_depend_on_the_input_class():
    ids = {case_id(make_case("gemm", MNK, lane="exact", input_class=c)) for c in ("normal", "cancellation")}
    assert ids == {"gemm.m512.n128.k256.nt.float32.exact.s0"}


@pytest.mark.parametrize("suite", list(builtin_suites()))
def test_every_id_of_every_suite_reads_back_as_its_case(suite):
    cases = load_suite(suite, huge=True).cases
    for case in cases[:: max(1, len(cases) // 200)]:
        assert parse_case(case_id(case)) == case
        assert "/" not in case_id(case)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv.n8.float32.normal.s0", "unknown op 'conv'"),
        ("gemm.m8.n8.k8.nt.float33.normal.s0", "unknown format 'float33'"),
        ("gemm.m8.n8.nt.float32.normal.s0", "unknown gemm shape letters 'mn' \\(did you mean mnk\\?\\); allowed: mnk"),
        ("gemm.m8.n8.k8.nt.float32.loud.s0", "unknown input class 'loud'"),
        ("gemm.m8.n8.k8.nt.float32.gamma=1.normal.s0", "unknown gemm option 'gamma'"),
        ("gemm.m8.n8.k8.nt.float32", "is not an input class and seed"),
        ("gemm.m8.n8.k8", "no number format"),
        ("gemm.m8.n8.k8.nt.float32.alpha=xyz.normal.s0", "expected the 16 hex digits"),
    ],
)
def test_a_wrong_id_says_which_field_is_wrong(text, message):
    with pytest.raises(UsageError, match=message):
        parse_case(text)


@pytest.mark.parametrize(
    ("shape", "more", "message"),
    [
        ((("m", -1), ("n", 2), ("k", 2)), {}, "m=-1 is negative"),
        ((("m", 1 << 16), ("n", 1 << 16), ("k", 1)), {}, "has 4294967296 elements; allowed without --huge: 2147483648"),
        (MNK, {"layout": "xy"}, "unknown gemm layout 'xy'; allowed: nn, nt, tn, tt"),
        (MNK, {"options": {"alpha": "two"}}, "alpha='two': expected a float"),
        (MNK, {"options": {"bias": True, "beta": 1.0}}, "bias and C together"),
        (MNK, {"seed": -1}, "seed -1 is negative"),
        (MNK, {"out_format": "float32", "format": "float64"}, "output float32 from float64"),
        (MNK, {"lane": "exact", "options": {"alpha": 1.2}}, "powers of two"),
    ],
)
def test_what_an_op_does_not_allow_is_refused_with_what_it_does(shape, more, message):
    with pytest.raises(UsageError, match=message):
        make_case("gemm", shape, **more)


def test_huge_tensors_are_allowed_on_request():
    assert make_case("gemm", (("m", 1 << 16), ("n", 1 << 16), ("k", 1)), huge=True).dims["m"] == 1 << 16


def test_suite_sizes_are_those_of_their_sources():
    assert len(load_suite("turbo-tests").cases) == 3087
    assert len(load_suite("models", huge=True).cases) == 38
    fp8, fp4 = load_suite("fp8").cases, load_suite("fp4").cases
    for recipe in ("tensorwise", "rowwise"):  # m × n × k of the operator tests, NT and NN, E4M3 and E5M2
        sweep = [c for c in fp8 if c.recipe == recipe and c.direction == "fwd" and c.dims["m"] in (255, 256, 507, 512) and c.op == "gemm"]
        assert len({(c.shape, c.layout, c.format) for c in sweep if "+" not in c.format}) >= 4 * 4 * 5 * 2 * 2
    assert len({c.shape for c in fp8 if c.recipe == "mxfp8_training" and c.lane == "random"}) == 4 * 4 * 5
    assert len({c.shape for c in fp4 if c.recipe == "mxfp4_training" and c.op == "gemm" and c.lane == "random"}) == 3 * 4 * 4
    assert {c.op for c in fp8} == {c.op for c in fp4} == {"gemm", "grouped_gemm"}
    gemm = load_suite("turbo-gemm").cases
    assert len([c for c in gemm if c.lane == "random"]) == 9
    assert {c.seed for c in gemm} == {42}


def test_smoke_fits_seventeen_workbooks_and_covers_every_op_and_wide_format():
    from accuracy_eval.ops.registry import OPS

    cases = load_suite("smoke").cases
    assert len({(OPS[c.op].family, c.shape) for c in cases}) <= 17
    assert {c.op for c in cases} == set(OPS)
    assert {"float64", "float32", "tfloat32", "float16", "bfloat16"} <= {c.format for c in cases}


def test_max_m_caps_model_rows():
    assert {c.dims["m"] for c in load_suite("models", max_m=512).cases} == {512}


def test_filters_keep_what_matches_all_of_them():
    cases = load_suite("smoke").cases
    kept = filter_cases(cases, ops=["gemm"], formats=["bf16"], layouts=["nt"], lanes=["exact"], directions=["fwd"])
    assert kept
    assert {(c.op, c.format, c.layout, c.lane, c.direction) for c in kept} == {("gemm", "bfloat16", "nt", "exact", "fwd")}
    with pytest.raises(UsageError, match="unknown op 'gem'"):
        filter_cases(cases, ops=["gem"])
    for name, kind in (("layouts", "layout"), ("lanes", "lane"), ("directions", "direction"), ("inputs", "input class")):
        with pytest.raises(UsageError, match=f"unknown {kind} 'zork'; allowed: "):
            filter_cases(cases, **{name: ["zork"]})


def test_a_table_is_the_product_of_its_lists():
    suite = parse_suite({"cases": [{"op": "gemm", "shape": {"m": [1, 2], "n": 3, "k": [4, 5]}, "format": ["float32", "bfloat16"]}]}, "t")
    assert len(suite.cases) == 8
    assert suite.cases[0] == Case("gemm", (("m", 1), ("n", 3), ("k", 4)), "nt")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"case": []}, "unknown key in suite t: 'case' \\(did you mean cases\\?\\); allowed: cases, description, expected, models, name"),
        ({"cases": [{"op": "gemm", "shape": "1x2x3", "formt": "x"}]}, "unknown key in suite t, cases table 1: 'formt'"),
        ({"cases": [{"op": "gemm"}]}, "needs op and shape"),
        ({"cases": [{"op": "gemm", "shape": "1x2"}]}, "shape 1x2 has 2 sizes; allowed: m×n×k"),
        ({"cases": [{"op": "gemm", "shape": "1xbx3"}]}, "expected sizes joined by x"),
        ({"cases": [{"op": "gemm", "shape": {"m": 1, "q": 2}}]}, "unknown shape letters"),
        ({}, "holds no cases"),
    ],
)
def test_a_faulty_suite_says_where(document, message):
    with pytest.raises(UsageError, match=message):
        parse_suite(document, "t")


def test_an_unknown_suite_names_those_there_are(tmp_path):
    with pytest.raises(UsageError, match=r"unknown suite 'smok' \(did you mean smoke\?\); allowed: .*smoke"):
        load_suite("smok")
    with pytest.raises(UsageError, match="No such file"):
        load_suite(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("a = [")
    with pytest.raises(UsageError, match="not TOML"):
        load_suite(str(tmp_path / "bad.toml"))


def test_the_digest_depends_on_the_cases_and_not_on_their_order():
    a = parse_suite({"cases": [{"op": "gemm", "shape": ["1x2x3", "3x2x1"]}]}, "a")
    b = parse_suite({"cases": [{"op": "gemm", "shape": ["3x2x1", "1x2x3"]}]}, "b")
    c = parse_suite({"cases": [{"op": "gemm", "shape": ["3x2x1"]}]}, "c")
    assert a.digest == b.digest != c.digest
