"""Every GEMM family of a CUDA device at many shapes, and the composition that reproduces each output.

    python benchmarks/h200_explain.py make DIR               on the GPU: compute outputs (needs torch, not numba)
    python benchmarks/h200_explain.py trees DIR              on the GPU: the order in which each kernel adds, read from probes
    python benchmarks/h200_explain.py explain DIR            anywhere: name the composition of each (needs numba, not torch)
    python benchmarks/h200_explain.py both DIR               one after the other; --unit hopper, --random 10 --seed 1, --family bf16
    python benchmarks/h200_explain.py make DIR --shape 530x276x1990 --family tf32      only that shape (m×n×k), only that family

Operands are not stored: they are rebuilt from raw words of a counter generator by exactly defined steps, and their digests are checked.
Outputs lie as codes in DIR/outputs-N.npz, at most 15 MB each, and DIR/index.json names the kernels that made them with their grids;
refusals are listed with the library's words. `--seconds N` ends the explanations after N seconds. `--keep FOLDER` copies what stays
unexplained, then what was not reached, into FOLDER, at most 12 MiB, for a search elsewhere: `explain FOLDER`. Exit code 1 when any
output stays unexplained or was not reached.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from accuracy_eval.formats import encode, get_format

SHAPES = [
    (64, 64, 64),
    (128, 96, 512),
    (256, 128, 1024),
    (16, 16, 4096),
    (33, 65, 127),
    (512, 128, 256),
    (1, 2048, 128),
    (1024, 1024, 4096),
]
FILE_BYTES = 15 << 20
KEPT_BYTES = 12 << 20
TREE_ELEMENTS = 1 << 20  # outputs of a product whose tree is asked for: larger shapes choose the same kernels
VIEW = {"bfloat16": "int16", "float16": "int16", "float32": "int32", "float64": "int64", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


@dataclass(frozen=True)
class Family:
    """One way to multiply: operand format, output format, scales ("", "tensor", "row", "block") and the call."""

    name: str
    format: str
    out: str
    scales: str
    call: Callable[..., Any]


def matmul(torch: Any, a: Any, b: Any, out: Any, sa: Any, sb: Any) -> Any:
    return torch.mm(a, b.T) if out == a.dtype else torch.mm(a, b.T, out_dtype=out)


def tf32(torch: Any, a: Any, b: Any, out: Any, sa: Any, sb: Any) -> Any:
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return torch.mm(a, b.T)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def scaled(fast: bool) -> Callable[..., Any]:
    def call(torch: Any, a: Any, b: Any, out: Any, sa: Any, sb: Any) -> Any:
        sa, sb = (torch.tensor(float(s), device="cuda") if np.ndim(s) == 0 else torch.from_numpy(s).cuda() for s in (sa, sb))
        sb = sb.T if sb.ndim == 2 else sb
        return torch._scaled_mm(a, b.T, sa, sb, out_dtype=out, use_fast_accum=fast)

    return call


def blockwise(torch: Any, a: Any, b: Any, out: Any, sa: Any, sb: Any) -> Any:
    """1×128 by 128×128: A's scales with rows contiguous, B's padded to four blocks of k."""
    x = torch.from_numpy(sa).cuda().T.contiguous().T
    y = torch.from_numpy(sb).cuda()
    pad = -y.shape[1] % 4
    y = torch.nn.functional.pad(y, (0, pad))[:, : y.shape[1]]
    return torch._scaled_mm(a, b.T, x, y.T, out_dtype=out, use_fast_accum=False)


FAMILIES = [
    Family("bf16", "bfloat16", "float32", "", matmul),
    Family("bf16-out16", "bfloat16", "bfloat16", "", matmul),
    Family("fp16", "float16", "float32", "", matmul),
    Family("fp16-out16", "float16", "float16", "", matmul),
    Family("tf32", "float32", "float32", "", tf32),
    Family("fp32", "float32", "float32", "", matmul),
    Family("fp64", "float64", "float64", "", matmul),
    Family("fp8-fast", "float8_e4m3fn", "float32", "tensor", scaled(True)),
    Family("fp8-slow", "float8_e4m3fn", "float32", "tensor", scaled(False)),
    Family("fp8-row-fast", "float8_e4m3fn", "float32", "row", scaled(True)),
    Family("fp8-row", "float8_e4m3fn", "float32", "row", scaled(False)),
    Family("fp8-row-out16", "float8_e4m3fn", "bfloat16", "row", scaled(True)),
    Family("fp8-block", "float8_e4m3fn", "float32", "block", blockwise),
    Family("fp8-block-out16", "float8_e4m3fn", "bfloat16", "block", blockwise),
]


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Dyadic values of about unit variance, bell-shaped, 50 significant bits: sums of four 16-bit words and a tail of 32 bits."""
    count = int(np.prod(shape))
    words = np.random.Philox(key=[zlib.crc32(name.encode()), 0]).random_raw(2 * count).reshape(2, count)
    total = sum(((words[0] >> np.uint64(16 * q)) & np.uint64(0xFFFF)).astype(np.int64) for q in range(4)) - 131070
    exact = (total << 32) + (words[1] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return np.ldexp(exact.astype(np.float64), -47).reshape(shape)


def operands(family: Family, m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, Any, Any]:
    """Codes [m, k], [n, k] and float32 scales of a case."""
    key = f"{family.format} {m} {n} {k}"
    a, b = encode(values(key + " a", (m, k)), family.format), encode(values(key + " b", (n, k)), family.format)
    if not family.scales:
        return a, b, None, None
    if family.scales == "tensor":
        return a, b, np.float32(0.37), np.float32(1.9)
    if family.scales == "row":
        return a, b, *(np.float32(1) + np.abs(values(key + x, (r, 1))).astype(np.float32) for x, r in (("sa", m), ("sb", n)))
    sa = np.float32(1) + np.abs(values(key + "sa", (m, -(-k // 128)))).astype(np.float32)
    return a, b, sa, np.float32(1) + np.abs(values(key + "sb", (-(-n // 128), -(-k // 128)))).astype(np.float32)


def digest(*arrays: Any) -> str:
    h = hashlib.sha256()
    for x in arrays:
        if x is not None:
            h.update(np.ascontiguousarray(x).tobytes())
    return h.hexdigest()[:16]


def random_shapes(count: int, seed: int) -> list[tuple[int, int, int]]:
    """Shapes drawn from a seed: half multiples of 16, which fp8 needs."""
    words = np.random.Philox(key=[seed, 1]).random_raw(3 * count).reshape(count, 3)
    out = []
    for i, w in enumerate(words.tolist()):
        m, n, k = 1 + w[0] % 700, 1 + w[1] % 700, 2 + w[2] % 5000
        out.append((m, n, k) if i % 2 else tuple(max(16, x // 16 * 16) for x in (m, n, k)))  # type: ignore[arg-type]
    return out  # type: ignore[return-value]


# ---------------------------------------------------------------------------- on the GPU


def launches(torch: Any, call: Callable[[], Any]) -> list[str]:
    """The kernels a call launches, each with its grid: how many parts of k there are, often."""
    activities = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activities.CPU, activities.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    kernels = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"])
    return [f"{e['name']} grid {'x'.join(map(str, e['args']['grid']))} block {'x'.join(map(str, e['args']['block']))}" for e in kernels]


def tensor(torch: Any, codes: np.ndarray, fmt: str) -> Any:
    signed = np.ascontiguousarray(codes).view(VIEW[fmt])
    return torch.from_numpy(signed).cuda().view(getattr(torch, fmt))


def back(torch: Any, d: Any, fmt: str) -> np.ndarray:
    return d.contiguous().view(getattr(torch, VIEW[fmt])).cpu().numpy().view(get_format(fmt).storage)


def trees(folder: Path, wanted: list[Family], shapes: list[tuple[int, int, int]]) -> None:
    """Summation trees of the families whose operands have no scales and whose output counts far enough: DIR/trees.npz, DIR/trees.json."""
    import torch

    from accuracy_eval.datapath.trees import summation_tree
    from accuracy_eval.errors import UsageError

    torch.backends.cuda.matmul.allow_tf32 = False
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, np.ndarray] = {}
    index = []
    for family in wanted:
        if family.scales or get_format(family.out).bits < 32:
            continue
        for m, n, k in shapes:
            if m * n > TREE_ELEMENTS:
                continue

            def product(a: np.ndarray, b: np.ndarray, family: Family = family) -> np.ndarray:
                d = family.call(torch, tensor(torch, a, family.format), tensor(torch, b, family.format), getattr(torch, family.out), 1, 1)
                return back(torch, d, family.out)

            case, start = f"{family.name} {m}x{n}x{k}", time.perf_counter()
            try:
                tree = summation_tree(product, family.format, family.out, k, m=m, n=n)
            except (UsageError, RuntimeError) as error:
                index.append({"case": case, "refused": str(error)[:300]})
            else:
                found[case] = np.array(tree.parents, np.int32)
                index.append({"case": case, "k": k, "uniform": tree.uniform, "seconds": time.perf_counter() - start})
            print(index[-1], flush=True)
    np.savez_compressed(folder / "trees.npz", **found)
    (folder / "trees.json").write_text(json.dumps(index, indent=1))


def make(folder: Path, wanted: list[Family], shapes: list[tuple[int, int, int]], extra: bool) -> None:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    folder.mkdir(parents=True, exist_ok=True)
    index: list[dict[str, Any]] = []
    store: dict[str, np.ndarray] = {}
    files = [0]

    def flush() -> None:
        if store:
            np.savez(folder / f"outputs-{files[0]}.npz", **store)
            files[0] += 1
            store.clear()

    def keep(case: str, codes: np.ndarray, **facts: Any) -> None:
        if sum(x.nbytes for x in store.values()) + codes.nbytes > FILE_BYTES:
            flush()
        store[case] = codes
        index.append({"case": case, "file": f"outputs-{files[0]}.npz", **facts})

    for family in wanted:
        for m, n, k in shapes:
            case = f"{family.name} {m}x{n}x{k}"
            a, b, sa, sb = operands(family, m, n, k)
            call = partial(family.call, torch, *(tensor(torch, x, family.format) for x in (a, b)), getattr(torch, family.out), sa, sb)
            try:
                d = call()
            except (RuntimeError, ValueError, TypeError) as error:  # a refusal of the library is a result
                index.append({"case": case, "refused": str(error).strip().splitlines()[0][:160]})
                continue
            facts = {"family": family.name, "shape": [m, n, k], "operands": digest(a, b, sa, sb), "kernels": launches(torch, call)}
            keep(case, back(torch, d, family.out), **facts)
    if extra:
        further(torch, keep, index)
    flush()
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda, "cases": index}
    (folder / "index.json").write_text(json.dumps(about, indent=1))
    print(f"{about['device']}, torch {about['torch']}: {len(index)} cases in {files[0]} files")


def further(torch: Any, keep: Callable[..., None], index: list[dict[str, Any]]) -> None:
    """Batched, backward and grouped products."""
    for fmt in ("bfloat16", "float16"):
        family = Family("batched", fmt, "float32", "", matmul)
        for m, n, k in [(64, 64, 64), (128, 96, 512), (33, 65, 127)]:
            case = f"batched-{fmt} 3x{m}x{n}x{k}"
            a, b, _, _ = operands(family, 3 * m, 3 * n, k)
            x, y = tensor(torch, a, fmt).view(3, m, k), tensor(torch, b, fmt).view(3, n, k)
            try:
                d = torch.bmm(x, y.transpose(1, 2), out_dtype=torch.float32)
            except (RuntimeError, ValueError, TypeError) as error:
                index.append({"case": case, "refused": str(error).strip().splitlines()[0][:160]})
                continue
            keep(case, back(torch, d, "float32"), family=f"batched-{fmt}", shape=[m, n, k], operands=digest(a, b))
        for m, n, k in [(256, 128, 512), (64, 64, 64)]:
            a, b, _, _ = operands(family, m, n, k)
            g = encode(values(f"{fmt} grad {m} {n}", (m, n)), fmt)
            x, y, up = tensor(torch, a, fmt).requires_grad_(), tensor(torch, b, fmt).requires_grad_(), tensor(torch, g, fmt)
            torch.mm(x, y.T).backward(up)
            for which, grad in (("da", x.grad), ("db", y.grad)):
                case = f"backward-{fmt}-{which} {m}x{n}x{k}"
                keep(case, back(torch, grad, fmt), family=f"backward-{fmt}-{which}", shape=[m, n, k], operands=digest(a, b, g))
    case = "grouped-bfloat16 4x64x128x256"
    try:
        family = Family("grouped", "bfloat16", "bfloat16", "", matmul)
        a, b, _, _ = operands(family, 256, 512, 256)
        ends = torch.tensor([64, 128, 192, 256], dtype=torch.int32, device="cuda")
        d = torch._grouped_mm(tensor(torch, a, "bfloat16"), tensor(torch, b, "bfloat16").view(4, 128, 256).transpose(1, 2), offs=ends)
        keep(case, back(torch, d, "bfloat16"), family="grouped-bfloat16", shape=[64, 128, 256], operands=digest(a, b))
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        index.append({"case": case, "refused": str(error).strip().splitlines()[0][:160]})


# ---------------------------------------------------------------------------- anywhere


def problems(entry: dict[str, Any], d: np.ndarray) -> Iterator[tuple[str, Any, Any]]:
    """(label, output, described GEMM) of every product of a case."""
    from accuracy_eval.cpu_ref.gemm import gradient
    from accuracy_eval.cpu_ref.operands import Gemm
    from accuracy_eval.records import Coded

    name, (m, n, k) = entry["family"], entry["shape"]
    known = {f.name: f for f in FAMILIES}
    if name in known:
        family = known[name]
        a, b, sa, sb = operands(family, m, n, k)
        check(entry, a, b, sa, sb)
        blocks: dict[str, Any] = {"a_block": (1, 128), "b_block": (128, 128)} if family.scales == "block" else {}
        yield "", Coded(d, family.out), Gemm(Coded(a, family.format), Coded(b, family.format), "nt", a_scale=sa, b_scale=sb, **blocks)
        return
    fmt = name.split("-")[1]
    family = Family("", fmt, fmt, "", matmul)
    if name.startswith("batched"):
        a, b, _, _ = operands(family, 3 * m, 3 * n, k)
        check(entry, a, b)
        for i in range(3):
            pair = Coded(a[i * m : i * m + m], fmt), Coded(b[i * n : i * n + n], fmt)
            yield f"[{i}]", Coded(d[i], "float32"), Gemm(*pair, "nt")
    elif name.startswith("backward"):
        a, b, _, _ = operands(family, m, n, k)
        g = encode(values(f"{fmt} grad {m} {n}", (m, n)), fmt)
        check(entry, a, b, g)
        yield "", Coded(d, fmt), gradient(name[-2:], Gemm(Coded(a, fmt), Coded(b, fmt), "nt"), Coded(g, fmt))
    else:
        a, b, _, _ = operands(family, 4 * m, 4 * n, k)
        check(entry, a, b)
        for i in range(4):
            pair = Coded(a[i * m : i * m + m], fmt), Coded(b[i * n : i * n + n], fmt)
            yield f"[{i}]", Coded(d[i * m : i * m + m], fmt), Gemm(*pair, "nt")


def check(entry: dict[str, Any], *arrays: Any) -> None:
    if digest(*arrays) != entry["operands"]:
        sys.exit(f"{entry['case']}: operands rebuilt here have another digest than where the output was made")


def keep_outputs(folder: Path, unexplained: list[str], unreached: list[str], target: Path) -> None:
    """Copy outputs with their index entries, those looked at first, the smallest of each first, as long as they fit."""
    about = json.loads((folder / "index.json").read_text())
    entries = {e["case"]: e for e in about["cases"] if e["case"] in unexplained or e["case"] in unreached}
    outputs = {case: np.load(folder / e["file"])[case] for case, e in entries.items()}
    kept: dict[str, np.ndarray] = {}
    for case in sorted(outputs, key=lambda c: (c in unreached, outputs[c].nbytes)):
        if sum(x.nbytes for x in kept.values()) + outputs[case].nbytes <= KEPT_BYTES:
            kept[case] = outputs[case]
    target.mkdir(parents=True, exist_ok=True)
    np.savez(target / "outputs-0.npz", **kept)
    about["cases"] = [{**entries[case], "file": "outputs-0.npz"} for case in kept]
    (target / "index.json").write_text(json.dumps(about, indent=1))
    print(f"{target}: {len(kept)} of {len(outputs)} outputs that are unexplained or were not reached")


def explain_all(folder: Path, unit: str | None, keep: Path | None, seconds: float) -> int:
    from accuracy_eval.datapath import explain_gemm

    about = json.loads((folder / "index.json").read_text())
    print(f"{about['device']}, torch {about['torch']}, CUDA {about['cuda']}; unit {unit or 'any'}")
    print(f"{'case':<38} {'status':<26} {'fraction':>9} {'evidence':>8} {'ties':>4} {'tried':>6} {'s':>6}  composition")
    results, failed, unreached, start = [], [], [], time.perf_counter()
    for entry in about["cases"]:
        if "refused" in entry:
            print(f"{entry['case']:<38} refused: {entry['refused']}")
            continue
        if time.perf_counter() - start > seconds:
            unreached.append(entry["case"])
            continue
        d = np.load(folder / entry["file"])[entry["case"]]
        for label, actual, gemm in problems(entry, d):
            t = time.perf_counter()
            e = explain_gemm(actual, gemm, unit=unit)
            t = time.perf_counter() - t
            failed += [entry["case"]] if e.fraction < 1 else []
            case, ties = entry["case"] + label, len(e.ties) + e.more_ties
            note = " (exact result rounded once)" if e.correctly_rounded else ""
            head = f"{case:<38} {e.status:<26} {e.fraction:>9.6f} {e.evidence:>8} {ties:>4} {e.tried:>6} {t:>6.2f}"
            print(f"{head}  {e.description}{note}", flush=True)
            results.append({"case": case, "seconds": t, "text": str(e), **dataclasses.asdict(e)})
    (folder / "explained.json").write_text(json.dumps(results, indent=1))
    last = f", {len(unreached)} cases not reached" if unreached else ""
    print(f"{len(results)} outputs in {time.perf_counter() - start:.0f} s, {len(failed)} unexplained{last}")
    if keep:
        keep_outputs(folder, failed, unreached, keep)
    return 1 if failed or unreached else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "trees", "explain", "both"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--unit", default="hopper", help='unit whose arithmetic is tried; "any" for all')
    parser.add_argument("--family", action="append", help="only these families")
    parser.add_argument(
        "--shape", action="append", help="m×n×k as 530x276x1990: only these shapes, and nothing batched, grouped or backward"
    )
    parser.add_argument("--keep", type=Path, help="folder for what stays unexplained or is not reached")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time for explanations; the output under way is finished")
    parser.add_argument("--random", type=int, default=0, help="further shapes drawn at random")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    wanted = [f for f in FAMILIES if not options.family or f.name in options.family]
    shapes = [tuple(map(int, text.split("x"))) for text in options.shape or ()] or SHAPES + random_shapes(options.random, options.seed)
    if options.what == "trees":
        trees(options.folder, wanted, shapes)
    if options.what in ("make", "both"):
        make(options.folder, wanted, shapes, extra=not options.shape and not options.family)
    if options.what in ("explain", "both"):
        return explain_all(options.folder, None if options.unit == "any" else options.unit, options.keep, options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
