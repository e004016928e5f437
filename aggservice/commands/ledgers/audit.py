"""The commands of ``aggservice ledger`` for audits (verify, export, checkpoint, receipt), and recover."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from aggservice.commands.console import NO, Json, option, print_json, unit_count
from aggservice.commands.ledgers.reading import SCHEMA, Database, Place, Schema, hex_bytes, ledger, reading
from aggservice.files.atomic import whole_file
from aggservice.mechanisms import SystemClock
from budget import ExportedLog, Ledger, Receipt, Signer, open_store, verify_log, verify_store, write_log
from budget.audit.verify import AuditReport
from budget.errors import FormatError, LedgerMismatchError
from budget.log.proofs import Checkpoint, read_evidence
from budget.stores.locations import open_ledger_or_log


@ledger.command()
def verify(
    ledger: Place,
    checkpoints: Annotated[
        list[Path] | None,
        option("A checkpoint kept elsewhere; may be repeated.", "--checkpoint", exists=True),
    ] = None,
    receipts: Annotated[
        list[Path] | None, option("The receipt of a summary; may be repeated.", "--receipt", exists=True)
    ] = None,
    summaries: Annotated[
        list[Path] | None,
        option("A summary that a receipt must name: a file, or what job summary --json printed.", "--summary"),
    ] = None,
    public_key: Annotated[str | None, option("The ledger's public key, if known: 64 hex digits.")] = None,
    schema: Schema = SCHEMA,
    as_json: Json = False,
) -> None:
    """Audit: replay the log and compare everything with it.

    Names the first thing that disagrees; the exit code is then 1.
    """
    try:
        signed = [read_evidence(Checkpoint, path) for path in checkpoints or ()]
        held = [read_evidence(Receipt, path) for path in receipts or ()]
        _check_summaries(summaries or [], held)
    except FormatError as problem:
        typer.echo(f"DISAGREEMENT: {problem}")
        raise typer.Exit(NO) from None
    key = None if public_key is None else hex_bytes(public_key, 32, "public key")
    source = open_ledger_or_log(ledger, schema=schema)
    with unit_count("verifying") as count:
        if isinstance(source, ExportedLog):
            report = verify_log(source, checkpoints=signed, receipts=held, public_key=key, progress=count)
        else:
            report = verify_store(source, checkpoints=signed, receipts=held, public_key=key, progress=count)
            source.close()
    _show_audit(report, as_json, exported=isinstance(source, ExportedLog))
    raise typer.Exit(0 if report.ok else NO)


def _check_summaries(summaries: list[Path], receipts: list[Receipt]) -> None:
    """Check that a receipt names the digest of each summary file."""
    named = {digest for receipt in receipts for digest in receipt.result_digests()}
    for path in summaries:
        if _summary_digest(path) not in named:
            raise FormatError(f"{path} is not a result of any given receipt: give the --receipt of its job")


def _summary_digest(path: Path) -> str:
    """Return SHA-256 of a summary file, or of the result in what ``job summary --json`` printed."""
    raw = path.read_bytes()
    if not raw.startswith(b"{") or b'"result_head"' not in raw:
        return hashlib.sha256(raw).hexdigest()
    try:
        plain = json.loads(raw)
        keys = [int(fact["bucket"], 16).to_bytes(16, "big") for fact in plain["facts"]]
        metrics = [fact["metric"].to_bytes(8, "big", signed=True) for fact in plain["facts"]]
        body = [bytes.fromhex(plain["result_head"]), *keys, *metrics, *map(bytes.fromhex, plain["reports"])]
        body.append(bytes.fromhex(plain.get("sealed", "")))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as problem:
        raise FormatError(f"{path} is not what 'job summary --json' prints: {problem!r}") from problem
    return hashlib.sha256(b"".join(body)).hexdigest()


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
        print_json(plain)
        return
    what = "the log agrees with itself" if exported else "log, receipts, jobs, results and balances agree"
    for name in ("ledger", "public_key", "entries", "releases", "recoveries", "units_charged", "units_known", "root"):
        typer.echo(f"{name.replace('_', ' '):<14} {plain[name]}")
    typer.echo(f"{'evidence':<14} {report.evidence} checkpoints and receipts compared")
    if found is not None:
        typer.echo(f"DISAGREEMENT at {found}")
        return
    typer.echo(f"ok: {what}")
    if report.evidence <= int(exported):
        typer.echo("to find out whether the last entries were removed, give a --checkpoint or --receipt", err=True)


@ledger.command()
def verifier() -> None:
    """Print a verifier of exported logs: one file of plain Python.

    It needs Python and cryptography, and nothing of this program: aggservice ledger verifier > verify.py
    """
    typer.echo((files("budget.audit") / "standalone.py").read_text(encoding="utf-8"), nl=False)


@ledger.command()
def export(
    ledger: Database,
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    schema: Schema = SCHEMA,
) -> None:
    """Write the whole log and a signed checkpoint to one file.

    The file can be verified on any machine.
    """
    with unit_count("exporting") as count:
        store = open_store(ledger, schema=schema)
        signed = write_log(store, file, count)
        store.close()
    typer.echo(f"{signed.entries} entries, root {signed.root.hex()}, in {file}")


@ledger.command()
def checkpoint(
    ledger: Database,
    file: Annotated[Path | None, typer.Argument(help="The file to write; default: print it.")] = None,
    schema: Schema = SCHEMA,
) -> None:
    """Write a signed checkpoint over the whole log.

    Keep it where the operator of the ledger cannot change it: verify compares it with the log later.
    """
    store, opened = reading(ledger, schema)
    _write(opened.checkpoint().to_bytes(), file)
    store.close()


@ledger.command()
def receipt(
    ledger: Database,
    caller: Annotated[str, option("The caller of the job.")],
    job: Annotated[str, option("The job id.")],
    file: Annotated[Path | None, typer.Argument(help="The file to write; default: print it.")] = None,
    schema: Schema = SCHEMA,
) -> None:
    """Write the signed receipt of a job once more."""
    store, opened = reading(ledger, schema)
    found = opened.job(caller, job)
    store.close()
    if found is None:
        raise LedgerMismatchError(f"caller {caller!r} has no job {job!r} in this ledger: check both names")
    _write(found.receipt, file)


def _write(raw: bytes, file: Path | None) -> None:
    if file is None:
        typer.echo(raw.decode("ascii"))
    else:
        with whole_file(file) as staged:
            staged.write_bytes(raw)
        typer.echo(f"{len(raw)} bytes in {file}")


@ledger.command()
def recover(
    ledger: Database,
    entry: Annotated[int, option("Number of the entry whose units get back what they paid.")],
    operator: Annotated[str, option("Who decided this.")],
    reason: Annotated[str, option("Why; it is written to the log.")],
    key: Annotated[Path, option("The ledger's signing key file.", exists=True)],
    schema: Schema = SCHEMA,
) -> None:
    """Give back the budget that one entry charged.

    An entry can be given back once, and only in a ledger that was created with recovery on.
    """
    store = open_store(ledger, schema=schema, read_only=False)
    opened = Ledger.open(store, clock=SystemClock(), signer=Signer.load(key))
    opened.recover_budget(operator=operator, reason=reason, seq=entry)
    store.close()
    typer.echo(f"entry {entry} was given back by {operator}: {reason}")
