"""Opening and batch-decoding reports against bare HPKE opens, in one process and in two."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import numpy as np
import typer

from aggservice.bench import at_once, conclude, interleaved, seconds
from aggservice.mechanisms import ManualClock, SeededBits
from aggservice.wire import Api, Contribution, KeySet, ReportBatch, SharedInfo, decode_batch, make_report, open_batch
from aggservice.wire.hpke.sealing import SUITE, hpke_info

_BATCH_ROWS = 2048
_ORIGIN = "https://adtech.example"


def make_batch(count: int, contributions: int, maximum: int) -> tuple[ReportBatch, KeySet]:
    """Return ``count`` sealed reports of ``maximum`` contributions each, some of which are not null."""
    clock = ManualClock(1_700_000_000_000)
    bits = SeededBits("bench wire")
    keys = KeySet.create(bits, clock)
    public = keys.public(clock)
    reports = []
    for number in range(count):
        info = SharedInfo(
            api=Api.ATTRIBUTION_REPORTING,
            report_id=f"21abd97f-73e8-4b88-9389-{number:012x}",
            reporting_origin=_ORIGIN,
            scheduled_report_time_s=1_700_000_000 + number,
            attribution_destination="https://shop.example",
        )
        real = [Contribution(bucket=number << 64 | index, value=index + 1) for index in range(contributions)]
        reports.append(make_report(real, shared_info=info, keys=public, bits=bits, maximum=maximum))
    return ReportBatch.of(reports), keys


class TimedOpener:
    """The two kinds of work that are compared, on reports in batches."""

    def __init__(self, batch: ReportBatch, keys: KeySet) -> None:
        self.keys = keys
        self.rows = len(batch)
        self.batches = [batch.slice(start, start + _BATCH_ROWS) for start in range(0, len(batch), _BATCH_ROWS)]
        private = keys.pairs[0].private
        self.bare_inputs = [
            [
                (payload, private, hpke_info(info))
                for payload, info in zip(part.payloads, part.shared_infos, strict=True)
            ]
            for part in self.batches
        ]

    def bare(self, index: int) -> None:
        """Open every report of a batch with ``cryptography`` and nothing else."""
        decrypt = SUITE.decrypt
        for payload, private, info in self.bare_inputs[index]:
            decrypt(payload, private, info)

    def whole(self, index: int) -> None:
        """Open and decode every report of a batch into columns."""
        opened = open_batch(self.batches[index], self.keys.by_id)
        _, status = decode_batch(opened)
        if status.any():
            raise RuntimeError("a report that was sealed for this benchmark did not open: the times mean nothing")


def _take_turns(count: int, contributions: int, maximum: int, rounds: int, begin: Any, out: Any) -> None:
    """Put the times of both works over ``count`` new reports into ``out``, by round, batch and work.

    All processes begin each of them together.
    """
    opener = TimedOpener(*make_batch(count, contributions, maximum))
    opener.whole(0)
    times = []
    for _ in range(rounds):
        for index in range(len(opener.batches)):
            for work in (opener.bare, opener.whole):
                begin.wait()
                times.append(seconds(partial(work, index)))
    out.put(times)


def in_processes(reports: int, contributions: int, maximum: int, processes: int, rounds: int) -> tuple[float, float]:
    """Return the median times of bare opens and of open and decode when ``processes`` share the reports.

    They work on one batch each at the same time; the slowest counts.
    """
    share = -(-reports // processes)
    found = at_once(_take_turns, [(share, contributions, maximum, rounds)] * processes)
    slowest = np.array(found).max(axis=0).reshape(rounds, -1, 2)
    bare, whole = np.median(slowest.sum(axis=1), axis=0).tolist()
    return bare, whole


def command(
    reports: Annotated[int, typer.Option(help="Number of reports.", min=2)] = 16_384,
    contributions: Annotated[int, typer.Option(help="Contributions per report that are not null.")] = 10,
    maximum: Annotated[int, typer.Option(help="Contributions per report, with padding.")] = 20,
    processes: Annotated[int, typer.Option(help="Processes of the second comparison.", min=2)] = 2,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds; medians are shown.", min=1)] = 5,
    full: Annotated[bool, typer.Option("--full", help="100,000 reports.")] = False,
) -> None:
    """Opening: bare HPKE opens over opening and decoding in batches.

    Opens and decodes the same reports in one process and in several.
    """
    batch, keys = make_batch(100_000 if full else reports, contributions, maximum)
    opener = TimedOpener(batch, keys)
    opener.whole(0)
    own = range(len(opener.batches))
    times = interleaved(
        {
            "bare": [partial(opener.bare, index) for index in own],
            "whole": [partial(opener.whole, index) for index in own],
        },
        rounds,
    )
    together = in_processes(len(batch), contributions, maximum, processes, rounds)
    times |= zip(("bare, processes", "whole, processes"), together, strict=True)
    each = {name: taken / len(batch) * 1e6 for name, taken in times.items()}
    print(f"{len(batch)} reports of {maximum} contributions, medians of {rounds} interleaved rounds, µs per report:")
    for name, taken in each.items():
        print(f"  {name.replace('processes', f'{processes} processes'):24} {taken:7.2f}")
    bare_gain = times["bare"] / times["bare, processes"]
    whole_gain = times["whole"] / times["whole, processes"]
    print(
        f"{processes} processes speed opening and decoding up {whole_gain:.3f} times and bare opens {bare_gain:.3f} "
        f"times: {whole_gain / bare_gain:.3f} of what bare opens gain (at least 0.95)"
    )
    conclude(
        times["bare"] / times["whole"],
        "time of bare HPKE opens over time of open and batch decode, one process",
        f"{each['bare']:.2f} µs against {each['whole']:.2f} µs per report, "
        f"which is {times['whole'] / times['bare']:.3f} times; at most 1.10",
    )
