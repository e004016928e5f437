"""Nothing but the tables knows the names and classes of mechanisms, rules and filters: a new one is one class.

Bounded noise is such a one: what it hides, exactly, and that ledger, log and both verifiers charge its δ.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from aggservice.mechanisms import ManualClock, SecureBits, TruncatedDiscreteLaplace
from aggservice.mechanisms.laplace import truncated_delta
from budget import (
    DISCOVERY_RULES,
    FILTERS,
    MECHANISMS,
    BudgetExhaustedError,
    EpsilonDeltaFilter,
    ExportedLog,
    JobKey,
    Ledger,
    MemoryStore,
    Sensitivity,
    Signer,
    UnitSet,
    verify_log,
    write_log,
)
from budget.audit import standalone
from budget.errors import ZeroAmountError
from budget.mechanisms import BoundedNoise

from .releases import TERMS, release_of

ROOT = Path(__file__).parents[2]
#: The lone verifier is written a second time on purpose, and shares no code with what it verifies.
INDEPENDENT = {"budget/audit/standalone.py"}
TABLES = {"budget/mechanisms.py", "budget/filters.py"}
#: Where ε alone stands for Laplace noise: in jobs, campaigns and the command that prices a release.
LAPLACE_BY_DEFAULT = {
    "aggservice/job/request.py",
    "aggservice/campaign/settings/campaign.py",
    "aggservice/campaign/service/jobs.py",
}


def branches() -> list[tuple[str, int, str]]:
    """Return every comparison and isinstance with a name or class of the tables."""
    entries = [table[name] for table in (MECHANISMS, DISCOVERY_RULES, FILTERS) for name in table]  # type: ignore[attr-defined]
    known = {one.name for one in entries} | {one.__name__ for one in entries}
    found = []
    for package in ("aggservice", "budget", "w3c_client", "ldp_client", "ara_client", "paa_client"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name in INDEPENDENT | TABLES or "_pb2" in name:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                asks = isinstance(node, ast.Compare | ast.MatchValue | ast.MatchClass) or (
                    isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass")
                )
                for one in ast.walk(node) if asks else ():
                    text = one.id if isinstance(one, ast.Name) else one.value if isinstance(one, ast.Constant) else None
                    if isinstance(text, str) and text in known:
                        found.append((name, node.lineno, text))
    return found


def test_nothing_else_branches_on_a_mechanism_a_rule_or_a_filter() -> None:
    found = branches()
    others = [one for one in found if one[0] not in LAPLACE_BY_DEFAULT or not one[2].startswith("Laplace")]
    assert others == []
    assert {one[0] for one in found} == LAPLACE_BY_DEFAULT


@pytest.mark.parametrize("epsilon", ["0.01", "0.3", "1", "8"])
@pytest.mark.parametrize("delta", ["0.9", "0.01", "0.000001"])
@pytest.mark.parametrize("l1", [1, 2, 7])
def test_the_mass_that_shows_a_unit_is_at_most_half_of_delta(epsilon: str, delta: str, l1: int) -> None:
    """Exactly, for every way to divide Λ₁ over two keys: the sum of both is at most that of one key."""
    mechanism = BoundedNoise.parse(epsilon=epsilon, delta=delta)
    noise = mechanism.noise(Sensitivity(l1=l1, l0=1))
    assert isinstance(noise, TruncatedDiscreteLaplace)
    shown = [float(truncated_delta(noise, shift)) for shift in range(l1 + 1)]
    assert shown[0] == 0 and shown[l1] <= float(delta) / 2
    assert all(shown[one] + shown[l1 - one] <= shown[l1] + 1e-15 for one in range(l1 + 1))


def test_no_sum_is_further_off_than_the_bound() -> None:
    """τ = ⌈5 (1 + ln 20)⌉ for ε = 1, δ = 0.05 and Λ₁ = 5."""
    noise = BoundedNoise.parse(epsilon="1", delta="0.05").noise(Sensitivity(l1=5, l0=1))
    assert noise.largest == 20 and abs(noise.sample(SecureBits(), 100_000)).max() <= 20
    assert float(noise.pmf(20)) > 0


def test_ledger_and_both_verifiers_charge_its_delta(tmp_path: Path) -> None:
    clock, bits = ManualClock(1_700_000_000_000), SecureBits()
    limit = EpsilonDeltaFilter.parse(epsilon="3", delta="0.00002")
    store = MemoryStore()
    ledger = Ledger.create(store, filter=limit, terms=TERMS, signer=Signer.generate(bits), clock=clock, bits=bits)
    release, unit = (
        release_of(BoundedNoise.parse(epsilon="1", delta="0.00001")),
        UnitSet(np.zeros((1, 20), dtype=np.uint8)),
    )
    for number in range(2):
        job = JobKey(caller="a", job_id=str(number))
        entry = ledger.commit(job=job, request_digest=bytes(32), release=release, units=unit, result=b"x").entry
        assert (entry.cost.loss_micro, entry.cost.delta_atto) == (1_000_000, 10**13)
    with pytest.raises(BudgetExhaustedError):  # ε is left, δ is not
        ledger.require(caller="a", release=release, units=unit)
    log = tmp_path / "log"
    write_log(store, log)
    assert verify_log(ExportedLog(log)).ok and standalone.replay(str(log), [], [], None).count == 3


def test_without_a_delta_there_is_no_bound() -> None:
    with pytest.raises(ZeroAmountError, match="delta must be above 0"):
        BoundedNoise.parse(epsilon="1", delta="0")
