"""What a backend is: it prepares a case's operands on a device and runs a candidate on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from numpy.typing import NDArray

from accuracy_eval.backends.candidates import Candidate
from accuracy_eval.records import Case
from accuracy_eval.timeline import Timeline

if TYPE_CHECKING:
    from accuracy_eval.datapath.card import Call

Codes = NDArray[Any]
POISONS = (0xFF, 0xA5)  # bytes; the first is NaN in every IEEE format, the second a finite number: no kernel writes both


@dataclass(frozen=True)
class Source:
    """An operand as generated, in canonical orientation, or what our quantiser made of it: digest (ready when the future is), codes on
    the host on demand."""

    name: str
    format: str
    shape: tuple[int, ...]
    sha256: Future[str]
    codes: Callable[[], Codes]


@dataclass(frozen=True)
class Prepared:
    """A case with its operands where the backend wants them.

    sources   operands as generated
    inputs    under a recipe: codes and scales that the op multiplies
    timeline  stages of preparing; digests may still be under way
    """

    case: Case
    sources: tuple[Source, ...]
    tensors: Mapping[str, Any]
    inputs: tuple[Source, ...] = ()
    timeline: Timeline = field(default_factory=Timeline)


@dataclass(frozen=True)
class Result:
    """One output of a run: every distinct result of the repeats, first seen first, as codes on the host (ready when the futures are)."""

    name: str
    format: str
    shape: tuple[int, ...]
    codes: tuple[Future[Codes], ...]
    never_written: int = 0


@dataclass(frozen=True)
class Outcome:
    """What a candidate gave for a case."""

    results: tuple[Result, ...]
    repeats: int
    notes: Mapping[str, Any] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)


class Backend(Protocol):
    """A device, or a model of one. `encoding` decides how fp8 families are stored ("ocp" or "fnuz")."""

    name: str
    encoding: Literal["ocp", "fnuz"]

    def platform(self) -> dict[str, Any]:
        """Flat provenance of the device: name -> value, None where unknown."""

    def candidates(self, op: str) -> tuple[Candidate, ...]:
        """Every candidate registered for the op, `default` first."""

    def products(self) -> tuple[Call, ...]:
        """Every way in which the device multiplies matrices, for probes; UsageError where there is none."""

    def expect(self, cases: Iterable[Case]) -> None:
        """The cases that will be prepared next, in order: the host may begin to make their operands. Replaces what was expected before."""

    def prepare(self, case: Case) -> Prepared:
        """Operands of the case on the device. UnsupportedCase when the device has no such format."""

    def run(self, prepared: Prepared, candidate: Candidate, *, repeats: int, kernels: bool = False, certify: bool = False) -> Outcome:
        """Run `repeats` times on poisoned outputs, and with `kernels` once more to note the names of the kernels.

        certify  check every run of an exact product where it was made, and note what is wrong; devices of torch only

        UnsupportedCase with the library's reason; anything else is an error of the case.
        """

    def healthy(self) -> bool:
        """Whether the device still answers. After an illegal access a GPU repeats that error to its process for every later call."""

    def close(self) -> None:
        """Return when its threads are done."""
