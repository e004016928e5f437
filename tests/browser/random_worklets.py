"""Random worklets: contributions within and beyond the budget, debug modes, exceptions, and odd arguments."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from paa_client import Signal
from paa_client.config import AWS_COORDINATOR, GCP_COORDINATOR

from .auctions import AuctionRun, Buyer
from .private_aggregation import Call, Run

ODD = 0.08
"""The share of arguments that are odd: out of range, of another type, not a number."""
BUCKETS: list[int | float] = [-1, 1 << 128, (1 << 128) - 1, 0, 1.5, math.nan]
VALUES: list[int | float] = [0, -1, 65537, 2**31 - 1, 2**31, 2**32 + 7, 1.9, -0.5, math.nan, math.inf, 2**53]
IDS: list[int | float] = [255, 256, -1, 65535, 2**64 - 1, 2**64, 0.5]
KEYS: list[int | float] = [0, 2**64 - 1, 2**64, -1, 1.0]


EVENTS = [
    "reserved.report-success", "reserved.too-many-contributions", "reserved.empty-report-dropped",
    "reserved.pending-report-limit-reached", "reserved.insufficient-budget", "reserved.contribution-timeout-reached",
    "reserved.uncaught-error", "reserved.uncaught-exception", "reserved.of-the-future", "mine", "",
]  # fmt: skip


AUCTION_EVENTS = ["reserved.win", "reserved.loss", "reserved.always", "reserved.of-the-future"]
BASE_VALUES = ["winning-bid", "highest-scoring-other-bid", "bid-reject-reason", "participating-ig-count"]


class Worklets:
    """Random runs over a few hosts, so that their budgets bind; with ``on_event``, of a browser that reports errors."""

    def __init__(self, rng: random.Random, *, on_event: bool = False) -> None:
        self._rng = rng
        self._on_event = on_event
        self._hosts = [f"w{rng.randrange(10**6)}.example" for _ in range(rng.choice([1, 2, 4, 12]))]
        if rng.random() < 0.3:
            self._hosts.append(f"sub.{self._hosts[0]}")

    def runs(self, count: int) -> Iterator[Run]:
        """Yield random runs."""
        for _ in range(count):
            yield self._run()

    def _run(self) -> Run:
        rng = self._rng
        count = rng.choices([0, 1, 3, 6, 25], [8, 30, 35, 20, 7])[0]
        calls = [self._call() for _ in range(count)]
        if rng.random() < 0.35:
            calls.insert(rng.randrange(len(calls) + 1), self._debug())
        deterministic = rng.random() < 0.4
        coordinator = rng.choice([None] * 8 + [AWS_COORDINATOR, GCP_COORDINATOR])
        if rng.random() < 0.02:
            coordinator = rng.choice(["https://unknown.example", "not a url", AWS_COORDINATOR + "/path", ""])
        return Run(
            host=rng.choice(self._hosts),
            calls=tuple(calls),
            context_id=rng.choice([None, "ctx", "", "é<\u2028>", "x" * 64, "x" * 65]) if deterministic else None,
            filtering_id_max_bytes=rng.choice([None, None, 1, 2, 8, 0, 9]) if deterministic else None,
            max_contributions=rng.choice([None, None, 1, 20, 50, 2000, 0]) if deterministic else None,
            coordinator=coordinator,
        )

    def _debug(self) -> Call:
        rng = self._rng
        if rng.random() < 0.4:
            return Call(name="enableDebugMode", caught=rng.random() < 0.5)
        key = rng.choice(KEYS) if rng.random() < 0.2 else rng.randrange(1 << 64)
        return Call(name="enableDebugMode", fields={"debugKey": key}, caught=rng.random() < 0.5)

    def _call(self) -> Call:
        rng = self._rng
        caught = rng.random() < 0.6
        if rng.random() < 0.02:
            return Call(name="throw", caught=caught)
        if rng.random() < 0.02:
            return self._debug()
        fields: dict[str, int | float] = {
            "bucket": rng.choice([1, 2, 3, rng.randrange(1 << 128)]),
            "value": rng.choice([1, 2, 100, 1000, 9000, 30000, 65536]),
        }
        if rng.random() < 0.3:
            fields["filteringId"] = rng.choice([0, 1, 7, 255])
        for name, odd in (("bucket", BUCKETS), ("value", VALUES), ("filteringId", IDS)):
            if rng.random() < ODD:
                fields[name] = rng.choice(odd)
        if rng.random() < 0.01:
            del fields[rng.choice(["bucket", "value"])]
        if self._on_event and rng.random() < 0.4:
            event = rng.choice(EVENTS)
            return Call(name="contributeToHistogramOnEvent", event=event, fields=dict(fields), caught=caught)
        return Call(name="contributeToHistogram", fields=dict(fields), caught=caught)

    def auction(self) -> AuctionRun:
        """Return a random auction with new buyers; bids differ, because ties fall at random."""
        rng = self._rng
        bids = rng.sample([0.5, 1, 2.25, 3, 10, 1e6, 0, -1], rng.choice([1, 1, 2, 3]))
        buyers = tuple(
            Buyer(
                host=f"b{rng.randrange(10**9)}.example",
                bid=bid,
                generate_bid=self._auction_calls(),
                report_win=self._auction_calls(),
            )
            for bid in bids
        )
        return AuctionRun(
            seller=rng.choice(self._hosts),
            buyers=buyers,
            # Of error events in several calls of scoreAd, one call counts, and which one is drawn.
            score_ad=tuple(call for call in self._auction_calls() if len(buyers) == 1 or call.event not in EVENTS[:7]),
            report_result=self._auction_calls(),
        )

    def _auction_calls(self) -> tuple[Call, ...]:
        rng = self._rng
        calls = [self._call() for _ in range(rng.choice([0, 1, 2]))]
        for _ in range(rng.choice([0, 1, 2, 3])):
            fields: dict[str, int | float | Signal] = {
                "bucket": rng.choice([1, 2, 3]),
                "value": rng.choice([1, 50, 700]),
            }
            for name in ("bucket", "value"):
                if rng.random() < 0.3:
                    offset = rng.choice([0, 5, 1000, -2])
                    scale = rng.choice([1.0, 0.5, 2.75, 100.0, -1.0, 0.0])
                    fields[name] = Signal(base_value=rng.choice(BASE_VALUES), scale=scale, offset=offset)
            if rng.random() < 0.2:
                fields["filteringId"] = rng.choice([0, 3, 255, 256])
            event = rng.choice(AUCTION_EVENTS if rng.random() < 0.8 else EVENTS[:-2])
            for name, odd in (("bucket", BUCKETS), ("filteringId", IDS)):
                if rng.random() < ODD / 2:
                    fields[name] = rng.choice(odd)
            calls.append(
                Call(name="contributeToHistogramOnEvent", event=event, fields=fields, caught=rng.random() < 0.8)
            )
        if rng.random() < 0.3:
            calls.insert(rng.randrange(len(calls) + 1), self._debug())
        return tuple(calls)
