"""``aggservice ledger`` as a person at a terminal meets it."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psycopg
import pytest
from psycopg import sql
from typer.testing import CliRunner, Result

from aggservice.commands import app
from aggservice.mechanisms import ManualClock, SecureBits, SeededBits
from aggservice.wire import Api, Contribution, KeySet, ReportBatch, SharedInfo, make_report, write_reports
from aggservice.wire.report.units import report_unit
from budget import EpsilonDeltaFilter, JobKey, LaplaceNoise, Ledger, PostgresStore, Signer, SqliteStore, Staging, Store

from .releases import TERMS, release_of

START_MS = 1_772_366_400_000
"""2026-03-01T12:00:00Z."""


@dataclass
class Desk:
    """A small ledger on disk and the program to look at it with."""

    folder: Path
    place: str
    extra: list[str]
    ledger: Ledger
    key: Path

    def run(self, command: str, *arguments: str, place: str | None = None) -> Result:
        return run(command, place or self.place, *arguments, *self.extra)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["ledger", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


def keys_of(first: int, count: int) -> np.ndarray:
    raw = b"".join(bytes(3) + hashlib.sha256(b"%d" % unit).digest()[:17] for unit in range(first, first + count))
    return np.frombuffer(raw, np.uint8).reshape(-1, 20)


def fill(store: Store, folder: Path) -> tuple[Ledger, Path]:
    key = folder / "ledger.key"
    clock = ManualClock(START_MS)
    ledger = Ledger.create(
        store,
        terms=TERMS,
        filter=EpsilonDeltaFilter(),
        signer=Signer.load_or_create(key, SecureBits()),
        clock=clock,
        bits=SecureBits(),
        staging=Staging(folder / "staging", SecureBits()),
        recovery=True,
    )
    for job, (caller, epsilon) in enumerate((("anna", "40"), ("bert", "20"), ("anna", "4"))):
        clock.advance(60_000)
        key_of_job = JobKey(caller=caller, job_id=f"job-{job}")
        attempt = ledger.stage(key_of_job)
        attempt.path("summary").write_text(f"noisy {job}")
        attempt.seal(folder / f"out-{job}")
        ledger.commit(
            job=key_of_job,
            request_digest=hashlib.sha256(b"%d" % job).digest(),
            release=release_of(LaplaceNoise.parse(epsilon=epsilon)),
            units=keys_of(10 * job, 50),
            result=attempt,
        )
    return ledger, key


@pytest.fixture(params=["sqlite", "postgres"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    if request.param == "sqlite":
        path = tmp_path / "ledger.db"
        store: Store = SqliteStore(path)
        place, extra = str(path), []
    else:
        place, schema = request.getfixturevalue("postgres_dsn"), f"desk_{tmp_path.name}"
        store, extra = PostgresStore(place, schema=schema), ["--schema", schema]
    ledger, key = fill(store, tmp_path)
    store.close()
    return Desk(tmp_path, place, extra, ledger, key)


def unit(number: int) -> str:
    return keys_of(number, 1).tobytes().hex()


def test_balance_of_units_and_of_the_whole(desk: Desk) -> None:
    shown = json.loads(desk.run("balance", unit(25), unit(9999), "--json").stdout)["units"]
    by_unit = {row["unit"]: row for row in shown}
    assert by_unit[unit(25)]["spent"] == {"epsilon": "64", "delta": "0", "uses": "3"}
    assert by_unit[unit(25)]["left"] == {"epsilon": "0", "delta": "0.00001", "uses": "unbounded"}
    assert by_unit[unit(9999)]["spent"]["epsilon"] == "0"
    whole = json.loads(desk.run("balance", "--json").stdout)
    assert (whole["entries"], whole["units"], whole["most_spent"]["epsilon"]) == (4, 70, "64")
    assert whole["units_spent_out"] == 30 and whole["created"] == "2026-03-01T12:00:00.000Z"
    assert "units            70" in desk.run("balance").stdout
    assert f"{unit(25)}  spent epsilon 64" in desk.run("balance", unit(25)).stdout


def test_check_says_which_units_lack_what(desk: Desk) -> None:
    units = desk.folder / "units"
    units.write_text("\n".join(unit(number) for number in range(20, 50)))
    refused = desk.run("check", "--caller", "anna", "--epsilon", "1", "--units", str(units), "--json")
    assert refused.exit_code == 1
    said = json.loads(refused.stdout)
    assert (said["payable"], said["units"], said["units_lacking"], len(said["first"])) == (False, 30, 30, 20)
    assert said["first"][0]["lacks"] == {"epsilon": "1", "delta": "0", "uses": "0"}
    assert [use["job_id"] for use in said["first"][0]["jobs"]] == ["job-0", "job-2"], (
        "bert's job does not exist for anna"
    )
    every = desk.folder / "every.jsonl"
    words = desk.run("check", "--caller", "bert", "--epsilon", "1", "--units", str(units), "--out", str(every))
    assert "30 of 30 units cannot pay" in words.stdout and "on job-1;" in words.stdout and "10 more" in words.stdout
    rows = [json.loads(line) for line in every.read_text().splitlines()]
    assert len(rows) == 30 and {use["job_id"] for row in rows for use in row["jobs"]} == {"job-1"}
    units.write_text(unit(1000))
    paid = desk.run("check", "--caller", "anna", "--epsilon", "64", "--units", str(units))
    assert paid.exit_code == 0 and "would be paid: 1 units" in paid.stdout
    assert json.loads(desk.run("balance", unit(1000), "--json").stdout)["units"][0]["spent"]["epsilon"] == "0"


def test_check_takes_units_from_reports_without_opening_them(desk: Desk) -> None:
    keys = KeySet.create(SecureBits(), ManualClock(START_MS))
    info = SharedInfo(
        api=Api.SHARED_STORAGE,
        version="1.0",
        report_id="21abd97f-73e8-4b88-9389-a9fee6abda5e",
        reporting_origin="https://a.example",
        scheduled_report_time_s=START_MS // 1000,
    )
    report = make_report(
        [Contribution(bucket=1, value=2)],
        shared_info=info,
        keys=keys.public(ManualClock(START_MS)),
        bits=SeededBits("report"),
        maximum=20,
    )
    file = desk.folder / "reports.avro"
    write_reports(file, [ReportBatch.of([report])])
    answer = desk.run(
        "check", "--caller", "anna", "--epsilon", "1", "--reports", str(file), "--filtering-ids", "0,7", "--json"
    )
    assert json.loads(answer.stdout)["units"] == 2
    shown = json.loads(desk.run("balance", "--reports", str(file), "--json").stdout)
    assert [row["unit"] for row in shown["units"]] == [report_unit(info).hex()]


def test_log_filters(desk: Desk) -> None:
    def seqs(*options: str) -> list[int]:
        return [one["seq"] for one in json.loads(desk.run("log", *options, "--json").stdout)["entries"]]

    assert seqs() == [0, 1, 2, 3]
    assert seqs("--caller", "anna") == [1, 3] and seqs("--job", "job-1") == [2]
    assert seqs("--caller", "bert", "--job", "job-0") == []
    assert seqs("--unit", unit(5)) == [1] and seqs("--unit", unit(25)) == [1, 2, 3] and seqs("--unit", unit(999)) == []
    assert seqs("--since", "2026-03-01T12:02:00Z") == [2, 3] and seqs("--until", "2026-03-01T12:02:00") == [0, 1]
    words = desk.run("log").stdout.splitlines()
    assert len(words) == 4 and "anna  job-0  discrete_laplace  50 units, each epsilon 40" in words[1]
    exported = desk.folder / "log"
    desk.run("export", str(exported))
    assert run("log", str(exported)).stdout.splitlines() == words
    assert json.loads(run("log", str(exported), "--json").stdout) == json.loads(desk.run("log", "--json").stdout)
    for number in range(40):  # entries of which no unit, the first or a later one is asked for
        both = [
            json.loads(found.stdout)
            for found in (
                run("log", str(exported), "--unit", unit(number), "--json"),
                desk.run("log", "--unit", unit(number), "--json"),
            )
        ]
        assert both[0] == both[1]
    there = json.loads(run("log", str(exported), "--unit", unit(25), "--caller", "anna", "--json").stdout)
    assert [one["seq"] for one in there["entries"]] == [1, 3]


def test_verify_export_checkpoint_receipt_and_summary(desk: Desk) -> None:
    log, checkpoint, receipt = desk.folder / "log", desk.folder / "checkpoint", desk.folder / "receipt"
    assert desk.run("export", str(log)).exit_code == 0
    assert desk.run("checkpoint", str(checkpoint)).exit_code == 0
    assert desk.run("receipt", "--caller", "anna", "--job", "job-2", str(receipt)).exit_code == 0
    evidence = [
        "--checkpoint",
        str(checkpoint),
        "--receipt",
        str(receipt),
        "--summary",
        str(desk.folder / "out-2/summary"),
    ]
    key = ["--public-key", desk.ledger.genesis.public_key.hex()]
    here = desk.run("verify", *evidence, *key, "--json")
    there = run("verify", str(log), *evidence, *key, "--json")
    assert here.exit_code == there.exit_code == 0
    one, two = json.loads(here.stdout), json.loads(there.stdout)
    assert one["ok"] and two["ok"] and one["root"] == two["root"] and one["units_charged"] == 150
    assert (one["evidence_compared"], two["evidence_compared"]) == (3, 4)
    assert "ok: log, receipts, jobs, results and balances agree" in desk.run("verify").stdout
    wrong = run("verify", str(log), "--receipt", str(receipt), "--summary", str(desk.folder / "out-1/summary"))
    assert wrong.exit_code == 1 and "not a result" in wrong.output
    other = run("verify", str(log), "--public-key", "00" * 32)
    assert other.exit_code == 1 and "DISAGREEMENT at entry 0: key" in other.stdout
    raw = bytearray(receipt.read_bytes())
    raw[200] ^= 1
    receipt.write_bytes(raw)
    flipped = run("verify", str(log), "--receipt", str(receipt))
    assert flipped.exit_code == 1 and "not a valid receipt" in flipped.output
    assert log.stat().st_mode & 0o777 == 0o600


def test_verify_names_the_entry(desk: Desk) -> None:
    if desk.extra:
        with psycopg.connect(desk.place) as server:
            statement = "UPDATE {}.jobs SET result = set_byte(result, 0, 0) WHERE job_id = 'job-1'"
            server.execute(sql.SQL(statement).format(sql.Identifier(desk.extra[1])))
    else:
        with sqlite3.connect(desk.place) as db:
            db.execute("UPDATE jobs SET result = x'00' || substr(result, 2) WHERE job_id = 'job-1'")
    found = desk.run("verify", "--json")
    assert found.exit_code == 1 and json.loads(found.stdout)["disagreement"]["entry"] == 2
    assert "DISAGREEMENT at entry 2: result" in desk.run("verify").stdout


def test_recover_gives_back_visibly(desk: Desk) -> None:
    done = desk.run("recover", "--entry", "1", "--operator", "olga", "--reason", "disk lost", "--key", str(desk.key))
    assert done.exit_code == 0
    assert json.loads(desk.run("balance", unit(25), "--json").stdout)["units"][0]["spent"]["epsilon"] == "24"
    assert "olga gave back entry 1" in desk.run("log").stdout and desk.run("verify").exit_code == 0
    again = desk.run("recover", "--entry", "1", "--operator", "olga", "--reason", "more", "--key", str(desk.key))
    assert again.exit_code == 2 and "already recovered" in again.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["balance", "nowhere.db"], "there is no ledger"),
        (["verify", "nowhere.db"], "there is no ledger"),
        (["balance", "LEDGER", "xyz"], "not a unit key"),
        (["log", "LEDGER", "--since", "yesterday"], "not a time"),
        (["log", "LEDGER", "--unit", "00"], "not a unit key"),
        (["check", "LEDGER", "--caller", "anna"], "give exactly one of --epsilon"),
        (["check", "LEDGER", "--caller", "anna", "--epsilon", "65"], "above 64"),
        (["check", "LEDGER", "--caller", "anna", "--epsilon", "nan"], "not a decimal number"),
        (["check", "LEDGER", "--caller", "anna", "--rho", "1"], "zCDP"),
        (["check", "LEDGER", "--caller", "anna", "--epsilon", "1", "--privacy-unit", "person"], "choose report"),
        (["receipt", "LEDGER", "--caller", "anna", "--job", "none"], "has no job"),
        (["verify", "LEDGER", "--checkpoint", "nothing"], "does not exist"),
        (["check", "LEDGER", "--caller", "anna", "--epsilon", "1"], "no units to check"),
        (["verify", "LEDGER", "--public-key", "12"], "64 hex digits"),
        (["verify", "postgresql://nobody@127.0.0.1:1/none?connect_timeout=1"], "failed 6 times"),
    ],
)
def test_mistakes_get_a_sentence(
    tmp_path: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("budget.stores.postgres._PAUSE_S", 0.0)
    store = SqliteStore(tmp_path / "ledger.db")
    fill(store, tmp_path)
    store.close()
    result = run(*(str(tmp_path / "ledger.db") if one == "LEDGER" else one for one in arguments))
    assert result.exit_code == 2
    said = re.sub(r"[\s│]+", " ", result.output)
    assert message in said
