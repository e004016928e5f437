"""Opening and batch-decoding reports against bare HPKE opens, in one process and in two."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Annotated

import typer

from aggservice.wire import (
    Api,
    Contribution,
    KeySet,
    ReportBatch,
    SharedInfo,
    decode_batch,
    make_report,
    open_batch,
)
from aggservice.wire.sealing import SUITE, hpke_info
from benchmarks import conclude, interleaved
from mechanisms import ManualClock, SeededBits

_BATCH_ROWS = 4096
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
        real = [Contribution(bucket=number << 64 | place, value=place + 1) for place in range(contributions)]
        reports.append(make_report(real, shared_info=info, keys=public, bits=bits, maximum=maximum))
    return ReportBatch.of(reports), keys


class Opener:
    """The two works that are compared, over one batch of reports."""

    def __init__(self, batch: ReportBatch, keys: KeySet) -> None:
        self.batch = batch
        self.keys = keys
        private = keys.pairs[0].private
        payloads, infos = list(batch.payloads), [hpke_info(info) for info in batch.shared_infos]
        self.bare_inputs = [(payload, private, info) for payload, info in zip(payloads, infos, strict=True)]

    def bare(self) -> None:
        """Open every report with ``cryptography`` and nothing else."""
        decrypt = SUITE.decrypt
        for payload, private, info in self.bare_inputs:
            decrypt(payload, private, info)

    def whole(self) -> None:
        """Open and decode every report into columns."""
        for start in range(0, len(self.batch), _BATCH_ROWS):
            opened = open_batch(self.batch.slice(start, start + _BATCH_ROWS), self.keys.by_id)
            _, status = decode_batch(opened)
            if status.any():
                raise RuntimeError("a report that was sealed for this benchmark did not open")


def _serve(opener: Opener, connection: Connection) -> None:
    """Run what the parent asks for, and say when it is done."""
    opener.whole()
    connection.send("ready")
    while (work := connection.recv()) != "stop":
        getattr(opener, work)()
        connection.send("done")


class Workers:
    """Processes that each run a work over their share of the reports, at the same time."""

    def __init__(self, opener: Opener, count: int) -> None:
        # Fork: the children find the reports and the compiled kernels in place.
        context = multiprocessing.get_context("fork")
        share = -(-len(opener.batch) // count)
        self.connections = []
        self.processes = []
        for start in range(0, len(opener.batch), share):
            part = Opener(opener.batch.slice(start, start + share), opener.keys)
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(part, there), daemon=True)
            process.start()
            self.connections.append(here)
            self.processes.append(process)
        self._gather()

    def run(self, work: str) -> None:
        """Run ``work`` in every process and return when the last is done."""
        for connection in self.connections:
            connection.send(work)
        self._gather()

    def _gather(self) -> None:
        for connection in self.connections:
            connection.recv()

    def stop(self) -> None:
        """End the processes."""
        for connection, process in zip(self.connections, self.processes, strict=True):
            connection.send("stop")
            process.join()


def command(
    reports: Annotated[int, typer.Option(help="How many reports.", min=2)] = 16_384,
    contributions: Annotated[int, typer.Option(help="Contributions a report that are not null.")] = 10,
    maximum: Annotated[int, typer.Option(help="Contributions a report, with padding.")] = 20,
    processes: Annotated[int, typer.Option(help="Processes of the second comparison.", min=2)] = 2,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds; medians are shown.", min=1)] = 5,
    full: Annotated[bool, typer.Option("--full", help="100,000 reports.")] = False,
) -> None:
    """Bare HPKE opens against opening and batch-decoding the same reports, in one process and in several."""
    batch, keys = make_batch(100_000 if full else reports, contributions, maximum)
    opener = Opener(batch, keys)
    opener.whole()
    workers = Workers(opener, processes)
    times = interleaved(
        {
            "bare": opener.bare,
            "whole": opener.whole,
            "bare, processes": lambda: workers.run("bare"),
            "whole, processes": lambda: workers.run("whole"),
        },
        rounds,
    )
    workers.stop()
    each = {name: taken / len(batch) * 1e6 for name, taken in times.items()}
    print(f"{len(batch)} reports of {maximum} contributions, medians of {rounds} interleaved rounds, µs a report:")
    for name, taken in each.items():
        print(f"  {name.replace('processes', f'{processes} processes'):24} {taken:7.2f}")
    bare_gain = times["bare"] / times["bare, processes"]
    whole_gain = times["whole"] / times["whole, processes"]
    print(
        f"{processes} processes speed opening and decoding up {whole_gain:.3f} times and bare opens {bare_gain:.3f} "
        f"times: {whole_gain / bare_gain:.3f} of what bare opens gain"
    )
    conclude(
        times["bare"] / times["whole"],
        "time of bare HPKE opens over time of open and batch decode, one process",
        f"{each['bare']:.2f} µs against {each['whole']:.2f} µs a report, "
        f"which is {times['whole'] / times['bare']:.3f} times; limit 1.10",
    )
