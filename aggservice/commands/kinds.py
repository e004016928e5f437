"""``aggservice kinds``: every kind that there is, built in and installed, and its kit on request."""

from __future__ import annotations

from typing import Annotated

import typer

from aggservice.commands.console import Json, option, print_json, refuse
from aggservice.kits.tables import TABLES, judge


def kinds(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Kinds or entries to show; all if none is given.")
    ] = None,
    check: Annotated[bool, option("Run the kit of each entry, which takes a minute.", "--check")] = False,
    as_json: Json = False,
) -> None:
    """List every kind there is, built in and installed.

    Files name an entry by its name or, if it is yours, by module:Name. Installed packages add entries by entry points
    of the group shown (docs/extending.md).
    """
    chosen = set(names or ())
    found = [
        {"kind": one.table.title, "name": name, "group": one.table.group, "from": one.table.origin(name)}
        for one in TABLES
        for name in one.table
        if not chosen or {name, one.table.title} & chosen
    ]
    if not found:
        refuse(f"there is no kind or entry {', '.join(sorted(chosen))}: aggservice kinds lists all")
    verdicts = {(kind, name): problem or "ok" for kind, name, problem in judge(tuple(chosen))} if check else {}
    for row in found:
        if check:
            row["kit"] = verdicts.get((row["kind"], row["name"]), "as above, under another name")
    if as_json:
        print_json({"kinds": found})
    else:
        for one in TABLES:
            rows = [row for row in found if row["kind"] == one.table.title]
            if rows:
                typer.echo(f"{one.table.title}: {one.summary} [{one.table.group}]")
            for row in rows:
                typer.echo(f"  {row['name']:<28} {row['from']:<24} {row.get('kit', '')}".rstrip())
    if any(problem != "ok" for problem in verdicts.values()):
        raise typer.Exit(1)
