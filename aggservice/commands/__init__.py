"""The ``aggservice`` program: one module per group of commands, imported when one of its commands is called.

``COMMANDS`` and ``BENCHMARKS`` name where each command is and the line that help prints for it, so that help, the
version and shell completion need no command's module; the modules import what they need at their top. Help is plain
text, which names every option in full and spares the import of rich.
"""

from __future__ import annotations

import atexit
import errno
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer
from typer.completion import install_callback, show_callback
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from aggservice import __version__

#: Per command: the module below ``aggservice``, the name in it of a function or a ``Typer``, and the line of help.
COMMANDS = {
    "demo": ("commands.campaigns.run:demo", "Run the demo campaign, from ads to report: start here."),
    "run": ("commands.campaigns.run:run", "Run a campaign file and compare its results with the truth."),
    "serve": ("commands.service.serve:serve", "Run the aggregation service."),
    "collect": (
        "commands.service.collect:collect",
        "Receive reports over HTTP and write them to Avro batches.",
    ),
    "job": ("commands.service.job:job", "Create, list, watch, cancel and read jobs of a service."),
    "aggregate": (
        "commands.service.aggregate:aggregate",
        "Aggregate cleartext debug reports on this machine.",
    ),
    "ledger": ("commands.ledgers:ledger", "Read, dry-run, audit and back up the privacy budget."),
    "keys": ("commands.service.keys:keys", "Make, list and rotate the keys that reports are sealed to."),
    "seal": ("commands.service.convert:seal", "Seal cleartext reports to the public keys of a service."),
    "convert": ("commands.service.convert:convert", "Convert buckets, reports, domains and summaries."),
    "noise": (
        "commands.campaigns.estimate:noise",
        "Say how much noise an ε adds and how large slices must be.",
    ),
    "estimate": (
        "commands.campaigns.estimate:estimate",
        "Compute means, ratios, lift and quantiles from summaries.",
    ),
    "new": ("commands.campaigns.run:new", "Write a commented file to start from."),
    "replay": (
        "commands.campaigns.replay:replay",
        "Replay an event log through simulated browsers.",
    ),
    "optimise": (
        "commands.campaigns.optimise:optimise",
        "Propose scales, clipping bounds and ε with less error.",
    ),
    "plan": ("commands.campaigns.requery:plan", "Split ε over overlapping queries to meet their targets."),
    "audit": ("commands.audit:audit", "Attack a service with neighbour games."),
    "requery": (
        "commands.campaigns.requery:requery",
        "Run a requerying scenario and check it against the truth.",
    ),
    "attack": (
        "commands.campaigns.attack:attack",
        "Attack on-device budgets; show what other sites have left.",
    ),
    "figure": (
        "commands.campaigns.attack:figure",
        "Make a figure about on-device budgets, as data and as a plot.",
    ),
    "ldp": ("commands.ldp:ldp", "Run, compare and track longitudinal local-DP protocols."),
    "kinds": ("commands.kinds:kinds", "List every kind there is, built in and installed."),
    "conformance": (
        "commands.conformance:conformance",
        "Run test vectors that others wrote.",
    ),
    "studio": ("commands.studio:studio", "Open the web page: tune, run, follow, audit, try budgets."),
    "bench": ("commands:bench", "Measure a part against a peer or a limit in the same run."),
}

BENCHMARKS = {
    "ara": ("bench.ara:command", "Attribution Reporting: Fleet over Browser, registrations per s."),
    "campaign": ("bench.campaign:command", "A whole run: bare seals and opens over its wall time."),
    "domain": ("bench.domain:command", "A large domain: rows per second over pyarrow's group_by."),
    "engine": ("bench.engine:command", "Avro to summary: reports per second over bare opens."),
    "hierarchy": ("bench.hierarchy:command", "Hierarchies: time of least squares over that of a plain sum."),
    "ldp": ("bench.ldp:command", "Local DP: our L-OSUE over multi-freq-ldpy's, reports per s."),
    "ledger": ("bench.ledger:command", "The ledger: time to open reports over time to charge them."),
    "noise": ("bench.noise:command", "Exact discrete Laplace: draws per second over opendp's."),
    "paa": ("bench.paa:command", "Private Aggregation: Fleet over Browser, contributions per s."),
    "spark": ("bench.spark:command", "The Spark engine over the local one: reports per second."),
    "start": (
        "bench.start:command",
        "Starting: CPU time of importing typer and rich over --help.",
    ),
    "w3c": ("bench.w3c:command", "W3C Attribution: Fleet over Browser, conversions per s."),
    "study": ("bench.study:command", "A study: time of separate runs over its own."),
    "wire": ("bench.wire:command", "Opening: bare HPKE opens over opening and decoding in batches."),
}

#: Errors whose message says what to do: they end the program with that message and code 2, without a traceback.
REFUSALS = {
    "aggservice.mechanisms.errors": "MechanismError",
    "aggservice.wire.errors": "WireError",
    "aggservice.job.errors": "EngineError",
    "aggservice.client.errors": "ClientError",
    "aggservice.campaign.errors": "CampaignError",
    "aggservice.wire.device": "DeviceError",
    "ldp_client.errors": "LdpError",
    "aggservice.studio.errors": "StudioError",
    "budget.errors": "BudgetError",
}

_UsageError: Any = typer.BadParameter.__mro__[1]
"""The base of all errors in how a command was called, which typer does not export."""

_COMPLETION = {"--install-completion": install_callback, "--show-completion": show_callback}


_OBJECTS_PER_COLLECTION = 200_000


class LazyGroup(TyperGroup):
    """A group that lists its commands from a table and imports a command when it is called."""

    table: ClassVar[dict[str, tuple[str, str]]]

    def __init__(self, **given: Any) -> None:
        """Hold a stand-in per command with its line of help, for help and completion."""
        super().__init__(**given)
        self.commands = {name: TyperCommand(name, help=line) for name, (_, line) in self.table.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is to run, from its module."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, self.load(name) if found and name else None, rest

    @classmethod
    def load(cls, name: str) -> Any:
        """Import a command."""
        module, _, attribute = cls.table[name][0].partition(":")
        found = getattr(import_module(f"aggservice.{module}"), attribute)
        if not gc.isenabled():  # ``main`` turned it off while modules, which stay, are imported
            gc.freeze()
            gc.enable()
        if isinstance(found, typer.Typer):
            found.rich_markup_mode = None
            command: Any = get_group(found)
        else:
            single = typer.Typer(add_completion=False, rich_markup_mode=None)
            single.command(name)(found)
            command = get_command(single)
        command.name = name
        return command


@contextmanager
def _usage_refused() -> Iterator[None]:
    """Turn a usage error into a refusal like any other; a group without a command still shows its help."""
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        typer.echo(f"aggservice: {error.format_message()}", err=True)
        if error.ctx is not None:
            typer.echo(f"  {error.ctx.get_usage()}", err=True)
            typer.echo(f"  Try '{error.ctx.command_path} --help'.", err=True)
        raise typer.Exit(2) from None


class Program(LazyGroup):
    """The program: turns refusals of the packages into a message and exit code 2."""

    table = COMMANDS

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Let the completion options take the name of a shell; without one, typer finds out which shell it is."""
        if len(args) == 2 and args[0] in _COMPLETION:
            _COMPLETION[args[0]](ctx, self.params[0], args[1])
        with _usage_refused():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            with _usage_refused():
                return super().invoke(ctx)
        except typer.Exit:
            raise
        except Exception as error:
            # An error of a package that nothing has imported cannot have been raised.
            known = [getattr(sys.modules[module], name) for module, name in REFUSALS.items() if module in sys.modules]
            if not isinstance(error, (OSError, *known)) or getattr(error, "errno", None) == errno.EPIPE:
                raise
            text = str(error)
            if isinstance(error, OSError) and error.filename is not None:
                text = f"cannot use {error.filename}: {error.strerror}; check the path"
            typer.echo(f"aggservice: {text}", err=True)
            raise typer.Exit(2) from None


class Bench(LazyGroup):
    """The benchmarks."""

    table = BENCHMARKS


app = typer.Typer(
    name="aggservice",
    cls=Program,
    help="A runnable, auditable simulator of the Privacy Sandbox measurement stack.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench = typer.Typer(
    cls=Bench,
    help="Measure a part against a peer or a limit in the same run.\n\nThe last line printed starts with the ratio.",
    invoke_without_command=True,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"aggservice {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@bench.callback()
def _names(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--names", help="List the names of the benchmarks and stop.")] = False,
) -> None:
    if show:
        typer.echo("\n".join(BENCHMARKS))
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the program.

    Most objects of a command live until it ends. So garbage is collected rarely, and never at exit: with the usual
    thresholds, collection takes a fifth of the CPU time of ``demo``.
    """
    gc.disable()
    gc.set_threshold(_OBJECTS_PER_COLLECTION, 50, 50)
    atexit.register(gc.freeze)
    app(prog_name="aggservice")
