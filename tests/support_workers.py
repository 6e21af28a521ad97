"""Workers for tests of the engine: what they are asked to do, they do."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from accuracy_eval.engine.work import Broken, Done, Seat


class Obedient:
    """Tasks are words.

    "square N", "die", "hang", "broken N", "later N", "die-once PATH", "hang-on SEAT", "name", "next" (what follows), "until PATH" (is),
    "busy-until PATH" (that, having answered).
    """

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.threads: list[threading.Thread] = []
        self.expected: list[str] = []

    def hello(self) -> str:
        return f"{self.seat.name} {os.environ.get('PLACE', '')}"

    def expect(self, tasks: Sequence[str]) -> None:
        self.expected = list(tasks)

    def run(self, task: str, done: Done) -> None:
        word, _, rest = task.partition(" ")
        if word == "square":
            done(int(rest) ** 2)
        elif word == "name":
            done(self.seat.name)
            time.sleep(0.05)
        elif word == "next":
            done(self.expected)
        elif word == "until":
            wait_for(Path(rest))
            done("over")
        elif word == "busy-until":
            done(None)
            wait_for(Path(rest))
        elif word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif word == "die-once":
            if not Path(rest).exists():
                Path(rest).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            done("lived")
        elif word == "hang-on":
            if self.seat.name == rest:
                time.sleep(600)
            done(self.seat.name)
        elif word == "hang":
            time.sleep(600)
        elif word == "broken":
            done(f"failed {rest}")
            raise Broken("an earlier call failed")
        elif word == "later":
            self.threads.append(threading.Thread(target=lambda: (time.sleep(0.2), done(int(rest)))))
            self.threads[-1].start()

    def close(self) -> None:
        for t in self.threads:
            t.join()


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def obedient(seat: Seat) -> Obedient:
    return Obedient(seat)


def stumbling(seat: Seat) -> Obedient:
    """As `obedient`, but of its starts, which the file at STARTS counts, those in STUMBLES are killed."""
    count = Path(os.environ["STARTS"])
    count.write_text(count.read_text() + "x")
    if str(len(count.read_text())) in os.environ["STUMBLES"].split():
        os.kill(os.getpid(), signal.SIGKILL)
    return Obedient(seat)


def unable(seat: Seat) -> Obedient:
    raise RuntimeError("this device is not there")


def silent(seat: Seat) -> Obedient:
    os._exit(3)
