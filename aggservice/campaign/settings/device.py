"""The device interface: what a campaign needs of an API, as one class per API and use, and the table of them.

A device is the table ``[client]`` of a campaign file: its fields are the settings, its methods what follows from them.
Everything else asks the device; nothing else knows the names of APIs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from aggservice.campaign.columns import Events, MeasuredConversions, ReportColumns
from aggservice.campaign.settings.key_layout import KeyField
from aggservice.files.settings import Known, choice, number, read_settings, whole
from aggservice.files.toml import Section
from aggservice.kinds import Kinds
from aggservice.mechanisms import Bits
from aggservice.wire import Api
from budget import Sensitivity

if TYPE_CHECKING:
    from aggservice.campaign.settings.campaign import Campaign, EventLevelSettings, Measure
    from aggservice.campaign.settings.tasks import TaskLayout

SMALL_EVENTS = 1_000
"""A campaign with at most so many events runs on browsers, unless it says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceApi(ABC):
    """One API in one use. The class says what it can do; the fields are the settings that every device has.

    ``api`` and ``kind`` are its names in a file, ``title`` and ``short`` those in reports and errors.
    """

    api: ClassVar[str]
    kind: ClassVar[str] = "attribution"
    title: ClassVar[str]
    short: ClassVar[str]
    colour: ClassVar[str]
    wire_api: ClassVar[Api]

    forms: ClassVar[tuple[str, ...]] = ("deployed",)
    counts: ClassVar[str] = "conversions"
    """What is counted: conversions, or devices."""
    sums_conversions: ClassVar[bool] = True
    """Whether a row is the sum of what conversions contribute, so that the API can be compared with others."""
    aggregatable: ClassVar[bool] = True
    """Whether it sends reports that a service sums; otherwise browsers add the noise."""
    task_jobs: ClassVar[bool] = False
    """Whether each report belongs to a task with jobs of its own and pays once; such reports are always sealed."""
    shares_l1: ClassVar[bool] = False
    """Whether all measures of a conversion go into one report, and share Λ₁."""
    other_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of ``[client]`` that the class reads by itself."""

    form: Literal["deployed", "paper"] = choice(
        "`deployed`, or `paper`: Algorithm 2 for `ara`; Algorithm 3 for reach and frequency, with fixed windows and a "
        "report for every view",
        ("deployed", "paper"),
        default="deployed",
    )
    l1: int = whole(
        "the cap Λ₁ per source or per device and window, which only `paper` can choose; the service's noise uses it",
        default=65_536,
        least=1,
        most=65_536,
    )
    l0: int = whole(
        "the cap Λ₀ on contributions, which only `paper` can choose",
        default=lambda known: 20 if known.form == "paper" else known.l1,
        shown="20 (`paper`), Λ₁",
        least=1,
        most=lambda known: known.l1,
    )
    expiry_days: float = number("how long an ad lives", default=30.0, least=0, most=30, above=True)
    click_priority: int = whole("above 0, clicks are attributed before views", default=0, least=0, most=1 << 31)
    engine: Literal["browser", "fleet"] | None = choice(
        f"`browser`: one real browser per device; `fleet`: the same in columns, faster; without it, browsers up to "
        f"{SMALL_EVENTS:,} events",
        ("browser", "fleet"),
        default=None,
        shown="by size",
    )

    @classmethod
    def read(cls, section: Section) -> Self:
        """Read the device's settings from ``[client]``; other keys of the table are left to the caller."""
        return read_settings(section, cls, done=False)

    @classmethod
    def settings_keys(cls) -> list[str]:
        """Return the keys that a campaign of any API may hold for this one, so that a comparison reads one file."""
        declared = [(one.name, one.metadata["setting"]) for one in fields(cls) if "setting" in one.metadata]
        return [*(one.key or name for name, one in declared if one.when is None), *cls.other_keys]

    def check(self, section: Section, known: Known) -> None:
        """Refuse what one setting alone does not show. Only the paper's form can choose its caps."""
        if self.form not in self.forms:
            section.refuse("form", "is 'paper'", f"For {self.api} write form = 'deployed'")
        # The service's noise fits Λ₁: a browser that sends more would break the guarantee.
        if self.form != "paper" and self.aggregatable and self.l1 != 65_536:
            remedy = 'write form = "paper" to choose it' if "paper" in self.forms else "leave it out"
            section.refuse("l1", f"is {self.l1}", f"A deployed browser has 65536; {remedy}")
        if self.form != "paper" and self.l0 != self.l1:
            section.refuse(
                "l0", f"is {self.l0}", 'A deployed browser caps values only; write form = "paper" to choose it'
            )

    # What its campaigns may ask

    def own_measures(self, top: Section) -> tuple[Measure, ...] | None:
        """Return what is measured if the API decides that; None if the file does."""
        return None

    def own_fields(self) -> Sequence[tuple[str, str, tuple[str, ...], str]]:
        """Return the key fields that the API adds: name, origin, values, and what to call them in an error."""
        return ()

    def check_keys(self, section: Section, found: Sequence[KeyField]) -> None:  # noqa: B027 - most have nothing to check
        """Refuse key fields that the API cannot have."""

    def check_campaign(self, top: Section, campaign: Campaign) -> None:  # noqa: B027 - most have nothing to check
        """Refuse a whole campaign that the API cannot run."""

    @property
    def event_level(self) -> EventLevelSettings | None:
        """The event-level reports of its sources, if they send some."""
        return None

    # Devices

    @abstractmethod
    def reports(self, campaign: Campaign, events: Events, bits: Bits) -> tuple[ReportColumns, MeasuredConversions]:
        """Run the events through every device; return the reports, not sealed, and the ground truth with its fates."""

    def uses_browsers(self, events: Events) -> bool:
        """Whether these events run in real browsers."""
        return self.engine == "browser" or (self.engine is None and len(events) <= SMALL_EVENTS)

    # Jobs and terms

    @property
    def bounds(self) -> Mapping[Api, Sensitivity]:
        """The bounds Λ₁ and Λ₀ that a ledger states for its reports; none if each report brings its own."""
        return {self.wire_api: Sensitivity(l1=self.l1, l0=self.l0)}

    def tasks(self, campaign: Campaign) -> TaskLayout | None:
        """Return how its reports divide into tasks; None if a job may sum any of them."""
        return None

    def unit_name(self, unit: int) -> str:
        """Return the name of a privacy unit, ``ReportColumns.unit``: by default a device and its ten-minute window."""
        device, window = divmod(unit, 1 << 32)
        return f"device {device}, window {window}"

    # What is optimised and followed

    @property
    def cap(self) -> int:
        """How many contributions a device may make in a window; 1 if the API has no such setting."""
        return 1

    def with_cap(self, cap: int) -> DeviceApi:
        """Return the device with another cap, if it has one."""
        return self

    @property
    def caps_move(self) -> bool:
        """Whether a cap may move a conversion to another slice, and not only take it away."""
        return False

    @property
    def can_follow(self) -> bool:
        """Whether the studio can follow one conversion through its browser."""
        return False

    def identity(self) -> dict[str, Any]:
        """Return what names the device in outputs."""
        return {"kind": self.kind, "api": self.api, "form": self.form, "l1": self.l1, "l0": self.l0}


DEVICES: Kinds[type[DeviceApi]] = Kinds(
    "device API",
    base=DeviceApi,
    builtin={
        "ara": "aggservice.campaign.devices.ara:AttributionReporting",
        "paa": "aggservice.campaign.devices.paa:PrivateConversions",
        "w3c": "aggservice.campaign.devices.w3c:W3cAttribution",
        "reach": "aggservice.campaign.devices.paa:PrivateReach",
        "frequency": "aggservice.campaign.devices.paa:PrivateFrequency",
        "event-level": "aggservice.campaign.devices.ara:EventLevelApi",
    },
)


def comparable() -> dict[str, type[DeviceApi]]:
    """Return the devices that measure conversions, by name: a campaign can run on each of them."""
    return {name: DEVICES[name] for name in DEVICES if DEVICES[name].sums_conversions}


def read_device(section: Section) -> DeviceApi:
    """Read ``[client]``: which device runs, and its settings. The keys of other devices are allowed and not read.

    The name of a device is its kind or, if it measures conversions, its API; only what is needed is imported.
    """
    kind, api = section.text("kind", DeviceApi.kind), section.text("api", "")
    if ":" in api and section.files is None:
        chosen = DEVICES.find(api, folder=section.folder)
    else:
        name = kind if kind != DeviceApi.kind else api or DEVICES.names[0]
        if name not in DEVICES or DEVICES[name].kind != kind:
            section.choice("kind", tuple(dict.fromkeys(DEVICES[one].kind for one in DEVICES)), kind)
            section.choice("api", tuple(comparable()), api)
        chosen = DEVICES[name]
        if api not in ("", chosen.api):
            section.choice("api", tuple(comparable()), api)
            section.refuse("api", f"is {api!r}", f"For {kind} it is {chosen.api!r}: leave it out")
    device = chosen.read(section)
    if section.values.keys() - {"kind", "api", *chosen.settings_keys()}:
        for name in DEVICES:
            for key in DEVICES[name].settings_keys():
                section.take(key)
    section.done()
    return device
