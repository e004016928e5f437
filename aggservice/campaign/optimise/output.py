"""What ``optimise`` leaves behind: the campaign file with the proposal in it, and plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aggservice.campaign.errors import MissingExtraError
from aggservice.campaign.file.campaign import parse_campaign
from aggservice.campaign.optimise.choices import Choice, file_number, set_field
from aggservice.campaign.optimise.search import Figures, Proposal
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
    parse_campaign(made, folder=proposal.campaign.folder)
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
    bars = {"as it is": proposal.as_is.expected, "Noise Lab's rule": proposal.noise_lab.expected}
    bars |= {f"proposed, without: {name}": error for name, error in proposal.without.items()}
    bars["proposed"] = proposal.proposed.expected
    with plt.rc_context(SETTINGS):
        figure, axes = plt.subplots(figsize=(9.6, 1.4 + 0.45 * len(bars)))
        colors = [GREY, GREY, *(ORANGE for _ in proposal.without), BLUE]
        axes.barh(range(len(bars)), list(bars.values()), color=colors)
        for row, error in enumerate(bars.values()):
            axes.text(error, row, f" {error:.4f}", va="center")
        if proposal.bound:
            axes.axvline(proposal.bound, color=GREEN, linestyle="--", label="no choice gets below")
            axes.legend(frameon=False, loc="lower right")
        axes.set_xlim(0, 1.15 * max(bars.values()))
        axes.set_yticks(range(len(bars)), [literal(name) for name in bars])
        axes.invert_yaxis()
        axes.set_xlabel("error to expect, RMSRE over all slices")
        axes.set_title(literal(f"{proposal.campaign.name}: what each knob is worth"))
        picture = save(plt, figure, folder / "knobs")
    choices = {"proposed": proposal.proposed, "as it is": proposal.as_is, "Noise Lab's rule": proposal.noise_lab}
    values = [named_values(proposal, one.choice) for one in choices.values()]
    rows = "".join(
        f"<tr><td>{escaped(name)}</td>{''.join(f'<td>{escaped(one[name])}</td>' for one in values)}</tr>"
        for name in values[0]
    )
    body = (
        f"<h1>{escaped(proposal.campaign.name)}</h1><p class='lead'>A better use of the same ε.</p>"
        f"<table><tr><th></th>{''.join(f'<th>{name}</th>' for name in choices)}</tr>{rows}</table>"
        f"<figure>{inline_svg(picture)}<figcaption>The error to expect on people who did not choose. An orange bar is "
        "the proposal with one knob left as the file has it: what it is above the proposal is what that knob is worth."
        "</figcaption></figure>"
    )
    page = folder / "report.html"
    page.write_text(html_page(proposal.campaign.name, body), encoding="utf-8")
    return page


def named_values(proposal: Proposal, choice: Choice) -> dict[str, str]:
    """Return the values of a choice by the names of measures and queries."""
    campaign, found = proposal.campaign, dict[str, str]()
    if campaign.client.kind in ("reach", "frequency"):
        found["client.cap"] = str(choice.cap)
    else:
        for measure, scale, most in zip(campaign.measures, choice.scales, choice.most, strict=True):
            found[f"measures.{measure.name}.scale"] = str(file_number(scale))
            found[f"measures.{measure.name}.most"] = str(most)
    for query, epsilon, job_per in zip(campaign.queries, choice.epsilons, choice.job_per, strict=True):
        found[f"queries.{query.name}.epsilon"] = epsilon
        if query.over == "rolling":
            found[f"queries.{query.name}.job_per"] = job_per
    return found


def proposal_to_plain(proposal: Proposal) -> dict[str, Any]:
    """Return plain values for JSON."""

    def plain(figures: Figures) -> dict[str, Any]:
        return {
            "values": named_values(proposal, figures.choice),
            "expected_where_chosen": figures.chosen_on,
            "expected": figures.expected,
            "judged": figures.judged,
        }

    return {
        "campaign": proposal.campaign.name,
        "error": "RMSRE_τ over all slices",
        "tau": {f"{query}, {measure}": tau for (query, measure), tau in proposal.taus.items()},
        "repetitions": proposal.repetitions,
        "evaluations": proposal.evaluations,
        "proposed": plain(proposal.proposed),
        "as_is": plain(proposal.as_is),
        "noise_lab": plain(proposal.noise_lab),
        "gain_over_as_is": proposal.gain_over(proposal.as_is),
        "gain_over_noise_lab": proposal.gain_over(proposal.noise_lab),
        "expected_without": dict(proposal.without),
        "lower_bound": proposal.bound,
        "gap_to_bound": proposal.gap,
    }
