"""accuracy-eval completion, and what a shell may offer as values: case ids of the dumps on the line, names from the registries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

Complete = Callable[[click.Context, click.Parameter, str], list[str]]
VARIABLE = "_ACCURACY_EVAL_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> int:
    """Print the script that makes SHELL complete commands, options, names and case ids.

    \b
    accuracy-eval completion bash >> ~/.bashrc
    accuracy-eval completion zsh >> ~/.zshrc
    accuracy-eval completion fish > ~/.config/fish/completions/accuracy-eval.fish
    """
    from click.shell_completion import get_completion_class

    from accuracy_eval.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None
    # the script itself: click's bash class first asks the installed bash for its version
    values = kind(cli, {}, "accuracy-eval", VARIABLE).source_vars()
    click.echo(kind.source_template % values)
    return 0


def _quietly(names: Callable[[click.Context], Iterable[str]]) -> Complete:
    """A completion must never print an error into a half-typed line: what cannot be read offers nothing."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        try:
            return [n for n in names(ctx) if n.startswith(incomplete)]
        except Exception:  # noqa: BLE001 - see above
            return []

    return complete


def _cases(ctx: click.Context) -> Iterable[str]:
    from accuracy_eval.store import Dump

    # a line whose last option lacks its value is not parsed: its words are in ctx.args
    given: Any = ctx.params.get("dumps") or ctx.params.get("dump") or [word for word in ctx.args if Path(word).exists()]
    paths = [given] if isinstance(given, str) else given
    return dict.fromkeys(r.id for p in paths for r in Dump.open(p).records)


def _profiles(ctx: click.Context) -> Iterable[str]:
    from accuracy_eval.gates import builtin_profiles

    return builtin_profiles()


def _suites(ctx: click.Context) -> Iterable[str]:
    from accuracy_eval.suite import builtin_suites

    return builtin_suites()


def _metrics(ctx: click.Context) -> Iterable[str]:
    from accuracy_eval.metrics.registry import KNOWN

    return KNOWN


cases, profiles, suites, metrics = map(_quietly, (_cases, _profiles, _suites, _metrics))
