"""The privacy unit and the bounds in a ledger's first entry: nothing else is opened, charged or audited as good."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from aggservice.mechanisms import ManualClock, SeededBits
from budget import (
    Delta,
    Epsilon,
    EpsilonDeltaFilter,
    JobKey,
    LaplaceDiscovery,
    LaplaceNoise,
    Ledger,
    LocalReports,
    MemoryStore,
    Release,
    Sensitivity,
    Signer,
    SqliteStore,
    Store,
    Terms,
    verify_store,
)
from budget.errors import FormatError, LedgerMismatchError, TermsError
from budget.log.entries import entry_from_bytes

TERMS = Terms(unit="report", bounds={"ara": Sensitivity(l1=100, l0=10), "paa": Sensitivity(l1=50, l0=50)})
NOISE = (LaplaceNoise.parse(epsilon="1"),)
LOCAL = LocalReports(epsilon=Epsilon.parse("1"))
FOUND = LaplaceDiscovery(epsilon=Epsilon.parse("1"), delta=Delta.parse("0.000001"))


def make(store: Store, terms: Terms = TERMS) -> Ledger:
    bits = SeededBits("terms")
    return Ledger.open_or_create(
        store, filter=EpsilonDeltaFilter(), terms=terms, signer=Signer.generate(bits), clock=ManualClock(), bits=bits
    )


def spend(ledger: Ledger, release: Release, job_id: str = "a") -> None:
    ledger.commit(
        job=JobKey(caller="c", job_id=job_id),
        request_digest=bytes(32),
        release=release,
        units=job_id.encode() * 20,
        result=b"r",
    )


def covering(l1: int, l0: int, unit: str = "report", **covers: int) -> Release:
    return Release(mechanisms=NOISE, unit=unit, covers=covers, parameters={"l1": str(l1), "l0": str(l0)})


def test_bounds_add_up_over_apis() -> None:
    assert TERMS.sensitivity({"ara": 1}) == Sensitivity(l1=100, l0=10)
    assert TERMS.sensitivity({"ara": 1, "paa": 3}) == Sensitivity(l1=250, l0=160)
    assert TERMS.sensitivity({}) == Sensitivity(l1=100, l0=10)
    with pytest.raises(TermsError, match="no bounds for other"):
        TERMS.sensitivity({"other": 1})
    with pytest.raises(TermsError, match="above 2\\^32"):
        TERMS.sensitivity({"ara": 1 << 31})


@pytest.mark.parametrize(
    ("release", "word"),
    [
        (covering(100, 10, unit="shared_id", ara=1), "two budgets"),
        (covering(100, 10, ara=1, paa=1), "l1 = 150"),
        (covering(100, 10, paa=1), "l1 = 50"),
        (Release(mechanisms=NOISE, covers={"ara": 1}), "l1 = 100"),
        (covering(1, 1, other=1), "no bounds for other"),
        (covering(1, 1), "charges 1 units and names no API"),
        (Release(mechanisms=(*NOISE, LOCAL), covers={"ara": 1}), "must be the only mechanism"),
        (Release(mechanisms=(LOCAL,), covers={"ara": 1}), "names their randomizer"),
        (Release(mechanisms=(FOUND, FOUND), covers={"ara": 1}), "discover keys once"),
        (Release(mechanisms=(LOCAL,), unit="shared_id"), "two budgets"),
    ],
)
def test_a_release_under_other_terms_is_neither_charged_nor_replayed(
    release: Release, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = make(MemoryStore())
    spend(ledger, covering(100, 10, ara=1))
    with pytest.raises(TermsError, match=word):
        spend(ledger, release, "b")
    assert ledger.checkpoint().entries == 2
    # A service that does not check writes it all the same; the audit finds it.
    with monkeypatch.context() as broken:
        broken.setattr(Terms, "check", lambda self, release, units: None)
        spend(ledger, release, "b")
        assert verify_store(ledger.store).ok
    report = verify_store(ledger.store)
    assert not report.ok and report.disagreement is not None
    assert (report.disagreement.seq, report.disagreement.what) == (2, "terms")


def test_a_ledger_opens_only_under_its_own_terms(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "l.sqlite")
    make(store)
    assert make(store).terms == TERMS
    with pytest.raises(LedgerMismatchError, match="privacy_unit = 'report'"):
        make(store, Terms(unit="shared_id", bounds=TERMS.bounds))
    with pytest.raises(LedgerMismatchError, match="bounds"):
        make(store, Terms(unit="report", bounds={"ara": Sensitivity(l1=99, l0=10), "paa": Sensitivity(l1=50, l0=50)}))


def test_two_services_that_start_at_once_with_other_units_cannot_both_have_the_ledger(tmp_path: Path) -> None:
    for number in range(10):
        path, together, ended = tmp_path / f"{number}.sqlite", threading.Barrier(2), []

        def start(
            unit: str, path: Path = path, together: threading.Barrier = together, ended: list[str] = ended
        ) -> None:
            store = SqliteStore(path)
            together.wait(20)
            try:
                make(store, Terms(unit=unit, bounds=TERMS.bounds))
                ended.append("opened")
            except LedgerMismatchError:
                ended.append("refused")

        threads = [threading.Thread(target=start, args=(unit,)) for unit in ("report", "shared_id")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(ended) == ["opened", "refused"]


def test_a_ledger_of_the_former_format_is_refused_with_what_to_do() -> None:
    store = MemoryStore()
    make(store)
    row = store.read("look", lambda transaction: transaction.entry(0))
    assert row is not None
    plain = json.loads(row.header)
    plain["format"] = "aggservice-ledger-1"
    del plain["terms"]
    raw = json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(FormatError, match=r"former format.*Start a new ledger"):
        entry_from_bytes(raw, None)
    store._db.execute("UPDATE entries SET header = ? WHERE seq = 0", (raw,))
    with pytest.raises(FormatError, match="former format"):
        Ledger.open(store, clock=ManualClock())
    report = verify_store(store)
    assert not report.ok and report.disagreement is not None and "former format" in report.disagreement.text


def test_terms_that_make_no_sense_are_refused() -> None:
    for wrong in ({"l1": 0}, {"l1": (1 << 32) + 1}, {"l1": 5, "l0": 6}, {"l0": 0}):
        with pytest.raises(TermsError):
            Sensitivity(**wrong)
    with pytest.raises(TermsError, match="named"):
        Terms(unit="")
