"""How fast a connection moves bytes: measured with zeros that no disk sees, within a fraction of a second."""

from __future__ import annotations

import time

from accuracy_eval.transfer.links import Link
from accuracy_eval.transfer.shell import script

MOST_BYTES, MOST_S = 24 << 20, 0.3
_BLOCK = bytes(1 << 20)


def rate(link: Link, *, up: bool) -> float:
    """Bytes a second to the host (up) or from it."""
    pipe = link.start(script("echo && cat > /dev/null" if up else f"head -c {MOST_BYTES} /dev/zero"), download=not up)
    try:
        pipe.read()  # the command has started
        moved, started = 0, time.perf_counter()
        while moved < MOST_BYTES and time.perf_counter() - started < MOST_S:
            if up:
                pipe.write(_BLOCK)
                moved += len(_BLOCK)
            elif block := pipe.read():
                moved += len(block)
            else:
                break
        if up:
            pipe.close_input()
            pipe.read()  # its end: everything has arrived
        return moved / (time.perf_counter() - started)
    finally:
        pipe.close()
