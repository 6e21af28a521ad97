"""What a PASS claims under each profile, against faults of the stated sizes put into a product: they fail under that profile."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import support_units as units

from accuracy_eval import messages
from accuracy_eval.claims import Claims
from accuracy_eval.cpu_ref.gemm import panels
from accuracy_eval.cpu_ref.operands import Gemm
from accuracy_eval.formats import decode, encode
from accuracy_eval.gates import Gate, Profile, builtin_profiles, load_profile
from accuracy_eval.judge import Subject, judge_tensor
from accuracy_eval.measuring import side_of
from accuracy_eval.ops.spec import Output, Panel, Reference
from accuracy_eval.records import Case, Coded, Verdict

M, N, K = 72, 40, 64
FORMATS = ("float32", "bfloat16")
LINES = {"element", "row", "column", "gain"}
CLAIMED = {"default": LINES | {"tile"}, "exact": LINES, "l3": LINES, "strict": LINES, "turbo": LINES}
OVER = 1.0001


class Product:
    """D = A·Bᵀ of normal operands, judged under a profile."""

    def __init__(self, fmt: str, profile: str | Profile, *, lane: str = "random", operands: str = "", op: str = "gemm") -> None:
        a, b = units.operands("normal", M, K, fmt, seed=11)
        self.problem = Gemm(Coded(a, fmt), Coded(b[:N], fmt), "nt")
        (p,) = panels(self.problem, contract="fp32acc", out_format=fmt)
        self.fmt, self.values, self.panel = fmt, p.values, Panel(0, p.values, p.budget, p.typical)
        self.case = Case(op, (("m", M), ("n", N), ("k", K)), "nt", operands or fmt, lane=lane)
        self.profile = load_profile(profile) if isinstance(profile, str) else profile

    def judged(self, values: np.ndarray, *, coded: bool = False):
        panel = Panel(0, encode(self.values, self.fmt)) if coded else self.panel
        stated = {"element": "one code"} if coded else {}
        reference = Reference(
            "codes" if coded else "values", self.fmt, (M, N), "fp32acc", lambda: iter((panel,)), self.problem, resolution=stated
        )
        side = side_of("mine", Coded(encode(values, self.fmt), self.fmt), contract="fp32acc")
        output = Output("d", (M, N), self.fmt)
        return judge_tensor(Subject(self.case, output, "case", self.case.op), [side], {"mine": reference}, self.profile).sides[0]

    def off_by(self, size: float, at: tuple[int, int], sign: int) -> np.ndarray:
        """Right results but for one, the nearest that is off by more than the size."""
        actual = decode(encode(self.values, self.fmt), self.fmt)
        moved, ulp = self.values[at] + sign * size, abs(self.values[at]) * 2.0**-24
        while abs(decode(encode(np.array([moved]), self.fmt), self.fmt)[0] - self.values[at]) <= size:
            moved, ulp = moved + sign * ulp, 2 * ulp
        actual[at] = moved
        return actual


def test_every_profile_is_looked_at():
    assert set(CLAIMED) == set(builtin_profiles())


@pytest.fixture(params=[(p, f) for p in CLAIMED for f in FORMATS], ids="-".join)
def product(request):
    profile, fmt = request.param
    return Product(fmt, profile)


@pytest.fixture
def stated(product):
    side = product.judged(product.values)
    assert side.verdict is Verdict.PASS
    found = {k: v for k, v in side.resolution.items() if isinstance(v, float) and math.isfinite(v)}
    assert CLAIMED[product.profile.name] == found.keys() & (LINES | {"tile"})
    return side.resolution


def test_one_element_off_by_more_than_stated_fails(product, stated):
    size = np.abs(product.values)
    places = [np.unravel_index(i, size.shape) for i in (size.argmin(), size.argmax(), 5)]
    for at in places:
        for sign in (-1, 1):
            assert product.judged(product.off_by(stated["element"], at, sign)).verdict is Verdict.FAIL


def test_a_stated_gain_fails(product, stated):
    for sign in (-1, 1):
        assert product.judged(product.values * (1 + sign * OVER * stated["gain"])).verdict is Verdict.FAIL


def test_a_line_with_an_error_of_the_stated_norm_fails(product, stated):
    rng = np.random.default_rng(3)
    lines = {"row": np.s_[7:8, :], "column": np.s_[:, 9:10], "tile": np.s_[:, :]}
    for kind in stated.keys() & lines.keys():
        expected = product.values[lines[kind]]
        for error in (rng.standard_normal(expected.shape), np.sign(expected), np.abs(expected)):
            wanted, given, actual = stated[kind] * np.linalg.norm(expected), OVER, product.values.copy()
            while True:  # what is left after rounding is of that norm
                actual[lines[kind]] = expected + error * (given * wanted / np.linalg.norm(error))
                if np.linalg.norm(decode(encode(actual, product.fmt), product.fmt)[lines[kind]] - expected) > wanted:
                    break
                given *= 1.01
            assert product.judged(actual).verdict is Verdict.FAIL, kind


def test_every_k_counted_as_seen_fails_when_it_is_lost(product, stated):
    x, y = product.problem.a_values(slice(0, M), slice(0, K)), product.problem.b_values(slice(0, K), slice(0, N))
    caught = sum(product.judged(product.values - np.outer(x[:, k], y[k])).verdict is Verdict.FAIL for k in range(K))
    assert stated["k_total"] == K
    assert 0 < stated["k_seen"] <= caught


@pytest.mark.parametrize(("profile", "gain"), [("l3", 0.045), ("l3", 0.02), ("turbo", 0.0045), ("strict", 0.0045)])
def test_a_gain_that_a_profile_passes_is_smaller_than_what_it_states(profile, gain):
    product = Product("bfloat16", profile)
    side = product.judged(product.values * (1 + gain))
    assert side.verdict is Verdict.PASS
    assert side.resolution["gain"] > gain
    assert Product("bfloat16", "default").judged(product.values * (1 + gain)).verdict is Verdict.FAIL


def only(metric: str, comparison: str, limit: float, **more) -> Profile:
    return Profile("one", "", (Gate("one", metric, comparison, limit, "chosen for the test", {}, **more),))


@pytest.mark.parametrize(("metric", "comparison", "limit"), [("rel_fro", "<=", 0.02), ("snr_db", ">", 20 * math.log10(50))])
def test_a_norm_alone_states_a_gain_and_nothing_else(metric, comparison, limit):
    for rounded in (False, True):
        product = Product("bfloat16", only(metric, comparison, limit, round_expected=rounded))
        stated = product.judged(product.values).resolution
        assert stated.keys() == {"gain"}
        assert 0.02 < stated["gain"] < 0.0275
        for sign in (-1, 1):
            assert product.judged(product.values * (1 + sign * OVER * stated["gain"])).verdict is Verdict.FAIL


@pytest.mark.parametrize(("metric", "comparison", "limit"), [("cosine", ">=", 0.9999), ("total_snr_db", ">", 25), ("budget_max", ">=", 0)])
def test_limits_that_bound_no_fault_state_none_and_the_message_says_so(metric, comparison, limit):
    product = Product("bfloat16", only(metric, comparison, limit))
    side = product.judged(product.values)
    assert side.verdict is Verdict.PASS
    assert side.resolution == {}
    text = messages.side_resolution(side)
    assert text == f"not stated: the limits that judged ({metric} {comparison} {messages.number(float(limit))}) gave no size of a fault"


def test_a_wider_budget_states_larger_faults_that_fail():
    wide, usual = (Product("float32", only("budget_max", "<=", limit)) for limit in (4, 1))
    stated, narrow = (p.judged(p.values).resolution for p in (wide, usual))
    assert stated["element"] > 3 * narrow["element"]
    assert stated["gain"] > 3 * narrow["gain"]
    assert wide.judged(wide.off_by(stated["element"], (4, 4), 1)).verdict is Verdict.FAIL


def test_a_wider_limit_of_rows_states_larger_rows():
    gates = tuple(replace(g, limit=1.4) if g.name == "rows" else g for g in load_profile("default").gates if g.name in ("budget", "rows"))
    wide, usual = Product("float32", Profile("wide", "", gates)), Product("float32", "default")
    assert wide.judged(wide.values).resolution["row_95"] > 1.5 * usual.judged(usual.values).resolution["row_95"]


@pytest.mark.parametrize(
    ("profile", "claimed"), [("default", {"element": "one code"}), ("exact", {"element": "one code"}), ("turbo", {}), ("l3", {})]
)
def test_one_code_is_claimed_of_a_companion_only_where_codes_are_compared(profile, claimed):
    product = Product("bfloat16", profile, lane="exact")
    side = product.judged(product.values, coded=True)
    assert side.verdict is Verdict.PASS
    assert side.resolution == claimed
    step = decode(encode(product.values, "bfloat16"), "bfloat16")
    step[0, 0] *= 1 + 2.0**-7
    assert (product.judged(step, coded=True).verdict is Verdict.FAIL) == bool(claimed)


def test_a_limit_on_budgets_claims_nothing_of_a_reference_without_them():
    reference = Reference("values", "float32", (1, 2), "", lambda: iter(()))
    claims = Claims((1, 2), "float32", reference, only("budget_max", "<=", 1.0).gates)
    claims.update(Panel(0, np.ones((1, 2))))
    assert claims.result() == {}
