"""``aggservice ledger``: look at a ledger, dry-run a job against it, list its log (or an exported one)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from budget import Filter, Release, Spend, Store
    from budget.explain import Shortfall
    from budget.log.history import Listed

SCHEMA = "aggservice_ledger"
_PAGE = 1000

Place = Annotated[
    str, typer.Argument(metavar="LEDGER", help="A SQLite file, a postgresql:// connection string, or an exported log.")
]
Database = Annotated[str, typer.Argument(metavar="LEDGER", help="A SQLite file or a postgresql:// connection string.")]
Schema = Annotated[str, typer.Option(help="The schema of a PostgreSQL ledger.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
UnitsFile = Annotated[
    Path | None, typer.Option("--units", help="A file of unit keys: 40 hex digits a line.", exists=True, dir_okay=False)
]
Reports = Annotated[
    list[Path] | None,
    typer.Option("--reports", help="An Avro file of reports whose units to take; may be repeated.", exists=True),
]
FilteringIds = Annotated[str, typer.Option(help="With --reports: the filtering IDs the job asks for, by commas.")]
PrivacyUnit = Annotated[str, typer.Option(help="With --reports: report or shared_id.")]


def register(app: typer.Typer) -> None:
    """Add ``ledger``."""
    group = ledger_group(app)
    for command in (balance, check, log):
        group.command(command.__name__)(command)


def ledger_group(app: typer.Typer) -> typer.Typer:
    """Return the group ``ledger``, making it if no module has yet."""
    group = next((known.typer_instance for known in app.registered_groups if known.name == "ledger"), None)
    if group is None:
        group = typer.Typer(
            help="The privacy budget: look at it, dry-run a job, list and audit its log.", no_args_is_help=True
        )
        app.add_typer(group, name="ledger")
    return group


@contextmanager
def explained() -> Iterator[None]:
    """Turn what the ledger or the reports refuse into a message and exit code 2, never a traceback."""
    from aggservice.wire import WireError
    from budget import BudgetError

    try:
        yield
    except (BudgetError, WireError, OSError) as problem:
        typer.echo(f"error: {problem}", err=True)
        raise typer.Exit(2) from None


@contextmanager
def progress(what: str) -> Iterator[Callable[[int], None]]:
    """Show a count that goes up, on a terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.completed:,.0f} units"))
    console = Console(stderr=True)
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda units: bar.advance(task, units)


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _moment(what: str, text: str | None) -> int | None:
    """Read a time: ISO 8601, in UTC unless it says otherwise."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time such as 2026-03-01T12:00:00Z", param_hint=what) from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _unit(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text.strip())
    except ValueError:
        raw = b""
    if len(raw) != 20:
        raise typer.BadParameter(f"{text.strip()[:60]!r} is not a unit key of 40 hex digits")
    return raw


def _gather(
    units: list[str] | None, file: Path | None, reports: list[Path] | None, filtering_ids: str, privacy_unit: str
) -> NDArray[np.uint8]:
    """Return the unit keys named on the command line, in a file, or by reports (which are not opened)."""
    import numpy as np

    from aggservice.wire import ReportStatus, parse_shared_info_batch, read_reports, report_units, shared_id_units

    raw = b"".join(_unit(one) for one in units or ())
    if file is not None:
        raw += b"".join(_unit(line) for line in file.read_text("ascii", errors="replace").splitlines() if line.strip())
    found = [np.frombuffer(raw, np.uint8).reshape(-1, 20)]
    if privacy_unit not in ("report", "shared_id"):
        raise typer.BadParameter("choose report or shared_id", param_hint="--privacy-unit")
    derive = report_units if privacy_unit == "report" else shared_id_units
    try:
        ids = [int(one) for one in filtering_ids.split(",")]
    except ValueError:
        raise typer.BadParameter("give whole numbers separated by commas", param_hint="--filtering-ids") from None
    for path in reports or ():
        for batch in read_reports(path):
            infos = parse_shared_info_batch(batch.shared_infos)
            found.append(derive(infos, ids)[infos.status == ReportStatus.OK].reshape(-1, 20))
    return np.concatenate(found)


def _amounts(spend: Spend, chosen: Filter) -> dict[str, str]:
    from budget.filters import spend_to_plain

    return spend_to_plain(spend, chosen.loss_name)


def _words(plain: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in plain.items())


def reading(place: str, schema: str) -> tuple[Store, Any]:
    from aggservice.mechanisms import SystemClock
    from budget import Ledger, open_store

    store = open_store(place, schema=schema)
    return store, Ledger.open(store, clock=SystemClock())


def balance(
    ledger: Database,
    units: Annotated[list[str] | None, typer.Argument(metavar="[UNIT]...", help="Unit keys, 40 hex digits.")] = None,
    file: UnitsFile = None,
    reports: Reports = None,
    filtering_ids: FilteringIds = "0",
    privacy_unit: PrivacyUnit = "report",
    schema: Schema = SCHEMA,
    as_json: Json = False,
) -> None:
    """Show what units have spent and have left; without units, the ledger as a whole."""
    import numpy as np

    from budget import Spend

    with explained():
        store, opened = reading(ledger, schema)
        chosen, limit = opened.filter, opened.filter.limit
        keys = _gather(units, file, reports, filtering_ids, privacy_unit)
        if not len(keys):
            _overview(store, opened, as_json)
            return
        spent = opened.balances(np.ascontiguousarray(keys))
        store.close()
    rows = []
    for index in range(len(spent.units)):
        one = spent.of(index)
        left = Spend(
            loss_micro=limit.loss_micro - one.loss_micro,
            delta_atto=limit.delta_atto - one.delta_atto,
            uses=limit.uses - one.uses,
        )
        row = {"unit": spent.units[index].hex(), "spent": _amounts(one, chosen), "left": _amounts(left, chosen)}
        if chosen.uses is None:
            row["left"] = row["left"] | {"uses": "unbounded"}
        rows.append(row)
    if as_json:
        typer.echo(json.dumps({"units": rows}, indent=2))
        return
    for row in rows:
        typer.echo(f"{row['unit']}  spent {_words(row['spent'])}; left {_words(row['left'])}")


def _overview(store: Store, opened: Any, as_json: bool) -> None:
    """Print the ledger as a whole, from its balances and its head."""
    from budget.filters import filter_to_plain
    from budget.stores.balances import balance_totals

    with progress("reading balances") as count:
        totals = balance_totals(store, opened.filter, count)
    signed = opened.checkpoint()
    store.close()
    plain = {
        "ledger": opened.ledger_id.hex(),
        "created": _time(opened.genesis.time_ms),
        "filter": filter_to_plain(opened.filter),
        "recovery": "on" if opened.genesis.recovery else "off",
        "public_key": opened.genesis.public_key.hex(),
        "entries": signed.entries,
        "last_entry": _time(signed.time_ms),
        "units": totals.units,
        "units_spent_out": totals.spent_out,
        "most_spent": _amounts(totals.most, opened.filter),
    }
    if as_json:
        typer.echo(json.dumps(plain, indent=2))
        return
    for name, value in plain.items():
        typer.echo(f"{name.replace('_', ' '):<16} {_words(value) if isinstance(value, dict) else value}")


def _release(epsilon: str | None, delta: str, rho: str | None) -> Release:
    from budget import Delta, Epsilon, GaussianNoise, LaplaceDiscovery, LaplaceNoise, Release, Rho
    from budget.release import Mechanism

    if (epsilon is None) == (rho is None):
        raise typer.BadParameter("give --epsilon (Laplace noise) or --rho (Gaussian noise)")
    if rho is not None:
        mechanism: Mechanism = GaussianNoise(rho=Rho.parse(rho), delta=Delta.parse(delta))
    else:
        asked, spare = Epsilon.parse(epsilon or ""), Delta.parse(delta)
        mechanism = LaplaceDiscovery(epsilon=asked, delta=spare) if spare.atto else LaplaceNoise(epsilon=asked)
    return Release(mechanisms=(mechanism,))


def check(
    ledger: Database,
    caller: Annotated[str, typer.Option(help="Who would ask; only his own jobs are named.")],
    epsilon: Annotated[str | None, typer.Option(help="ε of the job, for Laplace noise.")] = None,
    delta: Annotated[str, typer.Option(help="δ of the job; above 0 for key discovery.")] = "0",
    rho: Annotated[str | None, typer.Option(help="ρ of the job, for Gaussian noise on a zCDP ledger.")] = None,
    file: UnitsFile = None,
    reports: Reports = None,
    filtering_ids: FilteringIds = "0",
    privacy_unit: PrivacyUnit = "report",
    out: Annotated[
        Path | None, typer.Option(help="Write every unit that cannot pay here, one JSON object a line.")
    ] = None,
    schema: Schema = SCHEMA,
    as_json: Json = False,
) -> None:
    """Dry-run a job: would it be paid for, and if not, which units lack how much. Exit code 1 when not."""
    with explained():
        release = _release(epsilon, delta, rho)
        store, opened = reading(ledger, schema)
        keys = _gather(None, file, reports, filtering_ids, privacy_unit)
        answer = opened.check(caller=caller, release=release, units=keys)
        loss = opened.filter.loss_name
        if out is not None:
            with out.open("w", encoding="ascii") as lines, progress("explaining") as count:
                for start in range(0, answer.count, _PAGE):
                    page = opened.explain(
                        caller=caller, release=release, units=answer.lacking, offset=start, limit=_PAGE
                    )
                    lines.writelines(json.dumps(one.to_plain(loss)) + "\n" for one in page)
                    count(len(page))
        store.close()
    plain = {
        "payable": answer.payable,
        "units": answer.total,
        "units_lacking": answer.count,
        "cost": _amounts(answer.asked, opened.filter),
        "first": [one.to_plain(loss) for one in answer.first],
    }
    if as_json:
        typer.echo(json.dumps(plain, indent=2))
    else:
        _show_check(answer.payable, plain, answer.first, loss)
    raise typer.Exit(0 if answer.payable else 1)


def _show_check(payable: bool, plain: dict[str, Any], first: tuple[Shortfall, ...], loss: str) -> None:
    if payable:
        typer.echo(f"would be paid: {plain['units']} units, each {_words(plain['cost'])}")
        return
    typer.echo(
        f"would be refused: {plain['units_lacking']} of {plain['units']} units cannot pay {_words(plain['cost'])}"
    )
    for one in first:
        said = one.to_plain(loss)
        jobs = ", ".join(use.job_id for use in one.jobs) or "no job of this caller"
        typer.echo(f"  {said['unit']}  spent {_words(said['spent'])} on {jobs}; lacks {_words(said['lacks'])}")
    rest = plain["units_lacking"] - len(first)
    if rest:
        typer.echo(f"  … and {rest} more: --out FILE writes them all")


def log(
    ledger: Place,
    job: Annotated[str | None, typer.Option(help="Only this job id.")] = None,
    caller: Annotated[str | None, typer.Option(help="Only this caller's jobs.")] = None,
    unit: Annotated[str | None, typer.Option(help="Only entries that charged this unit (40 hex digits).")] = None,
    since: Annotated[str | None, typer.Option(help="From this time on, ISO 8601, UTC.")] = None,
    until: Annotated[str | None, typer.Option(help="Before this time, ISO 8601, UTC.")] = None,
    schema: Schema = SCHEMA,
    as_json: Json = False,
) -> None:
    """List the entries of a ledger or of an exported log. It shows what is written; verify says whether it is true."""
    from budget import ExportedLog
    from budget.log.history import Query, find_entries
    from budget.stores.locations import open_place

    query = Query(
        job_id=job,
        caller=caller,
        unit=None if unit is None else _unit(unit),
        since_ms=_moment("--since", since),
        until_ms=_moment("--until", until),
    )
    with explained():
        place = open_place(ledger, schema=schema)
        found = find_entries(place, query)
        if not isinstance(place, ExportedLog):
            place.close()
    if as_json:
        typer.echo(json.dumps({"entries": [one.plain for one in found]}, indent=2))
        return
    for one in found:
        typer.echo(_line(one))
    typer.echo(f"{len(found)} entries", err=True)


def _line(listed: Listed) -> str:
    plain = listed.plain
    start = f"{plain['seq']:>6}  {_time(plain['time_ms'])}  {plain['type']:<8}"
    if plain["type"] == "genesis":
        return f"{start}  {_words(plain['filter'])}; recovery {plain['recovery']}"
    charged = f"{plain['units']['count']} units, each {_words(plain['cost'])}"
    if plain["type"] == "recovery":
        return f"{start}  {plain['operator']} gave back entry {plain['recovers']} ({charged}): {plain['reason']}"
    how = " + ".join(one["name"] for one in plain["release"]["mechanisms"])
    return f"{start}  {plain['caller']}  {plain['job_id']}  {how}  {charged}"
