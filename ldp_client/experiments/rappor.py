"""RAPPOR on a Zipf population: the strings found among decoys, and the losses if q moves towards p."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, SeededBits
from ldp_client.checks import check_users, is_count, short_text
from ldp_client.errors import LdpParameterError
from ldp_client.experiments.figures import Figure, FigureFiles, FigureRequest, grid_of_panels, six_digits
from ldp_client.protocols.rappor import Rappor
from ldp_client.protocols.rappor_decoding import Decoded, decode, learning_limit
from ldp_client.protocols.rappor_fading import FadingRappor

USERS = 1_000_000
STRINGS = 100
DECOYS = 100
FADING_RATIO = Fraction(9, 10)
FADING_COLLECTIONS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The result of one run.

    ``leading`` counts the detected strings from the most frequent one down to the first that was not detected;
    ``found`` counts all detected strings of the population; ``false`` lists the decoys that were detected.
    """

    decoded: Decoded
    truth: NDArray[np.float64]
    leading: int
    found: int
    false: tuple[str, ...]


def zipf_shares(count: int, exponent: float = 1.0) -> NDArray[np.float64]:
    """Return shares proportional to 1/rank^exponent."""
    if not is_count(count, 1) or not exponent >= 0:
        raise LdpParameterError(
            f"count must be at least 1 and exponent at least 0, got (count, exponent) = {short_text((count, exponent))}"
        )
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def draw_population(shares: NDArray[np.float64], users: int, bits: Bits) -> NDArray[np.int64]:
    """Return the index of a string per user, independent with these shares (to 2⁻⁵³, enough for true values)."""
    uniform = (bits.words(users) >> np.uint64(11)) * 2.0**-53
    return np.minimum(np.searchsorted(np.cumsum(shares), uniform, side="right"), shares.size - 1).astype(np.int64)


def recover(protocol: Rappor, *, users: int, strings: int, decoys: int, bits: Bits, exponent: float = 1.0) -> Recovery:
    """Simulate ``users`` with ``strings`` strings of a Zipf distribution; decode them among ``decoys`` decoys."""
    if not is_count(decoys, 0) or not is_count(strings, 1):
        raise LdpParameterError(f"a recovery needs strings, and 0 or more decoys, not {short_text((strings, decoys))}")
    check_users(users)
    names = [f"string {rank}" for rank in range(1, strings + 1)]
    others = [f"decoy {number}" for number in range(1, decoys + 1)]
    values = draw_population(zipf_shares(strings, exponent), users, bits)
    columns = protocol.fleet(users, bits, names).report(values)
    decoded = decode(protocol, protocol.count(columns), [*names, *others])
    detected = set(decoded.detected())
    truth = np.bincount(values, minlength=strings) / users
    ranked = [names[rank] for rank in np.argsort(-truth, kind="stable")]
    leading = next((rank for rank, name in enumerate(ranked) if name not in detected), strings)
    return Recovery(
        decoded=decoded,
        truth=truth,
        leading=leading,
        found=len(detected & {name for name, share in zip(names, truth, strict=True) if share > 0}),
        false=tuple(sorted(detected & set(others))),
    )


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
