"""All hosts of a fleet at once: check every one, then dump, fetch and verify."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from accuracy_eval.errors import AccuracyEvalError, HostNotReady, Interrupted
from accuracy_eval.fleet.member import Facts, Member
from accuracy_eval.fleet.plan import Fleet
from accuracy_eval.fleet.wheel import build_wheel
from accuracy_eval.formats import get_format
from accuracy_eval.ops.registry import get_op
from accuracy_eval.store import Dump
from accuracy_eval.suite import Suite, load_suite
from accuracy_eval.transfer import Options

T = TypeVar("T")
Progress = Callable[[str, int, int, str], None]
RETRY_S = (1.0, 2.0, 5.0, 10.0, 20.0)  # between attempts to reach a host again; the last one repeats
SPARE_BYTES = 64 << 20


@dataclass(frozen=True)
class Hooks:
    """What a run tells while it goes on, from the hosts' threads.

    progress  of a host's dump: (host, results done, in all, what)
    fetching  of its way here: (host, bytes done, in all)
    """

    progress: Progress = lambda host, done, total, what: None
    fetching: Callable[[str, int, int], None] = lambda host, done, total: None
    note: Callable[[str], None] = lambda text: None


def run_fleet(
    fleet: Fleet,
    *,
    push: bool = False,
    fresh: bool = False,
    patience_s: float = 600.0,
    options: Options | None = None,
    hooks: Hooks | None = None,
) -> list[Path]:
    """Dump the suite on every host and bring the dumps here: one verified file a host, in the fleet's order, ready to be compared.

    push        give the hosts this package; they need what it imports, and their own torch
    fresh       do not go on with what earlier runs left on the hosts
    patience_s  how long a host may be out of reach once it has begun
    HostNotReady lists every host that cannot take part, before anything runs, or that could not finish, after the others have.
    An exception or Ctrl-C ends the dumps on the hosts; running again goes on with them.
    """
    hooks = hooks or Hooks()
    suite = load_suite(fleet.suite, huge=True)
    members = [Member(h, fleet, options or Options()) for h in fleet.hosts]
    stop = Event()
    try:
        with tempfile.TemporaryDirectory() as folder:
            wheel = build_wheel(Path(folder)) if push else None
            facts = _all(members, lambda m: _ready(m, suite, wheel, fresh), stop, "cannot take part")
        for member, found in zip(members, facts, strict=True):
            hooks.note(f"{member.host.name}: {found.device}, Python {found.python}")
        fleet.out.mkdir(parents=True, exist_ok=True)
        return _all(members, lambda m: _work(m, suite, patience_s, hooks, stop), stop, "could not finish; run again to go on from here")
    finally:
        stop.set()
        for member in members:
            member.close()


def _all(members: Sequence[Member], work: Callable[[Member], T], stop: Event, failed: str) -> list[T]:
    """work(member) for all at once; every failure in one HostNotReady. Ctrl-C sets `stop` and waits for the hosts to end."""
    with ThreadPoolExecutor(len(members), thread_name_prefix="host") as threads:
        futures = [threads.submit(work, m) for m in members]
        try:
            wait(futures)
        except BaseException:
            stop.set()
            raise
    errors = [(m, f.exception()) for m, f in zip(members, futures, strict=True)]
    for _, error in errors:
        if error is not None and not isinstance(error, AccuracyEvalError):
            raise error
    texts = [str(e) if str(e).startswith(m.host.name) else f"{m.host.name}: {e}" for m, e in errors if e is not None]
    if texts:
        raise HostNotReady(f"{len(texts)} of {len(members)} hosts {failed}:\n  " + "\n  ".join(texts))
    return [f.result() for f in futures]


def _ready(member: Member, suite: Suite, wheel: Path | None, fresh: bool) -> Facts:
    if wheel is not None:
        member.push(wheel)
    facts = member.check(suite, 2 * output_bytes(suite) + SPARE_BYTES)  # parts and the packed file exist for a moment together
    if fresh:
        member.forget()
    return facts


def output_bytes(suite: Suite) -> int:
    """Bytes of all outputs of a suite's cases."""
    total = 0
    for case in suite.cases:
        for output in get_op(case.op).outputs(case, "ocp"):
            elements = 1
            for size in output.shape:
                elements *= size
            total += elements * get_format(output.format).storage.itemsize
    return total


def _work(member: Member, suite: Suite, patience_s: float, hooks: Hooks, stop: Event) -> Path:
    """Dump, fetch, verify; a host that is lost on the way is tried again until patience ends."""
    name = member.host.name
    moved = time.monotonic()

    def dumping(done: int, total: int, what: str) -> None:
        nonlocal moved
        moved = time.monotonic()
        hooks.progress(name, done, total, what)

    def fetching(done: int, total: int) -> None:
        nonlocal moved
        moved = time.monotonic()
        hooks.fetching(name, done, total)

    attempt = 0
    while True:
        try:
            member.dump(dumping, stop)
            if stop.is_set():
                raise Interrupted(f"{name}: stopped; run again to go on from here")
            path = member.fetch(fetching)
            break
        except Interrupted as error:
            member.close()
            if stop.is_set() or time.monotonic() - moved > patience_s:
                raise
            wait_s = RETRY_S[min(attempt, len(RETRY_S) - 1)]
            attempt += 1
            hooks.note(f"{name}: {error}; trying again in {wait_s:g} s")
            stop.wait(wait_s)
    _verify(path, suite, member)
    hooks.note(f"{name}: {path}")
    return path


def _verify(path: Path, suite: Suite, member: Member) -> None:
    """The fetched file by the reader that trusts nothing: structure, every digest, the suite it is of."""
    with Dump.open(path) as dump:
        dump.check_structure()
        dump.verify_all()
        found: Any = dump.info.get("suite")
        if found != suite.name:
            raise HostNotReady(f"{member.host.name}: {path} is of suite {found}, not {suite.name}; run again with --fresh")
