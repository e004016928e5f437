"""What ``optimise`` leaves behind: the campaign file with the proposal in it, and plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aggservice.campaign.errors import MissingExtraError
from aggservice.campaign.file.campaign import parse_campaign
from aggservice.campaign.optimise.choices import Choice, file_number, set_field
from aggservice.campaign.optimise.proposal import Figures, Proposal
from aggservice.campaign.optimise.question import values_left
from aggservice.campaign.output.page import escaped, html_page, inline_svg
from aggservice.campaign.output.plots import BLUE, GREEN, GREY, ORANGE, SETTINGS, literal, pyplot, save
from aggservice.files.atomic import whole_file


def proposal_text(proposal: Proposal, text: str) -> str:
    """Return the text of a campaign file with the proposal's values; comments and layout stay. It is checked."""
    try:
        import tomlkit
    except ImportError:
        raise MissingExtraError(
            "writing the file needs tomlkit: install it with pip install 'aggservice[studio]'"
        ) from None
    document = tomlkit.parse(text)
    for path, value in proposal.proposed.choice.changes(proposal.campaign).items():
        set_field(document, proposal.campaign, path, value)
    made = tomlkit.dumps(document)
    parse_campaign(made, folder=proposal.campaign.folder, files=proposal.campaign.files)
    return made


def write_proposal(proposal: Proposal, file: Path, out: Path) -> None:
    """Write the campaign file with the proposal's values to ``out``."""
    text = proposal_text(proposal, file.read_text(encoding="utf-8"))
    with whole_file(out) as staged:
        staged.write_text(text, encoding="utf-8")


def write_page(proposal: Proposal, folder: Path) -> Path:
    """Write ``report.html`` and the picture of what each knob is worth into a folder; return the page."""
    plt = pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    target = proposal.target
    errors = {"as it is": proposal.as_is.expected, "Noise Lab's rule": proposal.noise_lab.expected}
    errors |= {f"proposed, without: {name}": error for name, error in proposal.without.items()}
    bars = {name: target.shown(error) for name, error in (errors | {"proposed": proposal.proposed.expected}).items()}
    with plt.rc_context(SETTINGS):
        figure, axes = plt.subplots(figsize=(9.6, 1.4 + 0.45 * len(bars)))
        colors = [GREY, GREY, *(ORANGE for _ in proposal.without), BLUE]
        axes.barh(range(len(bars)), list(bars.values()), color=colors)
        for row, value in enumerate(bars.values()):
            axes.text(value, row, f" {value:.4f}", va="center")
        if proposal.bound is not None:
            label = f"no choice gets {'below' if target.within is None else 'above'}"
            axes.axvline(target.shown(proposal.bound), color=GREEN, linestyle="--", label=label)
            axes.legend(frameon=False, loc="lower right")
        axes.set_xlim(0, 1.15 * max(bars.values()) or 1)
        axes.set_yticks(range(len(bars)), [literal(name) for name in bars])
        axes.invert_yaxis()
        axes.set_xlabel(literal(f"{target.name} to expect, over all slices"))
        axes.set_title(literal(f"{proposal.campaign.name}: what each knob is worth"))
        picture = save(plt, figure, folder / "knobs")
    choices = {"proposed": proposal.proposed, "as it is": proposal.as_is, "Noise Lab's rule": proposal.noise_lab}
    values = [named_values(proposal, one.choice) for one in choices.values()]
    names, empty = dict.fromkeys(name for one in values for name in one), ""
    rows = "".join(
        f"<tr><td>{escaped(name)}</td>{''.join(f'<td>{escaped(one.get(name, empty))}</td>' for one in values)}</tr>"
        for name in names
    )
    body = (
        f"<h1>{escaped(proposal.campaign.name)}</h1><p class='lead'>A better use of the same ε.</p>"
        f"<table><tr><th></th>{''.join(f'<th>{name}</th>' for name in choices)}</tr>{rows}</table>"
        f"<figure>{inline_svg(picture)}<figcaption>What to expect on people who did not choose. An orange bar is the "
        "proposal with one knob left as the file has it: its difference from the proposal is what that knob is worth."
        "</figcaption></figure>"
    )
    page = folder / "report.html"
    page.write_text(html_page(proposal.campaign.name, body), encoding="utf-8")
    return page


def named_values(proposal: Proposal, choice: Choice) -> dict[str, str]:
    """Return the values of a choice by the names of measures and queries."""
    campaign, found = proposal.campaign, dict[str, str]()
    if not campaign.client.sums_conversions:
        found["client.cap"] = str(choice.cap)
    else:
        for measure, scale, most in zip(campaign.measures, choice.scales, choice.most, strict=True):
            found[f"measures.{measure.name}.scale"] = str(file_number(scale))
            found[f"measures.{measure.name}.most"] = str(most)
    for query, epsilon, job_per in zip(campaign.queries, choice.epsilons, choice.job_per, strict=True):
        found[f"queries.{query.name}.epsilon"] = epsilon
        if query.over == "rolling":
            found[f"queries.{query.name}.job_per"] = job_per
    if proposal.limit is not None:
        found["collection.batch_hours"] = str(choice.batch_hours)
        for name, left in values_left(campaign, choice):
            found[f"keys.{name}"] = f"{left} of {len(campaign.keys.field(name).values)} values"
        for query, window in zip(campaign.queries, choice.windows, strict=True):
            if query.over == "rolling":
                found[f"queries.{query.name}.window"] = str(window)
    return found


def proposal_to_plain(proposal: Proposal) -> dict[str, Any]:
    """Return plain values for JSON."""

    target = proposal.target

    def plain(figures: Figures) -> dict[str, Any]:
        return {
            "values": named_values(proposal, figures.choice),
            "expected_where_chosen": target.shown(figures.chosen_on),
            "expected": target.shown(figures.expected),
            "judged": None if figures.judged is None else target.shown(figures.judged),
            "slices": figures.slices,
            "empty_slices": figures.empty,
        }

    return {
        "campaign": proposal.campaign.name,
        "target": f"{target.name} over all slices",
        "tau": {f"{query}, {measure}": tau for (query, measure), tau in target.taus.items()},
        "repetitions": proposal.repetitions,
        "evaluations": proposal.evaluations,
        "proposed": plain(proposal.proposed),
        "as_is": plain(proposal.as_is),
        "noise_lab": plain(proposal.noise_lab),
        "gain_over_as_is": proposal.gain_over(proposal.as_is),
        "gain_over_noise_lab": proposal.gain_over(proposal.noise_lab),
        "expected_without": {name: target.shown(error) for name, error in proposal.without.items()},
        "lower_bound" if target.within is None else "upper_bound": None
        if proposal.bound is None
        else target.shown(proposal.bound),
        "gap_to_bound": proposal.gap,
        "reach": None if proposal.limit is None else target.shown(proposal.limit),
        "reached": proposal.limit is None or proposal.proposed.chosen_on <= proposal.limit,
        "frontier": [plain(one) for one in proposal.frontier],
    }
