import pytest

from accuracy_eval.errors import UsageError
from accuracy_eval.records import Case
from accuracy_eval.suite import filter_cases, load_suite, parse_suite


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
        ({"cases": [{"op": "gemm", "shape": "1x2x3", "format": 3}]}, "cases table 1: format = 3; expected a string or a list of them"),
        ({"cases": [{"op": "gemm", "shape": "1x2x3", "seed": "1"}]}, "cases table 1: seed = '1'; expected an integer or a list of them"),
        ({"cases": [{"op": "gemm", "shape": {"m": "1", "n": 2, "k": 3}}]}, "shape: m = '1'; expected an integer"),
        ({"cases": 3}, "suite t: cases = 3; expected tables"),
        ({"models": {"model": [{"name": "a", "h": 8}]}}, "suite t, models: model a: no seq; expected an integer"),
        ({"cases": [{"op": "gemm", "shape": "1x2x3"}], "expected": [{"candidates": "mine"}]}, "an expectation: no op; expected a string"),
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
