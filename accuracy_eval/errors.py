"""Every exception the package raises on purpose.

    AccuracyEvalError
    ├── UsageError            an argument names something that does not exist or is not allowed
    ├── FileError             a file cannot be used; the message names the file and the place in it
    │   ├── NotADump          not HDF5, not written by this program, or truncated
    │   ├── SchemaError       written under a schema this version cannot read
    │   ├── CorruptFile       a digest does not match the stored bytes
    │   └── HostileFile       external links, virtual or external storage, absurd sizes, cycles
    ├── InputMismatch         two sides were computed from different inputs
    ├── NothingJudged         no case in common, or every case was skipped
    ├── UnsupportedCase       a backend or candidate cannot run the case; recorded, never fatal
    ├── HostNotReady          hosts of a fleet cannot take part or did not finish; the message lists each with what to do
    ├── MissingDependency     an optional package is needed for this; the message says which extra
    ├── EngineError           worker processes or a cluster could not be started or were lost
    ├── TransferError         a file could not be moved between hosts
    │   ├── Interrupted       the connection broke or stalled, or another transfer is at work: trying again helps
    │   ├── HostKeyError      unknown or changed host key
    │   └── DigestMismatch    the far end holds other bytes than were sent
    └── VerdictError          raised by Comparison.raise_for_verdict()

One class per remedy. A message says what happened, where, what was found, what was allowed, what to do.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterable
from pathlib import Path


class AccuracyEvalError(Exception):
    """Base of all errors this package raises on purpose. `exit_code` is what the command line returns."""

    exit_code = 2


class UsageError(AccuracyEvalError):
    """An argument names something that does not exist or is not allowed."""


class FileError(AccuracyEvalError):
    """A file cannot be used; the message names the file and the place in it."""


class NotADump(FileError):
    """Not HDF5, not written by this program, or truncated."""


class SchemaError(FileError):
    """Written under a schema this version cannot read."""


class CorruptFile(FileError):
    """A digest does not match the stored bytes."""


class HostileFile(FileError):
    """The file reaches outside itself or asks for absurd resources."""


class InputMismatch(AccuracyEvalError):
    """Two sides were computed from different inputs."""


class NothingJudged(AccuracyEvalError):
    """No case in common, or every case was skipped: never a pass."""


class UnsupportedCase(AccuracyEvalError):
    """A backend or candidate cannot run the case. Recorded with its reason, never fatal to a run."""


class HostNotReady(AccuracyEvalError):
    """Hosts of a fleet cannot take part or did not finish; the message lists each with what to do."""


class MissingDependency(AccuracyEvalError):
    """An optional package is needed; the message names the extra that brings it."""


class EngineError(AccuracyEvalError):
    """Worker processes or a cluster could not be started, or were lost."""


class TransferError(AccuracyEvalError):
    """A file could not be moved between hosts."""


class Interrupted(TransferError):
    """The connection broke or stalled, or another transfer writes the same file: trying again helps."""


class HostKeyError(TransferError):
    """Unknown or changed host key."""


class DigestMismatch(TransferError):
    """The far end holds other bytes than were sent."""


class VerdictError(AccuracyEvalError):
    """A comparison did not pass; the message is the comparison's whole text."""

    exit_code = 1


_OF_A_GPU = ("CUDA error: ", "HIP error: ")  # how messages of the runtimes begin; paragraphs of advice on debugging follow


def described(error: BaseException, files: Collection[str] = ()) -> str:
    """What an exception says: a message of ours stands alone, any other comes after the name of its class.

    files   names of a user's files: the innermost line of one of them that the exception passed is said after it, `(kernels.py:12)`
    """
    if isinstance(error, AccuracyEvalError):
        return str(error)
    text = plain_text(error)
    said = f"{type(error).__name__}: {first_sentence(error) if text.startswith(_OF_A_GPU) else text}"
    inside = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name in files]
    return f"{said} ({Path(inside[-1].filename).name}:{inside[-1].lineno})" if inside else said


MOST_SAID = 2000  # characters of another program's message


def plain_text(error: BaseException) -> str:
    """What an exception of others says, fit to be stored and shown: what a terminal would obey is written as an escape, a long text is cut,
    and an exception that cannot say anything is no second exception."""
    try:
        text = str(error)
    except Exception as other:  # noqa: BLE001  whatever a user's __str__ raises
        return f"(what it says cannot be had: {type(other).__name__})"
    shown = "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text[:MOST_SAID])
    return shown if len(text) <= MOST_SAID else f"{shown} … ({len(text)} characters in all)"


def first_sentence(error: BaseException) -> str:
    """The first sentence of a library's message: what follows is often a page of dispatcher tables."""
    lines = plain_text(error).splitlines() or [type(error).__name__]
    return lines[0].split(". ")[0][:300]


def located(error: BaseException) -> str:
    """`described`, and where in this package an exception that is not ours came from: a mistake of the program that should be reported."""
    package = Path(__file__).parent
    own = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(package)]
    if isinstance(error, AccuracyEvalError) or not own:
        return described(error)
    return f"{described(error)} (a mistake of accuracy-eval, at {Path(own[-1].filename).relative_to(package)}:{own[-1].lineno})"


MOST_ALLOWED = 16  # names of a set that `accuracy-eval list` prints; the rest is left to it


def unknown(kind: str, found: object, allowed: Iterable[str], *, listed: str = "") -> UsageError:
    """UsageError for a name outside a closed set: what was found, what is spelt like it, and the names allowed.

    listed  the table of `accuracy-eval list` that holds the set: a long one is cut, names spelt alike first, the others in their own order
    """
    names = list(dict.fromkeys(allowed))
    close = alike(found, names)
    hint = f" (did you mean {' or '.join(close)}?)" if close else ""
    if not listed or len(names) <= MOST_ALLOWED:
        return UsageError(f"unknown {kind} {found!r}{hint}; allowed: {', '.join(sorted(names))}")
    shown = ", ".join([*close, *(n for n in names if n not in close)][:MOST_ALLOWED])
    more = f"and {len(names) - MOST_ALLOWED} more: accuracy-eval list {listed}"
    return UsageError(f"unknown {kind} {found!r}{hint}; allowed: {shown}, {more}")


def alike(found: object, names: Iterable[str]) -> list[str]:
    """Up to three of the names that are spelt like what was found, in either case, the nearest first."""
    import difflib

    spelt: dict[str, list[str]] = {}
    for name in names:
        spelt.setdefault(name.casefold(), []).append(name)
    near = difflib.get_close_matches(str(found).casefold(), list(spelt), n=3, cutoff=0.7)
    return [name for key in near for name in spelt[key]][:3]


def counted(number: int, noun: str) -> str:
    """`1 dump`, `2 dumps`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
