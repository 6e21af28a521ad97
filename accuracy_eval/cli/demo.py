"""accuracy-eval demo."""

from __future__ import annotations

import click


@click.command("demo")
@click.option("-o", "--out", type=click.Path(file_okay=False), default="reports/demo", show_default=True, help="Folder for the reports.")
@click.option("--device", default="cpu", show_default=True, help="auto, cuda, cuda:N, cpu or reference.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def demo_command(out: str, device: str, quiet: bool) -> int:
    """Dump the suite `demo` on this machine, compare it with one made on a real H200, and write the reports and both dumps.

    \b
    accuracy-eval demo
    accuracy-eval demo --device cuda
    """
    import shutil
    import tempfile
    from importlib import resources
    from pathlib import Path

    from accuracy_eval.backends.open import open_backend
    from accuracy_eval.cli.compare import present
    from accuracy_eval.cli.progress import progress
    from accuracy_eval.compare import compare_dumps
    from accuracy_eval.dump import dump
    from accuracy_eval.suite import load_suite

    kept = Path(out)
    kept.mkdir(parents=True, exist_ok=True)
    mine, h200 = kept / "this-machine.h5", kept / "h200.h5"
    backend = open_backend(device)
    try:
        with tempfile.TemporaryDirectory(dir=kept) as folder, progress("dump", quiet=quiet) as update:
            fresh = Path(folder) / mine.name
            dump(load_suite("demo"), backend, fresh, progress=update)
            fresh.replace(mine)  # an earlier demo's
    finally:
        backend.close()
    with resources.as_file(resources.files("accuracy_eval") / "data" / "demo-h200.h5") as packaged:
        shutil.copyfile(packaged, h200)
    with progress("compare", quiet=quiet) as update:
        results = compare_dumps(mine, h200, progress=update)
    code = present(results, forms=("xlsx", "html", "json"), out=out, strict=False, quiet=False, as_json=False)
    click.echo(f"both dumps are kept there: accuracy-eval explain {h200}; accuracy-eval inspect {mine}")
    return code
