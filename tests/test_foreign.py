"""Files of other programs: read without torch or pickle, refused where they ask for more than tensors, compared by name."""

import collections
import json
import pickle
import shlex
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch

from accuracy_eval.cli import run
from accuracy_eval.errors import CorruptFile, FileError, HostileFile, UsageError
from accuracy_eval.foreign.arrays import read_arrays
from accuracy_eval.foreign.comparing import compare_arrays
from accuracy_eval.foreign.importing import canonical, import_dumps
from accuracy_eval.foreign.safetensors import read_safetensors, write_safetensors
from accuracy_eval.foreign.torch_file import read_torch_file
from accuracy_eval.formats import decode
from accuracy_eval.records import Attribution, Verdict

DTYPES = ["float64", "float32", "float16", "bfloat16", "int8", "uint8", "int32", "float8_e4m3fn", "float8_e5m2"]


def saved(path, value):
    torch.save(value, path)
    return path


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_format_have_torchs_bits(tmp_path, dtype):
    x = torch.arange(24).reshape(4, 6).to(torch.float32).to(getattr(torch, dtype))
    (found,) = read_torch_file(saved(tmp_path / "x.pt", x)).values()
    assert (found.format, found.shape) == (dtype, (4, 6))
    np.testing.assert_array_equal(decode(found.codes, dtype), x.double().numpy())


def test_views_containers_and_shared_storages_are_followed(tmp_path):
    x = torch.arange(12.0).reshape(3, 4)
    value = {"whole": x, "turned": x.t(), "part": x[1:, ::2], "more": [x[0], (x[1],)], "scalar": torch.tensor(3.5), "step": 7, "on": True}
    found = read_torch_file(saved(tmp_path / "x.pt", value))
    assert list(found) == ["whole", "turned", "part", "more/0", "more/1/0", "scalar"]
    for name, wanted in (("turned", x.t()), ("part", x[1:, ::2]), ("more/1/0", x[1]), ("scalar", torch.tensor(3.5))):
        np.testing.assert_array_equal(decode(found[name].codes, "float32"), wanted.numpy())
    state = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2)).state_dict()
    assert isinstance(state, collections.OrderedDict)
    assert list(read_torch_file(saved(tmp_path / "s.pt", state))) == list(state)
    wide = read_torch_file(saved(tmp_path / "i.pt", torch.tensor([-5, 2**31 - 1])))["tensor"]
    np.testing.assert_array_equal(decode(wide.codes, wide.format), [-5, 2**31 - 1])


class Evil:
    def __reduce__(self):
        return eval, ("print('executed')",)  # not print itself: other packages put their own in its place


def forged(path, program, data=b"\0" * 16, key="0"):
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("a/data.pkl", program)
        z.writestr(f"a/data/{key}", data)
    return path


def test_a_file_that_calls_anything_is_refused_by_name_and_nothing_runs(tmp_path, capsys):
    with pytest.raises(HostileFile, match=r"data\.pkl calls (__builtin__|builtins)\.eval; allowed: tensors and ordered dictionaries"):
        read_torch_file(saved(tmp_path / "x.pt", {"a": torch.ones(2), "b": Evil()}))
    with pytest.raises(HostileFile, match=r"calls torch\._utils\._rebuild_parameter"):
        read_torch_file(saved(tmp_path / "p.pt", torch.nn.Parameter(torch.ones(2))))
    with pytest.raises(HostileFile, match="uses EMPTY_SET"):
        read_torch_file(forged(tmp_path / "s.pt", pickle.dumps(set(), 4)))
    assert "executed" not in capsys.readouterr().out


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        return value.record if isinstance(value, Stored) else None


class Stored:
    def __init__(self, *record):
        self.record = record


class Rebuilt:
    def __init__(self, *arguments):
        self.arguments = arguments

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, self.arguments


def described(path, storage, offset, shape, strides):
    import io

    out = io.BytesIO()
    Pickler(out, 2).dump(Rebuilt(Stored(*storage), offset, shape, strides, False, collections.OrderedDict()))
    return forged(path, out.getvalue())


@pytest.mark.parametrize(
    ("storage", "offset", "shape", "strides", "error"),
    [
        (("storage", torch.FloatStorage, "0", "cpu", 4), 0, (2, 4), (4, 1), "reaches beyond its storage of 4 elements"),
        (("storage", torch.FloatStorage, "0", "cpu", 4), 3, (2,), (1,), "reaches beyond"),
        (("storage", torch.FloatStorage, "0", "cpu", 4), 0, (2,), (-1,), "not in the file as such"),
        (("storage", torch.FloatStorage, "0", "cpu", 9), 0, (2,), (1,), "storage 0 of 9 elements is not in the file as such"),
        (("storage", torch.FloatStorage, "../0", "cpu", 4), 0, (2,), (1,), "not in the file as such"),
        (("file", torch.FloatStorage, "0", "cpu", 4), 0, (2,), (1,), "refers to 'file'"),
        (("storage", torch.ComplexFloatStorage, "0", "cpu", 2), 0, (2,), (1,), "storage of type ComplexFloatStorage"),
        (("storage", torch.FloatStorage, "0", "cpu", 4), 0, (2, 2), (1,), r"no tensor has shape \[2, 2\] and strides \[1\]"),
        (("storage", torch.FloatStorage, "0", "cpu", 4), 0, (1 << 70, 0), (0, 0), "no tensor has shape"),
        (("storage", torch.FloatStorage, "0", "cpu", 4), float("inf"), (2,), (1,), "damaged"),
        (("storage", torch.FloatStorage, "0", "cpu", 4), 0, (1 << 33,), (0,), "8589934592 elements out of a storage of 4"),
    ],
)
def test_shapes_and_storages_that_reach_outside_the_file_are_refused(tmp_path, storage, offset, shape, strides, error):
    with pytest.raises((CorruptFile, HostileFile), match=error):
        read_torch_file(described(tmp_path / "x.pt", storage, offset, shape, strides))


def test_containers_that_hold_themselves_or_each_other_without_end_are_refused(tmp_path):
    endless = []
    endless.append(endless)
    wide = [[]]
    for _ in range(40):
        wide = [wide] * 10
    for value in (endless, wide):
        with pytest.raises(HostileFile, match="does one hold itself"):
            read_torch_file(forged(tmp_path / "x.pt", pickle.dumps(value, 2)))
    assert read_torch_file(saved(tmp_path / "y.pt", [[[torch.ones(1).expand(3)]]]))["0/0/0"].shape == (3,)


def test_two_tensors_of_one_name_are_refused_not_one_of_them_lost(tmp_path):
    path = saved(tmp_path / "x.pt", {"a": {"b": torch.zeros(2)}, "a/b": torch.ones(2)})
    with pytest.raises(CorruptFile, match="two tensors are named 'a/b'"):
        read_torch_file(path)


@pytest.mark.parametrize("what", ["changed", "compressed", "no storage"])
def test_torch_files_whose_entries_cannot_be_read_say_which(tmp_path, what):
    path = saved(tmp_path / "x.pt", torch.arange(6.0))
    if what == "changed":
        data = bytearray(path.read_bytes())
        data[data.find(np.arange(6.0, dtype=np.float32).tobytes()) + 8] ^= 1
        path.write_bytes(data)
    with zipfile.ZipFile(path) as z:
        entries = {n: b"" if what == "changed" else z.read(n) for n in z.namelist()}
    if what == "compressed":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
            for name, data in entries.items():
                z.writestr(name, data)
    if what == "no storage":
        forged(path, pickle.dumps(Rebuilt(5, 0, (6,), (1,), False, collections.OrderedDict()), 2))
    message = {"changed": "data/0 cannot be read: Bad CRC", "compressed": "is compressed or encrypted", "no storage": "not of a storage"}
    with pytest.raises(CorruptFile, match=message[what]):
        read_torch_file(path)


def test_what_is_no_torch_file_says_so(tmp_path):
    (tmp_path / "x.pt").write_bytes(b"\x80\x02not a zip")
    with pytest.raises(CorruptFile, match=r"not a torch\.save zip"):
        read_torch_file(tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "y.pt", "w") as z:
        z.writestr("a/b", b"")
    with pytest.raises(CorruptFile, match=r"without data\.pkl"):
        read_torch_file(tmp_path / "y.pt")
    with pytest.raises(CorruptFile, match=r"data\.pkl is damaged|does not end"):
        read_torch_file(forged(tmp_path / "z.pt", b"\x80\x02}"))


def test_files_are_read_where_torch_is_not(tmp_path):
    path = saved(tmp_path / "x.pt", {"x": torch.ones(3)})
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"from accuracy_eval.foreign.arrays import read_arrays\nprint(read_arrays({str(path)!r})['x'].format, 'pickle' in sys.argv)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "float32"


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_file_that_only_bears_the_name_is_said_to_be_no_such_file(tmp_path, suffix):
    (tmp_path / f"notes{suffix}").write_text("hello there")
    with pytest.raises(FileError, match=rf"notes\{suffix}: not an \{suffix}: begins with b'hello th'$"):
        read_arrays(tmp_path / f"notes{suffix}")


def test_an_import_of_what_is_not_there_says_so(tmp_path, capsys):
    assert run(["import", str(tmp_path / "nothere"), "-o", str(tmp_path / "x.safetensors")]) == 2
    assert capsys.readouterr().err == f"accuracy-eval: {tmp_path / 'nothere'}: no such file or folder\n"


def test_numpy_files_hold_no_objects(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(3, np.float16), y=np.arange(2))
    assert {n: c.format for n, c in read_arrays(tmp_path / "a.npz").items()} == {"x": "float16", "y": "int32"}
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(CorruptFile, match="arrays of Python objects are not read"):
        read_arrays(tmp_path / "o.npy")
    with pytest.raises(UsageError, match=r"unknown kind of array file 'x\.bin'"):
        read_arrays(tmp_path / "x.bin")
    with pytest.raises(FileError, match="no such file"):
        read_arrays(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h["x"].update(data_offsets=[0, 8]), "needs 12 bytes; found bytes 0 to 8 of 12"),
        (lambda h: h["x"].update(data_offsets=[0, 4000]), "found bytes 0 to 4000"),
        (lambda h: h["x"].update(shape=[-3]), "needs"),
        (lambda h: h["x"].pop("dtype"), "expected dtype, shape and data_offsets"),
        (lambda h: h["x"].update(dtype="C64"), "has dtype C64"),
        (lambda h: h["x"].update(dtype=["F32"]), r"has dtype \['F32'\]"),
        (lambda h: h["x"].update(data_offsets=["0", "12"]), "integers below"),
        (lambda h: h["x"].update(shape=[3.5]), "integers below"),
        (lambda h: h["x"].update(shape=[1 << 70, 0], data_offsets=[0, 0]), "integers below"),
        (lambda h: h["x"].update(shape=[1] * 98 + [3]), "integers below"),
        (lambda h: h.update(y=h["x"]), "tensor 'y' starts at byte 0, the one before it ends at 12: a hole or an overlap"),
        (lambda h: h["x"].update(shape=[2], data_offsets=[4, 12]), "tensor 'x' starts at byte 4, the one before it ends at 0"),
        (lambda h: h["x"].update(shape=[2], data_offsets=[0, 8]), "4 bytes after the last tensor belong to none"),
    ],
)
def test_safetensors_whose_header_lies_are_refused(tmp_path, change, message):
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {"x": read_arrays(npy(tmp_path, np.ones(3, np.float32)))["array"]})
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises((CorruptFile, UsageError), match=message):
        read_safetensors(path)
    path.write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    with pytest.raises(CorruptFile, match="a header of 1099511627776 bytes"):
        read_safetensors(path)
    entry = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    for text, message in ((f'{{"x":{entry},"x":{entry}}}', "names that come twice"), ("[" * 100_000, "is no JSON")):
        path.write_bytes(len(text).to_bytes(8, "little") + text.encode())
        with pytest.raises(CorruptFile, match=message):
            read_safetensors(path)


@pytest.mark.parametrize("name", ["cut.npy", "cut.npz", "empty.npy", "empty.npz", "changed.npz", "objects.npz", "absurd.npy"])
def test_damaged_numpy_files_are_one_sentence_and_exit_code_2(tmp_path, capsys, name):
    path = tmp_path / name
    array = np.array([{}], object) if name == "objects.npz" else np.arange(64.0)
    if path.suffix == ".npz":
        np.savez(path, x=array)
    else:
        np.save(path, array)
    data = bytearray(path.read_bytes())
    data[-200] ^= name == "changed.npz"
    data = data.replace(b"(64,)", b"(%d,)" % (1 << 40)) if name == "absurd.npy" else data
    path.write_bytes(data[: {"cut": 100, "empty": 0}.get(path.stem, len(data))])
    assert run(["compare", str(path), str(npy(tmp_path, np.ones(2)))]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"accuracy-eval: {path}: ")
    assert said.count("\n") == 1


def npy(folder, array, name="x.npy"):
    np.save(folder / name, array)
    return folder / name


# comparing


def test_arrays_that_pass_say_how_near_they_are(tmp_path, capsys):
    x = np.ones((4, 4), np.float32)
    near = x.copy()
    near[2, 1] += 2.0**-20
    pair = [str(npy(tmp_path, x, "a.npy")), str(npy(tmp_path, near, "b.npy"))]
    assert run(["compare", *pair, "--to", "none"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 within limits; for example: 1 of 16 elements differ, by up to 9.54e-7 at [2, 1]; " in said


def test_arrays_of_other_shapes_and_formats_are_told_by_name(tmp_path):
    x = npy(tmp_path, np.full((4, 4), 1 / 3, np.float32), "x.npy")
    (cut,) = compare_arrays(x, npy(tmp_path, np.zeros((2, 4), np.float32), "cut.npy")).tensors
    assert (cut.verdict, cut.pairs[0].sentence) == (Verdict.FAIL, "x is [4, 4], cut is [2, 4]")
    (half,) = compare_arrays(x, npy(tmp_path, np.full((4, 4), 1 / 3, np.float16), "half.npy")).tensors
    inf = np.full((4, 4), 1 / 3, np.float32)
    inf[1] = np.inf
    (ended,) = compare_arrays(x, npy(tmp_path, inf, "inf.npy")).tensors
    assert "4 elements are Inf in inf and not in x, the first at [1, 0]" in [d.sentence for d in ended.pairs[0].diagnoses]
    assert half.pairs[0].sentence.startswith("x is float32, half is float16; 16 of 16 elements differ")


def test_arrays_join_by_name_and_each_kind_of_file_compares_with_each(tmp_path, capsys):
    x, y = torch.randn(8, 8), torch.randn(40, 10)
    saved(tmp_path / "a.pt", {"x": x, "y": y, "only": y})
    np.savez(tmp_path / "b.npz", x=x.numpy(), y=(2 * y).numpy())
    results = compare_arrays(tmp_path / "a.pt", tmp_path / "b.npz")
    found = {t.case_id: t.pairs[0] for t in results.tensors}
    assert (found["x"].verdict, found["x"].attribution) == (Verdict.PASS, Attribution.IDENTICAL)
    assert (found["y"].verdict, found["y"].attribution) == (Verdict.FAIL, Attribution.UNDETERMINED)
    assert "gain" in [d.code for d in found["y"].diagnoses]
    most = np.unravel_index(np.abs(y.numpy()).argmax(), y.shape)
    assert found["y"].sentence.startswith(f"400 of 400 elements differ, by up to {y.abs().max():.3g} at {[int(i) for i in most]}; ")
    assert [(n.case_id, n.label, n.verdict) for n in results.not_compared] == [("only", "b", Verdict.MISSING)]
    assert results.exit_code == 1
    forms = ["--to", "xlsx,json,csv,md,junit", "-o", str(tmp_path / "r")]
    assert run(["compare", str(tmp_path / "a.pt"), str(tmp_path / "b.npz"), *forms]) == 1
    text = capsys.readouterr().out
    assert text.startswith("FAIL a vs b")
    assert "    a or b: 400 of 400 elements differ" in text  # nobody is the truth, so nobody is named
    assert "next: save that array there too" in text
    command = next(line.split("$ ")[1] for line in text.splitlines() if "$ " in line)
    assert run([*shlex.split(command)[1:], "--to", "none"]) == 1
    capsys.readouterr()
    with pytest.raises(UsageError, match="unknown array 'z'; allowed: only, x, y"):
        compare_arrays(tmp_path / "a.pt", tmp_path / "b.npz", names=["z"])
    assert (tmp_path / "r" / "results.json").exists()
    assert run(["compare", str(tmp_path / "a.pt"), "b.h5", *forms]) == 2
    assert "b.h5 is no file of arrays" in capsys.readouterr().err
    with pytest.raises(UsageError, match="give two files or more"):
        compare_arrays(tmp_path / "a.pt")


def plain_safetensors(path, arrays):
    """As the format is defined, written here by hand."""
    header, data = {}, b""
    for name, array in arrays.items():
        dtype = {"int64": "I64", "uint64": "U64", "float32": "F32"}[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


WRITERS = {
    ".npz": lambda path, arrays: np.savez(path, **arrays),
    ".safetensors": plain_safetensors,
    ".pt": lambda path, arrays: torch.save({n: torch.from_numpy(a) for n, a in arrays.items()}, path),
}


@pytest.mark.parametrize("suffix", WRITERS)
def test_integers_of_64_bits_are_compared_where_they_fit_and_leave_the_rest_judged_where_not(tmp_path, capsys, suffix):
    fits = np.array([[-(1 << 31), 0], [7, (1 << 31) - 1]])
    arrays = {"ids": fits, "x": np.ones((4, 4), np.float32)}
    files = [tmp_path / f"{name}{suffix}" for name in ("same", "one_off", "wide")]
    WRITERS[suffix](files[0], arrays)
    WRITERS[suffix](files[1], {**arrays, "ids": fits - [[0, 0], [1, 0]]})
    WRITERS[suffix](files[2], {**arrays, "ids": np.add(fits, [[0, 0], [0, 1]])})
    np.savez(tmp_path / "a.npz", **arrays)
    assert compare_arrays(tmp_path / "a.npz", files[0]).exit_code == 0
    off = {t.case_id: t.pairs[0] for t in compare_arrays(tmp_path / "a.npz", files[1]).tensors}
    assert (off["ids"].verdict, off["ids"].metrics["mismatch_count"]) == (Verdict.FAIL, 1)
    results = compare_arrays(tmp_path / "a.npz", files[2])
    assert [(t.case_id, t.verdict) for t in results.tensors] == [("x", Verdict.PASS)]
    (left,) = results.not_compared
    assert (left.case_id, left.label, left.verdict) == ("ids", "wide", Verdict.INCONCLUSIVE)
    wanted = f"not comparable: wide{suffix} holds 1 of 4 64-bit integers beyond 32 bits, the first 2147483648 at [1, 1]; "
    assert left.reason.startswith(wanted)
    assert results.exit_code == 2
    assert run(["compare", str(tmp_path / "a.npz"), str(files[2]), "--to", "none"]) == 2
    text = capsys.readouterr().out
    assert text.startswith("INCONCLUSIVE a vs wide")
    assert "next: save that array in every file as float64" in text
    assert compare_arrays(files[2], files[2]).exit_code == 2  # in both files: neither passes


def test_unsigned_integers_of_64_bits_are_those_numbers(tmp_path):
    values = {"n": np.array([0, (1 << 31) - 1], np.uint64)}
    np.savez(tmp_path / "a.npz", **values)
    plain_safetensors(tmp_path / "b.safetensors", values)
    np.savez(tmp_path / "c.npz", n=np.array([0, (1 << 31) - 1], np.int32))
    assert compare_arrays(*(tmp_path / n for n in ("a.npz", "b.safetensors", "c.npz"))).exit_code == 0
    np.savez(tmp_path / "d.npz", n=np.array([0, (1 << 64) - 1], np.uint64))
    (left,) = compare_arrays(tmp_path / "a.npz", tmp_path / "d.npz").not_compared
    assert f"the first {(1 << 64) - 1} at [1]" in left.reason


def test_an_import_of_integers_beyond_32_bits_says_where(tmp_path):
    path = saved(tmp_path / "AMD_gemm_float32_2_2_2.pt", torch.tensor([1, 1 << 40]))
    with pytest.raises(UsageError, match=r"array 'tensor' holds 1 of 2 64-bit integers beyond 32 bits, the first 1099511627776 at \[1\]"):
        import_dumps([path])


@pytest.mark.parametrize("option", [["--gates", "exact"], ["--reference", "full"], ["--op", "gemm"], ["--explain"], ["--workers", "2"]])
def test_what_only_dumps_can_be_asked_is_refused_for_arrays(tmp_path, capsys, option):
    files = [str(npy(tmp_path, np.ones(2), name)) for name in ("a.npy", "b.npy")]
    assert run(["compare", *files, "--to", "none", *option]) == 2
    assert capsys.readouterr().err.startswith(f"accuracy-eval: {option[0]}: nothing in files of arrays for that")


def test_arrays_have_a_baseline(tmp_path, capsys):
    files = [str(npy(tmp_path, np.ones(2), name)) for name in ("a.npy", "b.npy")]
    assert run(["compare", *files, "--to", "json", "-o", str(tmp_path / "r"), "-q"]) == 0
    npy(tmp_path, np.zeros(2), "b.npy")
    assert run(["compare", *files, "--to", "none", "--baseline", str(tmp_path / "r" / "results.json")]) == 1
    assert "new failure: array array: PASS, now FAIL" in capsys.readouterr().out


# importing


@pytest.mark.parametrize(
    ("stem", "vendor", "name"),
    [
        ("AMD_gemm_bfloat16_512_128_256", "AMD", "gemm.bfloat16.512x128x256"),
        ("NVIDIA_exp_fp32_64_64", "NVIDIA", "exp.float32.64x64"),
        ("GeForce_sigmoid_float16_1024", "GeForce", "sigmoid.float16.1024"),
        ("AMD_attention_bf16_llama3-8B_q8192_kv8192_hq32_hkv8_hdqk128_hdv128_bs1", "AMD",
         "attention.bfloat16.llama3-8B.q8192.kv8192.hq32.hkv8.hdqk128.hdv128.bs1"),
    ],
)  # fmt: skip
def test_the_name_of_an_old_dump_says_what_was_computed(stem, vendor, name):
    assert canonical(stem) == (vendor, name)


def test_two_vendors_dumps_are_imported_and_compared(tmp_path, capsys):
    d = torch.randn(16, 8)
    for vendor, change in (("AMD", 0.0), ("NVIDIA", 1.0)):
        folder = tmp_path / vendor
        folder.mkdir()
        e = d.clone()
        e[3, 5] += change
        saved(folder / f"{vendor}_gemm_float32_16_8_32.pt", e)
        names = ("q", "k", "v", "out", "dq", "dk", "dv", "do")
        saved(folder / f"{vendor}_attention_float32_tiny_q4_kv4_hq1_hkv1_hdqk8_hdv8_bs1.pt", {n: torch.ones(1, 4, 1, 8) for n in names})
        saved(folder / "notes.pt", torch.ones(1))
        assert run(["import", str(folder), "-o", str(tmp_path / f"{vendor.lower()}.safetensors")]) == 0
        assert f"9 tensors of {vendor}, 1 file passed over for their names: notes.pt" in capsys.readouterr().out
    results = compare_arrays(tmp_path / "amd.safetensors", tmp_path / "nvidia.safetensors")
    verdicts = {t.case_id: t.verdict for t in results.tensors}
    assert len(verdicts) == 9
    assert [n for n, v in verdicts.items() if v is Verdict.FAIL] == ["gemm.float32.16x8x32"]
    (off,) = (t.pairs[0] for t in results.tensors if t.verdict is Verdict.FAIL)
    assert off.worst[0].index == (3, 5)
    with pytest.raises(FileError, match=r"nothing to import: found notes\.pt"):
        import_dumps([tmp_path / "AMD" / "notes.pt"])
    assert run(["import", str(tmp_path / "AMD"), "-o", str(tmp_path / "x.h5")]) == 2
    assert "imports are written as .safetensors" in capsys.readouterr().err
