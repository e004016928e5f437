"""A privacy budget: create a ledger, charge it twice, be refused the third time, and audit it."""

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

from aggservice.mechanisms import SecureBits, SystemClock
from budget import (
    BudgetExhaustedError,
    Epsilon,
    EpsilonDeltaFilter,
    JobKey,
    LaplaceNoise,
    Ledger,
    Sensitivity,
    Signer,
    SqliteStore,
    Terms,
    verify_store,
)

bits, clock = SecureBits(), SystemClock()
folder = TemporaryDirectory()
store = SqliteStore(Path(folder.name) / "ledger.sqlite")
ledger = Ledger.create(
    store,
    filter=EpsilonDeltaFilter.parse(epsilon="20"),
    terms=Terms(bounds={"attribution-reporting": Sensitivity(l1=65_536, l0=65_536)}),
    signer=Signer.generate(bits),
    clock=clock,
    bits=bits,
)
units = bits.read(20 * 1000)  # 1,000 privacy units of 20 bytes; aggservice.wire derives the real ones from reports


def ask(name: str, epsilon: str) -> None:
    """Charge every unit for one job, with the job's result, in one transaction."""
    release = ledger.terms.release(LaplaceNoise(epsilon=Epsilon.parse(epsilon)), covers={"attribution-reporting": 1})
    job = JobKey(caller="adtech", job_id=name)
    digest = hashlib.sha256(f"{name} at {epsilon}".encode()).digest()
    try:
        ledger.commit(job=job, request_digest=digest, release=release, units=units, result=b"the noisy summary")
        print(f"{name}: charged {epsilon}, micro-ε left per unit: {ledger.remaining(units).least.loss_micro}")
    except BudgetExhaustedError as refused:
        print(f"{name}: {refused}")


ask("monday", "12")
ask("tuesday", "8")
ask("wednesday", "0.000001")  # nothing is left, so even the smallest amount is refused
audit = verify_store(store)  # replays the log from its first entry and compares every balance
print("audit:", "ok" if audit.ok else audit)
