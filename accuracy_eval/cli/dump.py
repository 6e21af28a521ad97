"""accuracy-eval dump."""

from __future__ import annotations

from typing import Any, Literal

import click

from accuracy_eval.cli.progress import progress
from accuracy_eval.cli.selection import FILTERS, chosen_suite, selection


def _shard(_: click.Context, __: click.Parameter, value: str) -> tuple[int, int]:
    index, slash, count = value.partition("/")
    if not slash or not index.isdigit() or not count.isdigit() or not 0 <= int(index) < int(count):
        raise click.BadParameter(f"{value!r}: expected I/N with 0 <= I < N, such as 0/4")
    return int(index), int(count)


@click.command("dump", short_help="Run a suite on a device and store the outputs.")
@click.argument("suite", required=False)
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False), help="The dump to write (HDF5).")
@click.option(
    "--device", default="auto", show_default=True, help="auto, cuda, cuda:N (AMD GPUs too), cpu; without torch: reference, model:UNIT."
)
@selection
@click.option("--seed", type=click.IntRange(min=0), help="Another seed for every case.")
@click.option("--max-m", type=click.IntRange(min=1), help="Cap the rows of model GEMMs.")
@click.option("--candidate", "candidates", multiple=True, metavar="NAME", help="Only these implementations (default: all registered).")
@click.option("--plugin", "plugins", multiple=True, type=click.Path(), help="Python file that registers candidates.")
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(min=1), help="Runs of each case, compared byte for byte.")
@click.option("--shard", default="0/1", show_default=True, callback=_shard, help="I/N: only every N-th case, starting at I.")
@click.option("--resume", is_flag=True, help="Go on with an unfinished dump.")
@click.option("--store-inputs", is_flag=True, help="Store operands too, not only their digests.")
@click.option("--probe", is_flag=True, help="Store the device's numerics card too (accuracy-eval probe).")
@click.option("--no-pack", is_flag=True, help="Leave one file a case in OUT.parts.")
@click.option(
    "--fp8", "encoding", type=click.Choice(["ocp", "fnuz"]), default="ocp", show_default=True, help="fp8 encoding of --device reference."
)
@click.option("--huge", is_flag=True, help="Allow tensors over 2^31 elements.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no summary.")
@click.option("--json", "as_json", is_flag=True, help="Summary as JSON on stdout.")
def dump_command(
    suite: str | None, out: str, device: str, encoding: Literal["ocp", "fnuz"], as_json: bool, quiet: bool, **options: Any
) -> int:
    """Run SUITE (a built-in name or a .toml file) on a device and write OUT. Exits with 1 if a case raised.

    \b
    accuracy-eval dump smoke -o cpu.h5 --device cpu
    accuracy-eval dump turbo-gemm -o h200.h5 --lane random
    accuracy-eval dump --op gemm --shape 512x128x256 --format bfloat16 -o one.h5
    """
    from accuracy_eval.backends.open import open_backend
    from accuracy_eval.dump import dump

    for plugin in options.pop("plugins"):
        from accuracy_eval.backends.candidates import load_plugin

        load_plugin(plugin)
    chosen = chosen_suite(
        suite, {n: options.pop(n) for n in FILTERS}, seed=options.pop("seed"), max_m=options.pop("max_m"), huge=options.pop("huge")
    )
    backend = open_backend(device, encoding)
    try:
        with progress("dump", quiet=quiet or as_json) as update:
            summary = dump(
                chosen, backend, out, candidates=options["candidates"], repeats=options["repeats"], resume=options["resume"],
                store_inputs=options["store_inputs"], pack=not options["no_pack"], probe=options["probe"], shard=options["shard"],
                progress=update,
            )  # fmt: skip
    finally:
        backend.close()
    if as_json:
        import dataclasses
        import json

        click.echo(json.dumps({**dataclasses.asdict(summary), "path": str(summary.path)}))
    elif not quiet:
        click.echo(summary_text(summary, backend.name))
    return 1 if summary.error else 0


def summary_text(summary: Any, device: str) -> str:
    """One line, then one a thing to know."""
    counts = f"{summary.done} done, {summary.unsupported} unsupported, {summary.error} errors"
    resumed = f", {summary.resumed} kept from before" if summary.resumed else ""
    lines = [f"{summary.path}: {counts}{resumed} on {device} in {summary.time_s:.1f} s"]
    lines += [f"  error {text}" for text in summary.errors[:10]]
    if len(summary.errors) > 10:
        lines.append(f"  … and {len(summary.errors) - 10} more errors; accuracy-eval inspect {summary.path}")
    lines += [f"  never written: {ident}" for ident in summary.never_written[:10]]
    lines += [f"  repeats differ: {ident}" for ident in summary.nondeterministic[:10]]
    return "\n".join(lines)
