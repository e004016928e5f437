"""Every table of kinds and its kit, for ``aggservice kinds`` and ``python -m aggservice.kits``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from aggservice.kinds import KindError, Kinds
from aggservice.kits.failures import KitFailure

Check = Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTable:
    """One table: where it is, where a kind's base class is explained, and what its kit does to an entry."""

    place: str
    summary: str
    check: Check

    @property
    def table(self) -> Kinds[Any]:
        """The table itself."""
        module, _, name = self.place.partition(":")
        found: Kinds[Any] = getattr(import_module(module), name)
        return found


def _mechanism(entry: Any) -> None:
    from aggservice.kits.mechanisms import check_mechanism

    check_mechanism(entry.example())


def _discovery(entry: Any) -> None:
    from aggservice.kits.mechanisms import check_rule_beside

    check_rule_beside(entry)


def _filter(entry: Any) -> None:
    from aggservice.kits.mechanisms import check_filter

    check_filter(entry.of_texts("8", "0.001", None))


def _on_device(entry: Any) -> None:
    from aggservice.kits.rules import check_rule

    check_rule(entry)


def _attribution(entry: Any) -> None:
    from aggservice.kits.rules import check_attribution

    check_attribution(entry)


def _protocol(entry: Any) -> None:
    from aggservice.kits.ldp import check_protocol

    for protocol in entry.examples():
        check_protocol(protocol)


def _metric(entry: Any) -> None:
    from aggservice.kits.metrics import check_metric

    check_metric(entry)


def _device(entry: Any) -> None:
    from aggservice.campaign.settings.device import DEVICES
    from aggservice.kits.devices import check_device

    if entry.aggregatable:
        check_device(next((name for name in DEVICES if DEVICES[name] is entry), entry), worlds=12)


def _population(entry: Any) -> None:
    from aggservice.kits.populations import check_population

    check_population(entry)


def _log_reader(entry: Any) -> None:
    from aggservice.kits.populations import check_log_reader

    check_log_reader(entry)


TABLES = (
    KindTable(place="budget:MECHANISMS", summary="noise of sums: its price, law and words", check=_mechanism),
    KindTable(place="budget:DISCOVERY_RULES", summary="when an undeclared key is released", check=_discovery),
    KindTable(place="budget:FILTERS", summary="how a ledger adds up losses", check=_filter),
    KindTable(place="w3c_client:RULES", summary="budgets that a browser keeps", check=_on_device),
    KindTable(
        place="w3c_client:ATTRIBUTION_RULES", summary="how a conversion is shared over touches", check=_attribution
    ),
    KindTable(place="ldp_client:PROTOCOLS", summary="reports randomized on devices", check=_protocol),
    KindTable(place="aggservice.campaign.metrics:METRICS", summary="numbers of a report and a sweep", check=_metric),
    KindTable(
        place="aggservice.campaign.settings.device:DEVICES", summary="APIs that a campaign runs on", check=_device
    ),
    KindTable(
        place="aggservice.campaign.settings.population:POPULATIONS",
        summary="where a campaign's events come from",
        check=_population,
    ),
    KindTable(place="aggservice.campaign.world.logs:LOG_READERS", summary="formats of event logs", check=_log_reader),
)


def judge(names: tuple[str, ...] = ()) -> Iterator[tuple[str, str, str]]:
    """Run the kit of every entry and yield its kind, its name and what is wrong with it (empty: nothing).

    ``names`` chooses entries by name or by kind; without them, all are judged. An entry that stands under several names
    is judged once.
    """
    for one in TABLES:
        done: list[Any] = []
        for name in one.table:
            if names and not {name, one.table.title} & set(names):
                continue
            try:
                entry = one.table[name]
                if any(entry is seen for seen in done):
                    continue
                done.append(entry)
                one.check(entry)
            except (KitFailure, KindError) as problem:
                yield one.table.title, name, str(problem)
            else:
                yield one.table.title, name, ""
