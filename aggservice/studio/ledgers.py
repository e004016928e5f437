"""Ledgers: what was charged, what is left, why a unit cannot pay, the proof of a receipt, and audits with progress.

A ledger is a file on the shelf or a running service. Nothing here changes a ledger: tampering works on a copy.
"""

from __future__ import annotations

import json
import random
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Final

from aggservice.client import Client, ClientError, Credentials
from aggservice.mechanisms import SystemClock
from aggservice.studio.errors import StudioError
from aggservice.studio.feeds import Feeds
from aggservice.studio.given import Given
from aggservice.studio.shelf import MAX_FILE_BYTES, Kind, Shelf
from budget import ExportedLog, Ledger, Receipt, verify_log, verify_store
from budget.audit.replay import LogReplay
from budget.audit.verify import AuditReport
from budget.errors import BudgetError
from budget.filters import filter_to_plain, spend_to_plain
from budget.log.entries import path_nodes
from budget.log.history import EntryQuery, find_entries
from budget.store import Store, Transaction
from budget.stores.balances import balance_totals
from budget.stores.locations import open_ledger_or_log, open_store
from budget.units import columns, rows

_MAX_ENTRIES: Final = 1_000
_MAX_TIMELINE_UNITS: Final = 2_000_000
_MAX_COPY_BYTES: Final = 512 << 20

#: Ways to change a copy of a ledger: a name, what it does, and the statement or column that does it.
TAMPERINGS: Final = {
    "entry": ("change a byte of a log entry", "SELECT rowid, header FROM entries", "entries", "header"),
    "units": ("change a byte of the units that an entry charged", "SELECT rowid, keys FROM units", "units", "keys"),
    "balance": ("change a byte of a balance", "SELECT rowid, records FROM balances", "balances", "records"),
    "receipt": ("change a byte of a stored receipt", "SELECT rowid, receipt FROM entries", "entries", "receipt"),
    "result": ("change a byte of a stored result", "SELECT rowid, result FROM jobs", "jobs", "result"),
    "last": ("remove the last entry", "", "entries", ""),
}


class Ledgers:
    """The ledgers of a studio."""

    def __init__(self, shelf: Shelf, feeds: Feeds) -> None:
        self._shelf = shelf
        self._feeds = feeds

    def overview(self, given: Given) -> dict[str, Any]:
        """Return a ledger as a whole: its filter and terms, balances by what was spent, and its timeline."""
        source = self._open(given)
        if isinstance(source, ExportedLog):
            return {"exported": True, "timeline": _timeline(source), "tamperings": {}}
        with closing(source):
            opened = Ledger.open(source, clock=SystemClock())
            totals = balance_totals(source, opened.filter, lambda units: None)
            timeline = None
            if totals.units * 2 <= _MAX_TIMELINE_UNITS:
                timeline = source.read("timeline", _timeline_of)
            loss = opened.filter.loss_name
            return {
                "exported": False,
                "ledger": opened.ledger_id,
                "loss": loss,
                "filter": filter_to_plain(opened.filter),
                "limit": spend_to_plain(opened.filter.limit, loss),
                "unit": opened.terms.unit,
                "units": totals.units,
                "spent_out": totals.spent_out,
                "most": spend_to_plain(totals.most, loss),
                "balances": [
                    {"spent": float(Fraction(micro, 10**6)), "units": count}
                    for micro, count in totals.by_loss_micro.items()
                ],
                "timeline": timeline,
                "refused": self._refused(self._shelf.path(given.text("ledger"), Kind.LEDGER)),
                "tamperings": {name: text for name, (text, *_) in TAMPERINGS.items()},
            }

    def entries(self, given: Given) -> dict[str, Any]:
        """Return the entries of a job or a unit, or all of them, up to 1,000."""
        unit = given.text("unit", "", most=40)
        query = EntryQuery(job_id=given.text("job", "", most=128) or None, unit=_unit(unit) if unit else None)
        source = self._open(given)
        found = find_entries(source, query)
        if not isinstance(source, ExportedLog):
            source.close()
        shown = [one.plain | {"hash": one.entry_hash} for one in found[:_MAX_ENTRIES]]
        return {"entries": shown, "count": len(found)}

    def unit(self, given: Given) -> dict[str, Any]:
        """Return what one unit has spent, and the entries that charged it."""
        key = _unit(given.text("unit", most=40))
        with closing(self._database(given)) as store:
            opened = Ledger.open(store, clock=SystemClock())
            spent = opened.balances(rows(key)).of(0)
            found = find_entries(store, EntryQuery(unit=key))
            loss = opened.filter.loss_name
            return {
                "unit": key,
                "spent": spend_to_plain(spent, loss),
                "limit": spend_to_plain(opened.filter.limit, loss),
                "entries": [one.plain for one in found],
            }

    def receipt(self, given: Given) -> dict[str, Any]:
        """Return the receipt of a job with every node of its Merkle path, from the entry to the signed root."""
        with closing(self._database(given)) as store:
            found = Ledger.open(store, clock=SystemClock()).job(given.text("caller", most=128), given.text("job"))
        if found is None:
            raise StudioError("this ledger has no such job of this caller: check both names")
        receipt = Receipt.from_bytes(found.receipt)
        nodes = path_nodes(receipt.leaf, receipt.seq, receipt.checkpoint.entries, receipt.path)
        return {
            "entry": receipt.entry,
            "leaf": receipt.leaf,
            "nodes": [asdict(node) for node in nodes or ()],
            "root": receipt.checkpoint.root,
            "entries": receipt.checkpoint.entries,
            "signature": receipt.checkpoint.signature,
            "public_key": receipt.checkpoint.public_key,
        }

    def verify(self, given: Given) -> dict[str, Any]:
        """Audit a ledger in the background; return the id of its feed."""
        if given.has("service"):
            client = _client(given)

            def ask(progress: Callable[[int], None]) -> dict[str, Any]:
                with client:
                    return asdict(client.verify_ledger())

            return self._background(ask)
        source = self._open(given)

        def audit(progress: Callable[[int], None]) -> dict[str, Any]:
            if isinstance(source, ExportedLog):
                return _report(verify_log(source, progress=progress))
            with closing(source):
                return _report(verify_store(source, progress=progress))

        return self._background(audit)

    def tamper(self, given: Given) -> dict[str, Any]:
        """Change a copy of a SQLite ledger and audit the copy; return the id of its feed."""
        how = given.choice("how", tuple(TAMPERINGS))
        path = self._shelf.path(given.text("ledger"), Kind.LEDGER)
        seed = given.whole("seed", 0, least=0, most=1 << 32)
        if path.suffix == ".log" or path.stat().st_size > _MAX_COPY_BYTES:
            raise StudioError("only a copy of a SQLite ledger of at most 512 MiB can be changed: choose such a ledger")

        def audit(progress: Callable[[int], None]) -> dict[str, Any]:
            with TemporaryDirectory() as folder:
                copy = Path(folder) / path.name
                with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as source, sqlite3.connect(copy) as target:
                    source.backup(target)
                source.close()
                target.close()
                changed = _change(copy, how, random.Random(seed))
                with closing(open_store(str(copy))) as store:
                    return _report(verify_store(store, progress=progress)) | {"changed": changed}

        return self._background(audit)

    def _background(self, work: Callable[[Callable[[int], None]], dict[str, Any]]) -> dict[str, Any]:
        name = secrets.token_hex(8)
        feed = self._feeds.open(name)
        seen = 0

        def progress(units: int) -> None:
            nonlocal seen
            seen += units
            feed.add({"stage": "verify", "done": seen, "total": 0})

        def run() -> None:
            try:
                feed.close(state="finished", report=work(progress))
            except (BudgetError, ClientError, OSError, sqlite3.Error) as problem:
                feed.close(state="failed", error=str(problem))

        Thread(target=run, daemon=True).start()
        return {"feed": name}

    def _open(self, given: Given) -> Store | ExportedLog:
        return open_ledger_or_log(str(self._shelf.path(given.text("ledger"), Kind.LEDGER)))

    def _database(self, given: Given) -> Store:
        return open_store(str(self._shelf.path(given.text("ledger"), Kind.LEDGER)))

    def _refused(self, ledger: Path) -> list[dict[str, str]]:
        """Return the jobs of the run beside a ledger that could not be paid for; the ledger has no trace of them."""
        try:
            jobs = json.loads(self._shelf.read(ledger.parent.parent / "metrics.json", MAX_FILE_BYTES))["jobs"]
            return [{"job": job["job"], "refusal": job["refusal"]} for job in jobs if not job["paid"]]
        except (OSError, ValueError, LookupError, TypeError, StudioError):
            return []

    def service(self, given: Given) -> dict[str, Any]:
        """Return the entries that a running service shows to the caller of the token."""
        with _client(given) as client:
            found = [asdict(entry) for _, entry in zip(range(_MAX_ENTRIES), client.entries(), strict=False)]
        return {"exported": True, "service": True, "entries": found, "timeline": None, "tamperings": {}}


def _client(given: Given) -> Client:
    token = given.text("token", "", most=200)
    return Client(given.text("service", most=200), credentials=Credentials(token=token) if token else Credentials())


def _unit(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise StudioError("this is not a unit key: give 40 hex digits") from None


def _report(report: AuditReport) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "disagreement": None if report.disagreement is None else asdict(report.disagreement),
        "entries": report.entries,
        "releases": report.releases,
        "units_charged": report.units_charged,
        "units_known": report.units_known,
        "root": report.root.hex(),
    }


def _timeline(log: ExportedLog) -> list[dict[str, Any]]:
    replay = LogReplay()
    return [_step(replay, one.header, list(one.parts)) for one in log.entries()]


def _timeline_of(transaction: Transaction) -> list[dict[str, Any]]:
    replay = LogReplay()
    found = []
    for row in transaction.entries():
        found.append(_step(replay, bytes(row.header), [part.keys for part in transaction.parts(row.seq)]))
    return found


def _step(replay: LogReplay, header: bytes, parts: list[bytes]) -> dict[str, Any]:
    """Replay an entry; return it with what the poorest of its units has spent afterwards."""
    entry = replay.add(header, parts)
    worst = 0
    for part in parts:
        _, loss, _, _ = replay.balances.amounts(columns(rows(part)))
        worst = max(worst, int(loss.max(initial=0)))
    return dict(replay.plain(entry)) | {"most_spent": float(Fraction(worst, 10**6))}


def _change(copy: Path, how: str, place: random.Random) -> str:
    """Change one byte of a copied ledger, or remove its last entry; return what was done."""
    text, query, table, column = TAMPERINGS[how]
    with sqlite3.connect(copy) as database:
        if how == "last":
            (last,) = database.execute("SELECT max(seq) FROM entries").fetchone()
            database.execute("DELETE FROM entries WHERE seq = ?", (last,))
            done = f"removed entry {last}"
        else:
            rowid, value = place.choice(database.execute(query).fetchall() or [(None, b"")])
            if not value:
                raise StudioError(f"cannot {text}: this ledger has none; choose another ledger")
            at = place.randrange(len(value))
            changed = value[:at] + bytes([value[at] ^ (1 << place.randrange(8))]) + value[at + 1 :]
            database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (changed, rowid))
            done = f"changed byte {at} of {column} in row {rowid} of {table}"
    database.close()
    return done
