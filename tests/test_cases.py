import pytest

from accuracy_eval.cases import case_id, make_case, parse_case, shape_text
from accuracy_eval.errors import UsageError
from accuracy_eval.suite import builtin_suites, load_suite

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
        ("gemm.m8.n8.k8.nt.float32.bias=yes.normal.s0", "option value 'yes': expected true or false"),
        ("grouped_gemm.g1.m8.n8.k8.nt.float32.align=x.normal.s0", "option value 'x': expected an integer"),
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
        (MNK, {"options": {"alpha": True}}, "alpha=True: expected a float"),
        (MNK, {"options": {"alpha": float("nan")}}, "alpha=nan; allowed: finite numbers"),
        (MNK, {"options": {"beta": float("inf")}}, "beta=inf; allowed: finite numbers"),
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
