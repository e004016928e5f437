"""Reports in pairs that nobody can tell apart: the same public part, the same length, another sealed content.

A pair stands for one report of two worlds. Its two payloads differ as honest ones may: null or real, another bucket,
another value, another filtering ID, one contribution more; never by more than Λ₁ = 65,536 in all. Some reports are
bad, or marked for debugging; those have the same bytes in both worlds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import UUID

import numpy as np

from aggservice.engine.opening.coverage import BOUNDED_APIS
from aggservice.mechanisms import ManualClock, SeededBits
from aggservice.wire import (
    Api,
    BucketRows,
    Contribution,
    KeySet,
    ReportBatch,
    SharedInfo,
    Spans,
    make_report,
    write_buckets,
    write_reports,
)

ORIGIN, SITE, RIVAL = "https://adtech.example", "https://adtech.example", "https://rival.example"
NOW_MS = 1_700_000_000_000
L1 = 65_536
BUCKETS = (0, 1, 2, 3, 5, 8, 1 << 64, (1 << 128) - 1)
"""Every bucket that a report or a domain may hold."""
DOMAINS = ((0,), (0, 1), (0, 1, 2, 3), BUCKETS)
GROUP = 4
"""So many pairs that follow each other belong together: a history takes its reports from one group and the next."""
_SLOTS = 3
_VALUES = (1, 2, 7, 1_000, 20_000, 32_768)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One report of two worlds. ``payloads`` are the left world's and the right one's."""

    kind: str
    shared_info: str
    key_id: str
    payloads: tuple[bytes, bytes]


def key(bucket: int) -> bytes:
    """Return a bucket as a domain part has it."""
    return bucket.to_bytes(16, "big")


class Reports:
    """The pairs, the keys that open them, and files of them for each world; all from one seed."""

    def __init__(self, seed: str = "pairs") -> None:
        self.clock = ManualClock(NOW_MS)
        self._bits = SeededBits(seed)
        self.keys = KeySet.create(self._bits, self.clock)
        self._random = random.Random(seed)
        self.pairs: list[Pair] = []
        for number in range(12):
            self._heavy(number)
        for number in range(12):
            self._near(number)
        for _ in range(6):
            self._mixed()

    def _info(self, **changes: object) -> SharedInfo:
        fields: dict[str, object] = {
            "api": Api.ATTRIBUTION_REPORTING,
            "report_id": str(UUID(bytes=self._bits.read(16), version=4)),
            "reporting_origin": ORIGIN,
            "scheduled_report_time_s": NOW_MS // 1000 - 600,
            "attribution_destination": "https://shop.example",
        }
        fields |= changes
        if fields["api"] not in (Api.ATTRIBUTION_REPORTING, Api.ATTRIBUTION_REPORTING_DEBUG):
            del fields["attribution_destination"]
        return SharedInfo(**fields)  # type: ignore[arg-type]

    def _seal(self, info: SharedInfo, contributions: Sequence[Contribution]) -> tuple[str, bytes]:
        assert sum(one.value for one in contributions) <= L1
        report = make_report(
            contributions, shared_info=info, keys=self.keys.public(self.clock), bits=self._bits, maximum=_SLOTS
        )
        return report.payloads[0].key_id, report.payloads[0].payload

    def _add(
        self,
        kind: str,
        left: Sequence[Contribution],
        right: Sequence[Contribution] | None = None,
        *,
        turned: bool | None = None,
        **changes: object,
    ) -> None:
        """Add a pair; without ``right`` both worlds have the same bytes. ``turned`` puts the right one on the left."""
        info = self._info(**changes)
        key_id, first = self._seal(info, left)
        _, second = (key_id, first) if right is None else self._seal(info, right)
        assert len(first) == len(second)
        turned = self._random.random() < 0.5 if turned is None else turned
        payloads = (second, first) if turned else (first, second)
        self.pairs.append(Pair(kind=kind, shared_info=info.serialise(), key_id=key_id, payloads=payloads))

    def _heavy(self, number: int) -> None:
        """A group whose values pass any threshold together, in one world only or at another bucket."""
        bucket, other = BUCKETS[number % len(BUCKETS)], BUCKETS[(number + 3) % len(BUCKETS)]
        turned = self._random.random() < 0.5
        for less in range(GROUP):
            here = [Contribution(bucket=bucket, value=L1 - less)]
            there = [] if number % 2 else [Contribution(bucket=other, value=L1 - less)]
            self._add("heavy", here, there, turned=turned)

    def _near(self, number: int) -> None:
        """A group of small differences, of each kind one."""
        draw = self._random
        at, other = draw.sample(BUCKETS, 2)
        value = draw.choice(_VALUES)
        more = {
            "api": BOUNDED_APIS[number % len(BOUNDED_APIS)],
            "scheduled_report_time_s": NOW_MS // 1000 - 3600 * (number % 3),
        }
        one = Contribution(bucket=at, value=value)
        self._add("another bucket", [one], [Contribution(bucket=other, value=value)], **more)
        self._add("another value", [one], [Contribution(bucket=at, value=draw.choice(_VALUES) + 1)], **more)
        self._add("another filtering ID", [one], [Contribution(bucket=at, value=value, filtering_id=1)], **more)
        self._add("one more", [one], [one, Contribution(bucket=other, value=draw.choice(_VALUES))], **more)

    def _mixed(self) -> None:
        """A group with bad reports, the same in both worlds, beside a good one."""
        draw = self._random
        one = Contribution(bucket=draw.choice(BUCKETS), value=draw.choice(_VALUES))
        self._add("null or real", [], [one])
        bad = draw.randrange(6)
        if bad == 0:
            self._add("too old", [one], [], scheduled_report_time_s=NOW_MS // 1000 - 100 * 86_400)
        elif bad == 1:
            self._add("another origin", [one], [], reporting_origin=RIVAL)
        elif bad == 2:
            self._add("no filtering IDs", [one], [], version="0.1")
        else:
            self._add("debug", [one], debug_mode=True)
        self._add("junk", [one])
        pair = self.pairs.pop()
        payload = self._bits.read(len(pair.payloads[0]))
        fields = json.loads(pair.shared_info)
        info, key_id = pair.shared_info, pair.key_id
        if bad == 3:
            info = "{}"
        elif bad == 4:
            key_id = str(UUID(bytes=self._bits.read(16), version=4))
        elif bad == 5:
            info = json.dumps(fields | {"version": "7.0"}, separators=(",", ":"))
        self.pairs.append(Pair(kind=f"junk {bad}", shared_info=info, key_id=key_id, payloads=(payload, payload)))
        self._add("null or real", [one], [])

    def batch(self, chosen: Sequence[int], side: int) -> ReportBatch:
        """Return the chosen reports of one world as columns."""
        pairs = [self.pairs[number] for number in chosen]
        return ReportBatch(
            payloads=Spans.of([pair.payloads[side] for pair in pairs]),
            key_ids=Spans.of([pair.key_id.encode() for pair in pairs]),
            shared_infos=Spans.of([pair.shared_info.encode() for pair in pairs]),
        )

    def write_files(self, folder: Path, side: int) -> list[str]:
        """Write input files and domains of one world; return the names of the inputs. Sizes are the same in both."""
        folder.mkdir(parents=True)
        names = []
        draw = random.Random("files")
        for number in range(0, len(self.pairs), GROUP):
            names.append(f"reports-{number // GROUP:02}")
            chosen = [*range(number, number + GROUP), draw.randrange(len(self.pairs))]
            write_reports(folder / names[-1], [self.batch(chosen, side)])
        whole = (folder / names[0]).read_bytes()
        (folder / "cut-reports").write_bytes(whole[: len(whole) // 2])
        for number, buckets in enumerate(DOMAINS):
            high = np.array([bucket >> 64 for bucket in buckets], dtype=np.uint64)
            low = np.array([bucket & (1 << 64) - 1 for bucket in buckets], dtype=np.uint64)
            write_buckets(folder / f"domain-{number}", BucketRows.domain(high, low))
        (folder / "junk-domain").write_bytes(b"no Avro at all")
        return names


@cache
def all_reports() -> Reports:
    """Return the pairs that every history takes its reports from."""
    return Reports()
