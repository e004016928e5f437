"""Jobs with an output_public_key: as a stream, in files, on object storage, only its holder reads the summary."""

from __future__ import annotations

import base64
import hashlib
import json
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from aggservice.client import Client, ClientError, Credentials, JobParameters, Summary
from aggservice.commands import app
from aggservice.mechanisms import SecureBits, SystemClock
from aggservice.service import Caller, EmbeddedService, Limits, Role, ServiceConfig, embedded, token_digest
from aggservice.service.config.callers import Token
from aggservice.wire import BucketRows, KeySet, ReportBatch, read_summary, write_buckets, write_key_set, write_reports
from aggservice.wire.errors import SealedSummaryError
from aggservice.wire.hpke.summaries import open_document
from budget import Receipt

from ..jobs.s3 import BUCKET, s3_server

ORIGIN = "https://adtech.example"
KEYS, THEIRS = (KeySet.create(SecureBits(), SystemClock()) for _ in range(2))
PUBLIC = KEYS.pairs[0].public.key.public_bytes_raw()
#: Buckets of 16 random bytes: where these bytes are in a file, a summary is in the clear.
BUCKETS = [int.from_bytes(SecureBits().read(16), "big") for _ in range(3)]
ASKS = JobParameters(attribution_report_to=ORIGIN, epsilon="8", output_public_key=PUBLIC)


def domain_file(path: Path) -> Path:
    high, low = (np.array([bucket >> shift & (2**64 - 1) for bucket in BUCKETS], np.uint64) for shift in (64, 0))
    write_buckets(path, BucketRows.domain(high, low))
    return path


def in_clear(*folders: Path) -> list[str]:
    """Return the files below folders that hold a bucket in the clear, of 16 bytes or without leading zeros."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert files
    raws = [bucket.to_bytes(16, "big").lstrip(b"\0") for bucket in BUCKETS]
    return [path.name for path in files if any(raw in path.read_bytes() for raw in raws)]


def config_of(folder: Path, **changes: Any) -> ServiceConfig:
    for name in ("in", "out"):
        (folder / name).mkdir(exist_ok=True)
    given = ServiceConfig(
        state=folder / "state",
        listen="127.0.0.1:0",
        ledger="sqlite",
        input_folder=folder / "in",
        output_folder=folder / "out",
        limits=replace(Limits(), processes=0),
    )
    return replace(given, **changes)


@contextmanager
def running(maker: Any, folder: Path) -> Iterator[tuple[EmbeddedService, Client]]:
    with (
        embedded(config_of(folder), keys=maker.keys, clock=maker.clock) as service,
        Client(service.address) as client,
    ):
        yield service, client


@pytest.fixture
def files(maker: Any, tmp_path: Path) -> Iterator[tuple[EmbeddedService, Client]]:
    with running(maker, tmp_path) as (service, client):
        folder = tmp_path / "in"
        write_reports(folder / "day.avro", [ReportBatch.of([maker.report({BUCKETS[0]: 9}) for _ in range(3)])])
        domain_file(folder / "domain.avro")
        yield service, client


def over_files(client: Client, job: str, **changes: Any) -> Any:
    client.create_job(
        job,
        replace(ASKS, **changes),
        input_data_blob_prefix="day",
        output_data_blob_prefix=f"{job}.avro",
        output_domain_blob_prefix="domain",
    )
    return client.watch_job(job).summary


def test_a_stream_is_sealed_and_its_digest_is_of_what_was_sealed(maker: Any, tmp_path: Path) -> None:
    reports = [maker.report({BUCKETS[0]: 9, 77: 1}) for _ in range(3)]
    asked = replace(ASKS, others_epsilon="1")
    with running(maker, tmp_path) as (_, client):
        first = client.aggregate("job", asked, reports, domain=BUCKETS)
        assert len(first) == 0 and first.row_count == 3 and first.others is first.undeclared is None
        assert first.output_public_key == PUBLIC
        opened = first.opened(KEYS)
        assert list(opened.to_dict()) == BUCKETS
        assert opened.others == opened.undeclared is not None
        receipt = Receipt.from_bytes(first.receipt)
        for one in (first, opened):
            assert one.result_digest().hex() in receipt.result_digests()
        with pytest.raises(SealedSummaryError, match="does not have"):
            first.opened(THEIRS)
        again = client.aggregate("job", asked, reports, domain=BUCKETS)
        same(first, again)
        same(first, client.summary("job"))
        for other in (b"", THEIRS.pairs[0].public.key.public_bytes_raw()):
            with pytest.raises(ClientError, match="another request"):
                client.aggregate("job", replace(asked, output_public_key=other), reports, domain=BUCKETS)
        assert client.verify_ledger([first.receipt]).ok
    with running(maker, tmp_path) as (_, client):
        same(first, client.summary("job"))
        plain = client.aggregate("plain", replace(asked, output_public_key=b""), reports, domain=BUCKETS)
        assert plain.others is not None and not plain.sealed
        assert in_clear(tmp_path / "state") != []
    # The same search over a ledger that has the sealed job alone finds nothing.
    with running(maker, tmp_path / "state") as (_, client):
        client.aggregate("job", asked, reports, domain=BUCKETS)
    assert in_clear(tmp_path / "state" / "state") == []


def same(first: Summary, again: Summary) -> None:
    assert again.repeated and again.sealed == first.sealed and again.sealed_totals == first.sealed_totals
    assert again.result_head == first.result_head


def test_files_are_sealed_and_a_command_opens_them(files: tuple[EmbeddedService, Client], tmp_path: Path) -> None:
    _, client = files
    done = over_files(client, "job", others_epsilon="1")
    assert done.files == ("job-1-of-1.avro.sealed",) and done.others is None and done.sealed_totals
    assert in_clear(tmp_path / "state", tmp_path / "out") == []
    sealed = tmp_path / "out" / "job-1-of-1.avro.sealed"
    assert hashlib.sha256(sealed.read_bytes()).hexdigest() in Receipt.from_bytes(done.receipt).result_digests()
    # The statement beside it has counters and guarantee, and none of the numbers.
    statement = json.loads((tmp_path / "out" / "job-statement.json").read_text())
    assert (statement["others"], statement["undeclared"], statement["row_count"]) == (None, None, 3)
    assert base64.b64decode(statement["output_public_key"]) == PUBLIC
    undeclared = client.summary("job").opened(KEYS).undeclared
    assert isinstance(undeclared, int)
    mine, theirs = tmp_path / "mine.json", tmp_path / "theirs.json"
    write_key_set(mine, KEYS)
    write_key_set(theirs, THEIRS)
    run = CliRunner().invoke
    refused = run(app, ["job", "open-summary", str(theirs), str(sealed)])
    assert refused.exit_code == 2 and "does not have" in refused.output and not (tmp_path / "job-1-of-1.avro").exists()
    done = run(app, ["job", "open-summary", str(mine), str(sealed), "--output", str(tmp_path / "plain")])
    assert done.exit_code == 0 and "3 rows" in done.output, done.output
    (rows,) = read_summary(tmp_path / "plain" / "job-1-of-1.avro")
    found = [high << 64 | low for high, low in zip(rows.key_high.tolist(), rows.key_low.tolist(), strict=True)]
    assert found == BUCKETS
    once_more = run(app, ["job", "open-summary", str(mine), str(sealed), "--output", str(tmp_path / "plain")])
    assert once_more.exit_code == 2 and "exists" in once_more.output
    renamed = sealed.rename(sealed.with_name("job-1-of-2.avro.sealed"))
    assert "renamed" in run(app, ["job", "open-summary", str(mine), str(renamed)]).output


def test_the_same_files_again_and_another_key_refused(files: tuple[EmbeddedService, Client], tmp_path: Path) -> None:
    _, client = files
    over_files(client, "job")
    before = (tmp_path / "out" / "job-1-of-1.avro.sealed").read_bytes()
    over_files(client, "job")
    assert (tmp_path / "out" / "job-1-of-1.avro.sealed").read_bytes() == before
    for other in (b"", THEIRS.pairs[0].public.key.public_bytes_raw()):
        with pytest.raises(ClientError, match="another request"):
            over_files(client, "job", output_public_key=other)
    asked = client.get_job("job").parameters
    assert asked is not None and asked.output_public_key == PUBLIC


BAD = {"short": b"x" * 31, "long": b"x" * 33, "small order": bytes(32)}


@pytest.mark.parametrize("kind", BAD)
def test_a_malformed_key_is_refused_before_reports_are_read(files: tuple[EmbeddedService, Client], kind: str) -> None:
    service, client = files
    read = []

    def reports() -> Iterator[Any]:
        read.append(1)
        yield from ()

    before = service.ledger.checkpoint()
    with pytest.raises(ClientError, match="output_public_key") as refused:
        client.aggregate("bad", replace(ASKS, output_public_key=BAD[kind]), reports(), domain=BUCKETS)
    assert refused.value.return_code == "INVALID_JOB"
    with pytest.raises(ClientError, match="output_public_key"):
        over_files(client, "bad", output_public_key=BAD[kind])
    with pytest.raises(ClientError, match="debug run"):
        over_files(client, "bad", debug_run=True)
    assert service.ledger.checkpoint() == before


def test_two_callers_of_one_bucket_read_their_own_summary_only(
    maker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On object storage that both can list and read: each opens their own file, and not the other's."""
    tokens = {"mine": "a" * 43, "theirs": "b" * 43}
    keys = {"mine": KEYS, "theirs": THEIRS}
    callers = tuple(
        Caller(
            name=name,
            roles=frozenset({Role.ADTECH}),
            origins=frozenset({ORIGIN}),
            tokens=(Token(digest=token_digest(token)),),
            folder=name,
        )
        for name, token in tokens.items()
    )
    root = f"s3://{BUCKET}"
    config = config_of(tmp_path, input_folder=f"{root}/in", output_folder=f"{root}/out", callers=callers)
    with s3_server(monkeypatch) as (_, bucket), embedded(config, keys=maker.keys, clock=maker.clock) as service:
        domain = domain_file(tmp_path / "domain.avro").read_bytes()
        for name, token in tokens.items():
            write_reports(tmp_path / "put", [ReportBatch.of([maker.report({BUCKETS[0]: 9})])])
            bucket.put(f"in/{name}/day.avro", (tmp_path / "put").read_bytes())
            bucket.put(f"in/{name}/domain.avro", domain)
            with Client(service.address, credentials=Credentials(token=token)) as client:
                over_files(client, "job", output_public_key=keys[name].pairs[0].public.key.public_bytes_raw())
        for name, theirs in (("mine", THEIRS), ("theirs", KEYS)):
            raw = bucket.get(f"out/{name}/job-1-of-1.avro.sealed")
            manifest = json.loads(bucket.get(f"out/{name}/job-manifest.json"))
            assert hashlib.sha256(raw).hexdigest() in {one["sha256"] for one in manifest["files"]}
            assert len(open_document(raw, keys[name])) == 3 * 24
            with pytest.raises(SealedSummaryError):
                open_document(raw, theirs)


def test_commands_seal_open_and_audit(maker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: object, code: int = 0) -> str:
        result = CliRunner().invoke(app, [str(one) for one in arguments])
        assert result.exit_code == code, result.output
        return result.stdout

    keys, public, reports = tmp_path / "keys.json", tmp_path / "public.json", tmp_path / "reports.avro"
    run("keys", "new", keys, "--public", public)
    write_reports(reports, [ReportBatch.of([maker.report({BUCKETS[0]: 9})])])
    asked = (reports, "--domain", domain_file(tmp_path / "domain.avro"), "--attribution-report-to", ORIGIN)
    sealed = (*asked, "--output-public-key", public)
    with embedded(config_of(tmp_path), keys=maker.keys, clock=maker.clock) as service:
        where = ("--service", service.address)
        said = run("job", "aggregate", "job", *sealed, *where)
        assert "3 rows, sealed" in said and f"{BUCKETS[0]:#034x}" not in said
        assert f"{BUCKETS[0]:#034x}" in run("job", "aggregate", "job", *sealed, "--keys", keys, *where)
        closed, opened = tmp_path / "closed.json", tmp_path / "opened.json"
        closed.write_text(run("job", "summary", "job", "--receipt", tmp_path / "receipt", "--json", *where))
        opened.write_text(run("job", "summary", "job", "--keys", keys, "--json", *where))
        two = tmp_path / "two.json"
        run("keys", "new", tmp_path / "more.json", "--count", "2", "--public", two)
        assert run("job", "aggregate", "other", *asked, "--output-public-key", two, *where, code=2) == ""
    assert [fact["bucket"] for fact in json.loads(opened.read_text())["facts"]] == [hex(one) for one in BUCKETS]
    log = tmp_path / "log"
    run("ledger", "export", tmp_path / "state" / "ledger.sqlite", log)
    evidence = (log, "--receipt", tmp_path / "receipt", "--summary")
    script = tmp_path / "verify.py"
    script.write_text(run("ledger", "verifier"))

    def standalone(summary: Path) -> int:
        monkeypatch.setattr(sys, "argv", ["verify.py", *map(str, evidence), str(summary)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        return int(str(ended.value.code))

    run("ledger", "verify", *evidence, closed)
    assert standalone(closed) == 0
    # What was sealed is what the receipt names. Opened numbers could be anybody's, so they prove nothing.
    altered = json.loads(closed.read_text())
    altered["sealed"] = altered["sealed"][:-1] + ("0" if altered["sealed"][-1] != "0" else "1")
    added = json.loads(closed.read_text()) | {"facts": json.loads(opened.read_text())["facts"]}
    for number, plain in enumerate((altered, added, json.loads(opened.read_text()))):
        path = tmp_path / f"altered-{number}.json"
        path.write_text(json.dumps(plain))
        run("ledger", "verify", *evidence, path, code=1)
        assert standalone(path) == 1
