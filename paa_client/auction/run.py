"""Protected Audience auctions, as far as Private Aggregation needs them: who bids, who wins, what is contributed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from aggservice.mechanisms import Bits, uniform_below
from aggservice.wire.device import CallError
from paa_client.auction.participants import (
    CHROMIUM_ERROR_EVENTS,
    ERROR_EVENTS,
    LOSS,
    MAX_BUCKET,
    MAX_VALUE,
    ONCE,
    WIN,
    Auction,
    AuctionAggregation,
    AuctionFunction,
    AuctionHost,
    BaseValue,
    Bid,
    BidSignals,
    Measurements,
    RejectReason,
    ResultSignals,
    Score,
    ScoreSignals,
    Signal,
    percentage,
    resolve_signal,
)
from paa_client.config import Config, ContextType, Rules
from paa_client.effects import Effect, Emit
from paa_client.origins import serialize_origin
from paa_client.reporting.contributions import INTERNAL_ERROR_EVENTS, Cause, ErrorEvent, HistogramContribution
from paa_client.reporting.scopes import BatchingScope, CacheEntry, ReportParameters, WorkletContext
from paa_client.worklet import RESERVED, UNCAUGHT_ERROR, WorkletOutcome, run_worklet


class FencedFrame:
    """The frame that shows the winning ad. It can report events, and reveals nothing about the auction to the page."""

    def __init__(self, fire: Callable[[str], None]) -> None:
        self._fire = fire

    def report_event(self, event: str) -> None:
        """Send the contributions that wait for ``event``, at its first call only (``window.fence.reportEvent()``)."""
        if not isinstance(event, str) or event.startswith(RESERVED):
            raise CallError("TypeError", f"event must be a string without the prefix {RESERVED!r}, got {event!r}")
        self._fire(event)


@dataclass(slots=True)
class _Waiting:
    """A contribution that waits for an event of the auction, with the data to fill in its signals.

    ``call`` is the number of the call that made it, among all calls of the auction.
    """

    event: str
    bucket: int | list[Any]
    value: int | list[Any]
    filtering_id: int
    named_budget: str | None
    function: AuctionFunction
    context: WorkletContext
    scope: BatchingScope
    bidder: int
    measurements: Measurements
    call: int


@dataclass(slots=True)
class _Offer:
    """A bid and its score."""

    bidder: int
    bid: Bid
    score: Score = field(default_factory=lambda: Score(desirability=0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Once:
    """The calls drawn for events that count once: a ``generateBid`` call per buyer, and one ``scoreAd`` call.

    Each is given by its bidder; ``scored`` is None if no bid was scored.
    """

    bidders: frozenset[int]
    scored: int | None


_BID, _SCORE = AuctionFunction.GENERATE_BID, AuctionFunction.SCORE_AD


def run_auction(host: AuctionHost, auction: Auction, bits: Bits) -> FencedFrame | None:
    """Run the auction and make its reports; return the winner's frame, or None without a winner."""
    return _Run(host, auction, bits).run()


class _Run:
    """One run of an auction."""

    def __init__(self, host: AuctionHost, auction: Auction, bits: Bits) -> None:
        self._host = host
        self._auction = auction
        self._bits = bits
        self._seller = serialize_origin(auction.seller)
        self._owners = [serialize_origin(group.owner) for group in auction.interest_groups]
        self._waiting: list[_Waiting] = []
        self._calls = 0
        self._timeouts: dict[tuple[str, AuctionFunction], tuple[int, int]] = {}
        self._seller_parameters = host.report_parameters(
            ContextType.PROTECTED_AUDIENCE,
            context_id=auction.context_id,
            filtering_id_max_bytes=auction.filtering_id_max_bytes,
            max_contributions=auction.max_contributions,
            aggregation_coordinator_origin=auction.aggregation_coordinator_origin,
        )
        self._buyer_parameters = [
            host.report_parameters(
                ContextType.PROTECTED_AUDIENCE, aggregation_coordinator_origin=group.aggregation_coordinator_origin
            )
            for group in auction.interest_groups
        ]
        self._scopes: dict[tuple[str, ReportParameters], BatchingScope] = {}
        self._scope(self._seller, self._seller_parameters)  # the seller's report comes first

    def run(self) -> FencedFrame | None:
        """Bid, score, choose, report; then make the reports."""
        offers = [offer for bidder in range(len(self._owners)) if (offer := self._bid(bidder)) is not None]
        for offer in offers:
            self._score(offer)
        winner, other = self._choose(offers)
        if winner is not None:
            self._report(winner, other)
        once = self._chosen_once(offers)
        events: dict[str, list[tuple[HistogramContribution, _Waiting]]] = {}
        for waiting in self._waiting:
            won = winner is not None and waiting.bidder == winner.bidder
            if not self._happens(waiting, won=won, once=once):
                continue
            made = self._fill_in(waiting, offers, winner, other)
            if made is None:
                self._host.record_loss(
                    waiting.scope, Cause.NO_SIGNAL, HistogramContribution(0, 0, waiting.filtering_id)
                )
            elif waiting.event.startswith(RESERVED):
                entry = CacheEntry(made, waiting.context, _error_event(waiting.event), waiting.call)
                waiting.scope.entries.append(entry)
            else:
                events.setdefault(waiting.event, []).append((made, waiting))
        # Chromium keeps contributions in the order of their calls, even those that waited for an event.
        for scope in self._scopes.values():
            scope.entries.sort(key=lambda entry: entry.call)
            self._host.process(scope)
        return None if winner is None else FencedFrame(partial(self._fire, events))

    def _chosen_once(self, offers: Sequence[_Offer]) -> _Once:
        if self._host.config.rules is Rules.SPECIFICATION:
            among = [list(range(len(self._owners)))] if self._owners else []
        else:
            owned: dict[str, list[int]] = {}
            for bidder, owner in enumerate(self._owners):
                owned.setdefault(owner, []).append(bidder)
            among = list(owned.values())
        bidders = frozenset(few[uniform_below(self._bits, len(few))] for few in among)
        return _Once(bidders=bidders, scored=self._pick([offer.bidder for offer in offers]))

    def _happens(self, waiting: _Waiting, *, won: bool, once: _Once) -> bool:
        """Return whether the event of a contribution happened (process the Private Aggregation contributions).

        Error events and ``reserved.once`` count in one ``generateBid`` call per buyer and in one ``scoreAd`` call. For
        error events other than exceptions, True means that the report decides.
        """
        if waiting.event == WIN or not waiting.event.startswith(RESERVED):
            return won
        if waiting.event == LOSS:
            return not won
        chosen = waiting.bidder in once.bidders if waiting.function is _BID else waiting.bidder == once.scored
        if waiting.event == ONCE:
            return chosen
        if waiting.event in ERROR_EVENTS:
            counts = chosen or waiting.function not in (_BID, _SCORE)
            return counts and (waiting.context.threw or waiting.event != RESERVED + UNCAUGHT_ERROR)
        return True

    def _fire(self, events: dict[str, list[tuple[HistogramContribution, _Waiting]]], event: str) -> None:
        scopes: dict[int, BatchingScope] = {}
        for made, waiting in events.pop(event, []):
            scope = scopes.setdefault(
                id(waiting.scope),
                BatchingScope(ContextType.PROTECTED_AUDIENCE, waiting.scope.reporting_origin, waiting.scope.parameters),
            )
            scope.entries.append(CacheEntry(made, waiting.context))
        for scope in scopes.values():
            self._host.process(scope)

    def _bid(self, bidder: int) -> _Offer | None:
        group = self._auction.interest_groups[bidder]
        signals = BidSignals(
            interest_group=group.name,
            seller=self._seller,
            user_bidding_signals=copy.deepcopy(group.user_bidding_signals),
            auction_signals=copy.deepcopy(self._auction.auction_signals),
        )

        def plain(aggregation: AuctionAggregation) -> object:
            returned = group.generate_bid(aggregation, signals)
            return [returned.bid, copy.deepcopy(returned.ad)] if isinstance(returned, Bid) else [returned, None]

        outcome = self._call(AuctionFunction.GENERATE_BID, bidder, plain)
        if not isinstance(outcome.result, list):
            return None
        amount, ad = outcome.result
        number = _to_double(amount)
        if number is None or not 0 < number < math.inf:
            return None
        return _Offer(bidder, Bid(bid=number, ad=ad))

    def _score(self, offer: _Offer) -> None:
        def plain(aggregation: AuctionAggregation) -> object:
            signals = ScoreSignals(
                bid=offer.bid.bid,
                ad=copy.deepcopy(offer.bid.ad),
                interest_group_owner=self._owners[offer.bidder],
                auction_signals=copy.deepcopy(self._auction.auction_signals),
            )
            returned = self._auction.score_ad(aggregation, signals)
            if isinstance(returned, Score):
                return [returned.desirability, RejectReason(returned.reject_reason).value]
            return [returned, RejectReason.NOT_AVAILABLE.value]

        outcome = self._call(AuctionFunction.SCORE_AD, offer.bidder, plain)
        if isinstance(outcome.result, list):
            desirability, reason = outcome.result
            number = _to_double(desirability)
            if number is not None:
                offer.score = Score(desirability=number, reject_reason=RejectReason(reason))

    def _choose(self, offers: Sequence[_Offer]) -> tuple[_Offer | None, _Offer | None]:
        """Return the offer with the highest positive desirability and the next one; ties are broken at random."""
        remaining = [offer for offer in offers if 0 < offer.score.desirability < math.inf]
        chosen: list[_Offer | None] = []
        for _ in range(2):
            best = max((offer.score.desirability for offer in remaining), default=None)
            leaders = [offer for offer in remaining if offer.score.desirability == best]
            leader = leaders[uniform_below(self._bits, len(leaders))] if len(leaders) > 1 else next(iter(leaders), None)
            chosen.append(leader)
            remaining = [offer for offer in remaining if offer is not leader]
        return chosen[0], chosen[1]

    def _report(self, winner: _Offer, other: _Offer | None) -> None:
        group = self._auction.interest_groups[winner.bidder]
        signals = ResultSignals(
            bid=winner.bid.bid,
            highest_scoring_other_bid=other.bid.bid if other is not None else 0.0,
            interest_group_owner=self._owners[winner.bidder],
            seller=self._seller,
            ad=winner.bid.ad,
            desirability=winner.score.desirability,
        )
        for_winner: object = None
        report_result, report_win = self._auction.report_result, group.report_win
        if report_result is not None:
            outcome = self._call(
                AuctionFunction.REPORT_RESULT, winner.bidder, lambda aggregation: report_result(aggregation, signals)
            )
            for_winner = outcome.result
        if report_win is not None:
            won = replace(signals, desirability=None, interest_group=group.name, signals_for_winner=for_winner)
            self._call(AuctionFunction.REPORT_WIN, winner.bidder, lambda aggregation: report_win(aggregation, won))

    def _call(
        self, function: AuctionFunction, bidder: int, body: Callable[[AuctionAggregation], object]
    ) -> WorkletOutcome:
        """Run one function in a new context; add its contributions to its origin's scope, or keep them for an event."""
        selling = function in (AuctionFunction.SCORE_AD, AuctionFunction.REPORT_RESULT)
        origin = self._seller if selling else self._owners[bidder]
        parameters = self._seller_parameters if selling else self._buyer_parameters[bidder]
        scope = self._scope(origin, parameters)
        context = WorkletContext()

        def work(emit: Emit) -> object:
            aggregation = AuctionAggregation(
                emit,
                function,
                filtering_id_max_bytes=parameters.filtering_id_max_bytes,
                allowed=self._host.config.private_aggregation_allowed,
                error_events=_error_events(self._host.config),
            )
            try:
                return body(aggregation)
            finally:
                aggregation.close()

        def apply(effect: Effect) -> None:
            self._calls += 1
            match effect:
                case ("contribute", bucket, value, filtering_id, name, None):
                    made = HistogramContribution(bucket, value, filtering_id, name)
                    scope.entries.append(CacheEntry(made, context, call=self._calls))
                case ("on-event", event, bucket, value, filtering_id, name):
                    times = self._measure(function, bidder)
                    asked = (event, bucket, value, filtering_id, name, function, context, scope, bidder, times)
                    self._waiting.append(_Waiting(*asked, call=self._calls))
                case ("refuse", _):
                    self._host.record_loss(scope, Cause.INVALID, HistogramContribution(0, 0))
                case _:
                    context.apply(effect)

        outcome = run_worklet(work, apply, self._host.config.operation_deadline_ms)
        context.threw = outcome.message is not None and not outcome.deadline_reached
        tried, timed_out = self._timeouts.get((origin, function), (0, 0))
        self._timeouts[origin, function] = (tried + 1, timed_out + outcome.deadline_reached)
        if outcome.message is not None:
            self._host.log(origin, function.value, outcome.message)
        return outcome

    def _scope(self, origin: str, parameters: ReportParameters) -> BatchingScope:
        """Get or create the batching scope of an origin with these report parameters."""
        fresh = BatchingScope(ContextType.PROTECTED_AUDIENCE, origin, parameters)
        return self._scopes.setdefault((origin, parameters), fresh)

    def _pick(self, among: Sequence[int]) -> int | None:
        return among[uniform_below(self._bits, len(among))] if len(among) > 0 else None

    def _measure(self, function: AuctionFunction, bidder: int) -> Measurements:
        group = self._auction.interest_groups[bidder]
        run_ms, fetch_ms = {
            AuctionFunction.GENERATE_BID: (group.generate_bid_ms, group.signals_fetch_ms),
            AuctionFunction.SCORE_AD: (self._auction.score_ad_ms, self._auction.scoring_signals_fetch_ms),
            AuctionFunction.REPORT_RESULT: (self._auction.report_result_ms, 0.0),
            AuctionFunction.REPORT_WIN: (group.report_win_ms, 0.0),
        }[function]
        return Measurements(script_run_time_ms=run_ms, signals_fetch_time_ms=fetch_ms)

    def _fill_in(
        self, waiting: _Waiting, offers: Sequence[_Offer], winner: _Offer | None, other: _Offer | None
    ) -> HistogramContribution | None:
        """Return the contribution with its signals filled in, or None if a signal has no value."""
        offer = next((offer for offer in offers if offer.bidder == waiting.bidder), None)
        reason: RejectReason | None = None
        if waiting.function in (AuctionFunction.GENERATE_BID, AuctionFunction.SCORE_AD):
            reason = RejectReason.NOT_AVAILABLE if offer is None else offer.score.reject_reason
        measurements = replace(
            waiting.measurements,
            winning_bid=winner.bid.bid if winner is not None else 0.0,
            highest_scoring_other_bid=other.bid.bid if other is not None else 0.0,
            reject_reason=reason,
            participant=self._participant(waiting),
        )
        rules = self._host.config.rules
        numbers: list[int | None] = []
        for asked, largest in ((waiting.bucket, MAX_BUCKET), (waiting.value, MAX_VALUE)):
            if isinstance(asked, list):
                signal = Signal(base_value=asked[0], scale=asked[1], offset=asked[2])
                numbers.append(resolve_signal(signal, measurements, largest, rules))
            else:
                numbers.append(asked)
        bucket, value = numbers
        if bucket is None or value is None:
            return None
        return HistogramContribution(bucket, value, waiting.filtering_id, waiting.named_budget)

    def _participant(self, waiting: _Waiting) -> Mapping[BaseValue, float]:
        origin = waiting.scope.reporting_origin
        tried, timed_out = self._timeouts.get((origin, waiting.function), (0, 0))
        numbers = dict(self._auction.measured.get(origin, {}))
        numbers[BaseValue.PERCENT_SCRIPTS_TIMEOUT] = percentage(timed_out, tried)
        if waiting.function in (AuctionFunction.SCORE_AD, AuctionFunction.REPORT_RESULT):
            buying = {base for base in BaseValue if base not in _SELLER_TOO}
            numbers = {base: number for base, number in numbers.items() if base not in buying}
            numbers[BaseValue.AVERAGE_CODE_FETCH_TIME] = self._auction.code_fetch_ms
            return numbers
        groups = [g for g, owner in zip(self._auction.interest_groups, self._owners, strict=True) if owner == origin]
        numbers[BaseValue.PARTICIPATING_IG_COUNT] = float(len(groups))
        numbers[BaseValue.AVERAGE_CODE_FETCH_TIME] = sum(group.code_fetch_ms for group in groups) / len(groups)
        return numbers


_SELLER_TOO = frozenset({BaseValue.AVERAGE_CODE_FETCH_TIME, BaseValue.PERCENT_SCRIPTS_TIMEOUT})


def _error_event(event: str) -> ErrorEvent | None:
    """Return the error event that the report decides about; None for an event that the auction has decided."""
    if event == RESERVED + UNCAUGHT_ERROR:
        return ErrorEvent.ALREADY_TRIGGERED_EXTERNAL_ERROR
    return INTERNAL_ERROR_EVENTS.get(event.removeprefix(RESERVED))


def _error_events(config: Config) -> frozenset[str]:
    """Return the error events that a browser knows in auctions; without error reporting Chromium knows none."""
    if config.all_or_nothing:
        return frozenset()
    return CHROMIUM_ERROR_EVENTS if config.rules is Rules.CHROMIUM else ERROR_EVENTS


def _to_double(value: object) -> float | None:
    """Return a worklet's number as a double, infinite if it is too large; None if the value is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, 1 if value > 0 else -1)
