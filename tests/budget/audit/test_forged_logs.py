"""Logs of a dishonest operator: every entry follows the one before and is signed, and one of them says what is not so.

The audit of a database, the audit of an exported log and the verifier in one file must each refuse every one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from aggservice.mechanisms import AmplificationBound, ManualClock, SeededBits, amplified_micro
from aggservice.wire import Randomizer
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
    Mechanism,
    MemoryStore,
    OneUseNoise,
    Sensitivity,
    ShuffledReports,
    Signer,
    Store,
    Terms,
    UnitSet,
    verify_log,
    verify_store,
)
from budget.audit import standalone
from budget.filters import Spend
from budget.log.entries import decode, encode, entry_hash, extend, root
from budget.log.export import MAGIC, write_log
from budget.log.proofs import Checkpoint, issue
from budget.store import EntryRow, Head, JobRow, PartRow
from budget.stores.balances import charge
from budget.stores.balances import refund as give_back

from ..test_ledger import digest, units

SIGNER = Signer(bytes(range(32)))
Log = list[tuple[dict[str, Any], bytes]]
"""Entries as plain values, each with its packed units."""
FIRST, DISCOVERY, REFUND, LAST, LOCAL, ONCE, SHUFFLED = range(1, 8)
"""The entries after the genesis."""
RANDOMIZER = Randomizer(
    identity=bytes(16), report_bytes=4, epsilon_micro=1_000_000, epsilon_permanent_micro=None, independent=True
).hex


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

    def spend(first: int, noise: Mechanism, covers: str = "a", count: int = 3, **stated: str) -> None:
        seq = ledger.checkpoint().entries
        ledger.commit(
            job=JobKey(caller="adtech", job_id=f"job-{seq}"),
            request_digest=digest(str(seq)),
            release=ledger.terms.release(noise, covers={covers: 1}, units=count, parameters=stated),
            units=units(first, count),
            result=b"noisy",
        )

    spend(0, LaplaceNoise(epsilon=one))
    spend(0, LaplaceDiscovery(epsilon=one, delta=Delta.parse("0.000001")))
    ledger.recover_budget(operator="operator", reason="lost", seq=FIRST)
    spend(0, LaplaceNoise(epsilon=one))
    spend(10, LocalReports(epsilon=one), randomizer=RANDOMIZER)
    spend(20, OneUseNoise(epsilon=one, max_value=7), "w3c")
    bound, delta = AmplificationBound.NUMERICAL, Delta.parse("0.000001")
    price = amplified_micro(bound, local_micro=one.micro, reports=100, delta_atto=delta.atto)
    shuffled = ShuffledReports(epsilon=Epsilon(micro=price), delta=delta, local_epsilon=one, reports=100, bound=bound)
    spend(100, shuffled, count=100, randomizer=RANDOMIZER)
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
            leaves.append(entry_hash(raw))
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


def forge_store(log: Log, store: Store) -> Store:
    """Number, chain and sign entries anew, and write them into a database with the balances that they imply."""

    def write(transaction: Any) -> None:
        frontier: tuple[bytes, ...] = ()
        last = ledger_id = bytes(32)
        for seq, (plain, keys) in enumerate(log):
            entry = plain | {"seq": seq, "previous": last.hex()}
            raw = encode(entry)
            last, before = entry_hash(raw), frontier
            frontier = extend(before, seq, last)
            ledger_id = ledger_id if seq else last
            receipt = issue(
                signer=SIGNER, entry=entry, raw=raw, frontier_before=before, frontier=frontier, ledger_id=ledger_id
            )
            part = PartRow(seq=seq, part=0, first_key=keys[:20], last_key=keys[-20:], keys=keys)
            transaction.append(EntryRow(seq=seq, header=raw, receipt=receipt.to_bytes()), [part] if keys else [])
            if "cost" in entry:
                stated = entry["cost"]
                cost = Spend(
                    loss_micro=Epsilon.parse(stated["epsilon"]).micro,
                    delta_atto=Delta.parse(stated["delta"]).atto,
                    uses=int(stated["uses"]),
                )
                limit = Spend(loss_micro=10**15, delta_atto=10**18, uses=2**32 - 1)
                (give_back if entry["type"] == "recovery" else charge)(transaction, UnitSet.packed(keys), cost, limit)
            if "job_id" in entry:
                transaction.add_job(JobRow(caller=entry["caller"], job_id=entry["job_id"], seq=seq, result=b"noisy"))
        transaction.set_head(Head(entries=len(log), frontier=frontier))

    store.write("forge", write)
    return store


def edit(seq: int, *steps: str | int, to: object) -> Callable[[Log], None]:
    """Change one value of an entry."""

    def change(log: Log) -> None:
        found: Any = log[seq][0]
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


def state(seq: int, name: str, text: str | None) -> Callable[[Log], None]:
    """State another value of a parameter, or none."""

    def change(log: Log) -> None:
        parameters = log[seq][0]["release"]["parameters"]
        assert parameters[name] != text
        parameters |= {} if text is None else {name: text}
        if text is None:
            del parameters[name]

    return change


def both(*changes: Callable[[Log], None]) -> Callable[[Log], None]:
    """Make several changes."""

    def change(log: Log) -> None:
        for one in changes:
            one(log)

    return change


def reprice(log: Log) -> None:
    """Charge half of what shuffling leaves."""
    found = log[SHUFFLED][0]
    half = str(Epsilon(micro=Epsilon.parse(found["cost"]["epsilon"]).micro // 2))
    found["cost"]["epsilon"] = found["release"]["mechanisms"][0]["epsilon"] = half


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
    "Λ₁ is stated too small": (edit(FIRST, "release", "parameters", "l1", to="9"), "terms", "it states l"),
    "Λ₀ is stated too small": (edit(FIRST, "release", "parameters", "l0", to="4"), "terms", "it states l"),
    "2 · max_value is stated too small": (edit(ONCE, "release", "parameters", "l1", to="7"), "terms", "it states l"),
    "an API counts twice and its bounds once": (edit(FIRST, "release", "covers", to={"a": 2}), "terms", "it states l"),
    "an API without bounds": (edit(FIRST, "release", "covers", to={"b": 1}), "terms", "no bounds"),
    "one use of an API with bounds": (edit(ONCE, "release", "covers", to={"a": 1}), "terms", "stand alone"),
    "one use beside other noise": (lend, "terms", "stand alone"),
    "local reports share a unit": (share, "terms", "another unit"),
    "another unit pays": (edit(FIRST, "release", "unit", to="device"), "terms", "another unit"),
    "beyond ε*": (edit(0, "filter", "epsilon", to="1.999999"), "budget", "beyond its limit"),
    "beyond δ*": (edit(0, "filter", "delta", to="0.000000999999999999"), "budget", "beyond its limit"),
    "beyond the uses": (edit(0, "filter", "uses", to="1"), "budget", "beyond its limit"),
    "time goes back": (edit(LAST, "time_ms", to=1_699_999_999_999), "time", "time is before"),
}


NAMES_NO_API = both(edit(FIRST, "release", "covers", to={}), state(FIRST, "l1", "1"), state(FIRST, "l0", "1"))

DERIVED: dict[str, tuple[Callable[[Log], object], str]] = {
    "no API, and Λ₁ = 1": (NAMES_NO_API, "names no API"),
    "no API, and the bounds of the ledger": (edit(FIRST, "release", "covers", to={}), "names no API"),
    "no API for local reports": (edit(LOCAL, "release", "covers", to={}), "names no API"),
    "Λ₁": (state(FIRST, "l1", "1"), "states l1 = 1"),
    "no Λ₁": (state(FIRST, "l1", None), "states l1 = None"),
    "Λ₀": (state(FIRST, "l0", "1"), "states l0 = 1"),
    "no Λ₀": (state(FIRST, "l0", None), "states l0 = None"),
    "Λ₁ and Λ₀ of one use": (state(ONCE, "l1", "7"), "states l1 = 7"),
    "the maximum value of one use": (state(ONCE, "max_value", "6"), "states max_value = 6"),
    "τ = 0": (state(DISCOVERY, "threshold", "0"), "states threshold = 0"),
    "τ one too small": (lambda log: state(DISCOVERY, "threshold", tau(log, -1))(log), "states threshold = "),
    "τ one too large": (lambda log: state(DISCOVERY, "threshold", tau(log, 1))(log), "states threshold = "),
    "no τ": (state(DISCOVERY, "threshold", None), "states threshold = None"),
    "τ without discovery": (state(FIRST, "threshold", "5"), "states threshold = 5"),
    "the amplified price": (reprice, "a report owes"),
    "the amplified price's δ": (
        both(
            edit(SHUFFLED, "release", "mechanisms", 0, "delta", to="0.000000000001"),
            edit(SHUFFLED, "cost", "delta", to="0.000000000001"),
        ),
        "a report owes",
    ),
    "the amplified price's bound": (
        both(edit(SHUFFLED, "release", "mechanisms", 0, "bound", to="small"), state(SHUFFLED, "bound", "small")),
        "does not apply",
    ),
    "the amplified price's ε₀": (state(SHUFFLED, "local_epsilon", "2"), "states local_epsilon = 2"),
    "the number of shuffled reports": (state(SHUFFLED, "reports", "1000"), "states reports = 1000"),
    "the number of shuffled reports and what it is priced for": (
        both(edit(SHUFFLED, "release", "mechanisms", 0, "reports", to="1000"), state(SHUFFLED, "reports", "1000")),
        "reports",
    ),
    "an amplified price above ε₀": (
        both(
            edit(SHUFFLED, "release", "mechanisms", 0, "epsilon", to="1.5"), edit(SHUFFLED, "cost", "epsilon", to="1.5")
        ),
        "epsilon",
    ),
    "the stated bound": (state(SHUFFLED, "bound", "closed"), "states bound = closed"),
    "the number of local reports": (state(LOCAL, "reports", "1000"), "states reports = 1000"),
    "ε∞": (state(LOCAL, "permanent_epsilon", "2"), "states permanent_epsilon = 2"),
    "the amplified price of reports that share something": (
        state(SHUFFLED, "randomizer", RANDOMIZER[:32] + "00000004" + RANDOMIZER[40:]),
        "price is amplified, but the randomizer does not say that a device's reports share nothing",
    ),
    "the amplified price of memoized reports": (
        both(state(SHUFFLED, "randomizer", RANDOMIZER[:48] + "001e8480"), state(SHUFFLED, "permanent_epsilon", "2")),
        "price is amplified, but the randomizer does not say that a device's reports share nothing",
    ),
    "a randomizer of a larger ε₀": (
        state(LOCAL, "randomizer", RANDOMIZER[:40] + "001e8480" + RANDOMIZER[48:]),
        "price is for",
    ),
}
"""Each with what all three verifiers say about it."""


def tau(log: Log, more: int) -> str:
    """Return the threshold of the discovery, changed."""
    return str(int(log[DISCOVERY][0]["release"]["parameters"]["threshold"]) + more)


def audited_log(log: Log, folder: Path) -> str | None:
    """Return what the audit of an exported log disagrees with."""
    found = verify_log(ExportedLog(forge(log, folder / "log"))).disagreement
    return None if found is None else str(found)


def audited_store(log: Log, folder: Path) -> str | None:
    """Return what the audit of a database disagrees with."""
    found = verify_store(forge_store(log, MemoryStore())).disagreement
    return None if found is None else str(found)


def audited_alone(log: Log, folder: Path) -> str | None:
    """Return what the verifier in one file disagrees with."""
    try:
        standalone.replay(str(forge(log, folder / "log")), [], [], None)
    except standalone.Mismatch as found:
        return str(found)
    return None


VERIFIERS = (audited_store, audited_log, audited_alone)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return honest_log(tmp_path_factory.mktemp("log") / "honest.log")


def test_a_log_that_was_written_again_unchanged_is_good(honest: Log, tmp_path: Path) -> None:
    path = forge(honest, tmp_path / "log")
    report = verify_log(ExportedLog(path))
    assert report.ok and report.entries == len(honest) == 8
    assert standalone.replay(str(path), [], [], None).count == 8
    assert [one(honest, tmp_path) for one in VERIFIERS] == [None, None, None]


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


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", DERIVED)
def test_every_verifier_computes_what_follows_from_an_entry_again(
    honest: Log, name: str, verifier: Callable[[Log, Path], str | None], tmp_path: Path
) -> None:
    change, words = DERIVED[name]
    log = deepcopy(honest)
    change(log)
    found = verifier(log, tmp_path)
    assert found is not None and words in found, found


def test_receipts_are_evidence_for_the_verifier_in_one_file(honest: Log, tmp_path: Path) -> None:
    """A receipt of an entry that the log has otherwise, or no longer, is found."""
    store = forge_store(honest, MemoryStore())
    rows = store.read("receipts", lambda transaction: list(transaction.entries(0)))
    receipts = [standalone.receipt(row.receipt) for row in rows]
    whole = str(forge(honest, tmp_path / "whole"))
    assert standalone.replay(whole, [], receipts, None).count == len(honest)
    changed = deepcopy(honest)
    changed[LAST][0]["caller"] = "somebody"
    with pytest.raises(standalone.Mismatch, match="a receipt holds another entry"):
        standalone.replay(str(forge(changed, tmp_path / "changed")), [], [receipts[LAST]], None)
    with pytest.raises(standalone.Mismatch, match=f"the log has {LAST} entries, but a checkpoint covers {LAST + 1}"):
        standalone.replay(str(forge(honest[:LAST], tmp_path / "short")), [], [receipts[LAST]], None)
