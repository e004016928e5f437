"""Opening and batch-decoding reports against bare HPKE opens, in one process and in two."""

from __future__ import annotations

import multiprocessing
from functools import partial
from multiprocessing.connection import Connection
from typing import Annotated

import typer

from aggservice.bench import conclude, interleaved
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


class Opener:
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
            raise RuntimeError("a report that was sealed for this benchmark did not open")


def _serve(opener: Opener, connection: Connection) -> None:
    """Run the work that the parent asks for, and report when it is done."""
    opener.whole(0)
    connection.send("ready")
    while (asked := connection.recv()) is not None:
        work, index = asked
        if index < len(opener.batches):
            getattr(opener, work)(index)
        connection.send("done")


class Workers:
    """Processes that each run a work over their share of the reports, at the same time."""

    def __init__(self, batch: ReportBatch, keys: KeySet, count: int) -> None:
        # Fork: the children inherit the reports and the compiled kernels.
        context = multiprocessing.get_context("fork")
        share = -(-len(batch) // count)
        self.connections = []
        self.processes = []
        self.parts = -(-share // _BATCH_ROWS)
        for start in range(0, len(batch), share):
            here, there = context.Pipe()
            opener = Opener(batch.slice(start, start + share), keys)
            process = context.Process(target=_serve, args=(opener, there), daemon=True)
            process.start()
            self.connections.append(here)
            self.processes.append(process)
        self._gather()

    def run(self, work: str, index: int) -> None:
        """Run ``work`` on a batch in every process and return when the last is done."""
        for connection in self.connections:
            connection.send((work, index))
        self._gather()

    def _gather(self) -> None:
        for connection in self.connections:
            connection.recv()

    def stop(self) -> None:
        """End the processes."""
        for connection, process in zip(self.connections, self.processes, strict=True):
            connection.send(None)
            process.join()


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
    opener = Opener(batch, keys)
    opener.whole(0)
    workers = Workers(batch, keys, processes)
    own, shared = range(len(opener.batches)), range(workers.parts)
    times = interleaved(
        {
            "bare": [partial(opener.bare, index) for index in own],
            "whole": [partial(opener.whole, index) for index in own],
            "bare, processes": [partial(workers.run, "bare", index) for index in shared],
            "whole, processes": [partial(workers.run, "whole", index) for index in shared],
        },
        rounds,
    )
    workers.stop()
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
