"""The commands of ``aggservice ledger`` that copy a whole ledger: backup and restore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import aggservice.commands.ledgers.audit  # noqa: F401  (its commands belong to the same group)
from aggservice.commands.console import Json, option, print_json, progress_bar, show, unit_count
from aggservice.commands.ledgers.reading import SCHEMA, Database, Schema, ledger
from aggservice.mechanisms import SecureBits, SystemClock
from aggservice.service.config.keyring import retire_keys
from budget import PostgresStore, Store, open_store, verify_store
from budget.backup import check_free, copy_ledger, copy_to_file
from budget.errors import LedgerMismatchError
from budget.stores.locations import is_dsn
from budget.witness import SeenLog, seen_in


@ledger.command()
def backup(
    ledger: Database,
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    schema: Schema = SCHEMA,
    as_json: Json = False,
) -> None:
    """Copy a ledger to a file while services go on using it.

    The copy holds all that was committed before it began. It is a SQLite ledger: all commands can read it. Keep the
    signing key elsewhere: the copy does not hold it.
    """
    source = open_store(ledger, schema=schema)
    seen = _to_file(source, file)
    source.close()
    plain = {"ledger": seen.ledger_id, "entries": seen.entries, "last_entry": seen.last}
    show(plain, [f"{seen.entries} entries of ledger {seen.ledger_id.hex()[:16]} in {file}"], as_json=as_json)


@ledger.command()
def restore(
    file: Annotated[Path, typer.Argument(help="A file that backup wrote.", exists=True, dir_okay=False)],
    ledger: Database,
    keys: Annotated[
        list[Path] | None,
        option("The key file of a service that used the ledger; give those of all.", exists=True),
    ] = None,
    schema: Schema = SCHEMA,
    as_json: Json = False,
) -> None:
    """Put a backup where there is no ledger; stop the services first.

    Nobody knows what was spent after the backup. So keys that have seen a later entry are retired, and replaced by new
    ones: reports that were sealed to them can no longer be opened. Keys that have seen nothing later stay.
    """
    source = open_store(str(file))
    with unit_count("verifying") as count:
        report = verify_store(source, progress=count)
    if not report.ok:
        raise LedgerMismatchError(f"{file} is not a whole ledger: {report.disagreement}; use another backup")
    seen = seen_in(source)
    target = PostgresStore(ledger, schema=schema) if is_dsn(ledger) else None
    check_free(target or Path(ledger))
    retired = {str(path): retire_keys(path, source, SecureBits(), SystemClock()) for path in keys or ()}
    if target is None:
        _to_file(source, Path(ledger))
    else:
        with progress_bar() as bar:
            copy_ledger(source, target, lambda done: bar("copying entries", done, seen.entries))
        target.close()
    source.close()
    if as_json:
        replaced = {path: None if old is None else str(old) for path, old in retired.items()}
        print_json({"ledger": seen.ledger_id, "entries": seen.entries, "retired_keys": replaced})
        return
    typer.echo(f"{seen.entries} entries of ledger {seen.ledger_id.hex()[:16]} are restored")
    for path, old in retired.items():
        typer.echo(
            f"{path} has seen nothing later, and stays as it is"
            if old is None
            else f"{path} has seen later entries: it has new keys, and the old ones are in {old}; reports that were "
            "sealed to them can no longer be opened"
        )
    if not retired:
        typer.echo(
            "a service refuses this ledger if its keys have seen later entries: then restore with --keys", err=True
        )


def _to_file(source: Store, file: Path) -> SeenLog:
    with progress_bar() as bar:
        return copy_to_file(source, file, lambda done: bar("copying entries", done, None))
