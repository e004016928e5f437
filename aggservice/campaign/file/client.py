"""Reads ``[client]`` of a campaign file: the browser and its caps."""

from __future__ import annotations

from fractions import Fraction
from typing import cast

from aggservice.campaign.file.w3c import parse_w3c
from aggservice.campaign.settings.campaign import BrowserApi, ClientSettings, EventLevelSettings, Form, Kind
from aggservice.files.toml import Section


def parse_client(section: Section) -> ClientSettings:
    """Read which browser runs. Only the paper's form can choose its caps; those of a deployed browser are fixed."""
    kind = section.choice("kind", ("attribution", "reach", "frequency", "event-level"), "attribution")
    form = section.choice("form", ("deployed", "paper"), "deployed")
    natural = "paa" if kind in ("reach", "frequency") else "ara"
    api = section.choice("api", ("ara", "paa", "w3c"), natural)
    if kind != "attribution" and api != natural:
        section.refuse("api", f"is {api!r}", f"For {kind} it is {natural!r}: leave it out")
    if api != "ara" and form == "paper" and kind == "attribution":
        section.refuse("form", "is 'paper'", f"For {api} write form = 'deployed'")
    paper = form == "paper"
    l1 = section.whole("l1", 65_536, least=1, most=65_536)
    # The service's noise fits Λ₁: a browser that sends more would break the guarantee.
    if not paper and kind != "event-level" and l1 != 65_536:
        remedy = 'write form = "paper" to choose it' if api == "ara" or kind != "attribution" else "leave it out"
        section.refuse("l1", f"is {l1}", f"A deployed browser has 65536; {remedy}")
    l0 = section.whole("l0", 20 if paper else l1, least=1, most=l1)
    if not paper and l0 != l1:
        section.refuse("l0", f"is {l0}", 'A deployed browser caps values only; write form = "paper" to choose it')
    both = kind == "attribution" and api == "ara" and "windows_days" in section
    event_level = _event_level(section) if both or kind == "event-level" else None
    client = ClientSettings(
        kind=cast(Kind, kind),
        form=cast(Form, form),
        api=cast(BrowserApi, api),
        l1=l1,
        l0=l0,
        max_reports=section.whole("max_reports", 20, least=1, most=1000),
        expiry_days=section.number("expiry_days", 30.0, least=0, most=30, above=True),
        click_priority=section.whole("click_priority", 0, least=0, most=1 << 31),
        null_rate=section.exact("null_rate", Fraction(1, 20), above=Fraction(-1), most=Fraction(1)),
        cap=section.whole("cap", 1, least=1, most=l1),
        thresholds=_thresholds(section),
        w3c=parse_w3c(section),
        event_level=event_level,
    )
    if client.null_rate < 0:
        section.refuse("null_rate", "is negative", "Write a probability from 0 to 1")
    section.done()
    return client


def _thresholds(section: Section) -> tuple[int, ...]:
    value = section.take("thresholds")
    if value is None:
        return (1, 2, 3, 5, 10)
    good = isinstance(value, list) and value and all(isinstance(one, int) and 1 <= one <= 127 for one in value)
    if not good or sorted(set(value)) != value:
        section.refuse("thresholds", f"is {value!r}", "Write increasing numbers of views, such as [1, 2, 5]")
    return tuple(value)


def _event_level(section: Section) -> EventLevelSettings:
    field = section.text("field", example="product")
    epsilon = section.exact("epsilon", Fraction(14), above=Fraction(0), most=Fraction(14))
    windows, buckets = section.section("windows_days"), section.section("buckets")
    days: dict[str, tuple[float, ...]] = {}
    levels: dict[str, tuple[int, ...]] = {}
    for name in windows.values:
        found = windows.take(name)
        good = isinstance(found, list) and 1 <= len(found) <= 5 and all(isinstance(x, (int, float)) for x in found)
        if not good or sorted(set(found)) != found or not found[0] > 0:
            windows.refuse(name, f"is {found!r}", "Write 1 to 5 increasing numbers of days, such as [2, 7]")
        days[name] = tuple(float(x) for x in found)
    for name in days:
        found = buckets.take(name)
        good = isinstance(found, list) and bool(found) and all(isinstance(x, int) and x > 0 for x in found)
        if not good or sorted(set(found)) != found:
            buckets.refuse(name, f"is {found!r}", "Write increasing amounts, such as [20, 70]")
        levels[name] = tuple(found)
    buckets.done()
    if not days:
        section.refuse("windows_days", "is missing", "Write a line sneakers = [2, 7] for each kind of conversion")
    return EventLevelSettings(
        field=field,
        epsilon=epsilon,
        max_reports=section.whole("reports_a_source", 3, least=1, most=20),
        windows_days=days,
        buckets=levels,
    )
