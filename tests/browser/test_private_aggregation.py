"""A real Chromium runs Shared Storage worklets and an auction: its reports are ours, and their sums are the truth."""

from __future__ import annotations

import pytest

from aggservice.client import JobParameters
from paa_client import Config, Signal

from .auctions import AuctionRun, Buyer, run_real, run_simulated
from .comparison import compare
from .conftest import Counts, Stack, collected
from .devtools import Chromium
from .private_aggregation import DEVELOPER_MODE, HOUR_MS, Call, RealWorklets, Run, SimulatedWorklets

ADTECH = "adtech.example"
SOON_MS = 60_000
DEBUG = Call(name="enableDebugMode", fields={"debugKey": 5})


def add(bucket: int, value: int, **fields: int) -> Call:
    return Call(name="contributeToHistogram", fields={"bucket": bucket, "value": value, **fields})


def when(event: str, bucket: int | Signal, value: int | Signal) -> Call:
    fields: dict[str, int | float | Signal] = {"bucket": bucket, "value": value}
    return Call(name="contributeToHistogramOnEvent", event=f"reserved.{event}", fields=fields)


RUNS = (
    Run(host=ADTECH, calls=(DEBUG, add(10, 100), add(20, 200, filteringId=3))),
    Run(host=ADTECH, calls=(DEBUG, add(10, 7)), context_id="visit-1"),
    Run(host=ADTECH, calls=(DEBUG, add(30, 9, filteringId=300)), context_id="visit-2", filtering_id_max_bytes=2),
    # The report is denied as a whole: 65,220 are left of 2¹⁶.
    Run(host=ADTECH, calls=(DEBUG, add(10, 65_536), add(10, 1))),
    # What was contributed before an exception counts.
    Run(host=ADTECH, calls=(DEBUG, add(40, 1), Call(name="throw"), add(40, 1))),
    # Not marked for debugging, so a debug run leaves it out; and one that must be sent although it is empty.
    Run(host=ADTECH, calls=(add(50, 1),)),
    Run(host=ADTECH, calls=(), context_id="visit-3"),
)
AUCTION = AuctionRun(
    seller="seller.example",
    score_ad=(DEBUG, add(200, 2), when("win", 201, 3), when("loss", 202, 4), when("always", 203, 5)),
    report_result=(DEBUG, add(210, 6)),
    buyers=(
        Buyer(
            host="winner.example",
            bid=5,
            generate_bid=(DEBUG, add(100, 1), when("win", 101, Signal(base_value="winning-bid", scale=2.0, offset=1))),
            report_win=(DEBUG, add(103, 4), when("win", Signal(base_value="winning-bid", offset=1000), 7)),
        ),
        Buyer(
            host="loser.example",
            bid=3,
            generate_bid=(DEBUG, when("win", 101, 1), when("loss", 300, Signal(base_value="winning-bid", scale=10.0))),
        ),
    ),
)
TRUTH: dict[tuple[str, str, int], dict[int, int]] = {
    ("shared-storage", ADTECH, 0): {10: 107, 40: 1},
    ("shared-storage", ADTECH, 3): {20: 200},
    ("shared-storage", ADTECH, 300): {30: 9},
    ("protected-audience", "seller.example", 0): {200: 4, 201: 3, 202: 4, 203: 10, 210: 6},
    ("protected-audience", "winner.example", 0): {100: 1, 101: 11, 103: 4, 1005: 7},
    ("protected-audience", "loser.example", 0): {300: 50},
}
"""By API, origin and filtering ID: the sums of what was contributed in debug mode."""


@pytest.mark.parametrize("flags", [(DEVELOPER_MODE,), ()], ids=["debug flags", "as shipped"])
def test_worklets_and_an_auction(stack: Stack, counts: Counts, flags: tuple[str, ...]) -> None:
    """Every report is the one that ``paa_client`` predicts; a debug run's sums are the truth.

    As shipped, reports without a context ID leave after ten minutes or more; their debug copies leave at once, and it
    is these that are summed. Nothing is random but what is replaced, so nothing fails by chance.
    """
    simulated = SimulatedWorklets(stack.keys, Config(local_testing_mode=bool(flags), debug_mode_allowed=True))
    with Chromium(resolve=stack.site.address, flags=flags) as browser:
        real = RealWorklets(browser, stack.site)
        for run in RUNS:
            assert real.run(run) is None
            assert simulated.run(run) is None
        assert run_real(real, AUCTION), real.timed_out
        assert run_simulated(simulated, AUCTION)
        predicted = simulated.finish(HOUR_MS if flags else SOON_MS)
        found = compare(real.finish(stack.keys, count=len(predicted)), predicted)
    counts.record(found.equal, max(len(found.only_real), len(found.only_simulated)))
    assert found.same and found.equal >= 10, found
    for one in stack.site.posted:
        assert one.status == 200
        assert one.headers["Sec-Fetch-Site"] == "none" and "Origin" not in one.headers and "Cookie" not in one.headers

    for (api, host, filtering_id), sums in TRUTH.items():
        parameters = JobParameters(
            attribution_report_to=f"https://{host}",
            epsilon="1",
            filtering_ids=(filtering_id,),
            debug_run=True,
            report_error_threshold_percentage="100",
        )
        batches = collected(stack.collected / (api if flags else f"debug-{api}"))
        summary = stack.client.aggregate(f"{api}-{host}-{filtering_id}", parameters, batches, domain=sorted(sums))
        assert summary.unnoised is not None
        assert dict(zip(summary.low.tolist(), summary.unnoised.tolist(), strict=True)) == sums
