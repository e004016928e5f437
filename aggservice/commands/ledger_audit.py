"""The commands of ``aggservice ledger`` that prove things: verify, export, checkpoint, receipt; and recover."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aggservice.commands.ledger import SCHEMA, Database, Json, Place, Schema, explained, ledger_group, progress, reading

if TYPE_CHECKING:
    from budget import Receipt
    from budget.audit.verify import AuditReport


def register(app: typer.Typer) -> None:
    """Add them to ``ledger``."""
    group = ledger_group(app)
    for command in (verify, export, checkpoint, receipt, recover):
        group.command(command.__name__)(command)


def verify(
    ledger: Place,
    checkpoints: Annotated[
        list[Path] | None, typer.Option("--checkpoint", help="A checkpoint kept elsewhere; may be repeated.")
    ] = None,
    receipts: Annotated[
        list[Path] | None, typer.Option("--receipt", help="The receipt of a summary; may be repeated.")
    ] = None,
    summaries: Annotated[
        list[Path] | None, typer.Option("--summary", help="A summary file that one of the receipts must name.")
    ] = None,
    public_key: Annotated[str | None, typer.Option(help="The key the ledger must sign with, 64 hex digits.")] = None,
    schema: Schema = SCHEMA,
    as_json: Json = False,
) -> None:
    """Replay the log from its first entry and compare everything with it. Exit code 1 at any disagreement."""
    from budget import ExportedLog, verify_log, verify_store
    from budget.log.proofs import read_checkpoint, read_receipt
    from budget.stores.locations import open_place

    with explained():
        signed = [read_checkpoint(path) for path in checkpoints or ()]
        held = [read_receipt(path) for path in receipts or ()]
        _check_summaries(summaries or [], held)
        key = None if public_key is None else _key(public_key)
        place = open_place(ledger, schema=schema)
        with progress("verifying") as count:
            if isinstance(place, ExportedLog):
                report = verify_log(place, checkpoints=signed, receipts=held, public_key=key, progress=count)
            else:
                report = verify_store(place, checkpoints=signed, receipts=held, public_key=key, progress=count)
                place.close()
    _show_audit(report, as_json, exported=isinstance(place, ExportedLog))
    raise typer.Exit(0 if report.ok else 1)


def _key(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise typer.BadParameter("a public key has 64 hex digits", param_hint="--public-key")
    return raw


def _check_summaries(summaries: list[Path], receipts: list[Receipt]) -> None:
    """Check that each summary file is one that a receipt names, by its digest."""
    from budget.errors import FormatError
    from budget.files.staging import file_digest

    named = {digest for receipt in receipts for digest in receipt.result_digests()}
    for path in summaries:
        if file_digest(path).sha256.hex() not in named:
            raise FormatError(f"{path} is not a result that any of the given receipts names")


def _show_audit(report: AuditReport, as_json: bool, exported: bool) -> None:
    found = report.disagreement
    plain = {
        "ok": report.ok,
        "disagreement": None if found is None else {"entry": found.seq, "what": found.what, "text": found.text},
        "entries": report.entries,
        "releases": report.releases,
        "recoveries": report.recoveries,
        "units_charged": report.units_charged,
        "units_known": report.units_known,
        "evidence_compared": report.evidence,
        "ledger": report.ledger_id.hex(),
        "public_key": report.public_key.hex(),
        "head": report.head.hex(),
        "root": report.root.hex(),
    }
    if as_json:
        typer.echo(json.dumps(plain, indent=2))
        return
    what = "the log" if exported else "log, receipts, jobs, results and balances"
    for name in ("ledger", "public_key", "entries", "releases", "recoveries", "units_charged", "units_known", "root"):
        typer.echo(f"{name.replace('_', ' '):<14} {plain[name]}")
    typer.echo(f"{'evidence':<14} {report.evidence} checkpoints and receipts compared")
    if found is not None:
        typer.echo(f"DISAGREEMENT at {found}")
        return
    typer.echo(f"ok: {what} agree")
    if report.evidence <= int(exported):
        typer.echo("give a --checkpoint or --receipt kept elsewhere to also find a tail that was cut off", err=True)


def export(
    ledger: Database,
    file: Annotated[Path, typer.Argument(help="Where to write the log.")],
    schema: Schema = SCHEMA,
) -> None:
    """Write the whole log to one file that can be verified anywhere, closed by a signed checkpoint."""
    from budget import open_store, write_log

    with explained(), progress("exporting") as count:
        store = open_store(ledger, schema=schema)
        signed = write_log(store, file, count)
        store.close()
    typer.echo(f"{signed.entries} entries, root {signed.root.hex()}, in {file}")


def checkpoint(
    ledger: Database,
    file: Annotated[Path | None, typer.Argument(help="Where to write it (default: print it).")] = None,
    schema: Schema = SCHEMA,
) -> None:
    """Write the signed checkpoint over the whole log. Keep it where whoever runs the ledger cannot reach it."""
    with explained():
        store, opened = reading(ledger, schema)
        _write(opened.checkpoint().to_bytes(), file)
        store.close()


def receipt(
    ledger: Database,
    caller: Annotated[str, typer.Option(help="Whose job.")],
    job: Annotated[str, typer.Option(help="The job id.")],
    file: Annotated[Path | None, typer.Argument(help="Where to write it (default: print it).")] = None,
    schema: Schema = SCHEMA,
) -> None:
    """Write the signed receipt of a job again."""
    from budget.errors import LedgerMismatchError

    with explained():
        store, opened = reading(ledger, schema)
        found = opened.job(caller, job)
        store.close()
        if found is None:
            raise LedgerMismatchError(f"caller {caller!r} has no job {job!r} in this ledger")
        _write(found.receipt, file)


def _write(raw: bytes, file: Path | None) -> None:
    from aggservice.files.atomic import whole_file

    if file is None:
        typer.echo(raw.decode("ascii"))
    else:
        with whole_file(file) as staged:
            staged.write_bytes(raw)
        typer.echo(f"{len(raw)} bytes in {file}")


def recover(
    ledger: Database,
    entry: Annotated[int, typer.Option(help="The release whose units get back what they paid.")],
    operator: Annotated[str, typer.Option(help="Who decides.")],
    reason: Annotated[str, typer.Option(help="Why, for everyone who reads the log.")],
    key: Annotated[Path, typer.Option(help="The ledger's signing key file.", exists=True)],
    schema: Schema = SCHEMA,
) -> None:
    """Give budget back, once and whole, as a visible entry. Only in a ledger created with recovery on."""
    from aggservice.mechanisms import SystemClock
    from budget import Ledger, Signer, open_store

    with explained():
        store = open_store(ledger, schema=schema, read_only=False)
        opened = Ledger.open(store, clock=SystemClock(), signer=Signer.load(key))
        opened.recover_budget(operator=operator, reason=reason, seq=entry)
        store.close()
    typer.echo(f"entry {entry} was given back by {operator}: {reason}")
