"""Ledgers that earlier versions wrote stay readable, and verify: databases, exported logs and receipts of every kind.

``golden`` holds ledgers of version 0.2: ``epsilon`` (a histogram, two APIs with a total of the others, key discovery, a
job without reports, local reports, a W3C task and a refund) and ``zcdp`` (Gaussian and Laplace noise, key discovery).
``amplified-…`` have a price that does not hold: nothing in them says that the reports share nothing.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from aggservice.mechanisms import ManualClock
from budget import ExportedLog, Ledger, Receipt, SqliteStore, verify_log, verify_store
from budget.audit import standalone

GOLDEN = Path(__file__).parent / "golden"


def opened(name: str, folder: Path) -> SqliteStore:
    """Return a copy of a golden database."""
    path = folder / f"{name}.sqlite"
    path.write_bytes(gzip.decompress((GOLDEN / f"{name}.sqlite.gz").read_bytes()))
    return SqliteStore(path)


def receipts(name: str) -> list[bytes]:
    return (GOLDEN / f"{name}.receipts").read_bytes().splitlines()


@pytest.mark.parametrize(("name", "entries", "kept"), [("epsilon", 8, 7), ("zcdp", 4, 3)])
def test_they_verify(name: str, entries: int, kept: int, tmp_path: Path) -> None:
    store = opened(name, tmp_path)
    evidence = [Receipt.from_bytes(raw) for raw in receipts(name)]
    log = GOLDEN / f"{name}.log"
    for report in (verify_store(store, receipts=evidence), verify_log(ExportedLog(log), receipts=evidence)):
        assert report.ok and report.entries == entries, report.disagreement
    alone = standalone.replay(str(log), [], [standalone.receipt(raw) for raw in receipts(name)], None)
    assert alone.count == entries and len(evidence) == kept
    ledger = Ledger.open(store, clock=ManualClock())
    for one in evidence:
        if one.entry["type"] == "release":
            found = ledger.job(one.entry["caller"], one.entry["job_id"])
            assert found is not None and found.receipt == one.to_bytes()
    store.close()


@pytest.mark.parametrize("name", ["amplified-loloha", "amplified-grr"])
def test_an_amplified_price_that_later_reports_undo_is_refused(name: str, tmp_path: Path) -> None:
    """Names did not say whether reports share anything: LOLOHA's do, and nobody can tell them from GRR's."""
    words = "price is amplified, but the randomizer does not say that a device's reports share nothing"
    store, log = opened(name, tmp_path), GOLDEN / f"{name}.log"
    for report in (verify_store(store), verify_log(ExportedLog(log))):
        assert report.disagreement is not None and report.disagreement.seq == 1 and words in report.disagreement.text
    with pytest.raises(standalone.Mismatch, match=words):
        standalone.replay(str(log), [], [], None)
    ledger = Ledger.open(store, clock=ManualClock())  # it can still be read
    assert ledger.job("adtech", "monday") is not None
    store.close()
