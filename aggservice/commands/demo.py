"""``aggservice demo``: the paper's Figure 1 campaign, end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Where the run goes.")] = Path("demo-run"),
    seed: Annotated[str, typer.Option(help="Makes the run reproducible, and not private.")] = "",
    json_output: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON and nothing else.")] = False,
) -> None:
    """Run the Thanksgiving campaign of the paper's Figure 1 through browsers, encryption, service and ledger.

    It ends with a table of truth, estimate and interval, what the ledger says is left, and the path of the report.
    """
    from aggservice.campaign import thanksgiving
    from aggservice.commands.run import run_file

    run_file(thanksgiving(), out=out, seed=seed, as_json=json_output)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)
