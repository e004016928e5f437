"""The audit finds every change that anyone makes."""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import sql

from aggservice.mechanisms import ManualClock, SeededBits
from budget import (
    BudgetError,
    Delta,
    Epsilon,
    EpsilonDeltaFilter,
    ExportedLog,
    JobKey,
    LaplaceDiscovery,
    LaplaceNoise,
    Ledger,
    PostgresStore,
    Receipt,
    Release,
    Signer,
    SqliteStore,
    Staging,
    Store,
    verify_log,
    verify_store,
    write_log,
)
from budget.errors import FormatError
from budget.log.export import MAGIC
from budget.log.proofs import Checkpoint

from ..releases import TERMS, release_of

COLUMNS = {
    "head": ["id", "entries", "frontier"],
    "entries": ["seq", "header", "receipt"],
    "units": ["seq", "part", "first_key", "last_key", "keys"],
    "jobs": ["caller", "job_id", "seq", "result"],
    "balances": ["first_key", "records"],
}


def keys_of(first: int, count: int) -> np.ndarray:
    raw = b"".join(bytes(3) + hashlib.sha256(b"%d" % unit).digest()[:17] for unit in range(first, first + count))
    return np.frombuffer(raw, np.uint8).reshape(-1, 20)


@dataclass
class Book:
    """A small ledger with every kind of entry, and what was kept of it elsewhere."""

    ledger: Ledger
    store: Store
    folder: Path
    receipts: list[bytes]

    def export(self) -> Path:
        path = self.folder / "log"
        write_log(self.store, path)
        return path


def write_book(store: Store, folder: Path) -> Book:
    bits, clock = SeededBits("book"), ManualClock(1_700_000_000_000)
    ledger = Ledger.create(
        store,
        terms=TERMS,
        filter=EpsilonDeltaFilter(uses=9),
        signer=Signer.generate(bits),
        clock=clock,
        bits=bits,
        staging=Staging(folder / "staging", bits),
        recovery=True,
    )
    receipts = []
    for job in range(7):
        clock.advance(1000)
        key = JobKey(caller=f"adtech-{job % 2}", job_id=f"job-{job}")
        epsilon = Epsilon.parse("1.5")
        mechanism = (
            LaplaceDiscovery(epsilon=epsilon, delta=Delta.parse("1e-7")) if job % 2 else LaplaceNoise(epsilon=epsilon)
        )
        result: Any = f"summary {job}".encode()
        if job == 3:
            result = ledger.stage(key)
            result.path("summary-1-of-1").write_bytes(b"shard")
            result.seal(folder / "out")
        committed = ledger.commit(
            job=key,
            request_digest=hashlib.sha256(b"%d" % job).digest(),
            release=release_of(mechanism),
            units=keys_of(60 * job, 150 + 40 * job),
            result=result,
        )
        receipts.append(committed.receipt)
    receipts.append(ledger.recover_budget(operator="root", reason="the output disk burnt", seq=2))
    return Book(ledger, store, folder, receipts)


@pytest.fixture
def book(make_store: Callable[[str], Store], tmp_path: Path) -> Book:
    return write_book(make_store("sqlite"), tmp_path)


def flip(value: Any, place: random.Random) -> Any:
    """Return the value with one byte changed."""
    if isinstance(value, int):
        raw = bytearray(value.to_bytes(8, "big", signed=True))
    else:
        raw = bytearray(value.encode() if isinstance(value, str) else value)
    if not raw:
        return b"\x01"
    raw[place.randrange(len(raw))] ^= place.randrange(1, 256)
    return int.from_bytes(raw, "big", signed=True) if isinstance(value, int) else bytes(raw)


def test_the_book_is_right_to_begin_with(book: Book) -> None:
    report = verify_store(
        book.store, receipts=map(Receipt.from_bytes, book.receipts), public_key=book.ledger.genesis.public_key
    )
    assert report.ok and (report.entries, report.releases, report.recoveries) == (9, 7, 1), report.disagreement
    assert report.evidence == 16
    alone = verify_log(ExportedLog(book.export()), receipts=map(Receipt.from_bytes, book.receipts))
    assert alone.ok and (alone.head, alone.root, alone.units_charged) == (
        report.head,
        report.root,
        report.units_charged,
    )


def flip_columns_sqlite(book: Book, times: int, seed: int) -> int:
    place = random.Random(seed)
    assert isinstance(book.store, SqliteStore)
    book.store.close()
    db = sqlite3.connect(book.store.path, isolation_level=None)
    db.execute("PRAGMA ignore_check_constraints = ON")
    copy = SqliteStore(book.store.path, read_only=True)
    done = 0
    while done < times:
        table = place.choice(list(COLUMNS))
        column = place.choice(COLUMNS[table])
        rowid = place.choice(db.execute(f"SELECT rowid FROM {table}").fetchall())[0]
        value = db.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", (rowid,)).fetchone()[0]
        changed = flip(value, place)
        cast = "CAST(? AS TEXT)" if isinstance(value, str) else "?"
        db.execute("BEGIN")
        try:
            db.execute(f"UPDATE {table} SET {column} = {cast} WHERE rowid = ?", (changed, rowid))
        except sqlite3.IntegrityError:
            db.execute("ROLLBACK")  # the database itself refused: two rows would have the same key
            continue
        new_rowid = (
            changed if isinstance(value, int) and (table, column) in (("entries", "seq"), ("head", "id")) else rowid
        )
        db.execute("COMMIT")
        report = verify_store(copy)
        assert not report.ok, f"changed {table}.{column} of row {rowid} from {value!r} to {changed!r} unseen"
        db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, new_rowid))
        done += 1
    assert verify_store(copy).ok
    copy.close()
    db.close()
    return done


def flip_columns_postgres(book: Book, dsn: str, schema: str, times: int, seed: int) -> int:
    place = random.Random(seed)
    db = psycopg.connect(dsn, autocommit=True)
    db.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))
    db.execute("ALTER TABLE head DROP CONSTRAINT head_id_check")
    columns = COLUMNS | {"schema_version": ["version"]}
    done = 0
    while done < times:
        table = place.choice(list(columns))
        column = place.choice(columns[table])
        names = {"table": sql.Identifier(table), "column": sql.Identifier(column)}
        value, where = place.choice(
            db.execute(sql.SQL("SELECT {column}, ctid FROM {table}").format(**names)).fetchall()
        )
        changed = flip(value, place)
        if isinstance(value, str):
            changed = changed.decode("latin-1").replace("\0", "\1")
        update = sql.SQL("UPDATE {table} SET {column} = %s WHERE ctid = %s RETURNING ctid").format(**names)
        try:
            found = db.execute(update, (changed, where)).fetchone()
        except (psycopg.errors.UniqueViolation, psycopg.errors.NumericValueOutOfRange):
            continue
        assert found is not None
        try:
            report = verify_store(PostgresStore(dsn, schema=schema, read_only=True))
            assert not report.ok, f"changed {table}.{column} from {value!r} to {changed!r} unseen"
        except BudgetError as problem:
            assert table == "schema_version", problem
        db.execute(update, (value, found[0]))
        done += 1
    assert verify_store(book.store).ok
    db.close()
    return done


def flip_files(book: Book, times: int, seed: int) -> int:
    """Change bytes of the exported log, of checkpoints and of receipts, in turn."""
    place = random.Random(seed)
    log = book.export()
    raw_log, raw_checkpoint = log.read_bytes(), book.ledger.checkpoint().to_bytes()
    changed_log = book.folder / "changed"
    for turn in range(times):
        kind = turn % 3
        raw = (raw_log, raw_checkpoint, place.choice(book.receipts))[kind]
        changed = flip(raw, place)
        if kind == 0:
            changed_log.write_bytes(changed)
            report = verify_log(ExportedLog(changed_log))
            assert not report.ok
            continue
        with pytest.raises(FormatError):
            (Checkpoint if kind == 1 else Receipt).from_bytes(changed)
    return times


def test_a_changed_byte_in_any_column_is_found(book: Book) -> None:
    assert flip_columns_sqlite(book, 300, seed=1) == 300


def test_a_changed_byte_in_any_column_is_found_on_postgres(
    make_store: Callable[[str], Store], tmp_path: Path, postgres_dsn: str
) -> None:
    store = make_store("postgres")
    assert isinstance(store, PostgresStore)
    assert flip_columns_postgres(write_book(store, tmp_path), postgres_dsn, store._schema, 40, seed=2) == 40


def test_a_changed_byte_in_any_file_is_found(book: Book) -> None:
    assert flip_files(book, 300, seed=3) == 300


@pytest.mark.soak
def test_ten_thousand_changed_bytes_are_found(
    make_store: Callable[[str], Store], tmp_path: Path, postgres_dsn: str
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    book = write_book(make_store("sqlite"), tmp_path / "a")
    store = make_store("postgres")
    assert isinstance(store, PostgresStore)
    found = {
        "files": flip_files(book, 10_000, seed=10),
        "SQLite columns": flip_columns_sqlite(book, 10_000, seed=11),
        "PostgreSQL columns": flip_columns_postgres(
            write_book(store, tmp_path / "b"), postgres_dsn, store._schema, 10_000, seed=12
        ),
    }
    print(f"changed bytes found: {found}")
    assert list(found.values()) == [10_000, 10_000, 10_000]


def frames(raw: bytes) -> tuple[list[bytes], bytes]:
    """Take an exported log apart: its entries with their units, and its tail."""
    from budget.log.entries import decode

    at, found = len(MAGIC), []
    while length := int.from_bytes(raw[at : at + 4], "big"):
        units = decode(raw[at + 4 : at + 4 + length]).get("units", {"count": 0})["count"]
        found.append(raw[at : at + 4 + length + 20 * units])
        at += len(found[-1])
    return found, raw[at:]


@pytest.fixture
def cut(book: Book) -> Iterator[Callable[[list[bytes], bytes], Path]]:
    def write(entries: list[bytes], tail: bytes) -> Path:
        path = book.folder / "cut"
        path.write_bytes(MAGIC + b"".join(entries) + tail)
        return path

    return write


def test_two_swapped_entries_are_found_at_the_first(book: Book, cut: Callable[[list[bytes], bytes], Path]) -> None:
    entries, tail = frames(book.export().read_bytes())
    entries[3], entries[5] = entries[5], entries[3]
    report = verify_log(ExportedLog(cut(entries, tail)))
    assert report.disagreement is not None and report.disagreement.seq == 3
    assert isinstance(book.store, SqliteStore)
    db = sqlite3.connect(book.store.path)
    headers = dict(db.execute("SELECT seq, header FROM entries").fetchall())
    db.execute("UPDATE entries SET header = ? WHERE seq = 4", (headers[5],))
    db.execute("UPDATE entries SET header = ? WHERE seq = 5", (headers[4],))
    db.commit()
    db.close()
    found = verify_store(book.store).disagreement
    assert found is not None and found.seq == 4


def test_a_truncated_tail_is_found_by_a_checkpoint_and_by_a_receipt(
    book: Book, cut: Callable[[list[bytes], bytes], Path]
) -> None:
    entries, tail = frames(book.export().read_bytes())
    own = Receipt.from_bytes(book.receipts[4]).checkpoint.to_bytes()  # what an operator signed when entry 5 was last
    honest = bytes(4) + len(own).to_bytes(4, "big") + own
    path = cut(entries[:6], honest)
    assert verify_log(ExportedLog(path)).ok, "without evidence from elsewhere the shorter log is a whole one"
    for evidence in (
        {"checkpoints": [book.ledger.checkpoint()]},
        {"receipts": [Receipt.from_bytes(book.receipts[6])]},
    ):
        report = verify_log(ExportedLog(path), **evidence)  # type: ignore[arg-type]
        assert report.disagreement is not None and (report.disagreement.what, report.disagreement.seq) == ("missing", 6)
    for shorter in range(1, len(entries)):
        assert not verify_log(ExportedLog(cut(entries[:shorter], tail))).ok
    assert not verify_log(ExportedLog(cut(entries, b""))).ok


def test_a_tail_cut_off_a_database_is_found_by_a_receipt(book: Book, tmp_path: Path) -> None:
    """The cut is made as well as anyone without the key can: head, jobs, units and balances all go back in time."""
    assert isinstance(book.store, SqliteStore)
    (tmp_path / "twin").mkdir()
    twin = write_book(SqliteStore(tmp_path / "twin" / "ledger.db"), tmp_path / "twin")
    bits, clock = SeededBits("book"), ManualClock(1_700_000_000_000)
    younger = SqliteStore(tmp_path / "younger.db")
    # Seeds make the younger ledger byte for byte the beginning of the older one.
    Ledger.create(
        younger,
        terms=TERMS,
        filter=EpsilonDeltaFilter(uses=9),
        signer=Signer.generate(bits),
        clock=clock,
        bits=bits,
        recovery=True,
    )
    assert verify_store(younger).ok and verify_store(younger).ledger_id == twin.ledger.ledger_id
    report = verify_store(younger, receipts=[Receipt.from_bytes(twin.receipts[0])])
    assert report.disagreement is not None and (report.disagreement.seq, report.disagreement.what) == (1, "missing")
    younger.close()
    twin.store.close()


def test_a_summary_whose_entry_is_missing_is_found(book: Book, tmp_path: Path) -> None:
    """A service that released a summary and then rewrote its log without it cannot explain the receipt."""
    (tmp_path / "other").mkdir()
    store = SqliteStore(tmp_path / "other" / "ledger.db")
    bits, clock = SeededBits("book"), ManualClock(1_700_000_000_000)
    ledger = Ledger.create(
        store,
        terms=TERMS,
        filter=EpsilonDeltaFilter(uses=9),
        signer=Signer.generate(bits),
        clock=clock,
        bits=bits,
        recovery=True,
    )
    for job in range(12):
        ledger.commit(
            job=JobKey(caller="adtech-0", job_id=f"other-{job}"),
            request_digest=bytes(32),
            release=release_of(LaplaceNoise.parse(epsilon="1")),
            units=keys_of(job, 5),
            result=b"",
        )
    assert verify_store(store).ok
    for number, raw in enumerate(book.receipts[:7]):
        found = verify_store(store, receipts=[Receipt.from_bytes(raw)]).disagreement
        assert found is not None and (found.seq, found.what) == (number + 1, "receipt")
    store.close()


def test_another_signing_key_is_found(book: Book) -> None:
    found = verify_store(book.store, public_key=bytes(32)).disagreement
    assert found is not None and found.what == "key"


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("DELETE FROM balances WHERE rowid = (SELECT max(rowid) FROM balances)", "balances"),
        ("DELETE FROM jobs WHERE job_id = 'job-4'", "job"),
        ("DELETE FROM units WHERE seq = 4", "units"),
        ("DELETE FROM entries WHERE seq = 4", "missing"),
        ("DELETE FROM entries WHERE seq = 8", "head"),
        ("DELETE FROM head", "head"),
        ("INSERT INTO jobs VALUES ('adtech-0', 'job-99', 99, x'00')", "job"),
        ("INSERT INTO units VALUES (99, 0, x'00', x'00', x'00')", "units"),
        ("INSERT INTO balances SELECT x'00', x'00'", "balances"),
        ("DROP INDEX units_by_key", "schema"),
        ("PRAGMA user_version = 1", "schema"),
        ("UPDATE jobs SET result = 'summary 0' WHERE job_id = 'job-0'", "result"),
    ],
)
def test_rows_taken_away_or_added_are_found(book: Book, statement: str, what: str) -> None:
    assert isinstance(book.store, SqliteStore)
    db = sqlite3.connect(book.store.path)
    db.execute(statement)
    db.commit()
    db.close()
    found = verify_store(book.store).disagreement
    assert found is not None and found.what == what


def test_a_balance_is_laid_at_the_entry_that_charged_it_first(book: Book) -> None:
    assert isinstance(book.store, SqliteStore)
    db = sqlite3.connect(book.store.path)
    last_unit = keys_of(60 * 6 + 150 + 40 * 6 - 1, 1).tobytes()  # charged by the last job, entry 7, alone
    for rowid, records in db.execute("SELECT rowid, records FROM balances").fetchall():
        at = next((i for i in range(0, len(records), 40) if records[i : i + 20] == last_unit), None)
        if at is not None:
            changed = records[: at + 27] + bytes([records[at + 27] ^ 1]) + records[at + 28 :]
            db.execute("UPDATE balances SET records = ? WHERE rowid = ?", (changed, rowid))
    db.commit()
    db.close()
    found = verify_store(book.store).disagreement
    assert found is not None and (found.seq, found.what) == (7, "balances")
    assert last_unit.hex() in found.text


def test_a_service_that_overspends_with_its_own_key_is_found(tmp_path: Path) -> None:
    """Whoever has the key can sign anything; a replay still shows a unit beyond its limit or a cost too low."""
    from budget import Spend

    class Generous(EpsilonDeltaFilter):
        def cost(self, release: Release) -> Spend:
            return Spend(loss_micro=1, delta_atto=0, uses=1)

    for cheat, what in ((Generous(), "cost"), (EpsilonDeltaFilter(epsilon_micro=10**9), None)):
        store = SqliteStore(tmp_path / f"{what}.db")
        bits = SeededBits("cheat")
        ledger = Ledger.create(
            store,
            terms=TERMS,
            filter=EpsilonDeltaFilter(),
            signer=Signer.generate(bits),
            clock=ManualClock(),
            bits=bits,
        )
        object.__setattr__(ledger.genesis, "filter", cheat)
        for job in range(3):
            ledger.commit(
                job=JobKey(caller="a", job_id=str(job)),
                request_digest=bytes(32),
                release=release_of(LaplaceNoise.parse(epsilon="30")),
                units=keys_of(0, 10),
                result=b"",
            )
        found = verify_store(store).disagreement
        assert found is not None and (found.seq, found.what) == ((1, "cost") if what else (3, "budget"))
        store.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE head SET frontier = 1000000000000000",
        "UPDATE entries SET header = 1000000000000000 WHERE seq = 1",
        "UPDATE entries SET receipt = 1000000000000000 WHERE seq = 1",
        "UPDATE entries SET header = 1.5 WHERE seq = 2",
        "UPDATE head SET frontier = 'text'",
    ],
)
def test_a_column_of_another_type_is_found_and_never_taken_for_a_size(book: Book, change: str) -> None:
    """SQLite keeps any value in any column, and Python makes zeros of a number of bytes: petabytes of them."""
    book.store.close()
    assert isinstance(book.store, SqliteStore)
    database = sqlite3.connect(book.store.path)
    with database:
        database.execute(change)
    database.close()
    report = verify_store(book.store)
    assert report.disagreement is not None and "holds something else" in report.disagreement.text
