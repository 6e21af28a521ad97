"""Killed at any moment, a folder of parts holds whole parts only, and resuming knows which."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from support_store import write

from accuracy_eval.store import Dump, completed, pack

# Writes parts until killed; prints each name after write_part has returned.
_WRITER = """
import sys
import numpy as np
from accuracy_eval.digests import sha256_codes
from accuracy_eval.records import Case, CaseRecord, TensorRecord
from accuracy_eval.store import write_part

folder, first = sys.argv[1], int(sys.argv[2])
for i in range(first, first + 100_000):
    codes = np.full((512, 1024), i % 65536, np.uint16)
    tensor = TensorRecord("d", "output", "bfloat16", codes.shape, sha256_codes(codes))
    record = CaseRecord(f"case.m{i}", Case("gemm", (("m", i),)), "default", "done", tensors=(tensor,))
    write_part(folder, record, {"d": codes}, info={"suite": "s"}, platform={})
    print(record.id, flush=True)
"""

_PACKER = """
import sys
from accuracy_eval.store import pack
print("ready", flush=True)
pack(sys.argv[1], sys.argv[2])
"""


def test_a_writer_killed_at_any_moment_leaves_whole_parts_only(tmp_path: Path) -> None:
    folder, promised, interrupted = tmp_path / "parts", set(), 0
    chance = random.Random(1)
    for attempt in range(8):
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(folder), str(attempt * 100_000)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(chance.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        promised |= {line.strip() for line in [first, *process.stdout]}
        process.wait()
        process.stdout.close()
        interrupted += any(folder.glob("*.tmp"))
        with Dump.open(folder) as dump:
            names = {r.id for r in dump.records}
            assert dump.verify_all() == len(names)
        assert completed(folder) == {(n, "default") for n in names}
        assert list(folder.glob("*.tmp")) == []
        assert promised <= names
        assert len(names - promised) <= attempt + 1  # a part may be finished before its name could be printed
    assert interrupted > 0


def test_packing_killed_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    folder, out = tmp_path / "run.parts", tmp_path / "run.h5"
    for m in range(1, 60):
        write(folder, m=m, n=300)
    with Dump.open(folder) as dump:
        digest = dump.content_digest
    chance = random.Random(2)
    for _ in range(8):
        process = subprocess.Popen([sys.executable, "-c", _PACKER, str(folder), str(out)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        for source in (folder, out):
            if source.exists():
                with Dump.open(source) as dump:
                    assert dump.content_digest == digest
                    assert dump.verify_all() == 59
        assert folder.exists() or out.exists()
        if not folder.exists():
            for m in range(1, 60):
                write(folder, m=m, n=300)
    pack(folder, out)
    assert list(tmp_path.glob("run*")) == [out]
    assert Dump.open(out).content_digest == digest


def test_a_part_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: object) -> None:
    events: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(fd: int) -> None:
        events.append("sync " + os.path.basename(os.readlink(f"/proc/self/fd/{fd}")).rpartition(".")[2])
        real_sync(fd)

    def replace(a: Path, b: Path) -> None:
        events.append("rename")
        real_replace(a, b)

    monkeypatch.setattr(os, "fsync", fsync)  # type: ignore[attr-defined]
    monkeypatch.setattr(os, "replace", replace)  # type: ignore[attr-defined]
    folder = tmp_path / "folder"
    write(folder)
    assert events == ["sync tmp", "rename", "sync folder"]
