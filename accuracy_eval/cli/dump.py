"""accuracy-eval dump."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from accuracy_eval.cli import completion
from accuracy_eval.cli.aside import printing_aside
from accuracy_eval.cli.attended import attended_progress
from accuracy_eval.cli.last_words import last_words
from accuracy_eval.cli.progress import progress
from accuracy_eval.cli.selection import FILTERS, chosen_suite, selection

if TYPE_CHECKING:
    from accuracy_eval.suite import Suite

MOST_REASONS = 8  # lines said about unsupported results
STARTING_S = 1.0  # from here on it is said what of a dump's time was framework, device and workers


def _shard(_: click.Context, __: click.Parameter, value: str) -> tuple[int, int]:
    index, slash, count = value.partition("/")
    if not slash or not index.isdecimal() or not count.isdecimal() or not 0 <= int(index) < int(count):
        raise click.BadParameter(f"{value!r}: expected I/N with 0 <= I < N, such as 0/4")
    return int(index), int(count)


def _workers(_: click.Context, __: click.Parameter, value: str | None) -> int | Literal["all"] | None:
    if value is None or value == "all":
        return value  # type: ignore[return-value]
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r}: expected a number of processes, or all for one per GPU")
    return int(value)


def _plan_for(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and value.startswith("-"):
        raise click.BadParameter(f"{value!r} follows it: expected the device whose rates to plan by, as in --plan h200")
    return value


@click.command("dump")
@click.argument("suite", required=False, shell_complete=completion.suites)
@click.option("-o", "--out", type=click.Path(dir_okay=False), help="The dump to write (HDF5).")
@click.option(
    "--device", default="auto", show_default=True, help="auto, cuda, cuda:N (AMD GPUs too), cpu; without torch: reference, model:UNIT."
)
@selection
@click.option(
    "--option",
    "stated",
    multiple=True,
    metavar="NAME=VALUE",
    help="Only these: an option of the op, such as beta=1.0 or causal=true (list ops NAME).",
)
@click.option("--seed", type=click.IntRange(min=0), help="Use this seed for every case.")
@click.option("--max-m", type=click.IntRange(min=1), help="Cap the rows of model GEMMs, of a group where there are experts.")
@click.option(
    "--candidate",
    "candidates",
    multiple=True,
    metavar="NAME",
    help="Run only these implementations, or all (default: the framework's choice, plugins, and what the suite expects).",
)
@click.option("--state", "states", multiple=True, metavar="NAME", help="Also run each one in this state: graph, stream, misaligned, alone.")
@click.option("--plugin", "plugins", multiple=True, type=click.Path(), help="Python file that registers candidates.")
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(min=1), help="Runs of each case, compared byte for byte.")
@click.option(
    "--workers",
    callback=_workers,
    metavar="N|all",
    help="Run in N processes, one per GPU; a crash or a hang loses only its case. [default: in this process]",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Workers on this host, or on a Ray cluster whose nodes all mount the folder of OUT (extra ray).",
)
@click.option("--address", metavar="HOST:PORT", help="With --engine ray: the cluster [default: this host's, or one started here].")
@click.option("--on", metavar="NAME", help="With --engine ray: only nodes with this accelerator type (H200) or resource (amd).")
@click.option(
    "--case-limit",
    default=900.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End a case that shows no sign of life for this long: with workers, and ranks of collectives.",
)
@click.option(
    "--plan",
    "plan_for",
    callback=_plan_for,
    metavar="DEVICE",
    help="Run nothing; print cases, results (one per case and candidate), operations, bytes and time, at the rates of h200 or cpu.",
)
@click.option("--kernels", is_flag=True, help="Record the names of the GPU kernels of each case (one more run, under the profiler).")
@click.option("--certify", is_flag=True, help="Check every run of an exact product on the device; name wrong rows and columns.")
@click.option(
    "--shard",
    default="0/1",
    show_default=True,
    callback=_shard,
    help="I/N: run only every N-th case from case I on, and the cases that these are compared with.",
)
@click.option("--resume", is_flag=True, help="Continue an unfinished dump.")
@click.option("--store-inputs", is_flag=True, help="Store the operands, not only their digests.")
@click.option("--probe", is_flag=True, help="Also store the device's numerics card (see command probe).")
@click.option("--no-pack", is_flag=True, help="Leave one file per case in OUT.parts instead of packing them.")
@click.option(
    "--fp8", "encoding", type=click.Choice(["ocp", "fnuz"]), default="ocp", show_default=True, help="fp8 encoding of --device reference."
)
@click.option("--huge", is_flag=True, help="Allow tensors over 2^31 elements.")
@click.option("--attended", is_flag=True, help="For a program that drives this one, as run does: stop when standard input closes.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no summary.")
@click.option("--json", "as_json", is_flag=True, help="Summary as JSON on stdout.")
def dump_command(
    suite: str | None,
    out: str | None,
    device: str,
    encoding: Literal["ocp", "fnuz"],
    as_json: bool,
    quiet: bool,
    attended: bool,
    **options: Any,
) -> int:
    """Run SUITE (a built-in name or a .toml file) on a device and write OUT. Exits with 1 if a case raised or was certified wrong.

    \b
    accuracy-eval dump smoke -o cpu.h5 --device cpu
    accuracy-eval dump turbo-gemm -o h200.h5 --lane random
    accuracy-eval dump models -o mi300x.h5 --device cuda --workers all      one process per GPU
    accuracy-eval dump models -o /shared/h200.h5 --device cuda --engine ray --on H200
    accuracy-eval dump --op gemm --shape 512x128x256 --format bfloat16 --option beta=1.0 -o one.h5
    """
    began = time.monotonic()
    from accuracy_eval.dump import dump

    for plugin in options["plugins"]:
        from accuracy_eval.backends.candidates import load_plugin

        load_plugin(plugin)
    chosen = suite_of(suite, options)
    workers = options["workers"]
    if options["plan_for"]:
        return _print_plan(chosen, options["plan_for"], workers, as_json, options)
    if out is None:
        raise click.UsageError("give the dump to write: -o FILE")
    # the lines of an attended dump are told from others by who reads them
    aside = contextlib.nullcontext() if attended else printing_aside()
    with aside, _resumable(out), _opened(device, encoding, workers, out, options) as backend:
        opened = time.monotonic()
        with attended_progress() if attended else progress("dump", quiet=quiet or as_json) as update:
            summary = dump(
                chosen, backend, out, candidates=options["candidates"], states=options["states"], repeats=options["repeats"],
                kernels=options["kernels"], certify=options["certify"], resume=options["resume"], store_inputs=options["store_inputs"],
                pack=not options["no_pack"], probe=options["probe"], shard=options["shard"], progress=update,
            )  # fmt: skip
        name = str(backend.platform().get("device_name") or device)
    summary.start_s, summary.time_s = opened - began, time.monotonic() - began
    if as_json:
        import dataclasses
        import json

        click.echo(json.dumps({**dataclasses.asdict(summary), "path": str(summary.path)}))
    elif not quiet and not attended:
        click.echo(summary_text(summary, name))
    return 1 if summary.error or summary.wrong else 0


def suite_of(suite: str | None, options: Mapping[str, Any]) -> Suite:
    """The suite that the options of the command choose."""
    huge = options["huge"] or options["plan_for"] is not None  # a plan makes no tensor
    filters = {n: options[n] for n in FILTERS}
    return chosen_suite(suite, filters, seed=options["seed"], max_m=options["max_m"], huge=huge, stated=options["stated"])


@contextlib.contextmanager
def _resumable(out: str) -> Iterator[None]:
    """Says of an interrupted dump how to go on, or that it is done."""
    from accuracy_eval.store import packed_parts

    try:
        yield
    except KeyboardInterrupt:
        parts = Path(f"{out}.parts")
        aside = packed_parts(parts)
        if aside.is_dir():
            click.echo(f"dump: {out} is whole; {aside} holds parts that are in it: remove it, or the next dump to {out} does", err=True)
        if parts.is_dir() and any(parts.iterdir()):
            click.echo(f"dump: what is done so far is kept in {parts}; the same command with --resume goes on from there", err=True)
        raise


@contextlib.contextmanager
def _opened(
    device: str, encoding: Literal["ocp", "fnuz"], workers: int | Literal["all"] | None, out: str, options: dict[str, Any]
) -> Iterator[Any]:
    """The backend in this process, or the crew of worker processes that was asked for."""
    if options["engine"] == "ray":
        yield from _on_cluster(device, encoding, workers, options)
        return
    given = [f"--{name}" for name in ("address", "on") if options[name] is not None]
    if given:
        raise click.UsageError(f"{' and '.join(given)} belong{'s' if len(given) == 1 else ''} to --engine ray")
    from accuracy_eval.dump.workers import Crew

    crew_of = partial(Crew, encoding=encoding, plugins=options["plugins"], limit_s=options["case_limit"])
    if workers is None:
        from accuracy_eval.backends.open import open_backend
        from accuracy_eval.dump.running import Here

        died = (
            f"accuracy-eval: the process ended in the middle of the dump; what was done is kept in {out}.parts. Go on with "
            "--resume --workers 1: a case that ends its process costs itself alone there"
        )
        opened = contextlib.closing(open_backend(device, encoding, limit_s=options["case_limit"]))
        with last_words(died), opened as backend:
            yield Here(backend, rescue=partial(crew_of, backend.name, 1))
        return
    from accuracy_eval.engine.seats import most_workers

    count = most_workers(device) if workers == "all" else workers
    with crew_of(device, count) as crew:
        yield crew


def _on_cluster(device: str, encoding: Literal["ocp", "fnuz"], workers: int | str | None, options: dict[str, Any]) -> Iterator[Any]:
    from accuracy_eval.dump.workers import Crew
    from accuracy_eval.engine.ray import START_S, Cluster

    with Cluster(options["address"], options["on"]) as cluster:
        count = workers if isinstance(workers, int) else cluster.most_workers(device)
        if options["on"] and not cluster.has_node():
            click.echo(f"dump: no node of the cluster is or has {options['on']} now; waiting up to {START_S:.0f} s for one", err=True)
        limit = options["case_limit"]
        with Crew(device, count, encoding=encoding, plugins=options["plugins"], limit_s=limit, cluster=cluster) as crew:
            yield crew


def _print_plan(suite: Any, device: str, workers: int | Literal["all"] | None, as_json: bool, options: dict[str, Any]) -> int:
    import dataclasses
    import json

    from accuracy_eval.dump.planning import plan, table

    count = workers if isinstance(workers, int) else 1
    stored, shard = options["store_inputs"], options["shard"]
    found = plan(
        suite, device, candidates=options["candidates"], states=options["states"], workers=count, repeats=options["repeats"],
        store_inputs=stored, shard=shard,
    )  # fmt: skip
    click.echo(json.dumps(dataclasses.asdict(found)) if as_json else table(found))
    return 0


def summary_text(summary: Any, device: str) -> str:
    """One line, then one a thing to know."""
    from accuracy_eval.errors import counted

    counts = f"{counted(summary.done, 'result')} done, {summary.unsupported} unsupported, {counted(summary.error, 'error')}"
    resumed = f", {summary.resumed} kept from before" if summary.resumed else ""
    starting = f", {summary.start_s:.1f} s of it starting" if summary.start_s >= STARTING_S else ""
    lines = [f"{summary.path}: {counts}{resumed} on {device} in {summary.time_s:.1f} s{starting}"]
    lines += [f"  {text}" for text in summary.again]
    lines += [f"  unsupported {n} × {reason}" for reason, n in Counter(summary.reasons).most_common(MOST_REASONS)]
    if len(summary.reasons) > MOST_REASONS:
        lines.append(f"  … and {len(summary.reasons) - MOST_REASONS} more reasons; accuracy-eval inspect {summary.path}")
    if summary.unnamed:
        counts = ", ".join(f"{n} of {op}" for op, n in summary.unnamed.items())
        lines.append(f"  not run: cases without any of the named candidates ({counts}); accuracy-eval list candidates")
    lines += [f"  error {text}" for text in summary.errors[:10]]
    if len(summary.errors) > 10:
        lines.append(f"  … and {len(summary.errors) - 10} more errors; accuracy-eval inspect {summary.path}")
    lines += [f"  lost the device: {name}; a fresh process ran the cases after it" for name in summary.lost[:10]]
    if summary.certified is not None:
        lines.append(f"  certified {counted(summary.certified, 'run')} of exact products: {len(summary.wrong) or 'none'} wrong")
    lines += [f"  wrong {text}" for text in summary.wrong[:10]]
    if len(summary.wrong) > 10:
        lines.append(f"  … and {len(summary.wrong) - 10} more wrong runs")
    lines += [f"  never written: {ident}" for ident in summary.never_written[:10]]
    lines += [f"  repeats differ: {ident}" for ident in summary.nondeterministic[:10]]
    return "\n".join(lines)
