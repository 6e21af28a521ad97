"""Ctrl-C, several times, by a user who does not wait: one line, the code of an interrupt, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support_interrupts import HEARING

from accuracy_eval.cli import run

INTERRUPTED = (130, -signal.SIGINT)  # a shell says 130 for both; the second where another comes after Python put its handler away


def burst(process: subprocess.Popen[str]) -> str:
    """Six Ctrl-C of a terminal, which all processes of a command hear; what the command says then."""
    for _ in range(6):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.015)
    return process.communicate(timeout=300)[1]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_impatient_user_of_compare_reads_how_to_go_on_and_no_traceback(tmp_path: Path, workers: str) -> None:
    dumped = ["dump", "smoke", "--op", "exp,sigmoid", "--device", "reference", "-o", str(tmp_path / "a.h5"), "-q"]
    assert run(dumped) == 0
    command = ["compare", str(tmp_path / "a.h5"), "-o", str(tmp_path / "out"), "--workers", workers]
    process = subprocess.Popen([*HEARING, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 300
    while not (tmp_path / "out" / "compare.journal").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    said = burst(process)
    assert process.returncode in INTERRUPTED
    assert "the same command goes on from there" in said
    assert said.endswith("accuracy-eval: interrupted\n")
    assert "Traceback" not in said


SWALLOWED = """
import ctypes, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from accuracy_eval.cli.interrupts import Interrupts
Interrupts().install()
try:
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))()
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
else:
    print("went on")
"""


def test_an_interrupt_that_a_callback_of_c_swallows_comes_again() -> None:
    done = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


LATER = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from accuracy_eval.cli import interrupts
interrupts.Interrupts().install()
said = []
for wait in (0.0, 0.0, interrupts.PATIENCE_S + 0.1):
    time.sleep(wait)
    try:
        signal.raise_signal(signal.SIGINT)
        said.append("nothing")
    except KeyboardInterrupt:
        said.append("interrupted")
print(*said)
"""


def test_a_later_one_interrupts_what_puts_things_away() -> None:
    done = subprocess.run([sys.executable, "-c", LATER], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("interrupted nothing interrupted\n", "")


def test_where_it_is_ignored_it_stays_so() -> None:
    program = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from accuracy_eval.cli.interrupts import Interrupts
Interrupts().install()
print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300).stdout == "True\n"
