"""What jobs take of a disk that callers share, before they are paid for: nothing that another caller can learn from.

Two callers over gRPC: one whose jobs cannot or do not pay, and one who measures. Then the files themselves, at the
moment of the commit, in worlds whose reports differ in their sealed contributions alone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggservice.client import Client, ClientError, Credentials, JobParameters
from aggservice.engine import AvroShards, InlineOpener, LocalEngine, Scope, ledger_terms
from aggservice.job.request import Discovery, HistogramRequest
from aggservice.mechanisms import SeededBits
from aggservice.service import Caller, EmbeddedService, Role, ServiceConfig, embedded, token_digest
from aggservice.service.config.callers import Token
from aggservice.service.errors import ConfigError
from aggservice.wire import BucketRows, Contribution, ReportBatch, write_buckets, write_reports
from budget import Delta, EpsilonDeltaFilter, LaplaceNoise, Ledger, MemoryStore, Signer, Staging
from budget.files.staging import Attempt
from budget.store import T

from ...engine.conftest import Maker

ORIGIN, SPY_ORIGIN = "https://adtech.example", "https://spy.example"
ROOM = 400_000
"""A quota with room for five results of few keys, of about 73,000 bytes each."""


def caller(name: str, origin: str) -> Caller:
    return Caller(
        name=name,
        roles=frozenset({Role.ADTECH}),
        origins=frozenset({origin}),
        tokens=(Token(digest=token_digest(name)),),
        folder=name,
    )


def config_of(folder: Path, **more: Any) -> ServiceConfig:
    config = ServiceConfig(
        state=folder / "state",
        listen="127.0.0.1:0",
        input_folder=folder / "in",
        output_folder=folder / "out",
        callers=(caller("adtech", ORIGIN), caller("spy", SPY_ORIGIN)),
    )
    limits = replace(config.limits, processes=0, staged_bytes_per_caller=ROOM)
    return replace(config, limits=limits, **more)


@pytest.fixture
def service(maker: Maker, tmp_path: Path) -> Iterator[EmbeddedService]:
    for name, origin in (("adtech", ORIGIN), ("spy", SPY_ORIGIN)):
        for folder in ("in", "out"):
            (tmp_path / folder / name).mkdir(parents=True)
        reports = [maker.report([Contribution(bucket=1, value=100)], reporting_origin=origin) for _ in range(3)]
        write_reports(tmp_path / "in" / name / "reports", [ReportBatch.of(reports)])
        domain = BucketRows.domain(np.zeros(4, np.uint64), np.arange(4, dtype=np.uint64))
        write_buckets(tmp_path / "in" / name / "domain", domain)
    with embedded(config_of(tmp_path), keys=maker.keys, clock=maker.clock) as running:
        yield running


def run(service: EmbeddedService, name: str, job: str, epsilon: str = "1", output: str = "") -> str:
    """Run a caller's job over their files; return how it ended: "released", or the text of its error."""
    asks = JobParameters(attribution_report_to=ORIGIN if name == "adtech" else SPY_ORIGIN, epsilon=epsilon)
    with Client(service.address, credentials=Credentials(token=name), attempts=1) as client:
        client.create_job(
            job,
            asks,
            input_data_blob_prefix="reports",
            output_domain_blob_prefix="domain",
            output_data_blob_prefix=output or f"to/{job}",
        )
        try:
            client.watch_job(job)
        except ClientError as problem:
            return str(problem)
        return "released"


def test_a_job_that_cannot_pay_takes_no_room_and_draws_no_noise(
    service: EmbeddedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise fresh noisy rows of victims with a spent budget lie on the shared disk, for nothing and for ever."""
    begun: list[str] = []
    real = Staging.begin
    monkeypatch.setattr(
        Staging, "begin", lambda self, *args, **more: begun.append(args[1]) or real(self, *args, **more)
    )
    parts = service.service.engine.parts
    drawn: list[object] = []
    noise_of = parts.noise_of
    monkeypatch.setattr(
        service.service.engine, "parts", replace(parts, noise_of=lambda bits: _Counting(noise_of(bits), drawn))
    )
    assert run(service, "adtech", "paid", "64") == "released"
    assert begun == ["paid"] and len(drawn) == 1
    for number in range(3):
        assert run(service, "adtech", f"unpaid{number}", "64").startswith("PRIVACY_BUDGET_EXHAUSTED")
    assert begun == ["paid"] and len(drawn) == 1


class _Counting:
    def __init__(self, inner: Any, drawn: list[object]) -> None:
        self._inner, self._drawn = inner, drawn

    def draw(self, noise: Any, size: int) -> Any:
        self._drawn.append(noise)
        return self._inner.draw(noise, size)


def test_results_that_cannot_be_published_use_up_their_own_callers_room_only(
    service: EmbeddedService, tmp_path: Path
) -> None:
    """A caller replaces their output folder by a link: what they paid for stays staged, and counts for them alone."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ends = []
    for number in range(8):
        folder = tmp_path / "out" / "adtech" / str(number)
        real = Attempt.publish

        def turned(self: Attempt, manifest: Any, folder: Path = folder, real: Any = real) -> None:
            if not folder.is_symlink():
                folder.rmdir()
                folder.symlink_to(elsewhere)
            real(self, manifest)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Attempt, "publish", turned)  # in the moment between the charge and the publication
            ends.append(run(service, "adtech", f"kept{number}", "1", f"{number}/sum"))
        assert run(service, "spy", f"probe{number}", "0.000001") == "released"
    assert list(elsewhere.iterdir()) == []
    refused = [text for text in ends if "your quota" in text]
    assert refused and len(ends) - len(refused) == ROOM // 73_000
    assert all("nothing was charged" in text and "disk" not in text for text in refused)
    (tmp_path / "out" / "adtech" / "0").unlink()
    with Client(service.address, credentials=Credentials(token="adtech"), attempts=1) as client:
        assert client.get_job("kept0").summary is not None
    assert len(list((tmp_path / "out" / "adtech" / "0").iterdir())) == 2


def test_a_full_disk_is_told_without_its_size(service: EmbeddedService, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    entries = service.ledger.checkpoint().entries
    ended = run(service, "adtech", "job")
    assert ended.startswith("RESULT_WRITE_ERROR") and service.ledger.checkpoint().entries == entries
    assert "nothing was charged" in ended and not any(letter.isdigit() for letter in ended)


class Watched(MemoryStore):
    """A store that notes what is staged whenever a job is about to be committed."""

    def __init__(self, staging: Path) -> None:
        super().__init__()
        self._staging = staging
        self.looks: list[Any] = []

    def write(self, name: str, work: Any) -> T:  # type: ignore[type-var]
        if name == "commit":
            files = [one.stat() for one in self._staging.rglob("*") if one.is_file()]
            self.looks.append(sorted((one.st_size, one.st_blocks) for one in files))
        return super().write(name, work)  # type: ignore[no-any-return]


@pytest.mark.parametrize("rows_per_shard", [3, 4_000_000])
@pytest.mark.parametrize("sealed", [False, True])
def test_what_is_staged_before_the_charge_depends_on_public_numbers_alone(
    tmp_path: Path, maker: Maker, rows_per_shard: int, sealed: bool
) -> None:
    """Not on how many keys were discovered, nor on how many digits their noisy sums have; and the files end whole."""
    looks = []
    for world, contributions in enumerate(([], [(key, 9_000) for key in range(7)])):
        state = tmp_path / str(world)
        store = Watched(state / "staging")
        bits = SeededBits("room")
        ledger = Ledger.create(
            store,
            filter=EpsilonDeltaFilter(),
            signer=Signer.generate(bits),
            clock=maker.clock,
            bits=bits,
            terms=ledger_terms(),
            staging=Staging(state / "staging", bits),
        )
        engine = LocalEngine(ledger=ledger, opener=InlineOpener(maker.keys), clock=maker.clock, bits=bits)
        request = HistogramRequest(
            job_request_id="job",
            attribution_report_to=ORIGIN,
            mechanism=LaplaceNoise.parse(epsilon="40"),
            discovery=Discovery(delta=Delta.parse("0.00001")),
            output_key=bytes([9, *bytes(31)]) if sealed else None,
        )
        output = AvroShards(prefix=state / "out" / "sum", rows_per_shard=rows_per_shard)
        session = engine.begin(Scope(caller="adtech"), request, destination=output)
        reports = [
            maker.report([Contribution(bucket=key, value=value) for key, value in contributions]) for _ in range(40)
        ]
        session.add(ReportBatch.of(reports))
        outcome = session.finish()
        assert outcome.header.row_count == len(contributions)
        assert outcome.committed is not None and outcome.committed.manifest is not None
        for one in outcome.committed.manifest.files:
            assert (state / "out" / one.name).stat().st_size == one.size
        assert list((state / "staging").iterdir()) == []
        looks.append(store.looks)
    assert looks[0] == looks[1] and len(looks[0]) == 1 and len(looks[0][0]) > 3


def test_outputs_that_share_a_file_are_one_output(service: EmbeddedService, tmp_path: Path) -> None:
    """``sum`` and ``sum.avro`` both write ``sum-statement.json``: the second of two unfinished jobs is refused."""
    asks = JobParameters(attribution_report_to=ORIGIN, epsilon="1")
    service.service.dispatcher.rest()  # jobs stay where they are
    with Client(service.address, credentials=Credentials(token="adtech"), attempts=1) as client:
        places = {"input_data_blob_prefix": "reports", "output_domain_blob_prefix": "domain"}
        client.create_job("a", asks, output_data_blob_prefix="t/sum", **places)
        with pytest.raises(ClientError, match="another job is writing to 'sum'"):
            client.create_job("b", asks, output_data_blob_prefix="t/sum.avro", **places)
        client.create_job("c", asks, output_data_blob_prefix="t/sum2", **places)


def test_a_file_that_appears_in_the_way_is_never_replaced(service: EmbeddedService, tmp_path: Path) -> None:
    mine = tmp_path / "out" / "adtech" / "t" / "sum-statement.json"
    real = Attempt.publish

    def late(self: Attempt, manifest: Any) -> None:
        mine.write_text("mine")
        real(self, manifest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Attempt, "publish", late)
        ended = run(service, "adtech", "job", output="t/sum")
    assert mine.read_text() == "mine" and "paid for but could not be written" in ended
    mine.unlink()
    with Client(service.address, credentials=Credentials(token="adtech"), attempts=1) as client:
        assert client.get_job("job").summary is not None
    assert mine.read_text().startswith("{")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_folder": "in/out"}, "lies inside folders.input"),
        ({"buckets": {"b": "out/spy"}}, "lies inside folders.output"),
        ({"buckets": {"b": "link"}}, "lies inside folders.output"),
        ({"buckets": {"b": "s3://all/below"}, "input_folder": "s3://all"}, "lies inside folders.input"),
        ({"state": "out/state"}, "where callers can read it"),
        ({"keys": "in/keys.json"}, "where callers can read it"),
        ({"callers": (caller("adtech", ORIGIN), replace(caller("spy", SPY_ORIGIN), folder="adtech"))}, "same folder"),
        ({"callers": (caller("adtech", ORIGIN), replace(caller("spy", SPY_ORIGIN), folder="Adtech"))}, "same folder"),
        ({"callers": (caller("adtech", ORIGIN), replace(caller("spy", SPY_ORIGIN), folder="alias"))}, "same folder"),
    ],
)
def test_places_that_overlap_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    for name in ("in/adtech", "out/spy"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "out" / "spy")
    (tmp_path / "in" / "alias").symlink_to(tmp_path / "in" / "adtech")

    def placed(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: placed(one) for name, one in value.items()}
        return tmp_path / value if isinstance(value, str) and "://" not in value else value

    with pytest.raises(ConfigError, match=words):
        config_of(tmp_path, **{name: placed(value) for name, value in changes.items()})
    config_of(tmp_path, buckets={"same": tmp_path / "in"})
