"""accuracy-eval inspect and merge."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from accuracy_eval.cli import completion

if TYPE_CHECKING:
    from accuracy_eval.records import CaseRecord
    from accuracy_eval.store import Dump


@click.command("inspect")
@click.argument("dump", type=click.Path())
@click.option("--case", "case", metavar="ID", shell_complete=completion.cases, help="Every tensor of one case.")
@click.option("--candidate", "candidate", metavar="NAME", help="With --case: only this candidate's.")
@click.option("--element", metavar="I,J", help="With --case: this element of the output, and what it was computed from.")
@click.option("--tensor", metavar="NAME", default="", help="With --element: of this output (default: the first).")
@click.option("--platform", "platform", is_flag=True, help="Where it was made: device, versions, switches, variables.")
@click.option("--verify", is_flag=True, help="Check every stored digest and the file's structure.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def inspect_command(
    dump: str, case: str | None, candidate: str | None, element: str | None, tensor: str, platform: bool, verify: bool, as_json: bool
) -> int:
    """Print suite, device, cases and digests of DUMP (a file or a folder of parts).

    \b
    accuracy-eval inspect h200.h5 --verify
    accuracy-eval inspect h200.h5 --case gemm.m512.n128.k256.nt.bfloat16.normal.s42
    accuracy-eval inspect h200.h5 --case gemm.m512.n128.k256.nt.bfloat16.normal.s42 --element 12,301
    accuracy-eval inspect h200.h5 --case attention.b1.h8.g4.s128.t128.d64.bhsd.bfloat16.normal.s42 --element 0,3,17,5
    """
    from accuracy_eval.errors import UsageError
    from accuracy_eval.store import Dump

    if case is None and (candidate is not None or element is not None):
        raise UsageError(f"{'--candidate' if candidate is not None else '--element'} belongs to --case ID")
    d = Dump.open(dump)
    if verify:
        d.check_structure()
        checked = d.verify_all()
        click.echo(f"{dump}: {checked} tensors, every digest matches", err=True)
    chosen = [r for r in d.records if case in (None, r.id) and candidate in (None, r.candidate)]
    if case is not None and not chosen:
        d.record(case, candidate or "default")  # says what there is
    if element is not None:
        from accuracy_eval.reproducing import element as described

        lines: Iterable[str] = [described(d, chosen, _index(element), tensor)]
    elif as_json:
        lines = [_json(d, chosen)]
    elif platform:
        lines = _platform_lines(d)
    else:
        lines = _dump_lines(dump, d) if case is None else _tensor_lines(chosen)
    for line in lines:
        click.echo(line)
    return 0


def _json(d: Dump, chosen: Sequence[CaseRecord]) -> str:
    from accuracy_eval.json_data import to_json

    records: Any = [to_json(r) for r in chosen]
    return json.dumps({"info": d.info, "content_digest": d.content_digest, "platform": d.platform, "records": records}, default=str)


def _platform_lines(d: Dump) -> Iterator[str]:
    for name, value in sorted(d.platform.items()):
        yield f"{name:32s} {'-' if value is None else value if isinstance(value, str) else json.dumps(value, default=str)}"


def _tensor_lines(chosen: Sequence[CaseRecord]) -> Iterator[str]:
    """Every candidate of a case: what it promised, its kernels, its tensors."""
    for record in chosen:
        yield f"{record.id}  candidate {record.candidate}  {record.status} {record.reason}"
        yield f"contract {record.contract or 'none'}, {record.repeats} repeats"
        for kernel in record.notes.get("kernels", ()):
            yield f"  kernel {kernel['name']} ({', '.join(f'{k} {v}' for k, v in kernel.items() if k != 'name')})"
        for t in record.tensors:
            yield f"  {t.role:7s} {t.name:10s} {t.format:16s} {list(t.shape)!s:20s} {t.sha256}"


def _dump_lines(path: str, d: Dump) -> Iterator[str]:
    """What the dump is, and a line for each result."""
    from accuracy_eval.errors import counted

    device = d.platform.get("device_name") or d.platform.get("label")
    held = d.part_text() or f"suite {d.info.get('suite')}"
    yield f"{path}: {held}, device {device}, {counted(len(d.records), 'result')}"
    yield f"content digest {d.content_digest}"
    for r in d.records:
        candidate = "" if r.candidate == "default" else f" @{r.candidate}"
        outputs = " ".join(f"{t.name}:{t.sha256[:8]}" for t in r.tensors if t.role == "output")
        yield f"  {r.id}{candidate}  {r.status} {outputs}{r.reason and ' ' + r.reason}"


def _index(text: str) -> tuple[int, ...]:
    from accuracy_eval.errors import UsageError

    try:
        return tuple(int(part) for part in text.strip("[] ").split(","))
    except ValueError as error:
        raise UsageError(f"--element {text}: expected whole numbers with commas between, for example 12,301") from error


@click.command("merge")
@click.argument("dumps", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False), help="The dump to write; may be one of the inputs.")
def merge_command(dumps: tuple[str, ...], out: str) -> int:
    """Join DUMPS of one kind of device (shards, folders of parts) into OUT; those of different devices are refused: compare them.

    Said are what OUT lacks of its suite, that parts are of different suites or seeds, and how many results are of which versions
    (framework, cuBLAS, driver, this program).

    \b
    accuracy-eval merge shard*.h5 -o all.h5
    accuracy-eval merge all.h5 late.h5 -o all.h5        equal results are kept once
    """
    from accuracy_eval.errors import counted
    from accuracy_eval.store import Dump, merge

    path = merge(list(dumps), out)
    d = Dump.open(path)
    click.echo(f"{path}: {counted(len(d.records), 'result')}, content digest {d.content_digest}")
    if part := d.part_text():
        click.echo(f"  holds {part}")
    for note in d.info.get("notes", ()):
        click.echo(f"  {note}")
    for name, values in d.mixed().items():
        found = ", ".join(f"{value} ({counted(n, 'result')})" for value, n in values.items())
        click.echo(f"  of different versions: {name} {found}")
    return 0
