"""Table 2 of the LOLOHA paper for one sampled bit: exact, as printed, and run with an answer per bucket."""

from __future__ import annotations

from aggservice.mechanisms import SeededBits
from ldp_client.errors import FigureError
from ldp_client.estimation.steps import MICRO
from ldp_client.experiments.change_detection import caught_users, detection_chances, hits_law, two_sided
from ldp_client.experiments.datasets import Dataset
from ldp_client.experiments.figures.kinds import Figure, FigureFiles, FigureRequest, six_digits
from ldp_client.experiments.figures.loloha import EPSILONS_MICRO
from ldp_client.experiments.figures.loloha_experiments import RUNS, source_of
from ldp_client.protocols.bitflip import BitFlip, Memo, bit_flip

#: Table 2, DB_MT, d = 1: the printed percentages for ε∞ = 0.5, …, 5, means over 20 runs of 10,336 users.
PRINTED_PERCENT = dict(
    zip(EPSILONS_MICRO, (0.0048, 0.0044, 0.0048, 0.0039, 0.0024, 0.0024, 0.0024, 0.0019, 0.0010, 0.0010), strict=True)
)
_NAME = "DB_MT"
_HEADER = (
    "epsilon_permanent", "exact_bucket_percent", "exact_pattern_percent", "printed_percent", "printed_hits",
    "printed_two_sided_bucket", "printed_two_sided_pattern", "runs", "hits", "two_sided_bucket",
)  # fmt: skip


def one_bit(data: Dataset, epsilon_micro: int, memo: Memo) -> BitFlip:
    """Return 1BitFlipPM over the buckets of a data set."""
    return bit_flip(k=data.k, buckets=data.buckets, sampled=1, epsilon_permanent_micro=epsilon_micro, memo=memo)


def printed_hits(epsilon_micro: int, data: Dataset) -> int:
    """Return how many users were caught in the paper's 20 runs, from the printed percentage."""
    return round(PRINTED_PERCENT[epsilon_micro] / 100 * RUNS * data.users)


def _table_2_exact(request: FigureRequest) -> FigureFiles:
    if request.datasets not in (None, (_NAME,)) or request.users or request.collections:
        raise FigureError(f"this table is on the whole of {_NAME}: leave out --datasets, --users and --collections")
    grid = request.epsilons_micro or EPSILONS_MICRO
    if not set(grid) <= set(PRINTED_PERCENT):
        raise FigureError(f"Table 2 has ε∞ = {', '.join(str(micro / MICRO) for micro in EPSILONS_MICRO)} only")
    runs = RUNS if request.runs is None else request.runs
    data = source_of(request).dataset(_NAME)
    rows: list[tuple[object, ...]] = []
    for index, micro in enumerate(grid):
        chances = {memo: detection_chances(data, one_bit(data, micro, memo)) for memo in ("bucket", "pattern")}
        seeds = SeededBits(request.seed).child(f"{_NAME}/1BitFlipPM-bucket/{micro}")
        hits = 0
        for number in range(runs):
            request.progress(index * runs + number, len(grid) * runs, f"ε∞ = {micro / MICRO}, run {number + 1}")
            hits += caught_users(data, one_bit(data, micro, "bucket"), seeds.child(str(number)))
        printed = printed_hits(micro, data)
        rows.append(
            (
                micro / MICRO,
                f"{100 * chances['bucket'].mean():.5f}",
                f"{100 * chances['pattern'].mean():.3g}",
                PRINTED_PERCENT[micro],
                printed,
                *(six_digits(two_sided(hits_law(chances[memo], RUNS), printed)) for memo in ("bucket", "pattern")),
                runs,
                hits,
                six_digits(two_sided(hits_law(chances["bucket"], runs), hits)),
            )
        )
    table = request.write_table("loloha-table-2-exact.csv", _HEADER, rows)
    lines = ["exact percent by bucket, printed percent, hits printed and run (probability of hits no more likely):"]
    lines += [f"  ε∞ = {r[0]}: {r[1]}, {r[3]}, {r[4]} ({r[5]}) and {r[8]} ({r[9]})" for r in rows]
    return FigureFiles(files=(table,), lines=tuple(lines))


FIGURES = (
    Figure(
        name="loloha-table-2-exact",
        title="LOLOHA, Table 2, DB_MT, d = 1: exact, as printed, and with an answer per bucket",
        make=_table_2_exact,
    ),
)
