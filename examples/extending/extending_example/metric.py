"""A metric: the share of slices whose estimate can be relied on."""

from __future__ import annotations

from aggservice.campaign.metrics import ShareOfSlices, SliceColumns, SliceLaws


class WithinTenth(ShareOfSlices):
    """The share of slices whose estimate is within a tenth of the truth.

    ``columns`` names what it is computed from. ``value`` returns the number of such slices in one job, which
    ``ShareOfSlices`` divides by all slices of all jobs. ``expected`` returns the number to expect before a run, from
    the law of the noise: with bias, the noise must lie within a tenth of the truth around truth - sent.
    """

    name = "within_tenth"
    title = "slices within 10 % of the truth"
    short = "within 10 %"
    columns = ("truth", "estimate")

    def value(self, slices: SliceColumns) -> float | None:
        return int((abs(slices.estimate - slices.truth) <= slices.truth / 10).sum())

    def expected(self, laws: SliceLaws) -> float | None:
        off = laws.truth - laws.sent
        return float(laws.chance(off - laws.truth / 10, off + laws.truth / 10).sum())


WITHIN_TENTH = WithinTenth()
