"""Units of a fleet apart: remove one, and what others store and send is as it was (the browser: units_apart)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from aggservice.mechanisms import SeededBits
from ara_client import Fleet, FleetReports, FleetRules, SourceColumns, TriggerColumns
from ara_client.constants import DAY_MS
from stores import attributes

GROUPS = ("device", "reporter", "destination")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flock:
    """The registrations of a fleet, one row of numbers each, in order; ``kind`` 0 is a source and 1 a trigger."""

    table: np.ndarray
    names = (
        "order",
        "kind",
        "time_ms",
        "device",
        "reporter",
        "destination",
        "priority",
        "days",
        "value",
        "dedup",
        "linked",
    )

    def __getitem__(self, name: str) -> np.ndarray:
        return self.table[:, self.names.index(name)]

    def where(self, chosen: np.ndarray) -> Flock:
        """Return some of the registrations."""
        return Flock(table=self.table[chosen])

    def run(self, bits: SeededBits) -> tuple[Fleet, FleetReports]:
        """Register everything with a fleet without random delays or null reports."""
        sources, triggers = self.where(self["kind"] == 0), self.where(self["kind"] == 1)
        fleet = Fleet(bits=bits, rules=FleetRules(max_reports=2, delay_span_ms=0, null_rate=Fraction(0)))
        rows_of = {
            kind: {name: flock[name] for name in ("order", "time_ms", *GROUPS)}
            for kind, flock in (("sources", sources), ("triggers", triggers))
        }
        made = fleet.register(
            SourceColumns.of(
                **rows_of["sources"],
                priority=sources["priority"],
                expiry_ms=sources["time_ms"] + sources["days"] * DAY_MS,
                key_high=0,
                key_low=sources["order"] << 8,
            ),
            TriggerColumns.of(
                **rows_of["triggers"],
                has_context_id=triggers["linked"] == 1,
                has_dedup_key=triggers["dedup"] > 0,
                dedup_key=triggers["dedup"],
                value=triggers["value"],
                key_high=triggers["order"],
                key_low=0,
            ),
        )
        return fleet, made


def draw_flock(rng: np.random.Generator, size: int = 400) -> Flock:
    """Draw registrations of a few devices, reporters and destinations."""
    columns = [
        np.arange(size),
        rng.integers(0, 2, size),
        np.sort(rng.integers(0, 60 * DAY_MS, size)),
        *(rng.integers(0, most, size) for most in (4, 3, 2)),
        rng.integers(0, 2, size),
        rng.integers(1, 31, size),
        rng.choice([1, 20_000, 65_000], size),
        rng.choice([0, 0, 1, 2], size),
        rng.integers(0, 2, size),
    ]
    return Flock(table=np.stack(columns, axis=1))


@pytest.mark.parametrize("unit", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_units_of_a_fleet_are_apart(seed: int, unit: int) -> None:
    """Without one device, or one reporter (and destination) of it, what is left stores and sends the same."""
    flock = draw_flock(np.random.default_rng([seed, unit]))
    gone = np.logical_and.reduce([flock[name] == 0 for name in GROUPS[:unit]])

    def told(part: Flock, outside: np.ndarray) -> tuple[object, object]:
        fleet, made = part.run(SeededBits("apart"))
        sources, triggers = part["kind"] == 0, part["kind"] == 1
        kept_rows = np.stack([part["order"][sources], fleet.spent, fleet.counted], axis=1)[outside[sources]]
        reports = [
            (int(part["order"][triggers][row]), int(made.scheduled_ms[i]), made.contributions(i))
            for i, row in enumerate(made.trigger)
            if outside[triggers][row]
        ]
        return kept_rows.tolist(), (reports, made.outcome[outside[triggers]].tolist())

    assert gone.any()
    assert told(flock, ~gone) == told(flock.where(~gone), np.ones((~gone).sum(), dtype=bool))


@pytest.mark.parametrize("seed", range(5))
def test_a_source_of_a_fleet_decides_about_no_report_that_its_trigger_sends_in_any_case(seed: int) -> None:
    """The reports of triggers with a context ID are there at the same times without any source."""
    flock = draw_flock(np.random.default_rng(seed))

    def told(part: Flock) -> list[tuple[int, int]]:
        triggers = part.where(part["kind"] == 1)
        _, made = part.run(SeededBits("apart"))
        linked = [i for i, row in enumerate(made.trigger) if triggers["linked"][row]]
        return [(int(triggers["order"][made.trigger[i]]), int(made.scheduled_ms[i])) for i in linked]

    assert told(flock) == told(flock.where(flock["kind"] == 1))
    assert len(told(flock)) == ((flock["kind"] == 1) & (flock["linked"] == 1)).sum()


def test_every_attribute_of_a_fleet_is_listed() -> None:
    """What sources spent is compared above; the rest is registrations, and indexes by device, reporter, destination."""
    fleet, _ = draw_flock(np.random.default_rng(0)).run(SeededBits("apart"))
    expected = ("_bits", "_dedup", "_groups", "_held", "_keys", "_last", "_matches", "_offset", "_rows", "rules")
    assert attributes(fleet, "ara_client") == {f"Fleet.{name}" for name in expected} | {
        "_Growing._array",
        "_Growing.size",
    }
