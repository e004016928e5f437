"""RAPPOR on a Zipf population: the strings found and the limit on their number; and its losses if q moves towards p."""

from __future__ import annotations

from fractions import Fraction

from aggservice.mechanisms import SeededBits
from ldp_client.experiments.figures.kinds import Figure, FigureFiles, FigureRequest, grid_of_panels, six_digits
from ldp_client.experiments.rappor_recovery import recover
from ldp_client.protocols.rappor import Rappor
from ldp_client.protocols.rappor_decoding import learning_limit
from ldp_client.protocols.rappor_fading import FadingRappor

USERS = 1_000_000
STRINGS = 100
DECOYS = 100
FADING_RATIO = Fraction(9, 10)
FADING_COLLECTIONS = 60


def _figure(request: FigureRequest) -> FigureFiles:
    protocol = Rappor()
    users = request.users or USERS
    request.progress(0, 1, f"{users} reports")
    run = recover(protocol, users=users, strings=STRINGS, decoys=DECOYS, bits=SeededBits(request.seed))
    truth = {f"string {rank}": float(share) for rank, share in enumerate(run.truth, 1)}
    found = {candidate.string: candidate for candidate in run.decoded.candidates}
    data = request.write_table(
        "rappor-zipf.csv",
        ("string", "truth", "estimate", "low_95", "high_95", "p_value", "detected"),
        (
            (
                name,
                six_digits(truth.get(name, 0.0)),
                six_digits(each.frequency),
                *map(six_digits, each.interval()),
                six_digits(each.p_value),
                int(each.detected),
            )
            for name, each in found.items()
        ),
    )
    figure, (axes,) = grid_of_panels(1, 1, width=7, height=4)
    ranks = range(1, STRINGS + 1)
    mine = [found[f"string {rank}"] for rank in ranks]
    half = [each.frequency - each.interval()[0] for each in mine]
    axes.errorbar(ranks, [each.frequency for each in mine], half, fmt=".", capsize=2, label="estimate, 95 %")
    axes.plot(ranks, [truth[f"string {rank}"] for rank in ranks], label="truth")
    axes.set(xlabel="rank", ylabel="share of the population")
    axes.legend()
    decoded = run.decoded
    paper = learning_limit(reports=users, tests=decoded.tests, p=protocol.p, q=protocol.q)
    own = learning_limit(reports=users, tests=decoded.tests, p=protocol.clear_chance, q=protocol.set_chance)
    privacy = protocol.privacy
    lines = (
        f"{users} reports, k = {protocol.size}, h = {protocol.hashes}, {protocol.cohorts} cohorts, f = {protocol.f}, "
        f"p = {protocol.p}, q = {protocol.q}: ε₁ = {privacy.first:.4f}, ε∞ = {privacy.permanent:.4f}",
        f"{run.found} of {STRINGS} strings detected, the {run.leading} commonest among them; "
        f"{len(run.false)} of {DECOYS} decoys falsely ({decoded.tests} tests at {decoded.significance:g} in all)",
        f"limit on learning: {paper:.1f} strings (Basic One-time RAPPOR, f = 0), {own:.1f} with this f",
    )
    return FigureFiles(files=(data, request.save_plot(figure, "rappor-zipf.png")), lines=lines)


def _fading(request: FigureRequest) -> FigureFiles:
    """Write the losses of RAPPOR with moving and with fixed q, and how many strings each collection can detect."""
    fading = FadingRappor(rappor=Rappor(), ratio=FADING_RATIO)
    rows = fading.losses(request.collections or FADING_COLLECTIONS)
    users = request.users or USERS
    shown = []
    for row in rows:
        now = fading.at(row.collection)
        most = learning_limit(reports=users, tests=now.size, p=now.clear_chance, q=now.set_chance)
        losses = (row.first, row.strings, row.fixed_strings, row.sequence, most)
        shown.append((row.collection, six_digits(float(now.q)), *map(six_digits, losses)))
    header = ("collection", "q", "epsilon_first", "epsilon_strings", "epsilon_strings_fixed_q", "epsilon_sequence")
    data = request.write_table("rappor-fading.csv", (*header, "strings_detectable"), shown)
    figure, (axes,) = grid_of_panels(1, 1, width=5.5, height=4)
    axes.plot([row.collection for row in rows], [row.strings for row in rows], label=f"ratio {FADING_RATIO}")
    axes.plot([row.collection for row in rows], [row.fixed_strings for row in rows], label="q fixed")
    axes.set(xlabel="collection", ylabel="ε of strings that all differ")
    axes.legend()
    limit = fading.limit()
    lines = (
        f"ratio {FADING_RATIO}: after {len(rows)} collections ε = {rows[-1].strings:.3f} for strings that all differ, "
        f"{rows[-1].fixed_strings:.3f} with q fixed; never above {limit.strings:.3f}",
    )
    return FigureFiles(files=(data, request.save_plot(figure, "rappor-fading.png")), lines=lines)


FIGURES = (
    Figure(name="rappor-zipf", title="RAPPOR: a Zipf population recovered among decoys", make=_figure),
    Figure(name="rappor-fading", title="RAPPOR: losses with q moving towards p", make=_fading),
)
