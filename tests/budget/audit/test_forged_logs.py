"""Logs of a dishonest operator: every entry follows the one before and is signed, and one of them says what is not so.

The audit and the verifier in one file must each refuse every one of them for its own reason.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from aggservice.mechanisms import ManualClock, SeededBits
from budget import (
    Delta,
    Epsilon,
    EpsilonDeltaFilter,
    ExportedLog,
    JobKey,
    LaplaceDiscovery,
    LaplaceNoise,
    Ledger,
    LocalReports,
    MemoryStore,
    Release,
    Sensitivity,
    Signer,
    Terms,
    verify_log,
)
from budget.audit import standalone
from budget.log.canonical import decode, encode
from budget.log.export import MAGIC, write_log
from budget.log.merkle import extend, leaf_hash, root
from budget.log.proofs import Checkpoint
from budget.release import Mechanism, OneUseNoise

from ..test_ledger import digest, units

SIGNER = Signer(bytes(range(32)))
Log = list[tuple[dict[str, Any], bytes]]
"""Entries as plain values, each with its packed units."""
FIRST, DISCOVERY, REFUND, LAST, LOCAL, ONCE = range(1, 7)
"""The entries after the genesis."""


def honest_log(path: Path) -> Log:
    """Return a log with releases of every kind and a refund; units 0 to 2 spend ε = 2, δ = 10⁻⁶ and two uses."""
    one = Epsilon.parse("1")
    store = MemoryStore()
    ledger = Ledger.create(
        store,
        filter=EpsilonDeltaFilter.parse(epsilon="4", delta="0.000002"),
        terms=Terms(bounds={"a": Sensitivity(l1=10, l0=5)}),
        signer=SIGNER,
        clock=ManualClock(1_700_000_000_000),
        bits=SeededBits("ledger"),
        recovery=True,
    )
    own, once = {"l1": "10", "l0": "5"}, {"l1": "14", "l0": "14"}

    def spend(first: int, noise: Mechanism, covers: str = "a", stated: dict[str, str] = own) -> None:
        seq = ledger.checkpoint().entries
        ledger.commit(
            job=JobKey(caller="adtech", job_id=f"job-{seq}"),
            request_digest=digest(str(seq)),
            release=Release(mechanisms=(noise,), covers={covers: 1}, parameters=stated),
            units=units(first, 3),
            result=b"noisy",
        )

    spend(0, LaplaceNoise(epsilon=one))
    spend(0, LaplaceDiscovery(epsilon=one, delta=Delta.parse("0.000001")))
    ledger.recover_budget(operator="operator", reason="lost", seq=FIRST)
    spend(0, LaplaceNoise(epsilon=one))
    spend(10, LocalReports(epsilon=one))
    spend(20, OneUseNoise(epsilon=one, max_value=7), "w3c", once)
    write_log(store, path)
    return [(decode(found.header), b"".join(found.parts)) for found in ExportedLog(path).entries()]


def forge(log: Log, path: Path) -> Path:
    """Number, chain and sign entries anew, and write them as an exported log."""
    frontier: tuple[bytes, ...] = ()
    leaves: list[bytes] = [bytes(32)]
    with path.open("wb") as file:
        file.write(MAGIC)
        for seq, (plain, keys) in enumerate(log):
            raw = encode(plain | {"seq": seq, "previous": leaves[-1].hex()})
            leaves.append(leaf_hash(raw))
            frontier = extend(frontier, seq, leaves[-1])
            file.write(len(raw).to_bytes(4, "big") + raw + keys)
        signed = Checkpoint(
            ledger_id=leaves[1],
            entries=len(log),
            head=leaves[-1],
            root=root(frontier),
            time_ms=log[-1][0]["time_ms"],
            public_key=SIGNER.public_key,
        ).signed_by(SIGNER)
        file.write(bytes(4) + len(signed.to_bytes()).to_bytes(4, "big") + signed.to_bytes())
    return path


def edit(seq: int, *steps: str, to: object) -> Callable[[Log], None]:
    """Change one value of an entry."""

    def change(log: Log) -> None:
        found = log[seq][0]
        for step in steps[:-1]:
            found = found[step]
        assert found[steps[-1]] != to
        found[steps[-1]] = to

    return change


def refund(seq: int, **changes: Any) -> Callable[[Log], None]:
    """Append a refund of an entry."""

    def change(log: Log) -> None:
        plain, keys = deepcopy(log[seq])
        copied = {"recovers": seq, "cost": plain["cost"], "units": plain["units"]}
        log.append((deepcopy(log[REFUND][0]) | copied | changes, keys))

    return change


def lend(log: Log) -> None:
    """Release noise of one use together with other noise."""
    found = log[ONCE][0]
    found["release"]["mechanisms"].append({"name": "discrete_laplace", "epsilon": "1"})
    found["cost"]["epsilon"] = "2"


def share(log: Log) -> None:
    """Let local reports pay by their shared ID in a ledger that charges shared IDs."""
    log[0][0]["terms"]["unit"] = "shared_id"
    for seq in (FIRST, DISCOVERY, LAST, LOCAL):
        log[seq][0]["release"]["unit"] = "shared_id"


FORGED: dict[str, tuple[Callable[[Log], object], str, str]] = {
    "ε costs less": (edit(FIRST, "cost", "epsilon", to="0.5"), "cost", "its cost"),
    "δ costs nothing": (edit(DISCOVERY, "cost", "delta", to="0"), "cost", "its cost"),
    "a final release takes one use": (edit(LOCAL, "cost", "uses", to="1"), "cost", "its cost"),
    "noise of one use takes one use": (edit(ONCE, "cost", "uses", to="1"), "cost", "its cost"),
    "a job is committed twice": (lambda log: log.append(deepcopy(log[LAST])), "job", "committed before"),
    "a release is refunded twice": (refund(FIRST), "recovery", "one twice"),
    "local reports are refunded": (refund(LOCAL), "recovery", "final release"),
    "reports of one use are refunded": (refund(ONCE), "recovery", "final release"),
    "more is refunded than was paid": (
        refund(LAST, cost={"epsilon": "2", "delta": "0", "uses": "1"}),
        "recovery",
        "its amount or units differ",
    ),
    "a refund is refunded": (refund(REFUND), "recovery", "refunds no release"),
    "refunds are off": (edit(0, "recovery", to="off"), "recovery", "off in this ledger"),
    "Λ₁ is stated too small": (edit(FIRST, "release", "parameters", "l1", to="9"), "unit", "other bounds"),
    "Λ₀ is stated too small": (edit(FIRST, "release", "parameters", "l0", to="4"), "unit", "other bounds"),
    "2 · max_value is stated too small": (edit(ONCE, "release", "parameters", "l1", to="7"), "unit", "other bounds"),
    "an API counts twice and its bounds once": (edit(FIRST, "release", "covers", to={"a": 2}), "unit", "other bounds"),
    "an API without bounds": (edit(FIRST, "release", "covers", to={"b": 1}), "unit", "no bounds"),
    "one use of an API with bounds": (edit(ONCE, "release", "covers", to={"a": 1}), "unit", "stand alone"),
    "one use beside other noise": (lend, "unit", "stand alone"),
    "local reports share a unit": (share, "unit", "another unit"),
    "another unit pays": (edit(FIRST, "release", "unit", to="device"), "unit", "another unit"),
    "beyond ε*": (edit(0, "filter", "epsilon", to="1.999999"), "budget", "beyond its limit"),
    "beyond δ*": (edit(0, "filter", "delta", to="0.000000999999999999"), "budget", "beyond its limit"),
    "beyond the uses": (edit(0, "filter", "uses", to="1"), "budget", "beyond its limit"),
    "time goes back": (edit(LAST, "time_ms", to=1_699_999_999_999), "time", "time is before"),
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return honest_log(tmp_path_factory.mktemp("log") / "honest.log")


def test_a_log_that_was_written_again_unchanged_is_good(honest: Log, tmp_path: Path) -> None:
    path = forge(honest, tmp_path / "log")
    report = verify_log(ExportedLog(path))
    assert report.ok and report.entries == len(honest) == 7
    assert standalone.replay(str(path), [], [], None).count == 7


@pytest.mark.parametrize("name", FORGED)
def test_an_entry_that_says_what_is_not_so_is_found(honest: Log, name: str, tmp_path: Path) -> None:
    change, what, words = FORGED[name]
    log = deepcopy(honest)
    change(log)
    path = forge(log, tmp_path / "log")
    found = verify_log(ExportedLog(path)).disagreement
    assert found is not None and found.what == what, found
    with pytest.raises(standalone.Mismatch, match=words):
        standalone.replay(str(path), [], [], None)
