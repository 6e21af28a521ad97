"""Programs run with kernels compiled, and as plain Python."""

import os
import subprocess
import sys


def printed(program: str, *, compiled: bool) -> str:
    """What a program prints; a warning or anything on standard error fails the test."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0" if compiled else "1"}
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def printed_either_way(program: str) -> str:
    """What a program prints, which is the same compiled and not."""
    plain = printed(program, compiled=False)
    assert printed(program, compiled=True) == plain
    return plain
