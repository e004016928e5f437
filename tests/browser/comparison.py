"""Reports of two browsers compared as text, after the replacements named here.

| replaced | by | because |
| --- | --- | --- |
| a version-4 UUID | ``<uuid>`` | report ids are random |
| ``key_id`` | ``<key>`` | the key is drawn at random |
| ``payload`` | its cleartext | ciphertext is random |
| ``scheduled_report_time`` | ``<time>``, the times compared apart | the clocks are read some milliseconds apart |
"""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from aggservice.wire import AggregatableReport, KeySet, decode_payload, open_report

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_KEY = re.compile(r'"key_id":"[^"]*"')
_PAYLOAD = re.compile(r'"payload":"([A-Za-z0-9+/=]+)"')
_TIME = re.compile(r'(scheduled_report_time\\?":\\?")(\d+)')
_LONGEST_DELAY_S = 600
_AGGREGATABLE = ("report-aggregate-attribution", "report-aggregate-debug", "/private-aggregation/")


@dataclass(frozen=True, slots=True)
class Text:
    """A report as it is compared: its URL and body after the replacements, and the times that were replaced."""

    text: str
    times_s: tuple[int, ...]
    null: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How many reports are equal, and those that only one side has (or has at another time)."""

    equal: int
    only_real: tuple[Text, ...]
    only_simulated: tuple[Text, ...]
    times: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.only_real or self.only_simulated or self.times)

    def __str__(self) -> str:
        lines = [f"{self.equal} reports equal"]
        lines += [f"only the real browser: {one.text}" for one in self.only_real]
        lines += [f"only the simulated one: {one.text}" for one in self.only_simulated]
        return "\n".join([*lines, *self.times])


def as_text(url: str, body: str, keys: KeySet) -> Text:
    """Return a posted report as it is compared."""
    null = False
    if any(part in url for part in _AGGREGATABLE):
        cleartext = open_report(AggregatableReport.from_json(body), keys)
        null = not any(entry.value or entry.bucket for entry in decode_payload(cleartext).contributions)
        body = _PAYLOAD.sub(f'"payload":"{base64.b64encode(cleartext).decode()}"', body)
        body = _KEY.sub('"key_id":"<key>"', body)
    times = tuple(int(found) for _, found in _TIME.findall(body))
    body = _TIME.sub(r"\1<time>", _UUID.sub("<uuid>", body))
    return Text(text=f"{url} {body}", times_s=times, null=null)


def compare(real: Iterable[Text], simulated: Iterable[Text], *, times: bool = False) -> Comparison:
    """Compare two sets of reports in any order; with ``times``, their times too, to the second.

    An aggregatable report is delayed at random; the simulated one must have taken the longest delay.
    """
    sides: tuple[dict[str, list[Text]], dict[str, list[Text]]] = (defaultdict(list), defaultdict(list))
    for side, reports in zip(sides, (real, simulated), strict=True):
        for report in reports:
            side[report.text].append(report)
    equal, only_real, only_simulated, differing = 0, list[Text](), list[Text](), list[str]()
    for text in dict.fromkeys([*sides[0], *sides[1]]):
        left, right = (sorted(side.get(text, []), key=lambda one: one.times_s) for side in sides)
        common = min(len(left), len(right))
        equal += common
        only_real += left[common:]
        only_simulated += right[common:]
        if times:
            early_s = _LONGEST_DELAY_S if "report-aggregate-attribution" in text else 0
            differing += [
                f"times {a.times_s} and {b.times_s}: {text}"
                for a, b in zip(left, right, strict=False)
                if not all(x - 1 - early_s <= y <= x + 1 for x, y in zip(b.times_s, a.times_s, strict=True))
            ]
    return Comparison(
        equal=equal, only_real=tuple(only_real), only_simulated=tuple(only_simulated), times=tuple(differing)
    )
