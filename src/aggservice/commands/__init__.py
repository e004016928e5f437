"""The ``aggservice`` program: one module a group of commands.

Each group lives in its own module here and exposes ``register(app)``, which adds its commands to the program.
A module is imported only when its command is asked for or help is shown, so that a quick command stays quick.
"""

from __future__ import annotations

from importlib import import_module

import typer

#: The modules that hold commands, in the order in which ``--help`` shows them.
GROUPS: tuple[str, ...] = ()

app = typer.Typer(
    name="aggservice",
    help="A runnable, auditable simulator of the Privacy Sandbox measurement stack.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _program() -> None:
    """Keep the program a group of commands even while it has only one."""


def main() -> None:
    """Run the program."""
    for group in GROUPS:
        import_module(f"aggservice.commands.{group}").register(app)
    app()
