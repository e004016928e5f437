"""``aggservice optimise``: propose settings of a campaign."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from aggservice.campaign import CampaignError, load_campaign
from aggservice.campaign.optimise.output import named_values, proposal_to_plain, write_page, write_proposal
from aggservice.campaign.optimise.proposal import Proposal
from aggservice.campaign.optimise.proposal import optimise as propose
from aggservice.campaign.optimise.question import values_left
from aggservice.commands.console import Json, option, progress_bar

_FEW = 0.005
"""A smaller share of slices without truth is not worth a line."""


def optimise(
    file: Annotated[Path, typer.Argument(help="A campaign file.")],
    target: Annotated[
        str, option("rmsre: the least RMSRE_τ; within=10%: the most slices within 10 % of the truth.")
    ] = "rmsre",
    batch_hours: Annotated[str, option("Lengths of batches to choose from beside the file's, such as 6,12,24.")] = "",
    merge: Annotated[str, option("Key fields whose smallest values may be merged, such as ad,product; or auto.")] = "",
    reach: Annotated[
        float | None,
        option("With --batch-hours or --merge, what is good enough: a share (default: 0.9) or an RMSRE_τ."),
    ] = None,
    out: Annotated[Path | None, option("Write the file with the proposal here.")] = None,
    report: Annotated[Path | None, option("Write report.html, with what each knob is worth, into this folder.")] = None,
    repetitions: Annotated[int, option("Releases that measure the error of each choice; 0: none.", min=0)] = 200,
    seed: Annotated[str, option("The seed of both populations, to choose on and to judge on.")] = "optimise",
    as_json: Json = False,
) -> None:
    """Propose scales, clipping bounds and ε with less error.

    The total ε stays the file's. The choice is made on one population, or one half of a log's devices, and judged on
    another. What is asked changes only with --batch-hours and --merge.
    """
    campaign = load_campaign(file)
    with progress_bar(shown=not as_json) as bar:
        found = propose(
            campaign,
            within=_within(target),
            hours=_hours(batch_hours),
            merge=_parts(merge),
            reach=reach,
            seed=seed,
            repetitions=repetitions,
            progress=lambda done: bar("choices tried", done, None),
        )
    page = None if report is None else write_page(found, report)
    if out is not None:
        write_proposal(found, file, out)
    if as_json:
        typer.echo(json.dumps(proposal_to_plain(found), ensure_ascii=False, indent=1))
        return
    _show(found)
    if out is not None:
        typer.echo(f"File: {out.resolve()}")
    if page is not None:
        typer.echo(f"Report: {page.resolve()}")


def _within(target: str) -> Fraction | None:
    """Return the part of the truth that a target names; None for RMSRE_τ."""
    if target == "rmsre":
        return None
    name, _, percent = target.partition("=")
    try:
        found = Fraction(percent.strip().removesuffix("%").strip()) / 100
    except (ValueError, ZeroDivisionError):
        found = Fraction(0)
    if name != "within" or not percent.strip().endswith("%") or not 0 < found <= 1:
        raise CampaignError(f"--target is {target!r}: write rmsre, or within=10% with a percentage up to 100")
    return found


def _parts(text: str) -> list[str]:
    return [part for part in (one.strip() for one in text.split(",")) if part]


def _hours(text: str) -> list[int]:
    parts = _parts(text)
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise CampaignError(f"--batch-hours is {text!r}: write whole hours, such as 6,12,24")
    return [int(part) for part in parts]


def _show(found: Proposal) -> None:
    console, target = Console(), found.target
    columns = {"proposed": found.proposed, "as it is": found.as_is, "Noise Lab's rule": found.noise_lab}
    table = Table(title=f"{escape(found.campaign.name)}: {found.evaluations} choices tried", title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    values = [named_values(found, one.choice) for one in columns.values()]
    for name in dict.fromkeys(name for one in values for name in one):
        table.add_row(escape(name), *(one.get(name, "") for one in values))
    table.add_row("slices", *(f"{one.slices:,.0f}" for one in columns.values()))
    table.add_row(f"{target.name} to expect", *(target.text(one.expected) for one in columns.values()))
    judged = [target.text(one.judged) for one in columns.values() if one.judged is not None]
    if judged:
        table.add_row(f"the same over {found.repetitions} releases", *judged)
    console.print(table)
    if found.frontier:
        console.print(_frontier(found))

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    for name, error in found.without.items():
        say(f"Without {name}: {target.name} to expect {target.text(error)}.")
    for other, name in ((found.as_is, "the file as it is"), (found.noise_lab, "Noise Lab's rule")):
        gain = found.gain_over(other)
        say(
            f"The proposal's error is {gain:.1%} below that of {name}, on other people."
            if target.within is None
            else f"The proposal has {100 * gain:.1f} percentage points more slices within than {name}, on other people."
        )
    if found.limit is not None:
        limit, best = target.text(found.limit), target.text(found.proposed.chosen_on)
        reached = found.proposed.chosen_on <= found.limit
        say(
            f"{limit} is reached on the people who chose: {best}."
            if reached
            else f"Nothing reaches {limit}. This is the best: {best} on the people who chose."
        )
    if target.within is not None and found.proposed.empty > _FEW:
        say(
            f"{found.proposed.empty:.1%} of the slices are 0 in truth, and no noisy estimate is within a percentage of "
            "0: allow --merge, or give the query a tau."
        )
    if found.bound is not None and found.gap is not None:
        side = "below" if target.within is None else "above"
        gap = f"{found.gap:.0%}" if target.within is None else f"{100 * found.gap:.1f} percentage points"
        say(f"No scale, clipping bound or split of ε gets {side} {target.text(found.bound)}: a gap of {gap}.")
    say("A simulation from a seed: nothing was released.")


def _frontier(found: Proposal) -> Table:
    """Return the best choice for each length of batches."""
    table = Table(title="Lengths of batches", title_justify="left")
    merged = any(any(one.choice.merges) for one in found.frontier)
    names = ["batch hours", "slices", f"{found.target.name} to expect", "where it was chosen", "good enough"]
    for name in names + ["merged to"] * merged:
        table.add_column(name, justify="right")
    for one in found.frontier:
        enough = found.limit is None or one.chosen_on <= found.limit
        chosen = " (proposed)" if one.choice == found.proposed.choice else ""
        table.add_row(
            f"{one.choice.batch_hours}{chosen}",
            f"{one.slices:,.0f}",
            found.target.text(one.expected),
            found.target.text(one.chosen_on),
            "yes" if enough else "no",
            *[", ".join(f"{name} {left}" for name, left in values_left(found.campaign, one.choice))] * merged,
        )
    return table
