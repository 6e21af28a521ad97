"""Transfers against scp, alternating in one run: an OpenSSH server of our own on loopback, and one behind a delay for long round trips.

    python benchmarks/bench_transfer.py [--mib 1024] [--repeats 5]                   near: ratios to scp -c aes128-gcm@openssh.com
    python benchmarks/bench_transfer.py --rtt-ms 50 --mib 256 --repeats 3            far
    python benchmarks/bench_transfer.py --sparse-gib 5 --repeats 1                   a file over the limit after which keys are renewed

Wall time from the start of each command, connecting included; ours verify the digest at both ends, scp does not. Each runs in a process
of its own, whose peak memory is shown. Processor seconds are those of both ends: where other work shares the machine they say more.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support_proxy import DelayProxy
from support_sshd import Server, running_sshd

_CHILD = """
import sys, time
from pathlib import Path
started = time.perf_counter()
from accuracy_eval.transfer import Options, transfer
source, to, key, known, transport = sys.argv[1:]
options = Options(identity_files=(Path(key),), known_hosts=(Path(known),), config_file=Path("/dev/null"), transport=transport, note=print)
transfer([source], to, options=options)
(peak,) = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print("peak", peak)
"""


def ours(server: Server, transport: str) -> Callable[[str, str], tuple[float, str]]:
    def run(source: str, to: str) -> tuple[float, str]:
        words = [source, to, str(server.user_key), str(server.known_hosts), transport]
        started = time.perf_counter()
        out = subprocess.run([sys.executable, "-c", _CHILD, *words], capture_output=True, text=True, check=True).stdout
        elapsed = time.perf_counter() - started
        lines = out.splitlines()
        chosen = next((line.split(": ", 1)[1] for line in lines if ": by " in line), "")
        return elapsed, f"peak {int(lines[-1].split()[1]) / 1024:.0f} MiB  {chosen}"

    return run


def scp(server: Server, port: int) -> Callable[[str, str], tuple[float, str]]:
    def run(source: str, to: str) -> tuple[float, str]:
        settings = ["-o", f"UserKnownHostsFile={server.known_hosts}", "-F", "/dev/null", "-i", str(server.user_key), "-P", str(port)]
        ends = [e.replace(f"ssh://{server.user}@127.0.0.1:{port}/", f"{server.user}@127.0.0.1:") for e in (source, to)]
        started = time.perf_counter()
        subprocess.run(["scp", "-q", "-c", "aes128-gcm@openssh.com", *settings, *ends], check=True)
        return time.perf_counter() - started, ""

    return run


REAPED_S = 0.2  # the server counts a connection's processor time once that has ended


def processor_s(server: Server) -> float:
    """Of the server and all it has started, and of our own children, so far."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + own.ru_utime + own.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rtt-ms", type=float, default=0.0)
    parser.add_argument("--sparse-gib", type=int, default=0, help="a file of this size that is one hole, instead")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=memory)))
        server = stack.enter_context(running_sshd(folder / "s"))
        port = server.port
        if chosen.rtt_ms:
            port = stack.enter_context(DelayProxy(server.port, chosen.rtt_ms / 2000)).port
            server.know(port)
        source, size = folder / "source", chosen.mib
        with source.open("wb") as file:
            if chosen.sparse_gib:
                size = chosen.sparse_gib * 1024
                file.truncate(size << 20)
            for _ in range(0 if chosen.sparse_gib else size):
                file.write(os.urandom(1 << 20))
        ways = {"scp": scp(server, port), **{t: ours(server, t) for t in ("paramiko", "openssh", "auto")}}
        for direction in ("up", "down"):
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            work: dict[str, list[float]] = {name: [] for name in ways}
            details = dict.fromkeys(ways, "")
            for _ in range(chosen.repeats):
                for name, way in ways.items():  # one after the other: all meet the same noise
                    target = folder / "target"
                    ends = (str(source), server.at(target, port)) if direction == "up" else (server.at(source, port), str(target))
                    before = processor_s(server)
                    elapsed, details[name] = way(*ends)
                    time.sleep(REAPED_S)
                    work[name].append(processor_s(server) - before)
                    assert target.stat().st_size == size << 20
                    seconds[name].append(elapsed)
                    target.unlink()
            base = statistics.median(seconds["scp"])
            for name, times in seconds.items():
                middle = statistics.median(times)
                ratio = f"{base / middle:5.2f} × scp" if name != "scp" else " " * 11
                rate, spent = f"{size / middle:6.0f} MiB/s", f"{statistics.median(work[name]):5.2f} processor s"
                print(f"{direction:4s} {name:9s} {middle:6.2f} s  {rate}  {ratio}  {spent}  {details[name]}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
