"""accuracy-eval probe."""

from __future__ import annotations

import json

import click


@click.command("probe")
@click.option("--device", default="auto", show_default=True, help="auto, cuda, cuda:N (AMD GPUs too), cpu, model:UNIT.")
@click.option("--format", "formats", multiple=True, metavar="FORMAT", help="Only these operand formats: bfloat16, fp8_e4m3, …")
@click.option(
    "--length", "lengths", multiple=True, type=click.IntRange(2, 1 << 16), help="Contractions whose order is recorded [256, 1024]."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def probe_command(device: str, formats: tuple[str, ...], lengths: tuple[int, ...], as_json: bool) -> int:
    """Multiply matrices that tell how a device adds, and name the known units that answer the same.

    \b
    accuracy-eval probe --device cuda
    accuracy-eval probe --device cpu --format float32
    accuracy-eval probe --device model:MI300X --json
    """
    from accuracy_eval.backends.open import open_backend
    from accuracy_eval.backends.probing import LENGTHS, probed

    backend = open_backend(device)
    try:
        card = probed(backend, formats, lengths=lengths or LENGTHS)
    finally:
        backend.close()
    click.echo(json.dumps(card.to_json()) if as_json else card.text)
    return 0 if card.formats else 2
