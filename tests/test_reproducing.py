"""One element with its operands: enough, without this program, to compute it again."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from support_ops import Known

from accuracy_eval.cases import case_id, parse_case
from accuracy_eval.cli import run
from accuracy_eval.ops.operands import operand_codes
from accuracy_eval.ops.registry import get_op

CASE = "gemm.m6.n5.k11.{}.bfloat16.normal.s0"


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reproducing") / "a.h5"
    base = ["dump", "--device", "reference", "-q", "--seed", "0"]
    grid = ["--op", "gemm", "--shape", "6x5x11", "--layout", "nt", "--layout", "tn", "--format", "bfloat16", "--lane", "random"]
    assert run([*base, *grid, "-o", str(path)]) == 0
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["inspect", *arguments]) == 0
    return capsys.readouterr().out


def values(text: str, operand: str) -> list[float]:
    """The codes below an operand's line, decoded by ml_dtypes."""
    block = re.search(rf"^  {operand}\S+.*bfloat16\n((?:    .*\n?)+)", text, re.MULTILINE)
    assert block
    codes = np.array([int(c, 16) for c in re.findall(r"0x[0-9A-F]+", block[1])], np.uint16)
    return [float(v) for v in codes.view(ml_dtypes.bfloat16)]


@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_the_printed_operands_give_the_printed_sum_and_code(layout: str, dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, str(dump), "--case", CASE.format(layout), "--element", "4,2")
    a, b = values(text, "a"), values(text, "b")
    assert len(a) == len(b) == 11
    total = sum((Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), Fraction())
    stated = re.search(r"a·b +(\S+)", text)
    actual = re.search(r"actual 0x([0-9A-F]+)", text)
    assert stated
    assert actual
    assert float(stated[1]) == float(total)
    assert int(actual[1], 16) == int(np.array(float(total), ml_dtypes.bfloat16).view(np.uint16))  # the reference rounds once


def test_both_layouts_are_one_product(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [printed(capsys, str(dump), "--case", CASE.format(x), "--element", "[0, 4]") for x in ("nt", "tn")]
    assert texts[0].split("\n")[1:] == texts[1].split("\n")[1:]


def test_the_largest_products_come_with_values_and_operands_once_for_all_candidates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "c.h5")
    arguments = ["dump", "--op", "gemm", "--shape", "6x5x11", "--format", "bfloat16", "--lane", "random", "--device", "cpu"]
    assert run([*arguments, "--state", "misaligned", "-q", "-o", path, "--candidate", "default"]) == 0
    text = printed(capsys, path, "--case", CASE.format("nt"), "--element", "4,2")
    lines = text.splitlines()
    assert [re.sub(r".*\(", "(", line) for line in lines[1:3]] == ["(bfloat16, default)", "(bfloat16, default+misaligned)"]
    assert text.count("  a[4, :] bfloat16\n") == 1
    a, b = values(text, "a"), values(text, "b")
    products = sorted((Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), key=lambda p: -abs(p))
    found = re.findall(r"k = (\d+): \((\S+) = (\S+)\) · \((\S+) = (\S+)\) = (\S+)", text)
    assert len(found) == 8
    assert [abs(Fraction(float(term))) for *_, term in found] == [abs(p) for p in products[:8]]
    for k, code, x, _, y, _ in found:
        assert (float(x), float(y)) == (a[int(k)], b[int(k)])
        assert float(np.array(int(code, 16), np.uint16).view(ml_dtypes.bfloat16)) == float(x)


def test_an_elementwise_op_shows_its_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "e.h5")
    assert run(["dump", "--op", "sqrt", "--shape", "64", "--format", "bfloat16", "--device", "reference", "-q", "-o", path]) == 0
    text = printed(capsys, path, "--case", "sqrt.n64.bfloat16.normal.s0", "--element", "7")
    (x,) = values(text, "x")
    actual = re.search(r"actual 0x([0-9A-F]+)", text)
    assert actual
    assert int(actual[1], 16) == int(np.array(np.sqrt(x), ml_dtypes.bfloat16).view(np.uint16))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--element", "6,0"], r"no element \[6, 0\]; its shape is \[6, 5\]"),
        (["--element", "1"], r"no element \[1\]"),
        (["--element", "-1,0"], r"no element \[-1, 0\]"),
        (["--element", "x"], "--element x: expected whole numbers with commas between"),
        (["--element", "0,0", "--tensor", "da"], "no output 'da'; it holds d"),
    ],
)
def test_what_is_not_there_is_one_error(arguments: list[str], message: str, dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(dump), "--case", CASE.format("nt"), *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)


def reduction(op: str, tmp_path: Path, *options: str) -> str:
    path = str(tmp_path / "s.h5")
    chosen = ["--op", op, "--shape", "4x8", "--format", "float32", *options]
    assert run(["dump", *chosen, "--device", "reference", "-q", "-o", path]) == 0
    return path


def operand(ident: str) -> NDArray[np.float32]:
    case = parse_case(ident)
    return operand_codes(get_op(case.op), case, "ocp")["x"].view(np.float32)


@pytest.mark.parametrize(("axis", "at"), [("last", (1, 2)), ("first", (3, 5))])
def test_an_element_of_a_softmax_is_shown_with_the_row_or_column_it_depends_on(
    axis: str, at: tuple[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = reduction("softmax", tmp_path, "--option", f"axis={axis}")
    infix = "" if axis == "last" else "axis=first."
    case = f"softmax.m4.n8.float32.{infix}normal.s0"
    assert run(["inspect", path, "--case", case, "--element", ",".join(map(str, at))]) == 0
    out = capsys.readouterr().out
    x = operand(case)
    i, j = at
    line, within, place = (x[i], j, f"x[{i}, :] float32") if axis == "last" else (x[:, j], i, f"x[:, {j}] float32")
    with mpmath.workdps(40):
        weights = [mpmath.exp(mpmath.mpf(float(v))) for v in line]
        truth = float(weights[within] / mpmath.fsum(weights))
    said = re.search(r"reference (\S+), budget (\S+) ", out)
    assert said is not None
    assert float(said[1]) == pytest.approx(truth, rel=1e-14)
    assert 0 < float(said[2]) < 1e-5 * truth
    assert ": within its budget" in out
    assert place in out
    shown = re.findall("0x([0-9A-F]{8})", out.split(place)[1])
    assert [int(code, 16) for code in shown] == np.ascontiguousarray(line).view(np.uint32).tolist()


def test_an_element_of_a_sum_is_shown_with_its_exact_sum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = reduction("sum", tmp_path)
    assert run(["inspect", path, "--case", "sum.m4.n8.float32.normal.s0", "--element", "1"]) == 0
    said = re.search(r"reference (\S+), budget", capsys.readouterr().out)
    x = operand("sum.m4.n8.float32.normal.s0")
    assert said is not None
    assert float(said[1]) == pytest.approx(float(sum(Fraction(float(v)) for v in x[1])), rel=1e-15)


def test_elements_that_are_not_taken_apart_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = reduction("softmax", tmp_path, "--direction", "bwd")
    assert run(["inspect", path, "--case", "softmax.m4.n8.float32.normal.bwd.s0", "--element", "1,2"]) == 2
    assert "op softmax, direction bwd: elements of it are not taken apart" in capsys.readouterr().err


ATTENTION = (1, 4, 2, 24, 24, 16)


def attention_case(tmp_path: Path, layout: str) -> tuple[str, str, Known]:
    """A dump, its case and the operands."""
    path, suite = str(tmp_path / "a.h5"), tmp_path / "one.toml"
    shape = "x".join(map(str, ATTENTION))
    row = ["[[cases]]", 'op = "attention"', f'shape = "{shape}"', 'format = "bfloat16"', f'layout = "{layout}"']
    suite.write_text("\n".join([*row, "options = { causal = true, lse = true }"]))
    assert run(["dump", str(suite), "--device", "reference", "-q", "-o", path]) == 0
    known = Known("attention", ATTENTION, format="bfloat16", layout=layout, options={"causal": True, "lse": True})
    return path, case_id(known.case), known


@pytest.mark.parametrize(("layout", "at"), [("bhsd", (0, 3, 13, 5)), ("bshd", (0, 13, 3, 5)), ("sbhd", (13, 0, 3, 5))])
def test_an_element_of_an_attention_shows_the_keys_its_query_gives_most_weight_to(
    layout: str, at: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, case, known = attention_case(tmp_path, layout)
    q, k, v = (known.values[n].transpose([layout.index(x) for x in "bhsd"])[0] for n in "qkv")
    scores = k[1, :14] @ q[3, 13] / 4
    weights = np.exp(scores) / np.exp(scores).sum()
    value, log = float(weights @ v[1, :14, 5]), float(np.log(np.exp(scores).sum()))
    text = printed(capsys, path, "--case", case, "--element", ",".join(map(str, at)))
    rounded = np.array(value, ml_dtypes.bfloat16)
    assert f"actual 0x{int(rounded.view(np.uint16)):04X} = {float(rounded)!r} (bfloat16, default): within its budget" in text
    found = re.search(r"reference (\S+), budget (\S+) \(contract fp32acc\): 0x([0-9A-F]+) … 0x([0-9A-F]+) keep it", text)
    assert found
    assert float(found[1]) == pytest.approx(value, rel=1e-12)
    ends = np.sort([float(np.array(int(c, 16), np.uint16).view(ml_dtypes.bfloat16)) for c in found.groups()[2:]])
    np.testing.assert_allclose(ends, [value - float(found[2]), value + float(found[2])], rtol=2**-8)
    assert "  query 13 of head 3, batch 0: sees keys 0 … 13 of 24, head 1 of K and V, scale 0.25\n" in text
    assert "  the keys of the largest weights, 8 of 14:\n" in text
    lines = re.findall(r"key (\d+): score (\S+), weight (\S+), v\[5\] 0x([0-9A-F]+) = (\S+), weight · v (\S+)", text)
    assert [int(line[0]) for line in lines] == np.argsort(-weights)[:8].tolist()
    for key, score, weight, code, x, product in lines:
        j = int(key)
        assert float(np.array(int(code, 16), np.uint16).view(ml_dtypes.bfloat16)) == v[1, j, 5]
        wanted = [scores[j], weights[j], v[1, j, 5], weights[j] * v[1, j, 5]]
        np.testing.assert_allclose([float(y) for y in (score, weight, x, product)], wanted, rtol=1e-5)
    text = printed(capsys, path, "--case", case, "--tensor", "lse", "--element", "0,3,13")
    found = re.search(r"reference (\S+),", text)
    assert found
    assert float(found[1]) == pytest.approx(log, rel=1e-12)
    assert re.findall(r"key (\d+): score \S+, weight \S+$", text, re.MULTILINE) == [line[0] for line in lines]


def test_an_element_of_an_attention_says_which_candidate_leaves_its_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "import torch\nimport accuracy_eval as ae\n\n@ae.candidate('attention', name='mine')\ndef mine(case, t):\n"
        "    f = torch.nn.functional.scaled_dot_product_attention\n"
        "    return {'out': f(t['q'], t['k'], t['v'], scale=1 / 16, enable_gqa=True)}\n"
    )
    path = str(tmp_path / "m.h5")
    words = ["dump", "--op", "attention", "--shape", "x".join(map(str, ATTENTION)), "--format", "float32", "--layout", "bhsd"]
    assert run([*words, "--device", "cpu", "--plugin", str(plugin), "-q", "-o", path]) == 0
    text = printed(capsys, path, "--case", "attention.b1.h4.g2.s24.t24.d16.bhsd.float32.normal.s0", "--element", "0,3,13,5")
    assert re.search(r"float32, default\): within its budget\n", text)
    assert re.search(r"float32, mine\): outside its budget\n", text)
    assert text.count("reference") == 1


GRADIENT = {"causal": True, "sink": True}


@pytest.fixture(scope="module")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Known]:
    """A dump of an attention's gradients, layout bshd, and the operands."""
    folder = tmp_path_factory.mktemp("gradients")
    path, suite = str(folder / "g.h5"), folder / "one.toml"
    row = ["[[cases]]", 'op = "attention"', 'shape = "2x4x2x24x24x16"', 'format = "bfloat16"', 'layout = "bshd"', 'direction = "bwd"']
    suite.write_text("\n".join([*row, "options = { causal = true, sink = true }"]))
    assert run(["dump", str(suite), "--device", "reference", "-q", "-o", path]) == 0
    return path, Known("attention", (2, 4, 2, 24, 24, 16), format="bfloat16", layout="bshd", direction="bwd", options=GRADIENT)


def formula(known: Known) -> dict[str, np.ndarray]:
    """Scores and weights [b, h, s, t + 1], the sink last, dP and δ, in float64."""
    q, k, v, g = (known.values[n].transpose(0, 2, 1, 3) for n in ("q", "k", "v", "grad_out"))
    k, v = (np.repeat(x, 2, axis=1) for x in (k, v))
    scores = np.where(np.tri(24, dtype=bool), q @ k.transpose(0, 1, 3, 2) / 4, -np.inf)
    sinks = np.broadcast_to(known.values["sink"][None, :, None, None], (2, 4, 24, 1))
    s = np.concatenate([scores, sinks], axis=3)
    p = np.exp(s) / np.exp(s).sum(axis=3, keepdims=True)
    dp = np.concatenate([g @ v.transpose(0, 1, 3, 2), np.zeros_like(sinks)], axis=3)
    return {"score": s, "weight": p, "dP": dp, "δ": np.broadcast_to((p * dp).sum(axis=3, keepdims=True), p.shape)}


TERM = re.compile(r"^    (.*?): (score .*), term (\S+)$", re.MULTILINE)
# output -> (element, the place in [b, h, s, t + 1] of a term by its names, the operand it has as a factor and where)
ELEMENTS = {
    "dq": ((1, 13, 3, 5), lambda key: (1, 3, 13, key), ("k", lambda b, h, i, j: (b, j, h // 2, 5))),
    "dk": ((1, 13, 1, 5), lambda head, query: (1, head, query, 13), ("q", lambda b, h, i, j: (b, i, h, 5))),
    "dv": ((1, 13, 1, 5), lambda head, query: (1, head, query, 13), ("grad_out", lambda b, h, i, j: (b, i, h, 5))),
    "dsink": ((3,), lambda batch, query: (batch, 3, query, 24), None),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_an_element_of_an_attention_gradient_shows_its_largest_terms(
    name: str, gradients: tuple[str, Known], capsys: pytest.CaptureFixture[str]
) -> None:
    path, known = gradients
    at, placed, factor = ELEMENTS[name]
    text = printed(capsys, path, "--case", case_id(known.case), "--tensor", name, "--element", ",".join(map(str, at)))
    assert "(bfloat16, default): within its budget" in text
    (panel,) = known.references[name].panels()
    flat = np.ravel_multi_index(at, known.outputs[name].shape)
    found = re.search(r"reference (\S+), budget (\S+) ", text)
    assert found
    assert float(found[1]) == pytest.approx(panel.values.ravel()[flat], rel=1e-12)
    assert float(found[2]) == pytest.approx(panel.budget.ravel()[flat], rel=1e-2)
    truth = formula(known)
    terms = []
    for names, parts, term in TERM.findall(text):
        place = placed(*(int(word.split()[1]) for word in names.split(", ")))
        scale, slope = (1.0 if name in ("dv", "dsink") else 0.25), (1.0 if name == "dv" else truth["dP"][place] - truth["δ"][place])
        for symbol, value in re.findall(r"(score|weight|dP|δ) (\S+?)(?:,|$)", parts):
            assert float(value) == pytest.approx(truth[symbol][place], rel=1e-5), symbol
        operand = 1.0
        if factor:
            code = re.search(rf"{factor[0]}\[5\] 0x([0-9A-F]+) = ", parts)
            assert code
            operand = float(np.array(int(code[1], 16), np.uint16).view(ml_dtypes.bfloat16))
            assert operand == known.values[factor[0]][factor[1](*place)]
        assert float(term) == pytest.approx(scale * truth["weight"][place] * slope * operand, rel=1e-5)
        terms.append(abs(float(term)))
    assert terms == sorted(terms, reverse=True)
    assert len(terms) == 8


def test_all_terms_of_a_small_gradient_add_up_to_its_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "g.h5")
    words = ["dump", "--op", "attention", "--shape", "1x2x1x3x4x8", "--format", "float32", "--layout", "bhsd", "--direction", "bwd"]
    assert run([*words, "--device", "reference", "-q", "-o", path]) == 0
    case = "attention.b1.h2.g1.s3.t4.d8.bhsd.float32.normal.bwd.s0"
    for name, count in (("dq", 4), ("dk", 6), ("dv", 6)):
        text = printed(capsys, path, "--case", case, "--tensor", name, "--element", "0,0,2,1")
        terms = [float(term) for *_, term in TERM.findall(text)]
        found = re.search(r"reference (\S+),", text)
        assert found
        assert len(terms) == count
        assert sum(terms) == pytest.approx(float(found[1]), rel=1e-4)
