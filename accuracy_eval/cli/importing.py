"""accuracy-eval import."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("import")
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The .safetensors file to write.")
@click.option("-q", "--quiet", is_flag=True, help="No summary.")
def import_command(sources: tuple[Path, ...], out: Path, quiet: bool) -> int:
    """Read SOURCES (files named like AMD_gemm_bfloat16_512_128_256.pt, or folders of them) and write their tensors to OUT.

    \b
    accuracy-eval import dumps/mi300x -o mi300x.safetensors
    accuracy-eval import dumps/h200 -o h200.safetensors
    accuracy-eval compare mi300x.safetensors h200.safetensors
    The vendor leaves the names, so that two imports join. Inputs are not in such dumps: the tensors are compared with each other.
    """
    from accuracy_eval.errors import UsageError, counted
    from accuracy_eval.foreign.importing import import_dumps
    from accuracy_eval.foreign.safetensors import write_safetensors

    if out.suffix != ".safetensors":
        raise UsageError(f"{out}: imports are written as .safetensors; choose such a name")
    found = import_dumps(sources)
    write_safetensors(out, found.tensors, {"vendors": ", ".join(found.vendors)})
    if not quiet:
        over = found.passed_over
        passed = f", {counted(len(over), 'file')} passed over for their names: {', '.join(over)}" if over else ""
        click.echo(f"{out}: {counted(len(found.tensors), 'tensor')} of {', '.join(found.vendors)}{passed}")
    return 0
