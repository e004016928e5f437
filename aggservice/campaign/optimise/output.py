"""What ``optimise`` leaves behind: the campaign file with the proposal in it, and plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aggservice.campaign.errors import MissingExtraError
from aggservice.campaign.file.campaign import parse_campaign
from aggservice.campaign.optimise.choices import Choice, set_field
from aggservice.campaign.optimise.search import Figures, Proposal
from aggservice.files.atomic import whole_file


def proposal_text(proposal: Proposal, text: str) -> str:
    """Return the text of a campaign file with the proposal's values; comments and layout stay. It is read once more."""
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


def named_values(proposal: Proposal, choice: Choice) -> dict[str, str]:
    """Return the values of a choice by the names of measures and queries."""
    campaign, found = proposal.campaign, dict[str, str]()
    if campaign.client.kind in ("reach", "frequency"):
        found["client.cap"] = str(choice.cap)
    else:
        for measure, scale, most in zip(campaign.measures, choice.scales, choice.most, strict=True):
            found[f"measures.{measure.name}.scale"] = str(scale)
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
        "lower_bound": proposal.bound,
        "gap_to_bound": proposal.gap,
    }
