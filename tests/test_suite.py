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


def test_the_attention_of_four_models_is_there_in_both_formats_and_directions():
    cases = load_suite("turbo-attention").cases
    assert len(cases) == 4 * 2 * 2 * 2
    assert {(c.dims["h"], c.dims["g"], c.dims["s"]) for c in cases} == {(32, 32, 4096), (64, 8, 4096), (32, 8, 8192), (64, 8, 8192)}
    assert all(c.dims["d"] == 128 and c.dims["s"] == c.dims["t"] and c.option("causal", False) for c in cases)


def test_every_rank_of_experts_has_two_grouped_products():
    whole = load_suite("experts", huge=True)
    # 9 models divide by 32, 16 and 8, three by 8 alone; 6 numbers of rows; two projections
    assert len(whole.cases) == (9 * 3 + 3) * 6 * 2
    small = load_suite("experts", max_m=512).cases
    mixtral = {tuple(c.dims.values()) for c in small if c.dims["g"] == 1 and {14336, 28672} & set(c.dims.values())}
    assert mixtral == {(1, 512, 28672, 4096), (1, 512, 4096, 14336)}
    assert {c.op for c in whole.cases} == {"grouped_gemm"}
    with pytest.raises(UsageError, match="elements"):
        load_suite("experts")


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


ONE = {"cases": [{"op": "gemm", "shape": "1x2x3"}]}
EXPERTS = {"name": "a", "e": 8, "i": 4, "h": 2}
MODEL = {"name": "a", "seq": 1, "h": 8, "i": 8, "hq": 1, "hkv": 1, "v": 8}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"case": []},
            "unknown key in suite t: 'case' \\(did you mean cases\\?\\); allowed: cases, description, expected, experts, models, name",
        ),
        ({"cases": [{"op": "gemm", "shape": "1x2x3", "formt": "x"}]}, "unknown key in suite t, cases table 1: 'formt'"),
        ({"cases": [{"op": "gemm"}]}, "needs op and shape"),
        ({"cases": [{"op": "gemm", "shape": "1x2"}]}, "shape 1x2 has 2 sizes; gemm takes m×n×k"),
        ({"cases": [{"op": "gemm", "shape": "1xbx3"}]}, "expected sizes joined by x"),
        ({"cases": [{"op": "gemm", "shape": {"m": 1, "q": 2}}]}, "unknown shape letters"),
        ({"cases": [{"op": "gemm", "shape": "1x2x3", "format": 3}]}, "cases table 1: format = 3; expected a string or a list of them"),
        ({"cases": [{"op": "gemm", "shape": "1x2x3", "seed": "1"}]}, "cases table 1: seed = '1'; expected an integer or a list of them"),
        ({"cases": [{"op": "gemm", "shape": {"m": "1", "n": 2, "k": 3}}]}, "shape: m = '1'; expected an integer"),
        ({"cases": 3}, "suite t: cases = 3; expected tables"),
        ({"models": {"model": [{"name": "a", "h": 8}]}}, "suite t, models: model a: no seq; expected an integer"),
        ({"cases": [{"op": "gemm", "shape": "1x2x3"}], "expected": [{"candidates": "mine"}]}, "an expectation: no op; expected a string"),
        ({**ONE, "expected": [{"op": "gem", "candidates": "mine"}]}, "unknown op 'gem' \\(did you mean gemm\\?\\)"),
        ({**ONE, "expected": [{"op": "gemm"}]}, "suite t, expected gemm: no candidates"),
        (
            {**ONE, "expected": [{"op": "gemm", "candidates": "mine", "vendor": "nvidea"}]},
            "unknown vendor in suite t, expected gemm: 'nvidea'",
        ),
        ({**ONE, "expected": [{"op": "gemm", "candidates": "mine", "direction": "back"}]}, "unknown direction in suite t, expected gemm"),
        ({**ONE, "expected": [{"op": "gemm", "candidates": "mine", "format": "bf17"}]}, "'bf17'"),
        ({"models": {"model": [{**MODEL, "hq": -1}]}}, "suite t, models: model a: hq = -1; sizes of a model are 1 or more"),
        ({"models": {"shape": "1x2x3", "model": [MODEL]}}, "unknown key in suite t, models: 'shape'"),
        ({"cases": [{"op": "gemm", "shape": f"{'9' * 5000}x1x1"}]}, "expected sizes joined by x"),
        ({"cases": [{"op": "attention", "shape": "1x1x1x8x8x8", "options": {"window": True}}]}, "window=True: expected a int"),
        ({"cases": [{"op": "rmsnorm", "shape": "8x8", "options": {"eps": -1}}]}, "eps=-1.0; allowed: 0 or more"),
        ({"experts": {"ranks": 8, "model": [EXPERTS]}}, "suite t, experts: no m; expected an integer or a list of them"),
        ({"experts": {"ranks": 0, "m": 8, "model": [EXPERTS]}}, r"model a: e = 8, i = 4, h = 2, ranks \[0\], m \[8\]; sizes are 1 or more"),
        ({"experts": {"ranks": 3, "m": 8, "model": [EXPERTS]}}, "holds no cases"),
        ({}, "holds no cases"),
    ],
)
def test_a_faulty_suite_says_where(document, message):
    with pytest.raises(UsageError, match=message):
        parse_suite(document, "t")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"alpha = 1{'0' * 400}", "cases.1.options.alpha: an integer beyond the 64 bits that TOML has"),
        ("alpha = -9223372036854775809", "cases.1.options.alpha: an integer beyond the 64 bits that TOML has"),
        (f"alpha = 1{'0' * 5000}", "not TOML: "),
        (f"alpha = {'[' * 100_000}", "not TOML: brackets stand in each other too often"),
    ],
)
def test_what_no_toml_file_may_hold_is_one_message(tmp_path, text, message):
    path = tmp_path / "s.toml"
    path.write_text(f'[[cases]]\nop = "gemm"\nshape = "1x2x3"\n[cases.options]\n{text}\n')
    with pytest.raises(UsageError, match=message):
        load_suite(str(path))


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
