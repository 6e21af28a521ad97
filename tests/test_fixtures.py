"""Fixtures: what the files hold, that they stay what they are, and that programs in other languages are judged by them."""

import json
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from accuracy_eval.cli import run
from accuracy_eval.errors import CorruptFile, FileError, UsageError
from accuracy_eval.fixtures import SETS, Product, Quantiser, build, check_result, export, fixtures_of, verify
from accuracy_eval.fixtures.building import unpacked
from accuracy_eval.fixtures.judging import load_fixture
from accuracy_eval.foreign.safetensors import read_safetensors, write_safetensors
from accuracy_eval.formats import decode, encode
from accuracy_eval.records import Verdict

PROGRAMS = Path(__file__).parent / "programs"
EVERY = fixtures_of()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fixtures")
    export(EVERY, folder, ("bin", "safetensors"))
    return folder


def result_file(tmp_path, codes):
    path = tmp_path / "out.bin"
    path.write_bytes(np.ascontiguousarray(codes).tobytes())
    return path


def test_names_are_unique_and_the_sets_hold_what_they_say():
    assert len({f.name for f in EVERY}) == len(EVERY)
    profile = SETS["profile"][1]
    assert {(f.m, f.n, f.k) for f in profile} == {(8, 16, 16)}
    assert {f.operation for f in profile if f.quantisation == "w8a8"} == {"gemm", "gemm_bias"}
    assert not any(f.computes.gated for f in profile if f.quantisation == "fp8_row_channel")
    hard = SETS["hard"][1]
    assert max(f.k for f in hard) == 131071
    assert any(f.k >= 4096 and f.quantisation == "none_f32" for f in hard)


@pytest.mark.parametrize("fixture", EVERY, ids=lambda f: f.name)
def test_the_expected_result_passes_and_another_one_fails(fixture, exported, tmp_path):
    _, tensors = load_fixture(exported / fixture.name)
    names = [n.removeprefix("expected_") for n in tensors if n.startswith("expected_") and not n.endswith("_float32")]
    for name in names:
        expected = tensors[f"expected_{name}"]
        assert check_result(result_file(tmp_path, expected.codes), exported / fixture.name, output=name).verdict is Verdict.PASS
        exact = isinstance(fixture, Quantiser)
        moved = expected.codes ^ 1 if exact else encode(2 * decode(expected.codes, expected.format), expected.format)
        assert check_result(result_file(tmp_path, moved), exported / fixture.name, output=name).verdict is Verdict.FAIL
    if isinstance(fixture, Product):
        whole = result_file(tmp_path, tensors["expected_y_float32"].codes)
        assert check_result(whole, exported / fixture.name, fmt="float32", profile="default").verdict is Verdict.PASS


def test_expected_values_are_those_of_exact_rational_arithmetic():
    built = build(Product("gemm_bias", "w8a8", 8, 16, 272, scales="thirds"))
    t = {x.name: x for x in built.tensors}
    a, b, rows, columns, bias = (decode(t[n].codes, t[n].format) for n in ("a", "b", "a_scale", "b_scale", "bias"))
    for i, j in ((0, 0), (3, 7), (7, 15)):
        product = sum(int(x) * int(y) for x, y in zip(a[i], b[:, j], strict=True))
        exact = (Fraction(1, 2) * product * Fraction(rows[i]) * Fraction(columns[j]) + Fraction(bias[j])) / Fraction(5, 4)
        assert t["expected_y_float32"].codes[i, j] == encode(float(exact), "float32")
        assert t["expected_y"].codes[i, j] == encode(float(exact), "bfloat16")


def test_the_small_profile_has_the_stated_scales_and_scalars():
    built = build(Product("gemm", "w8a8", 8, 16, 16))
    t = {x.name: x for x in built.tensors}
    np.testing.assert_array_equal(decode(t["a_scale"].codes, "float32"), np.linspace(0.25, 1.125, 8))
    np.testing.assert_array_equal(decode(t["b_scale"].codes, "float32"), np.linspace(0.5, 1.4375, 16))
    assert built.describes["alpha"] == {"value": 0.5, "float32": "0x3f000000"}
    assert built.describes["output_scale"] == {"value": 1.25, "float32": "0x3fa00000"}
    integers = decode(t["a"].codes, "int8")
    assert (integers.min() >= -16) & (integers.max() <= 15)
    assert {f.name: build(f).describes["output_scale"]["value"] for f in SETS["profile"][1] if f.name == "gemm.fp8_unit.8x16x16"} == {
        "gemm.fp8_unit.8x16x16": 1.0
    }


def test_a_sum_of_448_times_448_reaches_float32_and_bfloat16_whole():
    for out in ("float32", "bfloat16"):
        built = build(Product("gemm", "fp8_unit", 8, 16, 272, out, "saturating"))
        t = {x.name: x for x in built.tensors}
        assert decode(t["expected_y_float32"].codes, "float32")[0, 0] == 448 * 448 * 272
        assert set(np.unique(t["a"].codes)) | {0x7F, 0xFF} >= set(range(0x80)) | {0x7F}
        assert not np.isnan(decode(t["a"].codes, "float8_e4m3fn")).any()


def test_the_longest_int8_sum_is_the_last_that_fits_and_a_longer_one_is_refused():
    t = {x.name: x for x in build(Product("gemm", "w8a8", 2, 2, 131071, data="extremes")).tensors}
    a, b = (decode(t[n].codes, "int8").astype(np.int64) for n in ("a", "b"))
    total = int((a[0] * b[:, 0]).sum())
    assert total == 131071 * 128 * 128 == 2**31 - 128 * 128
    with pytest.raises(UsageError, match=r"K = 131072 may overflow int32 .* allowed: up to 131071"):
        Product("gemm", "w8a8", 2, 2, 131072)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gemm_bias_relu", "w8a8", 8, 16, 16), "w8a8 offers gemm, gemm_bias; found gemm_bias_relu"),
        (("gemm_swiglu", "fp8_row_channel", 8, 16, 16), "found gemm_swiglu"),
        (("gemm", "nvfp4", 8, 16, 15), "K = 15 is odd"),
        (("gemm", "none_bf16", 0, 16, 16), "sizes 0x16x16"),
        (("gemm", "none_bf16", 8, 16, 16, "float32"), "unknown output of none_bf16 'float32'"),
        (("gemm", "none_bf16", 8, 16, 16, "", "extremes"), "data 'extremes' are int8's"),
        (("gemv", "none_bf16", 8, 16, 16), "unknown fixture operation 'gemv'"),
    ],
)
def test_what_no_engine_could_be_asked_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        Product(*arguments)


def test_e4m3_saturates_where_the_quantiser_fixture_says():
    built = build(Quantiser("e4m3_fixed", "fixed", 4, 64, data="edges"))
    t = {x.name: x for x in built.tensors}
    x = decode(t["x"].codes, "float32")[0]
    for value, code in ((464, 0x7E), (480, 0x7E), (512, 0x7E), (65536, 0x7E), (-464, 0xFE), (17, 0x58), (19, 0x5A)):
        (at,) = np.flatnonzero(x[:16] == value * 0.3125)
        assert t["expected_q"].codes[0, at] == code
    scaled = (x / np.float32(0.3125)).astype(np.float32)
    ordinary = np.abs(scaled) <= 448
    wanted = scaled[ordinary].astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(t["expected_q"].codes[0][ordinary], wanted)


def test_safetensors_are_read_by_the_reference_layout(exported, tmp_path):
    path = exported / "gemm_bias.fp8_row_channel.8x16x16" / "fixture.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert (header["a"]["dtype"], header["a"]["shape"], length % 8) == ("F8_E4M3", [8, 16], 0)
    first, end = header["a"]["data_offsets"]
    assert data[8 + length + first : 8 + length + end] == (path.parent / "a.bin").read_bytes()
    held = read_safetensors(path)
    y = tmp_path / "y.safetensors"
    write_safetensors(y, {"y": held["expected_y"]})
    assert check_result(y, path).verdict is Verdict.PASS


def test_arrays_of_numpy_are_taken_as_results(exported, tmp_path):
    _, tensors = load_fixture(exported / "gemm.none_f32.8x16x16")
    np.save(tmp_path / "y.npy", tensors["expected_y"].codes.view(np.float32))
    assert check_result(tmp_path / "y.npy", exported / "gemm.none_f32.8x16x16").verdict is Verdict.PASS


def test_nibbles_are_packed_low_first():
    np.testing.assert_array_equal(unpacked(np.array([[0x21, 0x43]], np.uint8)), [[1, 2, 3, 4]])
    built = build(Product("gemm", "nvfp4", 8, 16, 16))
    a = next(t for t in built.tensors if t.name == "a")
    assert a.stored.shape == (8, 8)
    np.testing.assert_array_equal(unpacked(a.stored), a.codes)


def test_verify_finds_a_changed_bit_a_missing_file_and_a_changed_description(tmp_path):
    chosen = [f for f in EVERY if f.name in ("gemm.none_bf16.8x16x16", "gemm.w8a8.8x16x16", "gemm.fp8_unit.8x16x16")]
    export(chosen, tmp_path, ("bin", "c"))
    assert verify(tmp_path) == (3, [])
    bits = tmp_path / "gemm.none_bf16.8x16x16" / "a.bin"
    data = bytearray(bits.read_bytes())
    before = int.from_bytes(data[34:36], "little")
    data[34] ^= 1
    bits.write_bytes(data)
    (tmp_path / "gemm.w8a8.8x16x16" / "b_scale.bin").unlink()
    manifest = tmp_path / "gemm.fp8_unit.8x16x16" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"seed": 1592639710', '"seed": 7'))
    header = tmp_path / "gemm.fp8_unit.8x16x16" / "fixture.h"
    header.write_text(header.read_text().replace("// made by accuracy-eval", "// made by an older accuracy-eval"))
    count, drifts = verify(tmp_path)
    assert count == 3
    found = {(d.fixture, d.file): d.what for d in drifts}
    assert found["gemm.none_bf16.8x16x16", "a.bin"] == (
        f"differs in 1 of 128 elements, first at 17: file 0x{before ^ 1:04X}, made today 0x{before:04X}"
    )
    assert found["gemm.w8a8.8x16x16", "b_scale.bin"] == "is missing"
    assert ("gemm.fp8_unit.8x16x16", "fixture.h") not in found
    assert len(found) == 3


def test_a_fixture_whose_bytes_changed_is_not_judged_by(tmp_path):
    export([f for f in EVERY if f.name == "gemm.none_bf16.8x16x16"], tmp_path)
    folder = tmp_path / "gemm.none_bf16.8x16x16"
    result = result_file(tmp_path, np.fromfile(folder / "expected_y.bin", np.uint16))
    a = bytearray((folder / "a.bin").read_bytes())
    a[0] ^= 1
    (folder / "a.bin").write_bytes(a)
    with pytest.raises(CorruptFile, match="tensor a: its bytes do not match the manifest's digest"):
        check_result(result, folder)
    (folder / "a.bin").unlink()
    with pytest.raises(CorruptFile, match=r"a\.bin is missing"):
        check_result(result, folder)
    with pytest.raises(FileError, match="holds no fixture"):
        verify(tmp_path / "nothing")


def test_bytes_of_the_other_16_bit_format_are_told_and_16_bits_for_float32_are_refused(exported, tmp_path):
    folder = exported / "gemm.none_bf16.8x16x16"
    y = np.fromfile(folder / "expected_y_float32.bin", np.float32)
    found = check_result(result_file(tmp_path, y.astype(np.float16)), folder)
    assert (found.verdict, found.sides[0].note) == (Verdict.FAIL, "the bytes are float16: read so they pass; the output is bfloat16")
    assert "float16" not in check_result(result_file(tmp_path, (2 * y).astype(np.float16)), folder).sides[0].note
    other = exported / "gemm.none_f16.8x16x16"
    y = np.fromfile(other / "expected_y_float32.bin", np.float32)
    found = check_result(result_file(tmp_path, y.astype(ml_dtypes.bfloat16)), other)
    assert found.sides[0].note == "the bytes are bfloat16: read so they pass; the output is float16"
    wide = exported / "gemm.none_f32.8x16x16"
    with pytest.raises(UsageError, match=r"256 bytes are 128 values of 16 bits; output y \[8, 16\] is 512 bytes, .* of float32"):
        check_result(result_file(tmp_path, y.astype(np.float16)), wide)


def test_fixtures_are_listed_by_name_and_several_are_taken_at_once(tmp_path, capsys):
    assert run(["list", "fixtures", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["fixture"] for row in rows] == [f.name for f in EVERY]
    one = next(row for row in rows if row["fixture"] == "gemm_bias_relu.none_f16.8x16x16")
    assert one == {"fixture": "gemm_bias_relu.none_f16.8x16x16", "set": "profile", "computes": "Y = relu(alpha·P + bias) / s in float16"}
    names = [EVERY[0].name, EVERY[3].name, EVERY[5].name]
    assert run(["fixtures", "export", "--only", ",".join(names[:2]), "--only", names[2], "-o", str(tmp_path), "-q"]) == 0
    assert {p.name for p in tmp_path.iterdir()} == set(names)
    assert run(["fixtures", "export", "--only", "gemm.none_f16.8x16", "-o", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "unknown fixture 'gemm.none_f16.8x16' (did you mean gemm.none_f16.8x16x16" in said
    assert said.endswith("more: accuracy-eval list fixtures\n")


def test_results_that_cannot_be_read_are_refused_and_of_another_size_fail(exported, tmp_path):
    folder = exported / "gemm.none_bf16.8x16x16"
    short = result_file(tmp_path, np.zeros(100, np.uint16))
    side = check_result(short, folder).sides[0]
    assert (side.verdict, side.diagnoses[0].code) == (Verdict.FAIL, "shape-mismatch")
    short.write_bytes(b"123")
    with pytest.raises(UsageError, match=r"3 bytes; output y \[8, 16\] is 256 bytes, raw little-endian codes of bfloat16 in C order$"):
        check_result(short, folder)
    short.write_bytes(bytes(512))
    with pytest.raises(UsageError, match=r"512 bytes are 128 float32 values; .* If it was not rounded, give --format float32$"):
        check_result(short, folder)
    with pytest.raises(UsageError, match="no such file"):
        check_result(tmp_path / "absent", folder)
    with pytest.raises(UsageError, match="unknown output"):
        check_result(short, exported / "quantise_nvfp4.5x80.float32")
    with pytest.raises(UsageError, match="output y is bfloat16; a result may be that, or float32"):
        check_result(short, folder, fmt="float16")


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda e: np.zeros_like(e), "all-zero"),
        (lambda e: np.where(np.arange(e.size).reshape(e.shape) == 9, 0x7FC0, e).astype(np.uint16), "nan-in-actual"),
        (lambda e: np.where(np.arange(e.size).reshape(e.shape) == 9, 0x7F80, e).astype(np.uint16), "inf-in-actual"),
        (lambda e: np.roll(e, 1, axis=1), None),
        (lambda e: np.where(np.arange(8)[:, None] == 5, e ^ 0x8000, e).astype(np.uint16), "rows"),
    ],
    ids=["zero", "nan", "inf", "shifted", "bad-row"],
)
def test_the_engine_gate_fails_what_it_must(make, code, exported, tmp_path):
    folder = exported / "gemm_bias.none_bf16.8x16x16"
    expected = load_fixture(folder)[1]["expected_y"].codes
    side = check_result(result_file(tmp_path, make(expected)), folder).sides[0]
    assert side.verdict is Verdict.FAIL
    if code:
        assert code in [d.code for d in side.diagnoses]


# programs of other languages


def built_program(language, fixture, folder):
    """The command that runs the program of that language on a fixture exported for it."""
    form, source = {"c": ("c", "gemm.c"), "c++": ("cpp", "gemm.cpp"), "rust": ("rust", "gemm.rs"), "python": ("bin", "gemm.py")}[language]
    export([f for f in EVERY if f.name == fixture], folder, tuple(dict.fromkeys(("bin", form))))
    if language == "python":
        return [sys.executable, str(PROGRAMS / source), str(folder / fixture)]
    shutil.copy(PROGRAMS / source, folder / fixture / source)
    compilers = {"c": ["gcc", "-O1", "-Wall", "-Werror", "-Wno-unused-variable"], "c++": ["g++", "-std=c++17", "-O1", "-Wall", "-Werror"],
                 "rust": ["rustc", "-O"]}  # fmt: skip
    subprocess.run([*compilers[language], source, "-o", "program", *(["-lm"] if language == "c" else [])], cwd=folder / fixture, check=True)
    return [str(folder / fixture / "program")]


@pytest.mark.parametrize(
    ("language", "fixture", "faults"),
    [
        ("c", "gemm_bias.fp8_row_channel.8x16x16", {
            "tail": ("k-tail-missing", "products from k = 12 of 16 on are missing"), "bias": ("epilogue-step", "the bias is missing"),
            "scales": ("scale", ""),
        }),
        ("c++", "gemm_swiglu.none_bf16.8x16x16", {
            "exchanged": ("epilogue-step", "gate and up projections are exchanged"),
            "activation": ("epilogue-step", "the activation is missing"),
        }),
        ("rust", "gemm_bias.w8a8.8x16x16", {"row": ("rows", "row 5 of 8 is wrong")}),
        ("python", "gemm.nvfp4.7x13x90", {"scales": ("scale-ignored", "the scale of operand b was not applied"), "nibbles": ("", "")}),
    ],
    ids=["c", "c++", "rust", "python"],
)  # fmt: skip
def test_a_plain_kernel_in_another_language_passes_and_a_broken_one_is_named(language, fixture, faults, tmp_path, capsys):
    command = built_program(language, fixture, tmp_path)
    out = tmp_path / "out.bin"

    def judged(*words):
        subprocess.run([*command, str(out), *words], check=True)
        code = run(["fixtures", "check", str(out), "--fixture", str(tmp_path / fixture)])
        return code, capsys.readouterr().out

    code, text = judged()
    assert (code, text.split()[:2]) == (0, ["PASS", fixture])
    for word, (diagnosis, sentence) in faults.items():
        code, text = judged(word)
        assert code == 1, (word, text)
        assert f"cause {diagnosis}" in text or not diagnosis, (word, text)
        assert sentence in text, (word, text)


def test_the_command_line_exports_verifies_and_refuses(tmp_path, capsys):
    assert run(["fixtures", "export", "quantisers", "-o", str(tmp_path), "--only", "quantise_int8_row.5x80.float32"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: 1 fixture as bin\n"
    assert run(["fixtures", "verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: 1 of 1 fixture as made today\n"
    (tmp_path / "quantise_int8_row.5x80.float32" / "x.bin").unlink()
    assert run(["fixtures", "verify", str(tmp_path)]) == 1
    assert capsys.readouterr().out.endswith("  quantise_int8_row.5x80.float32/x.bin is missing\n")
    assert run(["fixtures", "export", "-o", str(tmp_path), "--to", "java"]) == 2
    assert "unknown fixture form 'java'" in capsys.readouterr().err
    assert run(["fixtures", "export", "-o", str(tmp_path), "--only", "gemm"]) == 2
    assert "unknown fixture 'gemm'" in capsys.readouterr().err
