"""Candidates: the implementations of an op that a device offers, and the user's own.

import accuracy_eval as ae

@ae.candidate("gemm", name="mine")
def mine(case, tensors, out):            # out is optional: drop the parameter if the kernel allocates its result
    return {"d": my_kernel(tensors["a"], tensors["b"])}      # a lone tensor stands for the op's only output
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from accuracy_eval.backends import attentions, quantisers
from accuracy_eval.backends.gemms import GEMMS
from accuracy_eval.contracts import parse_contract
from accuracy_eval.errors import UsageError, described
from accuracy_eval.ops import grouped, quantised
from accuracy_eval.ops.collectives import COLLECTIVE_OPS
from accuracy_eval.ops.registry import get_op
from accuracy_eval.records import Case

Run = Callable[[Any, Case, Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Candidate:
    """One implementation of an op.

    run       (torch, case, tensors, out) -> outputs by name
    supports  (case, platform) -> why it cannot take the case, or None. A candidate that says no is recorded as filtered
    applies   (case) -> whether there is such an implementation at all; where not, nothing is recorded
    contract  what its calls promise where that differs from the op's default; "" is the default
    built_in  comes with this package: its results are tensors of their own
    switches  arguments of `flags.case_flags` it runs under; one that does not take filters it
    needs     what the machine must have: names of FEATURES
    on_request   runs only where it is named or a suite expects it
    graph_safe   may be captured in a graph
    transport   backend of torch.distributed that carries it, for ops that several ranks compute together; "" is the device's own
    deterministic   whether its library promises equal bytes for equal calls; None where it says nothing
    sources   of a user's: SHA-256 by name of the files it was registered from, as they were then: its plugin, its function's module
    """

    op: str
    name: str
    run: Run
    supports: Callable[[Case, Mapping[str, Any]], str | None] = lambda case, platform: None
    contract: str = ""
    applies: Callable[[Case], bool] = lambda case: True
    built_in: bool = False
    switches: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    on_request: bool = False
    graph_safe: bool = True
    transport: str = ""
    deterministic: bool | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def filtered(self, case: Case, platform: Mapping[str, Any]) -> str | None:
        """Why it cannot run the case here, or None: what it needs comes first, then what it says itself."""
        missing = next((FEATURES[n] for n in self.needs if not FEATURES[n].present(platform)), None)
        return missing.absence if missing else self.supports(case, platform)


@dataclass(frozen=True)
class Feature:
    """Something a candidate may need: whether a machine has it, and what is said where it does not."""

    absence: str
    present: Callable[[Mapping[str, Any]], bool]


def _compiles(platform: Mapping[str, Any]) -> bool:
    if FEATURES["gpu"].present(platform):
        return FEATURES["triton"].present(platform)
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "clang++"))


def _module(name: str) -> Feature:
    return Feature(f"{name} is not installed", lambda platform: importlib.util.find_spec(name) is not None)


FEATURES: dict[str, Feature] = {
    "gpu": Feature("needs a GPU", lambda platform: platform.get("vendor") in ("nvidia", "amd")),
    "nvidia": Feature("needs an NVIDIA GPU", lambda platform: platform.get("vendor") == "nvidia"),
    "amd": Feature("needs an AMD GPU", lambda platform: platform.get("vendor") == "amd"),
    "compiler": Feature("torch.compile needs Triton on a GPU, a C++ compiler on a CPU", _compiles),
    **{name: _module(name) for name in ("triton", "jax", "cupy")},
}

# What torch and libraries on it offer besides the default, by op
BUILT_IN: tuple[Candidate, ...] = (
    Candidate("gemm", quantised.FAST, quantised.fast_products, contract="fp8fast", applies=quantised.has_fast_accum, built_in=True),
    Candidate("grouped_gemm", quantised.FAST, grouped.fast_products, contract="fp8fast", applies=quantised.has_fast_accum, built_in=True),
    Candidate("gemm", quantised.V1, quantised.v1_products, applies=quantised.has_v1, built_in=True),
    Candidate("quantize", quantisers.TORCHAO, quantisers.torchao, applies=quantisers.has_torchao, built_in=True),
    *(
        Candidate(
            "gemm", i.name, i.run, i.supports, switches=i.switches, needs=i.needs, on_request=True, graph_safe=i.graph_safe,
            deterministic=i.deterministic, applies=i.applies, built_in=True,
        )
        for i in GEMMS
    ),
    *(
        Candidate(op.name, name, op.torch, transport=transport, needs=needs, on_request=True, built_in=True)
        for op in COLLECTIVE_OPS
        for name, transport, needs in (("gloo", "gloo", ()), ("nccl", "nccl", ("nvidia",)), ("rccl", "nccl", ("amd",)))
    ),
    *(
        Candidate(
            "attention", i.name, i.run, i.supports, switches=i.switches, needs=i.needs, on_request=True, graph_safe=i.graph_safe,
            deterministic=i.deterministic, applies=i.applies, built_in=True,
        )
        for i in attentions.ATTENTIONS
    ),
)  # fmt: skip
_USER: dict[tuple[str, str], Candidate] = {}
_PLUGINS: list[str] = []


def default_candidate(op: str) -> Candidate:
    """What the framework picks when nobody asks for anything else."""
    return Candidate(op, "default", get_op(op).torch, built_in=True)


def registered(op: str) -> tuple[Candidate, ...]:
    """Every candidate of the op: `default`, what else torch offers, then the user's in order of registration."""
    return (default_candidate(op), *(c for c in BUILT_IN if c.op == op), *(c for (name, _), c in _USER.items() if name == op))


def candidate(
    op: str,
    *,
    name: str,
    supports: Callable[[Case, Mapping[str, Any]], str | None] | None = None,
    contract: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as an implementation of `op`: called as f(case, tensors[, out]) on torch tensors as stored.

    It returns a dict of outputs by name, or the op's only output. UsageError for an unknown op or contract, the name "default", or a name
    taken.
    """
    get_op(op)
    if name == "default" or not name or not name.isprintable() or any(c in name for c in "/@.+ "):
        raise UsageError(
            f"candidate name {name!a}: 'default' is the framework's; allowed: a name without '/', '@', '.', '+', spaces, control characters"
        )
    if (op, name) in _USER or any((c.op, c.name) == (op, name) for c in BUILT_IN):
        raise UsageError(f"candidate {name!r} of {op} is registered twice; give the second another name")
    if contract:
        try:
            parse_contract(contract)
        except UsageError as error:
            raise UsageError(f"candidate {name!r} of {op}: {error}") from None

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        takes_out = "out" in inspect.signature(function).parameters

        def run(torch: Any, case: Case, tensors: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
            found = function(case, tensors, out=out) if takes_out else function(case, tensors)
            if found is None and takes_out:
                return dict(out)  # it wrote to what it was given
            if isinstance(found, dict):
                return found
            names = [o.name for o in get_op(op).outputs(case, "ocp")]
            if len(names) != 1:
                raise UsageError(f"candidate {name!r} returned one tensor; {op} has outputs {', '.join(names)}: return a dict")
            return {names[0]: found}

        _USER[op, name] = Candidate(
            op, name, run, supports or (lambda case, platform: None), contract, sources=_sources(_file_of(function))
        )  # fmt: skip
        return function

    return register


def _file_of(function: Callable[..., Any]) -> Path | None:
    """The file of the function's module; None where it has none, as in a notebook."""
    file = getattr(sys.modules.get(getattr(function, "__module__", None) or ""), "__file__", None)
    return Path(file) if file else None


def _sources(file: Path | None) -> dict[str, str]:
    if file is None or not file.is_file():
        return {}
    return {file.name: hashlib.sha256(file.read_bytes(), usedforsecurity=False).hexdigest()}


def _raised_in(file: Path, error: BaseException) -> str:
    """`FILE:LINE: what`: of a mistake of syntax where that is, of any other the innermost line of the file."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file.absolute())]
    return f"{file}:{lines[-1]}: {described(error)}" if lines else f"{file}: {described(error)}"


def load_plugin(path: str) -> None:
    """Run a Python file that registers candidates. UsageError when it cannot be read, or where it raises: then it registers nothing."""
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"plugin {path}: no such file")
    name = f"accuracy_eval_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"plugin {path}: not a Python file (expected a name ending in .py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    before = set(_USER)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        for key in _USER.keys() - before:
            del _USER[key]
        raise UsageError(f"plugin {_raised_in(file, error)}; nothing was run") from error
    for key in _USER.keys() - before:
        _USER[key] = replace(_USER[key], sources={**_USER[key].sources, **_sources(file)})
    _PLUGINS.append(str(file.absolute()))


def plugins() -> tuple[str, ...]:
    """The files that were loaded, each once, for other processes to load."""
    return tuple(dict.fromkeys(_PLUGINS))
