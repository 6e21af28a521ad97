"""Processes that compute a case together: one a rank, in a process group of this host, kept between cases.

A rank that dies, hangs or raises ends its group: the others may wait for it for ever. The case is lost, the next one gets a new group.
Ranks end with the process that started them, however that ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from accuracy_eval.backends import guards
from accuracy_eval.backends.base import POISONS, Prepared
from accuracy_eval.errors import EngineError, UnsupportedCase, UsageError
from accuracy_eval.ops.spec import Output
from accuracy_eval.records import Case, Coded

START_S = 180.0  # until all ranks must have met
GRACE_S = 5.0  # that the other ranks have to answer once one has failed
PRELOADED = ["torch.distributed", "accuracy_eval.backends.torch_device"]  # imported once, by the process that ranks are forked from
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}  # all ranks are on this host
KINDS = ("ended", "failed", "silent", "gave up", "unsupported")  # answers that are none, nearest to the cause first


@dataclass(frozen=True)
class Group:
    """What a process group is made for.

    transport   backend of torch.distributed: "gloo", "nccl" (RCCL in ROCm builds)
    plugins     files that register candidates
    """

    transport: str
    ranks: int
    plugins: tuple[str, ...] = ()

    def device(self, rank: int) -> str:
        return "cpu" if self.transport == "gloo" else f"cuda:{rank}"


@dataclass(frozen=True)
class Share:
    """A rank's part of a case: its rows of the operands, and what it calls how often."""

    case: Case
    candidate: str
    operands: dict[str, Coded]
    outputs: tuple[Output, ...]
    repeats: int


Runs = list[dict[str, NDArray[Any]]]  # a rank's rows of the outputs, one entry a run


@dataclass(frozen=True)
class Ran:
    """What a rank's runs gave, and the operands that they wrote to."""

    runs: Runs
    changed: tuple[str, ...]


class Ranks:
    """The processes of one group. `call` them until it raises; then, and at the end, `close`.

    limit_s  seconds that a rank waits for the others in a call
    """

    def __init__(self, group: Group, *, limit_s: float) -> None:
        self.group, self._limit = group, limit_s
        self._processes: list[Any] = []
        self._conns: list[Connection] = []
        self._folder = tempfile.TemporaryDirectory(prefix="accuracy-eval-ranks-")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        store = Path(self._folder.name) / "store"
        for rank in range(group.ranks):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, group, rank, str(store), limit_s), name=f"rank {rank}", daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._conns.append(mine)
        try:
            self._answers(START_S)
        except BaseException:
            self.close()
            raise

    def call(self, shares: Sequence[Share]) -> list[Ran]:
        """What each rank's runs gave, by rank. UnsupportedCase where the transport cannot do it; EngineError names the rank at fault."""
        for conn, share in zip(self._conns, shares, strict=True):
            with contextlib.suppress(OSError):  # it has just died: reading from it will say so
                conn.send(share)
        return self._answers(self._limit + GRACE_S)  # those that wait for another give up first, and the one at fault is left

    def _answers(self, within_s: float) -> list[Any]:
        """One answer of each rank. After the first failure the others have a moment to add theirs: who ended, who failed and who is silent
        says whose fault it is, and a group in which all say the same stays whole. Who ends or fails when the time that ranks wait for each
        other is over has given up: whoever is still silent then is at fault."""
        found: dict[int, tuple[str, Any]] = {}
        since = time.monotonic()
        until = since + within_s
        while len(found) < len(self._conns):
            waiting = {c: rank for rank, c in enumerate(self._conns) if rank not in found}
            ready = wait(list(waiting), timeout=max(0.0, until - time.monotonic()))
            if not ready:
                break
            for conn in ready:
                rank = waiting[conn]  # type: ignore[index]
                kind, value = self._answer(rank)
                if kind in ("ended", "failed") and time.monotonic() - since >= self._limit:
                    kind, value = "gave up", value if kind == "failed" else f"ended: {value}"
                found[rank] = kind, value
                if kind != "done":
                    until = min(until, time.monotonic() + GRACE_S)
        by_kind: dict[str, list[int]] = {}
        for rank, (kind, _) in found.items():  # as they came: of several that fail, the first has the most to say
            by_kind.setdefault(kind, []).append(rank)
        if len(found) < len(self._conns):
            by_kind["silent"] = [rank for rank in range(len(self._conns)) if rank not in found]
        if set(by_kind) == {"unsupported"}:
            raise UnsupportedCase(found[0][1])
        if set(by_kind) != {"done"}:
            silent = ("silent", f"no answer within {until - since:.0f} s")
            said = [f"{_listed(ranks)} {': '.join(found.get(ranks[0], silent))}" for kind in KINDS if (ranks := by_kind.get(kind))]
            raise EngineError(f"{'; '.join(said)} ({self.group.transport}, {self.group.ranks} ranks)")
        return [found[rank][1] for rank in range(len(self._conns))]

    def _answer(self, rank: int) -> tuple[str, Any]:
        try:
            kind, value = self._conns[rank].recv()
        except (EOFError, OSError):
            return "ended", self._end_of(rank)
        return str(kind), value

    def _end_of(self, rank: int) -> str:
        process = self._processes[rank]
        process.join(GRACE_S)
        code = process.exitcode
        return f"{signal.Signals(-code).name} ({signal.strsignal(-code)})" if code is not None and code < 0 else f"exit code {code}"

    def close(self) -> None:
        """End every rank and wait until it is gone. None is asked: one that waits for another would not hear."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for conn in self._conns:
            conn.close()
        self._folder.cleanup()


def _listed(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _serve(conn: Connection, group: Group, rank: int, store: str, limit_s: float) -> None:
    """A rank: meet the others, then answer calls until the connection closes. What it prints goes to standard error: standard output is the
    program's, which another may read."""
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it decides
    os.environ.update({**LOOPBACK, **{n: v for n in LOOPBACK if (v := os.environ.get(n))}})
    inbox: Callable[[], Share] = _watched(conn)
    try:
        rows = _Rows(group, rank, store, limit_s)
    except Exception as error:  # noqa: BLE001  whatever it is, the other side must hear it
        conn.send(("failed", f"{type(error).__name__}: {error}"))
        raise SystemExit(1) from None
    conn.send(("done", None))
    while True:
        share = inbox()
        try:
            conn.send(("done", rows.run(share)))
        except UnsupportedCase as error:
            conn.send(("unsupported", str(error)))
        except Exception as error:  # noqa: BLE001  an error of the case, whatever it is
            conn.send(("failed", f"{type(error).__name__}: {error}"))


def _watched(conn: Connection) -> Callable[[], Any]:
    """Messages of a connection, read by a thread that ends the process when the other side is gone: a rank in the middle of a call, which
    may wait for ever, would not notice."""
    import queue

    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        while True:
            try:
                inbox.put(conn.recv())
            except (EOFError, OSError):
                os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    return inbox.get


class _Rows:
    """A rank in its process group, on its own device."""

    def __init__(self, group: Group, rank: int, store: str, limit_s: float) -> None:
        from accuracy_eval.backends.candidates import load_plugin
        from accuracy_eval.backends.torch_device import TorchBackend, import_torch

        torch = import_torch()
        device = group.device(rank)
        if device != "cpu":
            torch.cuda.set_device(device)
        self._backend = TorchBackend(device, torch=torch)
        for path in group.plugins:
            load_plugin(path)
        torch.distributed.init_process_group(
            group.transport, store=torch.distributed.FileStore(store, group.ranks), rank=rank, world_size=group.ranks,
            timeout=timedelta(seconds=limit_s),
        )  # fmt: skip

    def run(self, share: Share) -> Ran:
        """The rank's rows of every run, on the same operands and on outputs that hold another pattern each time."""
        from accuracy_eval.backends.candidates import registered

        candidate = next((c for c in registered(share.case.op) if c.name == share.candidate), None)
        if candidate is None:
            raise UsageError(
                f"candidate {share.candidate!r} of {share.case.op} is not known in the processes of the ranks; register it in a file and "
                "name that with --plugin"
            )
        tensors = {n: self._backend.tensors.to_device(c.codes, c.format) for n, c in share.operands.items()}
        prepared = Prepared(share.case, (), tensors)
        kept = {} if candidate.built_in else {n: t.detach().clone() for n, t in tensors.items()}
        runs: Runs = []
        changed: dict[str, None] = {}
        for index in range(share.repeats):
            out = guards.poisoned(self._backend.torch, self._backend.device, share.outputs, POISONS[index % 2])
            found = self._backend.call(candidate, prepared, out)
            guards.check(candidate, share.outputs, found, self._backend.device)
            runs.append({o.name: self._backend.tensors.to_host(found[o.name], o.format).result().copy() for o in share.outputs})
            changed |= dict.fromkeys(guards.restored(self._backend.torch, tensors, kept))
        return Ran(runs, tuple(changed))
