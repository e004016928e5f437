"""The ``aggservice`` program: one module a group of commands.

Every module of this package exposes ``register(app)``, which adds its commands to the program. Modules import what
is heavy inside their commands, so that a quick command stays quick.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules

import typer

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
    for module in sorted(iter_modules(__path__), key=lambda found: found.name):
        import_module(f"{__name__}.{module.name}").register(app)
    try:
        app()
    except Exception as error:
        if not isinstance(error, _explained()):
            raise
        print(f"aggservice: {error}", file=sys.stderr)
        sys.exit(1)


def _explained() -> tuple[type[Exception], ...]:
    """Return the errors whose message says what to do: they end the program without a traceback."""
    from aggservice.mechanisms import MechanismError
    from aggservice.wire import WireError
    from budget import BudgetError

    return (WireError, BudgetError, MechanismError, OSError)
