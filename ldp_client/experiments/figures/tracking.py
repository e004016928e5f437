"""The tracking paper's Figure 1, and how close its bounds for Bitwise Everlasting Privacy are to the exact value."""

from __future__ import annotations

from aggservice.mechanisms import SeededBits
from ldp_client.experiments.figures.kinds import Figure, FigureFiles, FigureRequest, grid_of_panels, six_digits
from ldp_client.protocols.everlasting import BitwiseEverlasting
from ldp_client.protocols.rappor import Rappor
from ldp_client.tracking.stream_laws import stream_law
from ldp_client.tracking.trackability import Percentile, trackability

REPORTS = range(2, 16)
DRAWS = 20_000
LEVELS = (0.5, 0.9)
STRING = "http://example.com"
BITWISE_PAIRS = ((100_000, 1_000_000), (1_000_000, 1_000_000), (500_000, 2_000_000))
BITWISE_REPORTS = range(1, 13)


def percentiles(request: FigureRequest) -> list[tuple[int, Percentile, Percentile]]:
    """Return (reports, median, 90th percentile) of RAPPOR's trackability, with 95 % intervals.

    ``users`` of the request is the number of draws per number of reports.
    """
    law = stream_law(Rappor(), STRING)
    bits = SeededBits(request.seed)
    rows = []
    for done, reports in enumerate(REPORTS):
        request.progress(done, len(REPORTS), f"{reports} reports")
        found = trackability(law, reports, request.users or DRAWS, bits.child(f"tracking/{reports}"))
        median, ninth = (found.percentile(level) for level in LEVELS)
        rows.append((reports, median, ninth))
    return rows


def _figure_1(request: FigureRequest) -> FigureFiles:
    rows = percentiles(request)
    data = request.write_table(
        "tracking-1.csv",
        ("reports", "median", "median_low", "median_high", "percentile_90", "percentile_90_low", "percentile_90_high"),
        (
            (
                reports,
                *(six_digits(value) for found in (median, ninth) for value in (found.value, found.low, found.high)),
            )
            for reports, median, ninth in rows
        ),
    )
    figure, (axes,) = grid_of_panels(1, 1, width=5.5, height=4)
    for index, name in enumerate(("median", "90th percentile")):
        found = [(median, ninth)[index] for _, median, ninth in rows]
        spread = [[each.value - each.low for each in found], [each.high - each.value for each in found]]
        axes.errorbar([row[0] for row in rows], [each.value for each in found], spread, capsize=3, label=name)
    axes.set(xlabel="reports", ylabel="trackability")
    axes.legend()
    lines = [
        f"{reports:>2} reports: median {median.value:.3f} [{median.low:.3f}, {median.high:.3f}], "
        f"90th percentile {ninth.value:.3f} [{ninth.low:.3f}, {ninth.high:.3f}]"
        for reports, median, ninth in rows
    ]
    return FigureFiles(files=(data, request.save_plot(figure, "tracking-1.png")), lines=tuple(lines))


def bitwise_rows() -> list[tuple[int, int, int, float, float, float]]:
    """Return (ε₁ and ε₂ in millionths, reports, lower bound, exact value, Theorem 13) by enumeration."""
    rows = []
    for kept, sent in BITWISE_PAIRS:
        protocol = BitwiseEverlasting(epsilon_permanent_micro=kept, epsilon_report_micro=sent)
        exact = protocol.finite_state()
        for reports in BITWISE_REPORTS:
            low, high = protocol.untrackable_at_least(reports), protocol.untrackable(reports)
            rows.append((kept, sent, reports, low, exact.untrackable(reports), high))
    return rows


def _figure_bitwise(request: FigureRequest) -> FigureFiles:
    rows = bitwise_rows()
    data = request.write_table(
        "tracking-bitwise.csv",
        ("epsilon_permanent", "epsilon_report", "reports", "at_least", "exact", "theorem_13"),
        ((kept / 10**6, sent / 10**6, reports, *map(six_digits, values)) for kept, sent, reports, *values in rows),
    )
    figure, panels = grid_of_panels(1, len(BITWISE_PAIRS))
    for (kept, sent), axes in zip(BITWISE_PAIRS, panels, strict=True):
        mine = [row for row in rows if row[:2] == (kept, sent)]
        for column, name in ((5, "Theorem 13"), (4, "exact"), (3, "lower bound")):
            axes.plot([row[2] for row in mine], [row[column] for row in mine], marker=".", label=name)
        axes.set(title=f"ε₁ = {kept / 10**6:g}, ε₂ = {sent / 10**6:g}", xlabel="reports", ylabel="γ")
    panels[0].legend(fontsize=8)
    outside = sum(not low <= exact <= high for *_, low, exact, high in rows)
    line = f"{len(rows)} exact values by enumeration, {outside} of them outside the lower bound and Theorem 13"
    return FigureFiles(files=(data, request.save_plot(figure, "tracking-bitwise.png")), lines=(line,))


FIGURES = (
    Figure(name="tracking-1", title="Tracking, Figure 1: trackability of RAPPOR's reports", make=_figure_1),
    Figure(name="tracking-bitwise", title="Tracking, section 6: the exact value and its bounds", make=_figure_bitwise),
)
