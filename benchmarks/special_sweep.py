"""Every special function of one operand at every float32 number, on a device: errors by range, monotonicity, parity, range of values.

    python benchmarks/special_sweep.py sweep-h200.json                 all 2^32 operands on the GPU: seconds a function
    python benchmarks/special_sweep.py sweep-cpu.json --device cpu --step 4096 --function exp

The device's own float64 stands for the truth while 2^32 numbers stream past; the worst operand of every range is then evaluated again on
the host, in more than 70 bits, and that error is the one reported (a disagreement of a hundredth of an ulp ends the program). A result
within 2^-29 of a tie may be counted as not correctly rounded. `accuracy-eval atlas` puts the file beside dumps.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from accuracy_eval.atlas import SWEEP, VENDORS
from accuracy_eval.backends.torch_device import TorchBackend
from accuracy_eval.cpu_ref.special import evaluate, limit_ulps
from accuracy_eval.cpu_ref.special_functions import FUNCTIONS, Function
from accuracy_eval.cpu_ref.special_profile import FunctionProfile, RangeErrors
from accuracy_eval.formats import get_format, ulp
from accuracy_eval.json_data import to_json
from accuracy_eval.ops.special import TORCH

CHUNK = 1 << 26
F32 = get_format("float32")
# float64 forms that keep their bits where the usual one cancels
WIDE: dict[str, Callable[[Any, Any], Any]] = {
    "gelu": lambda torch, x: 0.5 * x * torch.erfc(x * -math.sqrt(0.5)),
    "gelu-tanh": lambda torch, x: x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
}


def chunks(torch: Any, device: str, step: int) -> Iterator[tuple[bool, Any]]:
    """(negative, x) in order of magnitude: every finite float32 and infinity of one sign, then of the other."""
    last = 0x7F800000
    for negative in (False, True):
        for first in range(0, last + 1, CHUNK * step):
            codes = torch.arange(first, min(first + CHUNK * step, last + 1), step, dtype=torch.int32, device=device)
            x = codes.view(torch.float32)
            yield negative, -x if negative else x


class Sweep:
    """The profile of one function in the making."""

    def __init__(self, torch: Any, device: str, function: Function, vendor: Any) -> None:
        self.torch, self.device, self.f, self.vendor = torch, device, function, vendor
        self.call = lambda x: TORCH[function.name](torch, [x], {})
        self.count, self.worst, self.at, self.got = [0] * 3, [0.0] * 3, [math.nan] * 3, [math.nan] * 3
        self.inexact, self.beyond = [0] * 3, [0] * 3
        self.operands = self.classes = self.outside = self.breaks = self.asymmetries = 0
        self.before: dict[bool, float] = {}

    def truth(self, x: Any) -> Any:
        wide = x.double()
        return WIDE[self.f.name](self.torch, wide) if self.f.name in WIDE else self.call(wide)

    def update(self, negative: bool, x: Any) -> None:
        torch, f = self.torch, self.f
        y, t = self.call(x), self.truth(x)
        right = t.float()
        self.operands += x.numel()
        both = torch.isfinite(y) & torch.isfinite(right)
        differs = (y != right) & ~(torch.isnan(y) & torch.isnan(right))
        self.classes += int((differs & ~both).sum())
        self.outside += int((((y < f.values[0]) | (y > f.values[1])) & differs).sum())
        error = (y.double() - t).abs()
        exponent = torch.frexp(t)[1].clamp(min=-125)
        unit = torch.ldexp(torch.ones_like(t), exponent - 24)
        allowed, where = limit_ulps(f, F32, self.vendor) * unit, torch.zeros_like(exponent)
        for tail in (f.tails or {}).get("float32", ()):
            inside = (x >= tail.low) & ((x <= tail.high) if tail.high else (x < 0))
            extra = tail.absolute + tail.relative * x.double().abs() if tail.relative else torch.full_like(t, tail.absolute)
            allowed, where = torch.where(inside, allowed + extra, allowed), torch.where(inside, 1, where)
        where = torch.where((t != 0) & (t.abs() < F32.smallest_normal), 2, where)
        for r in range(3):
            here = both & (where == r)
            number = int(here.sum())
            if not number:
                continue
            self.count[r] += number
            ulps = torch.where(here, error / unit, torch.zeros_like(error))
            most = int(ulps.argmax())
            if float(ulps[most]) > self.worst[r] or math.isnan(self.at[r]):
                self.worst[r], self.at[r], self.got[r] = float(ulps[most]), float(x[most]), float(y[most])
            self.inexact[r] += int((here & differs).sum())
            self.beyond[r] += int((here & (error > allowed)).sum())
        self._shape(negative, x, y)

    def _shape(self, negative: bool, x: Any, y: Any) -> None:
        torch, f = self.torch, self.f
        if f.monotone:
            rising = (f.monotone == "increasing") != negative  # x falls as its magnitude grows
            last = self.before.get(negative)
            whole = y if last is None else torch.cat([torch.full_like(y[:1], last), y])
            back = whole[1:] < whole[:-1] if rising else whole[1:] > whole[:-1]
            self.breaks += int(back.sum())
            self.before[negative] = float(y[-1])
        if f.parity and not negative:
            mirrored = self.call(-x)
            expected = -y if f.parity == "odd" else y
            same = (mirrored.view(torch.int32) == expected.view(torch.int32)) | (torch.isnan(mirrored) & torch.isnan(y))
            self.asymmetries += int((~same).sum())

    def profile(self) -> FunctionProfile:
        ranges = []
        for r in range(3):
            if not self.count[r]:
                ranges.append(RangeErrors())
                continue
            value = evaluate(self.f, np.array([self.at[r]]))
            exact = float(abs(self.got[r] - value[0]) / ulp(value, F32)[0])
            if abs(exact - self.worst[r]) > 0.01 * max(1.0, self.worst[r]):
                sys.exit(f"{self.f.name}({self.at[r]!r}): {self.worst[r]} ulp by the device's float64, {exact} by the host's reference")
            ranges.append(RangeErrors(self.count[r], exact, self.at[r], self.inexact[r], self.beyond[r]))
        return FunctionProfile(
            self.f.name, "float32", self.operands, limit_ulps(self.f, F32, self.vendor), (ranges[0], ranges[1], ranges[2]), self.classes,
            self.outside, self.breaks if self.f.monotone else None, self.asymmetries if self.f.parity else None,
        )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--step", type=int, default=1, help="only every N-th number")
    parser.add_argument("--function", action="append", help="only these")
    options = parser.parse_args()
    backend = TorchBackend(options.device)
    platform, torch = backend.platform(), backend.torch
    vendor = VENDORS.get(str(platform.get("vendor")), "any")
    profiles = []
    for name in options.function or [f.name for f in FUNCTIONS.values() if f.arity == 1 and f.name in TORCH]:
        start = time.perf_counter()
        sweep = Sweep(torch, options.device, FUNCTIONS[name], vendor)
        for negative, x in chunks(torch, options.device, options.step):
            sweep.update(negative, x)
        p = sweep.profile()
        profiles.append(p)
        ulps = " ".join(f"{r.ulp_max:.4g}" if r.count else "–" for r in p.ranges)
        beyond = sum(r.beyond for r in p.ranges)
        more = f"beyond {beyond}, breaks {p.breaks}, asymmetries {p.asymmetries}, outside {p.outside}, classes {p.classes}"
        print(f"{name:<11} {ulps:<28} limit {p.limit_ulps:g}; {more}; {time.perf_counter() - start:.1f} s")
    record = {
        "kind": SWEEP, "label": platform["label"], "device": platform["device_name"], "software": f"torch {torch.__version__}",
        "step": options.step, "profiles": [to_json(p) for p in profiles],
    }  # fmt: skip
    options.out.write_text(json.dumps(record, indent=1))
    backend.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
