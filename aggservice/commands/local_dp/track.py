"""``aggservice ldp track``: how well reports hide whether they come from one user or from two.

The paper is "Can Two Walk Together" (docs/bibliography.md).
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from fractions import Fraction
from typing import Annotated, Any

import typer

from aggservice.commands.console import Json, progress_bar
from aggservice.commands.local_dp.ldp import First, Limit, Seed, Share, bits_for, first_micro, ldp, micro
from ldp_client import (
    BitwiseEverlasting,
    InnerProduct,
    Rappor,
    bit_flip,
    l_grr,
    l_osue,
    l_sue,
    loloha,
    permanent_untrackable,
    stream_law,
    trackability,
)
from ldp_client.errors import ProtocolError

METHODS = (
    "RAPPOR (strings in Bloom filters), L-SUE, L-OSUE, L-GRR, LOLOHA, dBitFlipPM, BEP (one bit) or RNIP (stored inner "
    "products)"
)

#: The defaults of --size. RAPPOR's is that of Figure 1; with 32 bits, 100 stored vectors of a user all differ.
_FILTER_BITS, _VALUE_BITS = 128, 32
_LONGEST = 60


def fraction(text: str, what: str) -> Fraction:
    """Return the exact value of text such as 1/2 or 0.75."""
    try:
        if len(text) <= _LONGEST and "e" not in text.lower():
            return Fraction(text)
    except (ValueError, ZeroDivisionError):
        pass
    raise typer.BadParameter(f"{what} must be a number such as 0.75 or 3/4")


def span(text: str) -> range:
    """Return the numbers of reports that ``text`` names: one, or a range such as 2-15."""
    first, dash, last = text.partition("-")
    least, most = whole(first, 9), whole(last if dash else first, 9)
    if least is None or most is None or not 2 <= least <= most:
        raise typer.BadParameter("--reports must be a number from 2 on or a range such as 2-15")
    return range(least, most + 1)


def whole(text: str, digits: int) -> int | None:
    """Return a whole number of at most ``digits`` digits, or None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else None


@ldp.command()
def track(
    method: Annotated[str, typer.Argument(help=METHODS)] = "RAPPOR",
    reports: Annotated[str, typer.Option("--reports", help="Number of reports, or a range.")] = "2-15",
    draws: Annotated[
        int, typer.Option("--draws", min=10, help="Streams to draw of each kind (one user, two users).")
    ] = 5000,
    value: Annotated[
        str, typer.Option("--value", help="The value that users hold: a string for RAPPOR, otherwise a number below k.")
    ] = "0",
    epsilon: Limit = "2",
    alpha: Share = "0.5",
    first: First = None,
    k: Annotated[int, typer.Option("--k", min=2, help="Number of values (not for RAPPOR, BEP, RNIP).")] = 128,
    sampled: Annotated[int, typer.Option("--sampled", min=1, help="Buckets that each user samples (dBitFlipPM).")] = 1,
    second: Annotated[str, typer.Option("--second", help="ε₂ of a report about the stored bit (BEP).")] = "1",
    size: Annotated[
        int | None, typer.Option("--size", help="Bits of the filter (RAPPOR: 128) or of a value (RNIP: 32).")
    ] = None,
    hashes: Annotated[int, typer.Option("--hashes", help="Hash functions h of RAPPOR.")] = 2,
    f: Annotated[str, typer.Option("--f", help="f of RAPPOR's permanent response.")] = "1/2",
    p: Annotated[str, typer.Option("--p", help="p of RAPPOR's instantaneous response.")] = "1/2",
    q: Annotated[str, typer.Option("--q", help="q of RAPPOR's instantaneous response.")] = "3/4",
    cohorts: Annotated[
        int,
        typer.Option(
            "--cohorts", min=1, help="Cohorts of RAPPOR: users draw one and send it; 1: all in one, as in Figure 1."
        ),
    ] = 1,
    stored: Annotated[int, typer.Option("--stored", help="Stored inner products L (RNIP).")] = 100,
    confidence: Annotated[float, typer.Option("--confidence", help="Confidence of the intervals.")] = 0.95,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Estimate how well an observer can track a user by their reports.

    Prints median and 90th percentile of the trackability γ, with intervals and proved bounds. γ means: after seeing two
    sets of reports, the observer's odds that they come from one user rather than two change by a factor of at most
    e^γ. The defaults are the parameters of Figure 1 of "Can Two Walk Together".
    """
    counts = span(reports)
    if not 0 < confidence < 1:
        raise typer.BadParameter(f"--confidence must lie between 0 and 1, not {confidence}")
    limit = micro(epsilon, "--epsilon")
    once = first_micro(limit, alpha, first)
    protocol: Any
    match method:
        case "RAPPOR":
            bits = _FILTER_BITS if size is None else size
            protocol = Rappor(
                size=bits,
                hashes=hashes,
                cohorts=cohorts,
                f=fraction(f, "--f"),
                p=fraction(p, "--p"),
                q=fraction(q, "--q"),
            )
        case "L-SUE":
            protocol = l_sue(k=k, epsilon_permanent_micro=limit, epsilon_first_micro=once)
        case "L-OSUE":
            protocol = l_osue(k=k, epsilon_permanent_micro=limit, epsilon_first_micro=once)
        case "L-GRR":
            protocol = l_grr(k=k, epsilon_permanent_micro=limit, epsilon_first_micro=once)
        case "LOLOHA":
            protocol = loloha(k=k, epsilon_permanent_micro=limit, epsilon_first_micro=once)
        case "dBitFlipPM":
            protocol = bit_flip(k=k, buckets=k, sampled=sampled, epsilon_permanent_micro=limit)
        case "BEP":
            protocol = BitwiseEverlasting(epsilon_permanent_micro=limit, epsilon_report_micro=micro(second, "--second"))
        case "RNIP":
            bits = _VALUE_BITS if size is None else size
            protocol = InnerProduct(bits=bits, stored=stored, epsilon_pair_micro=limit)
        case _:
            raise ProtocolError(f"there is no client {method!r}: choose {METHODS}")
    with progress_bar(shown=not as_json) as report:
        rows = _rows(protocol, method, value, counts, draws, confidence, bits_for(seed), report)
    described = {"method": method, "protocol": protocol.describe(), "draws": draws, "confidence": confidence}
    if _sends_cohort(protocol):
        described["told_apart_by_cohort"] = 1 - 1 / cohorts
    if as_json:
        typer.echo(json.dumps({**described, "reports": rows}))
        return
    _print(described, rows)


def _rows(
    protocol: Any, method: str, value: str, counts: range, draws: int, confidence: float, bits: Any, report: Any
) -> list[dict[str, Any]]:
    held: Any = value if method == "RAPPOR" else whole(value, 20)
    if held is None:
        raise ProtocolError(f"a user of {method} holds a number: give --value as at most 20 digits")
    limit = {"BEP": 2, "RNIP": 1 << getattr(protocol, "bits", 0)}.get(method, getattr(protocol, "k", 0))
    if method != "RAPPOR" and held >= limit:
        raise ProtocolError(f"--value must be below {limit} for this {method}")
    law = stream_law(protocol, held, cohort="sent") if _sends_cohort(protocol) else stream_law(protocol, held)
    rows = []
    for done, reports in enumerate(counts):
        report(f"{reports} reports", done, len(counts))
        found = trackability(law, reports, draws, bits.child(f"track/{reports}"))
        row: dict[str, Any] = {"reports": reports}
        for name, level in (("median", 0.5), ("percentile_90", 0.9)):
            percentile = asdict(found.percentile(level, confidence))
            row[name] = {key: _finite(percentile[key]) for key in ("value", "low", "high")}
        proved = permanent_untrackable(reports, law.report_epsilon())
        row["theorem_13"] = _finite(proved)
        if method == "BEP" and reports <= 40:
            row["exact_worst_case"] = protocol.finite_state().untrackable(reports)
        if method == "RNIP":
            row["untrackable_delta"] = protocol.untrackable(reports).delta
        rows.append(row)
    return rows


def _print(described: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    parameters = ", ".join(f"{key} = {value}" for key, value in described["protocol"].items() if key != "kind")
    typer.echo(f"{described['method']} ({parameters}), {described['draws']} draws of each kind")
    extra = [name for name in ("exact_worst_case", "untrackable_delta") if name in rows[0]]
    titles = {"exact_worst_case": "worst case", "untrackable_delta": "(0, δ) δ"}
    head = f"{'reports':>7}  {'median':<26}  {'90th percentile':<26}  {'Theorem 13':>10}"
    typer.echo("".join([head, *(f"  {titles[name]:>10}" for name in extra)]))
    for row in rows:
        cells = [
            f"{_shown(found['value'])} [{_shown(found['low'])}, {_shown(found['high'])}]"
            for found in (row["median"], row["percentile_90"])
        ]
        line = f"{row['reports']:>7}  {cells[0]:<26}  {cells[1]:<26}  {_shown(row['theorem_13']):>10}"
        typer.echo("".join([line, *(f"  {_shown(row[name]):>10}" for name in extra)]))
    typer.echo(f"intervals of {described['confidence']:.0%}, from order statistics")
    if "told_apart_by_cohort" in described:
        typer.echo(f"chance that the cohorts alone tell two users apart: {described['told_apart_by_cohort']:.4%}")


def _sends_cohort(protocol: Any) -> bool:
    return isinstance(protocol, Rappor) and protocol.cohorts > 1


def _finite(value: float) -> float | None:
    """Return None for infinity, which JSON does not have."""
    return None if math.isinf(value) else value


def _shown(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3f}"
