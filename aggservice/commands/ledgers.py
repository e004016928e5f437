"""``aggservice ledger``: read a ledger or an exported log, dry-run a job, audit, recover, back up and restore."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from aggservice.commands.console import NO, Json, option, print_json, progress_bar, show, unit_count, utc
from aggservice.commands.service.report_files import (
    FilteringIds,
    PrivacyUnit,
    Reports,
    place_words,
    reports_of,
    unit_batches,
)
from aggservice.files.atomic import whole_file
from aggservice.mechanisms import SecureBits, SystemClock
from aggservice.service.config.keyring import retire_keys
from aggservice.wire import UNIT_BYTES
from budget import (
    Delta,
    Epsilon,
    ExportedLog,
    Filter,
    GaussianNoise,
    LaplaceDiscovery,
    LaplaceNoise,
    Ledger,
    Mechanism,
    PostgresStore,
    Receipt,
    Release,
    Rho,
    Signer,
    Spend,
    Store,
    open_store,
    verify_log,
    verify_store,
    write_log,
)
from budget.answers import Shortfall
from budget.audit.verify import AuditReport
from budget.backup import check_free, copy_ledger, copy_to_file
from budget.errors import FormatError, LedgerMismatchError
from budget.filters import filter_to_plain, spend_to_plain
from budget.log.history import EntryQuery, ListedEntry, find_entries
from budget.log.proofs import Checkpoint, read_evidence
from budget.stores.balances import balance_totals
from budget.stores.locations import is_dsn, open_ledger_or_log
from budget.witness import SeenLog, seen_in

ledger = typer.Typer(
    help="Read, dry-run, audit and back up the privacy budget.\n\nA ledger is a SQLite file or a PostgreSQL schema.",
    no_args_is_help=True,
)

SCHEMA = "aggservice_ledger"
_PAGE = 1000

Place = Annotated[
    str, typer.Argument(metavar="LEDGER", help="A SQLite file, a postgresql:// connection string, or an exported log.")
]
Database = Annotated[str, typer.Argument(metavar="LEDGER", help="A SQLite file or a postgresql:// connection string.")]
Schema = Annotated[str, option("The schema of a PostgreSQL ledger.")]
UnitsFile = Annotated[
    Path | None,
    option("A file with one unit key per line.", "--units", exists=True, dir_okay=False),
]


def _moment(what: str, text: str | None) -> int | None:
    """Return a time in milliseconds from ISO 8601, which is UTC unless it names another zone."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time such as 2026-03-01T12:00:00Z", param_hint=what) from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _hex_bytes(text: str, length: int, what: str) -> bytes:
    """Return the bytes that hexadecimal digits stand for."""
    try:
        raw = bytes.fromhex(text.strip())
    except ValueError:
        raw = b""
    if len(raw) != length:
        raise typer.BadParameter(f"{text.strip()[:60]!r} is not a {what} of {2 * length} hex digits")
    return raw


def _unit(text: str) -> bytes:
    return _hex_bytes(text, UNIT_BYTES, "unit key")


def _gather(
    units: list[str] | None, file: Path | None, reports: list[Path] | None, filtering_ids: str, privacy_unit: str
) -> NDArray[np.uint8]:
    """Return the unit keys from the command line, a file, and reports (which stay sealed)."""
    raw = b"".join(_unit(one) for one in units or ())
    if file is not None:
        raw += b"".join(_unit(line) for line in file.read_text("ascii", errors="replace").splitlines() if line.strip())
    found = [np.frombuffer(raw, np.uint8).reshape(-1, 20)]
    for one in unit_batches(reports or (), filtering_ids, privacy_unit):
        found.append(one.units[one.good()].reshape(-1, 20))
    return np.concatenate(found)


def _amounts(spend: Spend, chosen: Filter) -> dict[str, str]:
    return spend_to_plain(spend, chosen.loss_name)


def _words(plain: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in plain.items())


def reading(source: str, schema: str) -> tuple[Store, Any]:
    """Open a ledger for reading; return its store and the ledger."""
    store = open_store(source, schema=schema)
    return store, Ledger.open(store, clock=SystemClock())


@ledger.command()
def balance(
    ledger: Database,
    units: Annotated[list[str] | None, typer.Argument(metavar="[UNIT]...", help="Unit keys (40 hex digits).")] = None,
    file: UnitsFile = None,
    reports: Reports = None,
    filtering_ids: FilteringIds = "0",
    privacy_unit: PrivacyUnit = "report",
    schema: Schema = SCHEMA,
    as_json: Json = False,
) -> None:
    """Show what units have spent and have left.

    With --reports, also shows their reports by id, file and row. Without units, shows the ledger as a whole.
    """
    store, opened = reading(ledger, schema)
    chosen, limit = opened.filter, opened.filter.limit
    keys = _gather(units, file, reports, filtering_ids, privacy_unit)
    if not len(keys):
        _overview(store, opened, as_json)
        return
    spent = opened.balances(np.ascontiguousarray(keys))
    store.close()
    places = reports_of(unit_batches(reports or (), filtering_ids, privacy_unit), spent.units)
    rows = []
    for index in range(len(spent.units)):
        one = spent.of(index)
        left = _amounts(one.left_of(limit), chosen)
        row: dict[str, Any] = {"unit": spent.units[index].hex(), "spent": _amounts(one, chosen), "left": left}
        if chosen.uses is None:
            row["left"] = left | {"uses": "unbounded"}
        if reports:
            row["reports"] = places.get(spent.units[index], [])
        rows.append(row)
    if as_json:
        print_json({"units": rows})
        return
    for row in rows:
        typer.echo(f"{row['unit']}  spent {_words(row['spent'])}; left {_words(row['left'])}")
        for line in place_words(row.get("reports", ())):
            typer.echo(f"  {line}")


def _overview(store: Store, opened: Any, as_json: bool) -> None:
    """Print the ledger as a whole, from its balances and its head."""
    with unit_count("reading balances") as count:
        totals = balance_totals(store, opened.filter, count)
    signed = opened.checkpoint()
    store.close()
    plain = {
        "ledger": opened.ledger_id.hex(),
        "created": utc(opened.genesis.time_ms, precise=True),
        "filter": filter_to_plain(opened.filter),
        "recovery": "on" if opened.genesis.recovery else "off",
        "public_key": opened.genesis.public_key.hex(),
        "entries": signed.entries,
        "last_entry": utc(signed.time_ms, precise=True),
        "units": totals.units,
        "units_spent_out": totals.spent_out,
        "most_spent": _amounts(totals.most, opened.filter),
    }
    texts = {name: _words(value) if isinstance(value, dict) else value for name, value in plain.items()}
    show(plain, (f"{name.replace('_', ' '):<16} {text}" for name, text in texts.items()), as_json=as_json)


def _release(epsilon: str | None, delta: str, rho: str | None) -> Release:
    if (epsilon is None) == (rho is None):
        raise typer.BadParameter("give exactly one of --epsilon (Laplace noise) and --rho (Gaussian noise)")
    if rho is not None:
        mechanism: Mechanism = GaussianNoise(rho=Rho.parse(rho), delta=Delta.parse(delta))
    else:
        asked, spare = Epsilon.parse(epsilon or ""), Delta.parse(delta)
        mechanism = LaplaceDiscovery(epsilon=asked, delta=spare) if spare.atto else LaplaceNoise(epsilon=asked)
    return Release(mechanisms=(mechanism,))


@ledger.command()
def check(
    ledger: Database,
    caller: Annotated[str, option("The caller who would ask; only their own jobs are named.")],
    epsilon: Annotated[str | None, option("ε of the job, for Laplace noise.")] = None,
    delta: Annotated[str, option("δ of the job; above 0 for key discovery.")] = "0",
    rho: Annotated[str | None, option("ρ of the job, for Gaussian noise on a zCDP ledger.")] = None,
    file: UnitsFile = None,
    reports: Reports = None,
    filtering_ids: FilteringIds = "0",
    privacy_unit: PrivacyUnit = "report",
    out: Annotated[
        Path | None, option("Write every unit that cannot pay to this file, one JSON object per line.")
    ] = None,
    schema: Schema = SCHEMA,
    as_json: Json = False,
) -> None:
    """Dry-run a job: say whether every unit can pay for it.

    If not, lists units that cannot pay and what they lack, and with --reports also their reports by id, file and row;
    the exit code is then 1. Nothing is charged.
    """
    release = _release(epsilon, delta, rho)
    store, opened = reading(ledger, schema)
    keys = _gather(None, file, reports, filtering_ids, privacy_unit)
    answer = opened.check(caller=caller, release=release, units=keys)
    if not len(keys):
        raise typer.BadParameter("there are no units to check: give --units FILE or --reports FILE")
    loss = opened.filter.loss_name
    lacking = list(map(bytes, answer.lacking)) if out else [one.unit for one in answer.first]
    places = reports_of(unit_batches(reports or (), filtering_ids, privacy_unit), lacking)

    def plain_unit(one: Shortfall) -> dict[str, Any]:
        return one.to_plain(loss) | ({"reports": places.get(one.unit, [])} if reports else {})

    if out is not None:
        with out.open("w", encoding="ascii") as lines, unit_count("explaining") as count:
            for start in range(0, answer.count, _PAGE):
                page = opened.explain(caller=caller, release=release, units=answer.lacking, offset=start, limit=_PAGE)
                lines.writelines(json.dumps(plain_unit(one)) + "\n" for one in page)
                count(len(page))
    store.close()
    plain = {
        "payable": answer.payable,
        "units": answer.total,
        "units_lacking": answer.count,
        "cost": _amounts(answer.asked, opened.filter),
        "first": [plain_unit(one) for one in answer.first],
    }
    if as_json:
        print_json(plain)
    else:
        _show_check(answer.payable, plain, answer.first)
    raise typer.Exit(0 if answer.payable else NO)


def _show_check(payable: bool, plain: dict[str, Any], first: tuple[Shortfall, ...]) -> None:
    if payable:
        typer.echo(f"would be paid: {plain['units']} units, each {_words(plain['cost'])}")
        return
    typer.echo(
        f"would be refused: {plain['units_lacking']} of {plain['units']} units cannot pay {_words(plain['cost'])}"
    )
    for one, said in zip(first, plain["first"], strict=True):
        jobs = ", ".join(use.job_id for use in one.jobs) or "no job of this caller"
        typer.echo(f"  {said['unit']}  spent {_words(said['spent'])} on {jobs}; lacks {_words(said['lacks'])}")
        for line in place_words(said.get("reports", ())):
            typer.echo(f"    {line}")
    rest = plain["units_lacking"] - len(first)
    if rest:
        typer.echo(f"  … and {rest} more: --out FILE writes them all")


@ledger.command()
def log(
    ledger: Place,
    job: Annotated[str | None, option("Only entries of this job id.")] = None,
    caller: Annotated[str | None, option("Only entries of this caller's jobs.")] = None,
    unit: Annotated[str | None, option("Only entries that charged this unit (40 hex digits).")] = None,
    since: Annotated[str | None, option("Only entries from this time on (ISO 8601, UTC).")] = None,
    until: Annotated[str | None, option("Only entries before this time (ISO 8601, UTC).")] = None,
    schema: Schema = SCHEMA,
    as_json: Json = False,
) -> None:
    """List the entries of a ledger or of an exported log.

    Shows the entries as they are written; `aggservice ledger verify` checks them.
    """
    query = EntryQuery(
        job_id=job,
        caller=caller,
        unit=None if unit is None else _unit(unit),
        since_ms=_moment("--since", since),
        until_ms=_moment("--until", until),
    )
    source = open_ledger_or_log(ledger, schema=schema)
    found = find_entries(source, query)
    if not isinstance(source, ExportedLog):
        source.close()
    if as_json:
        print_json({"entries": [one.plain for one in found]})
        return
    for one in found:
        typer.echo(_line(one))
    typer.echo(f"{len(found)} entries", err=True)


def _line(listed: ListedEntry) -> str:
    plain = listed.plain
    start = f"{plain['seq']:>6}  {utc(plain['time_ms'], precise=True)}  {plain['type']:<8}"
    if plain["type"] == "genesis":
        return f"{start}  {_words(plain['filter'])}; recovery {plain['recovery']}"
    charged = f"{plain['units']['count']} units, each {_words(plain['cost'])}"
    if plain["type"] == "recovery":
        return f"{start}  {plain['operator']} gave back entry {plain['recovers']} ({charged}): {plain['reason']}"
    how = " + ".join(one["name"] for one in plain["release"]["mechanisms"])
    return f"{start}  {plain['caller']}  {plain['job_id']}  {how}  {charged}"


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
    key = None if public_key is None else _hex_bytes(public_key, 32, "public key")
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
