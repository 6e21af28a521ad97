"""transfer on the command line: what it prints, parts of dumps, digests alone; progress of all commands."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from pathlib import Path

import pytest
from support_sshd import Server

from accuracy_eval import compiling
from accuracy_eval.cli import progress as bars
from accuracy_eval.cli import run
from accuracy_eval.compare import compare_dumps
from accuracy_eval.records import Verdict
from accuracy_eval.store import Dump
from accuracy_eval.transfer import Options, transfer


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumps")
    for name, device in (("a", "reference"), ("b", "reference"), ("c", "model:hopper")):
        code = run(["dump", "--op", "gemm", "--shape", "64x48x4096", "--format", "float16", "--format", "bfloat16", "--lane", "random",
                    "--device", device, "-o", str(folder / f"{name}.h5"), "-q"])  # fmt: skip
        assert code == 0
    return folder


@pytest.fixture
def ssh(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options that reach the server by the name lab."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    config = tmp_path / "ssh_config"
    config.write_text(
        f"Host lab\n HostName 127.0.0.1\n Port {server.port}\n User {server.user}\n"
        f" IdentityFile {server.user_key}\n UserKnownHostsFile {server.known_hosts}\n"
    )
    return ["-F", str(config)]


def test_what_was_moved_is_printed_with_its_digest(
    server: Server, ssh: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_bytes(b"hello")
    digest = hashlib.sha256(b"hello").hexdigest()
    for action in ("sent", "already there, identical"):
        assert run(["transfer", str(tmp_path / "a"), f"lab:{tmp_path}/far/", *ssh]) == 0
        assert capsys.readouterr().out == f"{server.label}:{tmp_path}/far/a: {action}, 5 bytes  sha256 {digest}\n"
    (tmp_path / "far" / "b.part").write_bytes(b"hel")
    assert run(["transfer", str(tmp_path / "a"), f"lab:{tmp_path}/far/b", "--dry-run", *ssh]) == 0
    assert capsys.readouterr().out == f"{server.label}:{tmp_path}/far/b: would be resumed, 5 bytes, continued at 3\n"
    assert run(["transfer", str(tmp_path / "a"), f"lab:{tmp_path}/far/c", "-q", "--no-resume", *ssh]) == 0
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_a_file_that_is_replaced_is_said_to_be(ssh: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    near, far = tmp_path / "a", tmp_path / "far" / "a"
    for source, destination, place in ((near, f"lab:{far}", far), (f"lab:{far}", near, near)):
        near.write_bytes(b"hello")
        far.parent.mkdir(exist_ok=True)
        far.write_bytes(b"something else")
        assert run(["transfer", str(source), str(destination), "--dry-run", *ssh]) == 0
        assert ": would be sent, " in (said := capsys.readouterr().out)
        assert ", in place of another file of this name" in said
        assert (near.read_bytes(), far.read_bytes()) == (b"hello", b"something else")
        assert run(["transfer", str(source), str(destination), *ssh]) == 0
        assert ", in place of another file of this name" in capsys.readouterr().out
        assert near.read_bytes() == far.read_bytes() == (b"hello" if place == far else b"something else")


def test_many_small_files_say_what_they_replace(ssh: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i}.h5").write_bytes(b"%d" % i)
    options = Options(config_file=Path(ssh[1]))
    there = f"lab:{tmp_path}/far/"
    assert not any(r.replaced for r in transfer([str(folder)], there, options=options))
    (folder / "3.h5").write_bytes(b"changed")
    assert [r.source.rpartition("/")[2] for r in transfer([str(folder)], there, options=options) if r.replaced] == ["3.h5"]
    (folder / "5.h5").write_bytes(b"changed here")
    again = transfer([f"lab:{tmp_path}/far/many/"], str(folder), options=options)
    assert [r.source.rpartition("/")[2] for r in again if r.replaced] == ["5.h5"]


def test_verbose_says_what_was_chosen(server: Server, ssh: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_bytes(b"hello")
    assert run(["transfer", str(tmp_path / "a"), f"lab:{tmp_path}/far/", "-v", "--limit", "100", *ssh]) == 0
    assert capsys.readouterr().err.startswith(f"{server.label}: exec and sftp; round trip ")


def test_a_failure_is_one_message_and_exit_code_2(ssh: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transfer", str(tmp_path / "none"), f"lab:{tmp_path}/x", *ssh]) == 2
    assert capsys.readouterr().err == f"accuracy-eval: {tmp_path}/none: no such file or folder; nothing was sent\n"


def test_only_chosen_cases_are_sent(ssh: list[str], dumps: Path, tmp_path: Path) -> None:
    assert run(["transfer", str(dumps / "a.h5"), f"lab:{tmp_path}/far/", "--include", "*.bfloat16.*", "-q", *ssh]) == 0
    whole, part = Dump.open(dumps / "a.h5"), Dump.open(tmp_path / "far" / "a.cases.h5")
    assert [r.id for r in part.records] == [r.id for r in whole.records if ".bfloat16." in r.id]
    assert part.verify_all() > 0
    assert part.info["notes"] == [f"{len(part.records)} of {len(whole.records)} results of the suite"]


def test_nothing_chosen_is_an_error(ssh: list[str], dumps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transfer", str(dumps / "a.h5"), f"lab:{tmp_path}/far/", "--include", "exp*", *ssh]) == 2
    assert "none of its 2 results matches; nothing to extract" in capsys.readouterr().err


def test_a_part_of_a_dump_on_another_host_is_refused(ssh: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transfer", "lab:a.h5", ".", "--digests", *ssh]) == 2
    assert "--include and --digests choose from dumps here; run the transfer on the host that has the dump" in capsys.readouterr().err


def test_digests_alone_tell_what_is_bit_identical(ssh: list[str], dumps: Path, tmp_path: Path) -> None:
    assert run(["transfer", str(dumps / "b.h5"), str(dumps / "c.h5"), f"lab:{tmp_path}/far/", "--digests", "-q", *ssh]) == 0
    b, c = tmp_path / "far" / "b.digests.h5", tmp_path / "far" / "c.digests.h5"
    assert Dump.open(b).content_digest == Dump.open(dumps / "b.h5").content_digest
    assert all(not t.path for r in Dump.open(b).records for t in r.tensors)
    whole = compare_dumps(dumps / "a.h5", dumps / "b.h5", labels=["a", "b"])
    light = compare_dumps(dumps / "a.h5", b, labels=["a", "b"])
    assert light.exit_code == 0
    assert light.tensors == whole.tensors
    assert {str(p.attribution) for t in light.tensors for p in t.pairs} == {"identical"}

    other = compare_dumps(dumps / "a.h5", c, labels=["a", "c"])
    assert {n.verdict for n in other.not_compared} == {Verdict.INCONCLUSIVE}
    assert {n.reason for n in other.not_compared} == {"c.digests.h5 holds digests alone: other bytes than a; not judged without the codes"}
    assert other.exit_code == 2

    alone = compare_dumps(b, b, labels=["one", "two"])
    assert alone.exit_code == 2
    assert {n.reason for n in alone.not_compared if n.label == "one"} == {
        "b.digests.h5 holds digests alone: bit-identical to two; not judged without the codes"
    }


def test_progress_off_a_terminal_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 5.0, 10.0, 20.0])
    monkeypatch.setattr(bars.time, "monotonic", lambda: next(clock))
    with bars.progress("transfer", unit="bytes") as update:
        update(0, 8 << 20, "")
        update(2 << 20, 8 << 20, "")
        update(4 << 20, 8 << 20, "x")
    assert capsys.readouterr().err == (
        "transfer: 2.0 of 8.0 MiB, 0.2 MiB/s, about 30 s left\ntransfer: 4.0 of 8.0 MiB, 0.2 MiB/s, about 20 s left (x)\n"
    )


def test_what_is_left_is_told_from_the_last_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    done = [50, 150, 250, 350, 360, 370]  # 50 are there from an earlier run, 100 come every 10 s, then 10
    clock = iter([0.0, *(10.0 * i for i in range(6))])
    monkeypatch.setattr(bars.time, "monotonic", lambda: next(clock))
    with bars.progress("dump") as update:
        for count in done:
            update(count, 450, "")
    left = [int(line.split("about ")[1].split()[0]) for line in capsys.readouterr().err.splitlines()]
    assert left == [30, 20, 10, round(90 / ((360 - 150) / 30)), round(80 / ((370 - 250) / 30))]


def test_a_line_says_what_is_counted_and_the_rate_of_one_unit_is_none_of_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 10.0, 20.0, 30.0])
    monkeypatch.setattr(bars.time, "monotonic", lambda: next(clock))
    with bars.progress_of(["h200"]) as update:
        update("h200", 0, 90, "", "results")
        update("h200", 0, 8 << 20, "fetching", "bytes")
        update("h200", 4 << 20, 8 << 20, "fetching", "bytes")
    assert capsys.readouterr().err == ("h200: 0 of 90 results\nh200: 4.0 of 8.0 MiB, 0.4 MiB/s, about 10 s left (fetching)\n")


def test_progress_on_a_terminal_is_a_bar_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while block := os.read(master, 1 << 16):
                shown.append(block)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(slave, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", terminal)
        patch.setenv("COLUMNS", "120")
        patch.setenv("TERM", "xterm")
        with bars.progress_of(["h200", "mi300x"]) as update:
            update("h200", 3, 10, "gemm.x[1]", "results")
            update("mi300x", 10, 10, "", "results")
            update("mi300x", 2 << 20, 5 << 20, "fetching", "bytes")
        with bars.progress("transfer", unit="bytes") as one:
            one(1 << 20, 4 << 20, "")
    reader.join()
    os.close(master)
    for text in ("h200", "mi300x", "3 of 10 results", "2.0 of 5.0 MiB", "gemm.x[1]", "fetching", "1.0 of 4.0 MiB"):
        assert text in b"".join(shown).decode()


def test_quiet_progress_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with bars.progress("dump", quiet=True) as update:
        compiling.tell()
        update(1, 2, "x")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("terminal", "clock", "told"), [(True, [0.0, 9.0], 1), (False, [0.0, 2.0, 3.0, 4.0], 3), (False, [0.0, 2.0], None)]
)
def test_a_first_run_says_once_that_it_compiles_kernels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool, clock: list[float], told: int | None
) -> None:
    """At once on a terminal, elsewhere when it has taken three seconds; `told` is how many kernels were compiled until then."""
    moments = iter(clock)
    monkeypatch.setattr(bars.time, "monotonic", lambda: next(moments))
    found = []
    say = bars._compiles("compare", after_s=0.0 if terminal else bars.COMPILES_LONG_S)
    with compiling.heard(say):
        for _ in clock:
            compiling.tell()
            found.append(capsys.readouterr().err)
    said = "compare: compiling kernels, which takes up to a minute once; later runs take them from the cache\n"
    assert found == [said if number == told else "" for number in range(1, len(clock) + 1)]
    compiling.tell()  # nobody listens any more
