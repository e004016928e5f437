"""The sealed report of a conversion: our own proposal for a service in a trusted execution environment.

Level 1 has only DAP, whose codepoints are still open, so no report for it can be made today. The protocol
``aggservice-tee-0`` uses the report of ``aggservice.wire``: public parameters in ``shared_info``, which HPKE
authenticates, and the histogram as contributions in a payload whose size does not depend on what was attributed
(docs/wire.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from aggservice.mechanisms import Bits
from aggservice.wire import AggregatableReport, Api, Contribution, PublicKeySet, SharedInfo, make_report
from aggservice.wire.limits import MAX_CONTRIBUTIONS
from w3c_client.config import Config


def payload_slots(config: Config, histogram_size: int) -> int:
    """Return how many contributions every report with this histogram size has, nulls included.

    A conversion credits at most as many impressions as a call may have credits. The page's own number of credits is
    not used, so that all reports of a task have the same size.
    """
    return min(histogram_size, config.max_credits, MAX_CONTRIBUTIONS)


def seal_histogram(
    histogram: Sequence[int],
    *,
    caller: str,
    conversion_site: str,
    max_value: int,
    epsilon_micro: int,
    time_ms: int,
    slots: int,
    keys: PublicKeySet,
    bits: Bits,
) -> AggregatableReport:
    """Return the report that a page receives. A histogram of zeros has the same size as any other."""
    info = SharedInfo(
        api=Api.W3C_ATTRIBUTION,
        report_id=str(UUID(bytes=bits.read(16), version=4)),
        reporting_origin=f"https://{caller}",
        attribution_destination=f"https://{conversion_site}",
        scheduled_report_time_s=time_ms // 1000,
        histogram_size=len(histogram),
        max_value=max_value,
        epsilon_micro=epsilon_micro,
    )
    amounts = [Contribution(bucket=index, value=amount) for index, amount in enumerate(histogram) if amount]
    return make_report(
        amounts, shared_info=info, keys=keys, bits=bits, maximum=slots, aggregation_coordinator_origin=None
    )
