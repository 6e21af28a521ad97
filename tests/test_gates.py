import json
import math
import re
from pathlib import Path

import pytest

from accuracy_eval.cli import run
from accuracy_eval.errors import UsageError
from accuracy_eval.gates import load_profile, parse_profile

GATE = {"name": "g", "metric": "rel_fro", "limit": 0.1, "source": "by hand"}


def profile(**more):
    return parse_profile({"name": "p", "gate": [{**GATE, **more}]}, "p")


@pytest.mark.parametrize(
    ("comparison", "limit", "inside", "at", "outside"),
    [("<=", 0.1, 0.05, True, 0.2), ("<", 0.1, 0.05, False, 0.2), (">=", 25, 30, True, 20), (">", 25, 30, False, 20), ("==", 0, 0, True, 1)],
)
def test_a_gate_compares_as_it_says(comparison, limit, inside, at, outside):
    (gate,) = profile(comparison=comparison, limit=limit).gates
    assert gate.judge({"rel_fro": inside}).passed is True
    assert gate.judge({"rel_fro": limit}).passed is at
    assert gate.judge({"rel_fro": outside}).passed is False


@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_metric_without_value_is_not_a_pass(value):
    (gate,) = profile().gates
    found = gate.judge({"rel_fro": value})
    assert (found.passed, found.value, found.note) == (None, None, "rel_fro is undefined here")


def test_a_gate_applies_where_all_its_facts_match():
    p = profile(applies={"format": ["fp8_e4m3", "fp8_e5m2"], "lane": ["random"]})
    assert p.applicable({"format": "fp8_e5m2+fp8_e4m3", "lane": "random"})
    assert not p.applicable({"format": "fp8_e5m2+bfloat16", "lane": "random"})
    assert not p.applicable({"format": "fp8_e4m3", "lane": "exact"})


def test_a_gate_leaves_out_what_matches_all_its_exceptions():
    p = profile(applies={"format": "fp8_e4m3"}, unless={"op": ["attention_fp8"], "direction": "fwd"})
    assert not p.applicable({"format": "fp8_e4m3", "op": "attention_fp8", "direction": "fwd"})
    assert p.applicable({"format": "fp8_e4m3", "op": "attention_fp8", "direction": "bwd"})
    assert p.applicable({"format": "fp8_e4m3", "op": "gemm", "direction": "fwd"})
    assert p.info()[0].applies_to == "format: fp8_e4m3, not op: attention_fp8; direction: fwd"


def test_strict_snr_gates_are_strict():
    turbo = load_profile("turbo")
    facts = {"op": "gemm", "family": "gemm", "format": "fp8_e4m3", "recipe": "rowwise", "quantised": True, "lane": "random", "exact": False}
    snr = next(g for g in turbo.applicable(facts) if g.name == "snr-e4m3")
    assert snr.judge({"total_snr_db": 25.0}).passed is False
    assert snr.judge({"total_snr_db": 25.0001}).passed is True


def test_each_16_bit_and_wider_format_has_its_allclose_gate():
    turbo = load_profile("turbo")
    for fmt, tolerance in (("float32", 1e-4), ("float16", 1e-2), ("bfloat16", 1e-2)):
        facts = {"op": "gemm", "family": "gemm", "format": fmt, "quantised": False, "lane": "random", "exact": False}
        (gate,) = turbo.applicable(facts)
        assert (gate.rtol, gate.atol, gate.limit) == (tolerance, tolerance, 0)


def test_a_profile_extends_another_and_replaces_gates_of_equal_name():
    p = parse_profile({"extends": "l3", "gate": [{**GATE, "name": "l3-rel-fro", "limit": 0.2, "source": "measured on my kernel"}]}, "mine")
    limits = {g.name: g.limit for g in p.gates}
    assert limits == {"l3-max-scaled": 0.08, "l3-rel-fro": 0.2, "l3-cosine": 0.9999, "exact-output": 0}


def test_the_documented_profile_is_read_and_listed_by_itself(tmp_path, capsys):
    text = (Path(__file__).parent.parent / "docs" / "gates.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.S)
    file = tmp_path / "mine.toml"
    file.write_text(example, encoding="utf-8")
    assert run(["list", "gates", str(file), "--json"]) == 0
    mine = {row["gate"]: row["limit"] for row in json.loads(capsys.readouterr().out)}
    assert mine["mine-attention-cosine"] == "cosine >= 0.99999"
    assert mine["budget"] == "budget_max <= 0.5"
    assert {"exact-lane", "rows"} < mine.keys()
    assert run(["list", "gates", "l3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["gate"] for row in rows] == ["l3-max-scaled", "l3-rel-fro", "l3-cosine", "exact-output"]
    assert {row["profile"] for row in rows} == {"l3"}
    assert run(["list", "gates", "l4"]) == 2
    assert "unknown gates profile 'l4'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"metric": "relfro"}, "unknown metric in gates profile p, gate g: 'relfro'"),
        ({"comparison": "~"}, "unknown comparison"),
        ({"applies": {"colour": "red"}}, "unknown fact in gates profile p, gate g: 'colour'"),
        ({"source": ""}, "source is missing; every gate names itself, its metric and the source of its limit"),
        ({"limits": 3}, "unknown key in gates profile p, gate g: 'limits'"),
        ({"limit": "tight"}, "gates profile p, gate g: limit = 'tight'; expected a number"),
        ({"comparison": ["<="]}, "comparison = \\['<='\\]; expected a string"),
        ({"round_expected": "no"}, "round_expected = 'no'; expected true or false"),
        ({"unless": {"op": "gem"}}, "unknown op in gates profile p, gate g: 'gem' \\(did you mean gemm\\?\\)"),
        ({"unless": {"exact": 1}}, "gate g: unless, exact = 1; expected true or false"),
        ({"applies": "random"}, "applies = 'random'; expected a table"),
        ({"applies": {"lane": ["random", "exakt"]}}, "unknown lane in gates profile p, gate g: 'exakt' \\(did you mean exact\\?\\)"),
        ({"applies": {"op": "gem"}}, "unknown op in gates profile p, gate g: 'gem' \\(did you mean gemm\\?\\)"),
        ({"applies": {"exact": "yes"}}, "gate g: applies, exact = 'yes'; expected true or false"),
        ({"applies": {"op": [["gemm"]]}}, "gate g: applies, op = \\['gemm'\\]; expected a string"),
        ({"limit": math.nan}, "gate g: limit = nan; expected a number"),
        ({"metric": "allclose_violations", "rtol": math.nan}, "gate g: rtol = nan; expected a number"),
        ({"metric": "allclose_violations", "atol": -1}, "gate g: atol = -1; allowed: 0 or more"),
    ],
)
def test_a_faulty_gate_says_where(row, message):
    with pytest.raises(UsageError, match=message):
        profile(**row)


def test_a_gate_states_its_limit():
    with pytest.raises(UsageError, match="gate g: no limit; expected a number"):
        parse_profile({"gate": [{"name": "g", "metric": "rel_fro", "source": "by hand"}]}, "p")


def test_profiles_that_extend_each_other_are_refused(tmp_path):
    a, b = (str(tmp_path / name) for name in ("a.toml", "b.toml"))
    for path, other in ((a, b), (b, a)):
        Path(path).write_text(f'extends = "{other}"\n')
    with pytest.raises(UsageError, match=r"b\.toml: extends .*a\.toml', which extends this one"):
        load_profile(a)


def test_an_unknown_profile_names_those_there_are(tmp_path):
    with pytest.raises(UsageError, match=r"unknown gates profile 'strct' \(did you mean strict\?\); allowed: .*default.*exact.*l3.*turbo"):
        load_profile("strct")
    (tmp_path / "x.toml").write_text("gate = [")
    with pytest.raises(UsageError, match="not TOML"):
        load_profile(str(tmp_path / "x.toml"))
    with pytest.raises(UsageError, match="holds no gates"):
        parse_profile({}, "empty")


def test_two_gates_of_one_name_in_one_file_are_refused():
    gate = {"name": "rows", "metric": "row_budget", "limit": 0.7, "source": "derived from two deviations"}
    assert len(parse_profile({"gate": [gate]}, "mine.toml").gates) == 1
    with pytest.raises(UsageError, match=r"gate rows: a second gate of that name in one file would replace the first"):
        parse_profile({"gate": [gate, gate | {"metric": "col_budget"}]}, "mine.toml")
