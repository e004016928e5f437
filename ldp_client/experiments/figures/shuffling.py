"""The central ε of shuffled reports: the closed bound, the numerical ones, and the exact value for small numbers."""

from __future__ import annotations

from aggservice.mechanisms import ExactBinaryShuffle, closed_epsilon, shuffled_epsilon
from ldp_client.experiments.figures.kinds import Figure, FigureFiles, FigureRequest, grid_of_panels, six_digits

EPSILONS = (0.5, 1.0, 2.0, 4.0)
REPORTS = (10, 30, 100, 300, 1000, 2000, 10_000, 100_000, 1_000_000, 10_000_000)
EXACT_REPORTS = 2000
VALUES = 16
DELTA = 1e-6

Row = tuple[float, int, float, float, float, float | None]


def amplification(request: FigureRequest) -> list[Row]:
    """Return (ε₀, reports, closed bound, numerical bound, numerical bound of 16-ary response, exact value or None).

    The exact value is that of binary response, for small numbers of reports.
    """
    rows: list[Row] = []
    for local in EPSILONS:
        for reports in REPORTS:
            request.progress(len(rows), len(EPSILONS) * len(REPORTS), f"ε₀ = {local:g}, {reports} reports")
            exact = None
            if reports <= EXACT_REPORTS:
                exact = ExactBinaryShuffle(epsilon0=local, reports=reports).epsilon(DELTA)
            wide = shuffled_epsilon(local, reports, DELTA, k=VALUES)
            any_randomizer = shuffled_epsilon(local, reports, DELTA)
            rows.append((local, reports, closed_epsilon(local, reports, DELTA), any_randomizer, wide, exact))
    return rows


def _figure(request: FigureRequest) -> FigureFiles:
    rows = amplification(request)
    data = request.write_table(
        "shuffling.csv",
        ("epsilon_local", "reports", "closed", "any_randomizer", f"response_of_{VALUES}", "exact_binary"),
        ((*row[:2], *("" if each is None else six_digits(each) for each in row[2:])) for row in rows),
    )
    figure, panels = grid_of_panels(1, len(EPSILONS))
    for local, axes in zip(EPSILONS, panels, strict=True):
        mine = [row for row in rows if row[0] == local]
        reports = [row[1] for row in mine]
        labels = (
            "Theorem 7",
            "any randomizer, numerical",
            f"{VALUES}-ary response, numerical",
            "binary response, exact",
        )
        for column, (label, marker) in enumerate(zip(labels, "...x", strict=True), start=2):
            axes.plot(reports, [row[column] for row in mine], marker=marker, label=label)
        axes.axhline(local, linestyle=":", color="grey")
        axes.set(xscale="log", yscale="log", ylim=(1e-4, 10 * local))
        axes.set(title=f"ε₀ = {local:g}, δ = {DELTA:g}", xlabel="reports", ylabel="central ε")
    panels[0].legend(fontsize=7)
    million = {row[0]: row for row in rows if row[1] == 1_000_000}
    lines = [
        f"a million reports of ε₀ = {local:g}: Theorem 7 {row[2]:.4g}, any randomizer {row[3]:.4g}, "
        f"{VALUES}-ary response {row[4]:.4g}"
        for local, row in million.items()
    ]
    return FigureFiles(files=(data, request.save_plot(figure, "shuffling.png")), lines=tuple(lines))


FIGURES = (Figure(name="shuffling", title="Shuffling: central ε of n shuffled reports at δ = 10⁻⁶", make=_figure),)
