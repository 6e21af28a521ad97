"""A dump that another program drives: progress as JSON lines on standard output, and an end when nobody waits any more."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread

HEARTBEAT_S = 5.0
SILENCE_S = 60.0


@contextmanager
def attended_progress() -> Iterator[Callable[[int, int, str], None]]:
    """A function update(done, total, what). Standard input carries a byte now and then: at its end, or after SILENCE_S without one, this
    process and those it has started are killed. What a dump has written by then is whole, and --resume goes on from it."""
    with suppress(PermissionError):  # the leader of a session is the leader of its group already
        os.setpgid(0, 0)
    over, lock = Event(), Lock()

    def say(**event: object) -> None:
        with lock, suppress(BrokenPipeError):
            print(json.dumps(event), flush=True)

    threads = [Thread(target=_watch, args=(over,), daemon=True), Thread(target=_beat, args=(over, say), daemon=True)]
    for thread in threads:
        thread.start()
    yield lambda done, total, what: say(event="progress", done=done, total=total, case=what)
    over.set()
    say(event="finished")


def _watch(over: Event) -> None:
    while not over.is_set():
        ready, _, _ = select.select([sys.stdin.fileno()], [], [], SILENCE_S)
        if not over.is_set() and (not ready or not os.read(sys.stdin.fileno(), 4096)):
            os.killpg(0, signal.SIGKILL)


def _beat(over: Event, say: Callable[..., None]) -> None:
    while not over.wait(HEARTBEAT_S):
        say(event="alive")
