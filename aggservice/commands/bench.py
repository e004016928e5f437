"""``aggservice bench``: one command per module of ``aggservice.bench``; the last line printed starts with a ratio."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add ``bench`` with a command for each benchmark that is installed."""
    import aggservice.bench

    names = sorted(module.name for module in iter_modules(aggservice.bench.__path__))
    bench = typer.Typer(
        help="Measure a part against a peer or a limit in the same run; the last line starts with the ratio.",
        invoke_without_command=True,
    )

    @bench.callback()
    def _names(
        context: typer.Context,
        show: Annotated[bool, typer.Option("--names", help="List the benchmarks and stop.")] = False,
    ) -> None:
        if show:
            typer.echo("\n".join(names))
        elif context.invoked_subcommand is None:
            typer.echo(context.get_help())

    for name in names:
        bench.command(name)(import_module(f"aggservice.bench.{name}").command)
    app.add_typer(bench, name="bench")
