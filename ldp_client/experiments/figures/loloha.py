"""Figures 1 and 2 and Table 1 of the LOLOHA paper: the choice of g, V* and costs in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import cast

from ldp_client.errors import FigureError
from ldp_client.estimation.hash_range import best_range, printed_range
from ldp_client.estimation.steps import MICRO
from ldp_client.experiments.figures.kinds import Figure, FigureFiles, FigureRequest, grid_of_panels, six_digits
from ldp_client.protocols.methods import PAPER_METHODS, build
from ldp_client.wire.costs import Costs, LongitudinalProtocol, costs

#: The grids of §3.4, §4 and §5.1.
EPSILONS_MICRO = tuple(range(MICRO // 2, 5 * MICRO + 1, MICRO // 2))
ALPHAS = tuple(Fraction(tenth, 10) for tenth in range(1, 7))
VARIANCE_METHODS = ("RAPPOR", "L-OSUE", "BiLOLOHA", "OLOLOHA", "OLOLOHA-exact")
VARIANCE_REPORTS = 10_000


def first_micro(epsilon_micro: int, alpha: Fraction) -> int:
    """Return ε₁ = α·ε∞ in millionths; FigureError if it is not an integer."""
    product = alpha * epsilon_micro
    if product.denominator != 1:
        raise FigureError(f"α·ε∞ = {float(product)} millionths is not an integer: give ε∞ at most five decimal places")
    return product.numerator


def hash_ranges() -> list[tuple[int, Fraction, int, int, int]]:
    """Return (ε∞ in millionths, α, Eq. 6's g, the g of least V*, the best g of the exact calibration)."""
    rows = []
    for alpha in ALPHAS:
        for micro in EPSILONS_MICRO:
            pair = Fraction(micro, MICRO), Fraction(first_micro(micro, alpha), MICRO)
            rows.append((micro, alpha, printed_range(*pair), best_range(*pair, "paper"), best_range(*pair, "exact")))
    return rows


def variances() -> list[tuple[int, Fraction, str, float]]:
    """Return (ε∞ in millionths, α, method, V* for n = 10,000) on the grid of Figure 2.

    V* of these methods does not depend on k.
    """
    rows = []
    for alpha in ALPHAS:
        for micro in EPSILONS_MICRO:
            for name in VARIANCE_METHODS:
                protocol = build(
                    name, k=2, epsilon_permanent_micro=micro, epsilon_first_micro=first_micro(micro, alpha)
                )
                rows.append((micro, alpha, name, protocol.support.approximate_variance(VARIANCE_REPORTS)))
    return rows


def _figure_1(request: FigureRequest) -> FigureFiles:
    rows = hash_ranges()
    data = request.write_table(
        "loloha-1.csv",
        ("epsilon_permanent", "alpha", "g_eq6", "g_least_variance", "g_exact_calibration"),
        ((micro / MICRO, float(alpha), *ranges) for micro, alpha, *ranges in rows),
    )
    figure, (axes,) = grid_of_panels(1, 1, width=5.5, height=4)
    for alpha in ALPHAS:
        mine = [row for row in rows if row[1] == alpha]
        axes.plot([row[0] / MICRO for row in mine], [row[2] for row in mine], marker="o", label=f"α = {float(alpha)}")
    axes.set(xlabel="ε∞", ylabel="g (Eq. 6)")
    axes.legend()
    missed = [
        f"  ε∞ = {micro / MICRO}, α = {float(alpha)}: Eq. 6 says {printed}, {best} is better"
        for micro, alpha, printed, best, _ in rows
        if printed != best
    ]
    lines = [f"Eq. 6 over {len(rows)} points; it misses the whole g of least V* at {len(missed)}:", *missed]
    return FigureFiles(files=(data, request.save_plot(figure, "loloha-1.png")), lines=tuple(lines))


def _figure_2(request: FigureRequest) -> FigureFiles:
    rows = variances()
    data = request.write_table(
        "loloha-2.csv",
        ("epsilon_permanent", "alpha", "method", "approximate_variance"),
        ((micro / MICRO, float(alpha), name, six_digits(value)) for micro, alpha, name, value in rows),
    )
    figure, panels = grid_of_panels(2, 3)
    for alpha, axes in zip(ALPHAS, panels, strict=True):
        for name in VARIANCE_METHODS:
            mine = [row for row in rows if row[1] == alpha and row[2] == name]
            axes.plot([row[0] / MICRO for row in mine], [row[3] for row in mine], marker=".", label=name)
        axes.set(title=f"α = {float(alpha)}", xlabel="ε∞", ylabel="V*", yscale="log")
    panels[0].legend(fontsize=8)
    picture = request.save_plot(figure, "loloha-2.png")
    by_key = {(micro, alpha, name): value for micro, alpha, name, value in rows}
    gains = {
        key[:2]: 1 - value / by_key[*key[:2], "OLOLOHA"] for key, value in by_key.items() if key[2] == "OLOLOHA-exact"
    }
    (micro, alpha), gain = max(gains.items(), key=lambda item: item[1])
    line = f"the exact calibration lowers OLOLOHA's V* by up to {gain:.1%} (ε∞ = {micro / MICRO}, α = {float(alpha)})"
    return FigureFiles(files=(data, picture), lines=(f"V* at {len(rows)} points, n = {VARIANCE_REPORTS}", line))


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """A row of Table 1 in numbers: a method, and what it costs."""

    method: str
    costs: Costs


#: The point at which Table 1 is printed in numbers: DB_MT, ε∞ = 5, α = 0.6.
TABLE_1 = {"k": 1_412, "buckets": 353, "epsilon_permanent_micro": 5 * MICRO, "epsilon_first_micro": 3 * MICRO}
TABLE_1_USERS = 10_336


def table_1() -> list[CostRow]:
    """Return Table 1 in numbers for the seven methods on DB_MT, at ε∞ = 5 and α = 0.6."""
    return [
        CostRow(method=name, costs=costs(cast(LongitudinalProtocol, build(name, **TABLE_1)), TABLE_1_USERS))
        for name in PAPER_METHODS
    ]


def _table_1(request: FigureRequest) -> FigureFiles:
    rows = [{"method": row.method, **asdict(row.costs)} for row in table_1()]
    table = request.write_table("loloha-table-1.csv", tuple(rows[0]), (tuple(row.values()) for row in rows))
    lines = [f"DB_MT (n = {TABLE_1_USERS}, k = {TABLE_1['k']}, b = {TABLE_1['buckets']}), ε∞ = 5, α = 0.6:"]
    for row in rows:
        lines.append(
            f"  {row['method']:<12} {row['report_bits']:>5} bits, {row['server_steps']:>9} server steps, "
            f"worst case {row['worst_case']:g}"
        )
    return FigureFiles(files=(table,), lines=tuple(lines))


FIGURES = (
    Figure(name="loloha-table-1", title="LOLOHA, Table 1: bits, server steps and worst case", make=_table_1),
    Figure(name="loloha-1", title="LOLOHA, Figure 1: optimal g by Eq. 6", make=_figure_1),
    Figure(name="loloha-2", title="LOLOHA, Figure 2: approximate variance V*", make=_figure_2),
)
