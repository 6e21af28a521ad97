"""The command line: arguments, progress, exit codes. No numerics here, and nothing heavy is imported before a command runs."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

_COMMANDS = {  # name -> module that defines NAME_command, and what `--help` says of it
    "dump": ("accuracy_eval.cli.dump", "Run a suite on a device; store outputs and digests of inputs."),
    "transfer": ("accuracy_eval.cli.transfer", "Move dumps between hosts over SSH, verified at both ends."),
    "compare": ("accuracy_eval.cli.compare", "Judge dumps against the reference and each other; write reports."),
    "screen": ("accuracy_eval.cli.screen", "Find the odd one out among many like devices, by digests."),
    "run": ("accuracy_eval.cli.fleet", "Dump on several hosts at once, fetch the dumps and compare them."),
    "report": ("accuracy_eval.cli.report", "Render reports again from a results.json."),
    "inspect": ("accuracy_eval.cli.files", "Print what a dump holds."),
    "merge": ("accuracy_eval.cli.files", "Join shards and parts into one dump."),
    "history": ("accuracy_eval.cli.history", "Chart a metric over dated results."),
    "list": ("accuracy_eval.cli.listing", "List ops, formats, suites, gates, devices and more."),
    "coverage": ("accuracy_eval.cli.coverage", "Show which cases dumps have covered, skipped and never reached."),
    "fixtures": ("accuracy_eval.cli.fixtures", "Export and check exact results, for engines without torch."),
    "import": ("accuracy_eval.cli.importing", "Read another evaluator's .pt dumps into one file to compare."),
    "gates": ("accuracy_eval.cli.gates", "Plant known faults in results and show which gate catches them."),
    "explain": ("accuracy_eval.cli.explain", "Find the order of operations that makes each product's bits."),
    "probe": ("accuracy_eval.cli.probe", "Measure how a device multiplies, and name known units like it."),
    "predict": ("accuracy_eval.cli.predict", "Write what a matrix unit will return, before anyone has run it."),
    "atlas": ("accuracy_eval.cli.atlas", "Write a page on products and special functions by platform."),
    "demo": ("accuracy_eval.cli.demo", "Compare this machine with a packaged H200 dump."),
    "completion": ("accuracy_eval.cli.completion", "Print the completion script of a shell: bash, zsh, fish."),
}


class _Lazy(click.Group):
    """Loads a command's module when it is used: `--help` imports click and nothing else."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        from importlib import import_module

        module = import_module(_COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not args[0].startswith("-"):
            from accuracy_eval.errors import unknown

            raise unknown("command", args[0], _COMMANDS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


EXIT_CODES = """\b
Exit codes: 0 everything judged passed (warnings and unsupported cases are counted); 1 a failure, a missing case or an error;
2 inputs differ, nothing could be judged, a wrong argument, an unreadable file, an SSH failure.
Of several the highest is returned."""


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from accuracy_eval.version import __version__

        click.echo(f"accuracy-eval {__version__}")
        ctx.exit()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}, epilog=EXIT_CODES)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version and exit.")
def cli() -> None:
    """Does AMD match NVIDIA and the CPU on this math, and if not, who is off, where, and why?

    \b
    accuracy-eval dump smoke -o a.h5            on each machine (CUDA, ROCm, CPU, or no torch at all)
    accuracy-eval transfer a.h5 user@host:dumps/
    accuracy-eval compare a.h5 b.h5             verdicts, who is off, reports
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: every expected error is one message on stderr."""
    from accuracy_eval.errors import AccuracyEvalError

    try:
        result: Any = cli.main(args=list(arguments) if arguments is not None else None, prog_name="accuracy-eval", standalone_mode=False)
    except AccuracyEvalError as error:
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
        click.echo(f"accuracy-eval: {error}{notes}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("accuracy-eval: interrupted", err=True)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except MemoryError as error:
        click.echo(
            f"accuracy-eval: not enough memory{f': {error}' if str(error) else ''}; files that were written are whole; give it more "
            "(ulimit -v, the limits of a container), or it fewer processes (--workers) or cases (--op, --case)", err=True,
        )  # fmt: skip
        return 2
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        click.echo(f"accuracy-eval: standard output cannot be written: {error.strerror}; files that were written are whole", err=True)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  what it still holds is not tried again at the end
        return 2
    return int(result or 0)


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _with_standard_streams() -> None:
    """Standard input, output and error where the program was started without them: the next files that are opened would take their numbers,
    and what is printed would go there."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != descriptor:
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
            setattr(sys, name, open(descriptor, mode))  # noqa: SIM115  for as long as the process lives


def main() -> None:
    """Entry point of the command `accuracy-eval`."""
    from accuracy_eval.cli.interrupts import Interrupts
    from accuracy_eval.leaving import leave

    Interrupts().install()
    _with_standard_streams()
    leave(run())
