"""``aggservice ledger``: read a ledger, dry-run a job against it, list its log or an exported one.

``aggservice.commands.ledgers.audit`` and ``backup`` add their commands to this group.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from aggservice.commands.console import NO, Json, option, print_json, show, unit_count, utc
from aggservice.commands.service.report_files import (
    FilteringIds,
    PrivacyUnit,
    Reports,
    place_words,
    reports_of,
    unit_batches,
)
from aggservice.mechanisms import SystemClock
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
    Release,
    Rho,
    Spend,
    Store,
    open_store,
)
from budget.answers import Shortfall
from budget.filters import filter_to_plain, spend_to_plain
from budget.log.history import EntryQuery, ListedEntry, find_entries
from budget.stores.balances import balance_totals
from budget.stores.locations import open_ledger_or_log

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


def hex_bytes(text: str, length: int, what: str) -> bytes:
    """Return the bytes that hexadecimal digits stand for."""
    try:
        raw = bytes.fromhex(text.strip())
    except ValueError:
        raw = b""
    if len(raw) != length:
        raise typer.BadParameter(f"{text.strip()[:60]!r} is not a {what} of {2 * length} hex digits")
    return raw


def _unit(text: str) -> bytes:
    return hex_bytes(text, UNIT_BYTES, "unit key")


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
