"""Tune: a campaign file as a form and as text, and the errors to expect of it, recomputed with every move.

The population is simulated once and its attribution once per setting that changes it; a move of ε only
recomputes the noise. Edits keep the file's comments and layout (tomlkit).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from importlib.resources import files
from threading import Lock
from typing import Any, Final

import numpy as np
import tomlkit
from tomlkit.exceptions import TOMLKitError

from aggservice.campaign import Campaign
from aggservice.campaign.assess.expected import (
    ExpectedErrors,
    SliceSums,
    epsilon_left,
    expected_errors,
    noise_of_query,
    slice_sums,
)
from aggservice.campaign.assess.slices import slice_names
from aggservice.campaign.metrics import RMSRE, shown_in
from aggservice.campaign.service.jobs import QueryJob, jobs_of, windows_of
from aggservice.campaign.settings.campaign import Query
from aggservice.campaign.stages import RunChain
from aggservice.campaign.world.truth import simulate_reports
from aggservice.mechanisms import SeededBits
from aggservice.studio.errors import StudioError
from aggservice.studio.given import Given
from aggservice.studio.shelf import DEMO, Kind, Shelf

MAX_PEOPLE: Final = 100_000
MAX_SLICES: Final = 200_000
_SHOWN: Final = 1_000
_CURVE: Final = ("0.5", "1", "2", "4", "8", "16", "32", "64")


@dataclass(frozen=True, slots=True)
class Control:
    """One control of the form: its path in the file, what it does, its kind and range."""

    path: str
    label: str
    kind: str
    value: Any
    _: KW_ONLY
    least: float | None = None
    most: float | None = None


class Tune:
    """The campaign files of a studio, and the latest simulated population."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._lock = Lock()
        self._chain = RunChain(SeededBits("studio"), identity="studio")
        self._sums: tuple[str, list[tuple[QueryJob, list[SliceSums]]]] | None = None

    def campaign(self, given: Given) -> dict[str, Any]:
        """Return the text of a campaign on the shelf, or of the demo, and its form."""
        name = given.text("campaign", DEMO)
        if name == DEMO:
            text = (files("aggservice.campaign.file") / "thanksgiving.toml").read_text(encoding="utf-8")
            return {"toml": text, "controls": controls(self._shelf.parse(text))}
        path = self._shelf.path(name, Kind.CAMPAIGN)
        text = self._shelf.read(path).decode()
        return {"toml": text, "controls": controls(self._shelf.parse(text, name, file=path.name))}

    def edit(self, given: Given) -> dict[str, Any]:
        """Return the text with one value changed, and the form of it; the rest of the file stays as it is."""
        text = edited(given.text("toml"), given.text("path", most=200), given.text("value", most=1_000))
        return {"toml": text, "controls": controls(self._parse(text, given))}

    def save(self, given: Given) -> dict[str, Any]:
        """Write the text as a new campaign file in a folder of the shelf."""
        name = given.text("name", "campaign.toml", most=100)
        if not name.endswith(".toml"):
            raise StudioError("the name does not end with .toml: add that to it")
        self._parse(given.text("toml"), given)
        path = self._shelf.new_path(given.whole("folder", 0, least=0, most=len(self._shelf.folders) - 1), name)
        with path.open("x", encoding="utf-8") as file:
            file.write(given.text("toml"))
        return {"campaign": self._shelf.id_of(path)}

    def expect(self, given: Given) -> dict[str, Any]:
        """Return the errors to expect of every query, and the form."""
        campaign = self._parse(given.text("toml"), given)
        if not campaign.client.sums_conversions:
            raise StudioError('expected errors need kind = "attribution"; run the campaign to see its errors')
        if campaign.population.size > MAX_PEOPLE:
            raise StudioError(f"the page simulates at most {MAX_PEOPLE:,} people: write a smaller size while you tune")
        if any(campaign.keys.domain_size(query.rows) > MAX_SLICES for query in campaign.queries):
            raise StudioError(f"the page shows at most {MAX_SLICES:,} keys: ask for fewer while you tune")
        with self._lock:
            jobs, shown = self._job_sums(campaign)
        return {
            "controls": controls(campaign),
            "epsilon_left": float(epsilon_left(campaign, jobs)),
            "epsilon_limit": campaign.service.epsilon,
            "queries": [
                _query(campaign, number, [(job, sums) for job, sums in shown if job.query.name == query.name])
                for number, query in enumerate(campaign.queries)
            ],
        }

    def _parse(self, text: str, given: Given) -> Campaign:
        return self._shelf.parse(text, given.text("campaign", DEMO) if given.has("campaign") else DEMO)

    def _job_sums(self, campaign: Campaign) -> tuple[list[QueryJob], list[tuple[QueryJob, list[SliceSums]]]]:
        """Return the jobs to pay, and the sums of everything they answer; both are kept for the next move."""
        document = dict(campaign.document)
        queries = [
            {name: value for name, value in dict(query).items() if name not in ("epsilon", "delta", "tau")}
            for query in document.pop("queries", [])
        ]
        for part in ("service", "draw", "name", "description"):
            document.pop(part, None)
        asked = json.dumps([document, queries], default=str, sort_keys=True)
        truth = simulate_reports(campaign, self._chain)
        self._chain.store.forget_unused()
        jobs, shown = (of(campaign, truth.collected.closes_ms) for of in (jobs_of, windows_of))
        if self._sums is None or self._sums[0] != asked:
            self._sums = (asked, [(job, slice_sums(campaign, self._chain, truth, job)) for job in shown])
        return jobs, [(job, sums) for job, (_, sums) in zip(shown, self._sums[1], strict=True)]


def _query(campaign: Campaign, number: int, jobs: list[tuple[QueryJob, list[SliceSums]]]) -> dict[str, Any]:
    query = campaign.queries[number]
    noise = noise_of_query(campaign, query)
    measures = []
    for place in range(len(campaign.measures)):
        each = [expected_errors(sums[place], noise, query.tau) for _, sums in jobs]
        tau = each[0].laws.tau
        curve = []
        for epsilon in _CURVE:
            other = noise_of_query(campaign, replace(query, epsilon=epsilon))
            found = [expected_errors(sums[place], other, tau).figures([RMSRE]) for _, sums in jobs]
            curve.append({"epsilon": float(epsilon), RMSRE.name: RMSRE.over(found)})
        measures.append(_measure(campaign, query, each, jobs[-1][1][place]) | {"curve": curve})
    return {
        "name": query.name,
        "epsilon": query.epsilon,
        "jobs": len(jobs),
        "deviation": float(noise.variance()) ** 0.5,
        "l1": campaign.client.l1,
        "measures": measures,
    }


def _measure(campaign: Campaign, query: Query, each: list[ExpectedErrors], last: SliceSums) -> dict[str, Any]:
    """Return what to expect over the jobs of a query, and the slices of the last of them, largest first."""
    slices = sum(one.slices for one in each)
    newest = each[-1]
    shown = sorted(shown_in("studio", campaign.metrics), key=lambda one: one.share)  # here errors come first
    figures = [one.figures(shown) for one in each]
    order = np.argsort(-last.truth, kind="stable")[:_SHOWN].tolist()

    def names(row: int) -> Iterable[str]:
        return slice_names(campaign, query.by, last.high[row : row + 1], last.low[row : row + 1]).values()

    return {
        "measure": newest.measure,
        "scale": last.scale,
        "slices": slices,
        **{one.name: one.over(figures) or 0.0 for one in shown},
        "metrics": [{"title": one.title, "text": one.text(one.over(figures))} for one in shown],
        "tau": newest.laws.tau,
        "tolerance": newest.tolerance,
        "noise_share": sum(one.noise_share * one.slices for one in each) / slices if slices else 0.0,
        "capped": newest.capped,
        "clipped": newest.clipped,
        "bias": sum(one.bias for one in each),
        "rows": [
            {
                "label": " · ".join(name for name in names(row) if name != last.measure),
                "truth": float(last.truth[row]),
                "sent": float(last.sent[row] / last.scale),
                "keys": int(last.keys[row]),
                "deviation": float(newest.laws.variance[row] ** 0.5),
                "half_width": float(newest.laws.width[row]),
            }
            for row in order
        ],
    }


def controls(campaign: Campaign) -> list[Control]:
    """Return the controls of a campaign's form: what an analyst moves before a run."""
    population, hours = campaign.population, campaign.collection.batch_hours
    made = [
        Control("population.size", "people", "whole", population.size, least=100, most=MAX_PEOPLE),
        Control("collection.batch_hours", "hours per batch", "whole", hours, least=1, most=population.days * 24),
    ]
    for number, query in enumerate(campaign.queries):
        path, name = f"queries.{number}", query.name
        shown = {field.name: field.name in query.by for field in campaign.keys.fields if field.origin != "measure"}
        made.append(Control(f"{path}.epsilon", f"ε of {name}", "amount", query.epsilon, least=0.1, most=64))
        made.append(Control(f"{path}.by", f"keys shown by {name}", "fields", shown))
    for number, measure in enumerate(campaign.measures):
        path, name, scale = f"measures.{number}", measure.name, float(measure.scale)
        made.append(Control(f"{path}.scale", f"scale of {name}", "number", scale, least=0.01, most=65_536))
        if measure.of == "value":
            made.append(Control(f"{path}.most", f"clip {name} at", "whole", measure.most, least=1, most=100_000))
    return made


def edited(text: str, path: str, value: str) -> str:
    """Return a TOML text with one value set; ``value`` is TOML itself, such as ``12``, ``"10"`` or ``["a"]``."""
    try:
        document, parsed = tomlkit.parse(text), tomlkit.value(value)
        here: Any = document
        *before, last = path.split(".")
        for step in before:
            here = here[int(step)] if step.isdigit() else here.setdefault(step, tomlkit.table())
        if not isinstance(here, Mapping):
            raise StudioError(f"{path} is not a field of this file: check its name")
        here[last] = parsed  # type: ignore[index]
    except (TOMLKitError, IndexError, KeyError, TypeError) as problem:
        raise StudioError(f"{path} cannot be set to {value[:60]}: {problem}") from None
    return tomlkit.dumps(document)
