"""Files made to mislead: each trick is refused, with file, place and reason, before a byte of it is used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support_store import write

from accuracy_eval.errors import CorruptFile, FileError, HostileFile
from accuracy_eval.store import Dump, merge

CASE = "cases/gemm.m4.n6.k8.nt.bfloat16.normal.s0/default"
SECRET = np.arange(24, dtype=np.uint16).reshape(4, 6)


def _secret(folder: Path) -> Path:
    path = folder / "secret.bin"
    if not path.exists():
        path.write_bytes(SECRET.tobytes())
        with h5py.File(folder / "secret.h5", "w") as f:
            f["d"] = SECRET
    return path


def _external_link(f: Any, folder: Path) -> None:
    f[f"{CASE}/d"] = h5py.ExternalLink(folder / "secret.h5", "/d")


def _soft_link(f: Any, folder: Path) -> None:
    f["spare"] = SECRET
    f[f"{CASE}/d"] = h5py.SoftLink("/spare")


def _virtual(f: Any, folder: Path) -> None:
    layout = h5py.VirtualLayout((4, 6), np.uint16)
    layout[:] = h5py.VirtualSource(folder / "secret.h5", "d", (4, 6))
    f.create_virtual_dataset(f"{CASE}/d", layout)


def _external_storage(f: Any, folder: Path) -> None:
    f.create_dataset(f"{CASE}/d", (4, 6), np.uint16, external=[(folder / "secret.bin", 0, 48)])


def _other_filter(f: Any, folder: Path) -> None:
    f.create_dataset(f"{CASE}/d", data=SECRET, chunks=(4, 6), scaleoffset=0)


def _unknown_filter(f: Any, folder: Path) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((4, 6))
    properties.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, ())
    space = h5py.h5s.create_simple((4, 6))
    h5py.h5d.create(f[CASE].id, b"d", h5py.h5t.STD_U16LE, space, dcpl=properties)


def _variable_length(f: Any, folder: Path) -> None:
    f.create_dataset(f"{CASE}/d", (4, 6), h5py.vlen_dtype(np.uint16))


def _floats(f: Any, folder: Path) -> None:
    f.create_dataset(f"{CASE}/d", data=SECRET.astype(np.float16))


def _references(f: Any, folder: Path) -> None:
    f.create_dataset(f"{CASE}/d", (4, 6), h5py.ref_dtype)


def _big_endian(f: Any, folder: Path) -> None:
    f.create_dataset(f"{CASE}/d", data=SECRET.astype(">u2"))


def _absurd(f: Any, folder: Path) -> None:
    f.create_dataset(f"{CASE}/d", (1 << 30, 1 << 11), np.uint16, chunks=(1024, 1024))


def _never_allocated(f: Any, folder: Path) -> None:
    f.create_dataset(f"{CASE}/d", (1 << 20, 1 << 14), np.uint16)


def _bomb(f: Any, folder: Path) -> None:
    f.create_dataset(f"{CASE}/d", data=np.zeros((1 << 12, 1 << 13), np.uint16), chunks=(1 << 12, 1 << 13), compression="gzip")


def _null_space(f: Any, folder: Path) -> None:
    f.create_dataset(f"{CASE}/d", data=h5py.Empty(np.uint16))


TRICKS: dict[str, tuple[Callable[[Any, Path], None], str]] = {
    "external_link": (_external_link, "an external link; a dump holds hard links only"),
    "soft_link": (_soft_link, "a soft link; a dump holds hard links only"),
    "virtual": (_virtual, "virtual dataset; its bytes would come from other files"),
    "external_storage": (_external_storage, "external storage in "),
    "other_filter": (_other_filter, "filter 6, allowed: none, 1 (deflate), 2 (shuffle), 3 (fletcher32)"),
    "unknown_filter": (_unknown_filter, "filter 32015, allowed: none"),
    "variable_length": (_variable_length, "element type variable length, allowed: unsigned integers"),
    "floats": (_floats, "element type float, allowed: unsigned integers"),
    "references": (_references, "element type reference, allowed: unsigned integers"),
    "big_endian": (_big_endian, "element type is signed or big-endian, allowed: little-endian unsigned integers"),
    "absurd_size": (_absurd, "4398046511104 bytes, allowed: 1099511627776"),
    "never_allocated": (_never_allocated, "34359738368 bytes claimed, 0 stored at None"),
    "bomb": (_bomb, "67108864 bytes out of 65"),
    "null_space": (_null_space, "null dataspace"),
}


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    _secret(tmp_path)
    return write(tmp_path)


@pytest.mark.parametrize("trick", TRICKS)
def test_a_hostile_dataset_is_refused_on_reading_merging_and_walking(dump: Path, trick: str) -> None:
    make, reason = TRICKS[trick]
    with h5py.File(dump, "r+") as f:
        del f[f"{CASE}/d"]
        make(f, dump.parent)
    opened = Dump.open(dump)
    attempts: list[Callable[[], object]] = [
        lambda: opened.read(opened.records[0], "d", verify=False),
        lambda: opened.view(opened.records[0], "d", verify=False),
        lambda: merge([dump], dump.parent / "out.h5"),
        opened.check_structure,
    ]
    for attempt in attempts:
        with pytest.raises(HostileFile) as e:
            attempt()
        assert str(e.value).startswith(f"{dump}: /{CASE}/d: {reason}")
        assert str(e.value).endswith("Do not use this file.")
    assert sorted(p.name for p in dump.parent.iterdir()) == sorted([dump.name, "secret.bin", "secret.h5"])


def _read_all(path: Path) -> tuple[str, bytes]:
    """Everything the walk, the documents and the codes give."""
    with Dump.open(path) as opened:
        codes = opened.read(opened.records[0], "d")
        opened.check_structure()
        return opened.content_digest, codes.tobytes()


@pytest.mark.parametrize("at", ["index", "run", "cases", CASE])
def test_links_out_of_the_file_are_refused_wherever_they_stand(dump: Path, at: str) -> None:
    with h5py.File(dump, "r+") as f:
        del f[at]
        f[at] = h5py.ExternalLink(dump.parent / "secret.h5", "/")
    with pytest.raises(HostileFile) as e:
        _read_all(dump)
    assert str(e.value) == f"{dump}: /{at}: an external link; a dump holds hard links only. Do not use this file."


def test_a_cycle_is_refused(dump: Path) -> None:
    with h5py.File(dump, "r+") as f:
        f[f"{CASE}/loop"] = f["cases"]
    with pytest.raises(HostileFile) as e:
        Dump.open(dump).check_structure()
    assert str(e.value) == f"{dump}: /{CASE}/loop: a second link to the same object, allowed: one. Do not use this file."


def test_groups_shared_to_make_a_small_file_endless_are_refused(dump: Path) -> None:
    with h5py.File(dump, "r+") as f:
        group = f.create_group("g0")
        for i in range(40):
            inner = f.create_group(f"g{i + 1}")
            group["a"] = inner
            group["b"] = inner
            group = inner
    with pytest.raises(HostileFile, match="a second link to the same object"):
        Dump.open(dump).check_structure()


def test_a_named_type_is_refused(dump: Path) -> None:
    with h5py.File(dump, "r+") as f:
        f["t"] = np.dtype("u2")
    with pytest.raises(HostileFile, match="/t: a named type"):
        Dump.open(dump).check_structure()


def test_a_sound_file_passes_the_walk(dump: Path) -> None:
    assert Dump.open(dump).check_structure() == 3


def test_a_missing_dataset_and_a_group_in_its_place_are_damage(dump: Path) -> None:
    with h5py.File(dump, "r+") as f:
        del f[f"{CASE}/d"]
    opened = Dump.open(dump)
    with pytest.raises(CorruptFile, match=f"{CASE}/d: missing; the index names it"):
        opened.read(opened.records[0], "d")
    with h5py.File(dump, "r+") as f:
        f.create_group(f"{CASE}/d")
    with pytest.raises(CorruptFile, match="expected a dataset, found GroupID"):
        opened.read(opened.records[0], "d")


@pytest.mark.parametrize("shape", [(6, 4), (24,), (4, 6, 1)], ids=str)
def test_a_dataset_of_another_shape_than_the_index_says_is_damage(dump: Path, shape: tuple[int, ...]) -> None:
    with h5py.File(dump, "r+") as f:
        del f[f"{CASE}/d"]
        f[f"{CASE}/d"] = SECRET.reshape(shape)
    opened = Dump.open(dump)
    for attempt in (lambda: opened.read(opened.records[0], "d"), lambda: merge([dump], dump.parent / "out.h5")):
        with pytest.raises(CorruptFile, match=r"uint16 \[.*\] stored, the index says uint16 \[4, 6\] \(bfloat16\)"):
            attempt()


@pytest.mark.parametrize(
    "options", [{"compression": "gzip", "shuffle": True}, {"fletcher32": True}, {}], ids=["gzip", "fletcher32", "plain"]
)
def test_chunked_codes_of_another_writer_are_read_and_merged(dump: Path, options: dict[str, Any]) -> None:
    with h5py.File(dump, "r+") as f:
        codes = f[f"{CASE}/d"][()]
        del f[f"{CASE}/d"]
        f.create_dataset(f"{CASE}/d", data=codes, chunks=(2, 6), **options)
    for path in (dump, merge([dump], dump.parent / "out.h5")):
        with Dump.open(path) as opened:
            assert np.array_equal(opened.read(opened.records[0], "d"), codes)
            assert np.array_equal(opened.view(opened.records[0], "d"), codes)
    with h5py.File(dump.parent / "out.h5") as f:
        assert f[f"{CASE}/d"].chunks is None


def test_a_file_cut_anywhere_is_a_file_error(dump: Path) -> None:
    whole = dump.read_bytes()
    for size in [*range(0, len(whole), 97), len(whole) - 1]:
        dump.write_bytes(whole[:size])
        with pytest.raises(FileError, match=dump.name):
            Dump.open(dump)


def test_a_byte_changed_anywhere_is_harmless_or_a_file_error(dump: Path) -> None:
    """Whatever one byte does to the file: the same content, or an error that names the file. Never other codes."""
    whole = dump.read_bytes()
    content = _read_all(dump)
    messages = []
    for i in range(0, len(whole), 5):
        changed = bytearray(whole)
        changed[i] ^= 0xFF if i % 2 else 0x10
        dump.write_bytes(changed)
        try:
            assert _read_all(dump) == content
        except FileError as e:
            messages.append(str(e))
    assert all(dump.name in m for m in messages)
    assert len(messages) > len(whole) / 5 / 4


def test_filter_plugins_are_off_once_the_store_has_opened_a_file(dump: Path) -> None:
    """HDF5's H5PLget_loading_state: 0 says that no library named by a file will be loaded; the environment is left as it was."""
    code = (
        "import sys, os, ctypes\n"
        "from accuracy_eval.store import Dump\n"
        "Dump.open(sys.argv[1])\n"
        "import h5py.h5pl, h5py\n"
        "library = [l.split()[-1] for l in open('/proc/self/maps') if '/libhdf5-' in l or '/libhdf5.' in l][0]\n"
        "state = ctypes.c_uint(99)\n"
        "ctypes.CDLL(library).H5PLget_loading_state(ctypes.byref(state))\n"
        "print(state.value, os.environ.get('HDF5_PLUGIN_PRELOAD'))"
    )
    run = subprocess.run([sys.executable, "-c", code, str(dump)], capture_output=True, text=True, check=True)
    assert run.stdout == "0 None\n"


def test_filters_are_switched_off_once_and_not_beside_another_threads_hdf5() -> None:
    """The plugin interface is the one part of h5py that does not take its lock; two writers' first files come at the same time."""
    code = (
        "import threading, h5py.h5pl\n"
        "from h5py._objects import phil\n"
        "from accuracy_eval.store.guard import import_h5py\n"
        "calls, size = [], h5py.h5pl.size\n"
        "h5py.h5pl.size = lambda: calls.append(size())\n"
        "threads = [threading.Thread(target=import_h5py) for _ in range(8)]\n"
        "with phil:  # as while HDF5 writes\n"
        "    [t.start() for t in threads]\n"
        "    [t.join(0.05) for t in threads]\n"
        "    print(len(calls))\n"
        "[t.join() for t in threads]\n"
        "print(len(calls))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["0", "1"]
