"""Results sealed to a caller's key by the local engine: right numbers inside, nothing of them outside."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggservice.engine import AvroShards, InLedger, LocalEngine, ledger_terms
from aggservice.engine.release.charging import find_result
from aggservice.job import result
from aggservice.job.errors import InvalidJobError, PaidFailureError
from aggservice.job.request import Discovery
from aggservice.job.result import Outcome
from aggservice.mechanisms import SecureBits, SeededBits, SystemClock
from aggservice.wire import KeySet
from aggservice.wire.hpke.summaries import histogram_columns, open_document, open_totals
from budget import Delta, EpsilonDeltaFilter, LaplaceNoise, Ledger, MemoryStore, Signer, Staging
from budget.files.staging import Attempt, Manifest
from ldp_client import columns_of

from .conftest import SCOPE, Maker
from .test_flow import NoNoise, request, run
from .test_shuffle_job import PROTOCOL, REGISTERED, sealed
from .test_shuffle_job import job as shuffle_job

EngineOf = Callable[..., LocalEngine]
KEYS = KeySet.create(SecureBits(), SystemClock())
KEY = KEYS.pairs[0].public.key.public_bytes_raw()


def asked(job: str = "job", **changes: Any) -> Any:
    return request(job, output_key=KEY, **changes)


def rows_of(outcome: Outcome) -> dict[int, int]:
    assert outcome.rows is outcome.shuffled is None and outcome.sealed is not None
    high, low, metrics = histogram_columns(open_document(outcome.sealed, KEYS, job_request_id="job", name=""))
    keys = zip(high.tolist(), low.tolist(), strict=True)
    return {one << 64 | two: metric for (one, two), metric in zip(keys, metrics.tolist(), strict=True)}


def staged(maker: Maker, folder: Path) -> Ledger:
    return Ledger.create(
        MemoryStore(),
        filter=EpsilonDeltaFilter(),
        terms=ledger_terms(),
        signer=Signer.generate(SecureBits()),
        clock=maker.clock,
        bits=SecureBits(),
        staging=Staging(folder / "staging", SecureBits()),
    )


def test_the_sums_are_inside_and_the_ledger_keeps_what_was_sealed(maker: Any, engine_of: EngineOf) -> None:
    engine = engine_of(maker, noise=NoNoise())
    asks = asked(others=LaplaceNoise.parse(epsilon="1"))
    outcome = run(engine, maker, asks, [maker.report({1: 5, 3: 9}), maker.report({1: 7})])
    assert rows_of(outcome) == {1: 12, 2: 0}
    totals = outcome.header.sealed_totals
    assert open_totals(totals, KEYS, job_request_id="job") == (9, 9)
    assert outcome.header.others is outcome.header.undeclared is None
    assert outcome.header.output_public_key == KEY
    kept = engine.ledger.job("adtech", "job")
    assert kept is not None and kept.result == result.result_head(outcome.header) + outcome.sealed  # type: ignore[operator]
    assert kept.entry.release.parameters["output_public_key"] == KEY.hex()
    found = find_result(engine.ledger, "adtech", "job")
    assert found is not None and found.sealed == outcome.sealed and found.rows is None


def test_a_request_with_another_key_is_another_request() -> None:
    other = KeySet.create(SecureBits(), SystemClock()).pairs[0].public.key.public_bytes_raw()
    digests = {asks.digest() for asks in (request(), asked(), replace(asked(), output_key=other))}
    assert len(digests) == 3
    with pytest.raises(InvalidJobError, match="output_public_key"):
        replace(asked(), output_key=bytes(32))
    with pytest.raises(InvalidJobError, match="debug run"):
        asked(debug_run=True)


def test_sizes_follow_from_the_number_of_rows(maker: Any, engine_of: EngineOf) -> None:
    """Sums of one and of nine digits, discovered or not: documents of as many rows have one size."""
    sizes = set()
    for value in (1, 65_530):
        engine = engine_of(maker, noise=NoNoise())
        outcome = run(
            engine, maker, asked(others=LaplaceNoise.parse(epsilon="1")), [maker.report({1: value, 2**100: 3})]
        )
        assert outcome.sealed is not None
        sizes.add((len(outcome.sealed), len(outcome.header.sealed_totals)))
    assert len(sizes) == 1


def test_private_bits_never_seal_twice_alike_and_seeded_ones_do(maker: Any, engine_of: EngineOf) -> None:
    reports = [maker.report({1: 5})]

    def sealed_by(bits: Any) -> bytes:
        outcome = run(engine_of(maker, noise=NoNoise(), bits=bits), maker, asked(), reports)
        assert outcome.sealed is not None
        return outcome.sealed

    assert sealed_by(SecureBits())[-100:-60] != sealed_by(SecureBits())[-100:-60]
    assert sealed_by(SeededBits("a")) == sealed_by(SeededBits("a"))


def test_a_shuffle_is_sealed_too(maker: Any, engine_of: EngineOf) -> None:
    values = [index % 5 for index in range(60)]
    engine = engine_of(maker, settings=REGISTERED)
    session = engine.begin(SCOPE, replace(shuffle_job(), output_key=KEY))
    session.add(maker.batch(sealed(maker, values)))
    outcome = session.finish()
    assert outcome.shuffled is None and outcome.sealed is not None
    body = open_document(outcome.sealed, KEYS, job_request_id="shuffle")
    width = len(body) // len(values)
    reports = [body[at : at + width] for at in range(0, len(body), width)]
    assert Counter(columns_of(PROTOCOL, reports).tolist()) == Counter(values)


def test_every_shard_of_files_is_sealed_under_its_name(maker: Any, engine_of: EngineOf, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    engine = engine_of(maker, noise=NoNoise(), ledger=staged(maker, tmp_path))
    output = AvroShards(prefix=tmp_path / "out" / "summary.avro", rows_per_shard=2)
    session = engine.begin(SCOPE, asked(discovery=Discovery(delta=Delta.parse("0.00001"))), destination=output)
    session.declare(np.zeros(5, np.uint64), np.arange(5, dtype=np.uint64))
    session.add(maker.batch([maker.report({2: 40_000, 9: 65_536 - 40_000}) for _ in range(60)]))
    header = session.finish().header
    assert header.files == tuple(f"summary-{shard}-of-3.avro.sealed" for shard in (1, 2, 3))
    found: dict[int, int] = {}
    for name in header.files:
        body = open_document((tmp_path / "out" / name).read_bytes(), KEYS, job_request_id="job", name=name)
        _, low, metrics = histogram_columns(body)
        found |= dict(zip(low.tolist(), metrics.tolist(), strict=True))
    assert found == {0: 0, 1: 0, 2: 2_400_000, 3: 0, 4: 0, 9: 60 * 25_536}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*header.files, "summary-statement.json"}


def test_sealing_that_fails_is_paid_for(maker: Any, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealing comes after sums and noise, so its failure must not be free (docs/design.md, semantics 8)."""

    def fail(*_: object, **__: object) -> None:
        raise OSError("no entropy")

    engine = engine_of(maker, noise=NoNoise())
    monkeypatch.setattr("aggservice.wire.hpke.summaries.seal_bound", fail)
    with pytest.raises(PaidFailureError):
        run(engine, maker, asked(), [maker.report({1: 5})])
    kept = engine.ledger.job("adtech", "job")
    assert kept is not None and kept.entry.units.count == 1


def test_a_destination_without_a_sealer_gets_one_from_the_request(maker: Any, engine_of: EngineOf) -> None:
    session = engine_of(maker, noise=NoNoise()).begin(SCOPE, asked(), destination=InLedger())
    session.declare(np.zeros(1, np.uint64), np.ones(1, np.uint64))
    session.add(maker.batch([maker.report({1: 5})]))
    assert rows_of(session.finish()) == {1: 5}


def test_a_crash_between_charge_and_publishing_gives_the_bytes_that_were_charged(
    maker: Any, engine_of: EngineOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealing is randomised, so a result that was sealed again would not be the one in the log."""
    (tmp_path / "out").mkdir()
    ledger = staged(maker, tmp_path)
    engine = engine_of(maker, noise=NoNoise(), ledger=ledger)
    reports = [maker.report({1: 5})]

    def attempt() -> Outcome:
        output = AvroShards(prefix=tmp_path / "out" / "summary.avro")
        session = engine.begin(SCOPE, asked(), destination=output)
        session.declare(np.zeros(1, np.uint64), np.ones(1, np.uint64))
        session.add(maker.batch(reports))
        return session.finish()

    class Crash(BaseException):
        pass

    def crash(attempt: Attempt, manifest: Manifest) -> None:
        attempt.release_lock()  # as the end of a process does
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(Attempt, "publish", crash)
        with pytest.raises(Crash):
            attempt()
    assert list((tmp_path / "out").iterdir()) == []
    outcome = attempt()
    assert outcome.repeated and outcome.committed is not None
    raw = (tmp_path / "out" / "summary-1-of-1.avro.sealed").read_bytes()
    digests = {one.sha256 for one in outcome.committed.entry.result.files}
    assert hashlib.sha256(raw).digest() in digests
    assert ledger.checkpoint().entries == 2
    assert histogram_columns(open_document(raw, KEYS, job_request_id="job"))[2].tolist() == [5]
