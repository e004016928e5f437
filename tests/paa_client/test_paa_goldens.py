"""Chromium's golden reports of Private Aggregation, made by our browser from their inputs.

The inputs are those of Chromium's golden unit test and of the table in the README of its folder: facts about each
report, not read from the goldens. The goldens are read only to compare.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aggservice import wire
from aggservice.mechanisms import ManualClock, SeededBits
from aggservice.wire.hpke.key_sets import KeyPair
from paa_client import Auction, Browser, InterestGroup, chromium
from paa_client.config import AWS_COORDINATOR, ContextType

MAX_BUCKET = 2**128 - 1
MAX_FILTERING_ID = 2**64 - 1
REPORT_ID = "21abd97f-73e8-4b88-9389-a9fee6abda5e"
REPORT_TIME_MS = 1_234_486_400_000
ORIGIN = "https://report.test"
DEBUG_KEY = 123


@dataclass(frozen=True)
class Case:
    """What one golden report is made from."""

    api: ContextType
    contributions: tuple[tuple[int, int, int], ...]
    debug: bool
    maximum: int = 20
    max_bytes: int = 1


PA, SS = ContextType.PROTECTED_AUDIENCE, ContextType.SHARED_STORAGE
ONE = ((1, 2, 0),)
LATEST = {
    1: Case(PA, ONE, True),
    2: Case(PA, ONE, False),
    3: Case(SS, ((1, 2, 0), (3, 4, 0)), True),
    4: Case(SS, ((1, 2, 0), (3, 4, 0)), False),
    5: Case(PA, ((MAX_BUCKET, 2, 0),), True),
    6: Case(PA, ((MAX_BUCKET, 2, 0),), False),
    7: Case(SS, ((0, 0, 0),), False),
    8: Case(PA, ((1, 2, 3),), True),
    9: Case(PA, ((1, 2, 3),), False),
    10: Case(PA, ((1, 2, MAX_FILTERING_ID),), True, max_bytes=8),
    11: Case(PA, ONE, True, maximum=100),
    12: Case(PA, ONE, False, maximum=100),
    13: Case(PA, ONE * 99, True, maximum=100),
    14: Case(PA, ONE * 100, True, maximum=100),
    15: Case(PA, ((1, 2, 3),) * 100, True, maximum=100),
    16: Case(PA, ((1, 2, MAX_FILTERING_ID),) * 100, True, maximum=100, max_bytes=8),
    17: Case(PA, ((1, 2, MAX_FILTERING_ID),), True, maximum=100, max_bytes=8),
    18: Case(PA, ((1, 2, 3),), True, maximum=1000),
    19: Case(PA, ((1, 2, 3),), False, maximum=1000),
}
OLDER = {number: LATEST[number] for number in (1, 2, 3, 4, 7, 8, 9, 10)} | {5: LATEST[1], 6: LATEST[2]}


class GoldenBits(SeededBits):
    """Gives the goldens' report id where sixteen bytes are asked for, and seeded bits elsewhere."""

    def read(self, count: int) -> bytes:
        return UUID(REPORT_ID).bytes if count == 16 else super().read(count)


def browser_for(case: Case, version: str, keys: wire.PublicKeySet) -> Browser:
    """A browser of the goldens' time: no merging, the report due at once, the old limits where they held."""
    limits = {SS: 20, PA: min(case.maximum, 100)}
    config = chromium(
        merging=False,
        local_testing_mode=True,
        debug_mode_allowed=True,
        local_processing_ms=0,
        report_version=version,
        default_max_contributions=limits,
    )
    return Browser(
        clock=ManualClock(REPORT_TIME_MS), bits=GoldenBits("golden"), config=config, keys={AWS_COORDINATOR: keys}
    )


def contribute(case: Case, aggregation: Any) -> None:
    """Make the case's calls, in its worklet."""
    for bucket, value, filtering_id in case.contributions:
        aggregation.contribute_to_histogram(bucket=bucket, value=value, filtering_id=filtering_id)
    if case.debug:
        aggregation.enable_debug_mode(debug_key=DEBUG_KEY)


def made_by_browser(case: Case, version: str, keys: wire.PublicKeySet) -> list[tuple[str, wire.AggregatableReport]]:
    """Run the case through Shared Storage, or through an auction's ``reportResult``, and send its reports."""
    browser = browser_for(case, version, keys)
    if case.api is SS:
        browser.register(ORIGIN, "golden", lambda storage, aggregation, data: contribute(case, aggregation))
        browser.run(ORIGIN, "golden")
    else:
        browser.run_ad_auction(
            Auction(
                seller=ORIGIN,
                score_ad=lambda aggregation, signals: signals.bid,
                report_result=lambda aggregation, signals: contribute(case, aggregation),
                interest_groups=[
                    InterestGroup(owner="https://buyer.test", name="group", generate_bid=lambda _, signals: 1.0)
                ],
                filtering_id_max_bytes=case.max_bytes,
                max_contributions=case.maximum if case.maximum > 100 else None,
            )
        )
    assert browser.journal.console == []
    return [(sent.url, sent.sealed) for sent in browser.send_due()]


def golden_keys(folder: Path) -> wire.KeySet:
    """The key pair beside the goldens."""
    public = json.loads((folder / "public_key.json").read_text())["keys"][0]
    private = X25519PrivateKey.from_private_bytes(base64.b64decode((folder / "private_key.txt").read_text()))
    assert base64.b64encode(private.public_key().public_bytes_raw()).decode() == public["key"]
    return wire.KeySet((KeyPair(id=public["id"], private=private, not_before_ms=0, expiry_ms=2 * REPORT_TIME_MS),))


@pytest.mark.parametrize(("folder", "version", "cases"), [("latest", "1.0", LATEST), ("version_0.1", "0.1", OLDER)])
def test_the_browser_makes_every_golden_report(shared: Path, folder: str, version: str, cases: dict[int, Case]) -> None:
    """Cleartext, ``shared_info`` and every other field equal the golden's; the sealed payload opens with its key."""
    vectors = shared / "vectors" / "chromium-report-goldens" / "paa" / folder
    private = golden_keys(vectors)
    public = private.public(ManualClock(REPORT_TIME_MS))
    ran = 0
    for number, case in sorted(cases.items()):
        golden = json.loads((vectors / f"report_{number}.json").read_text())
        (cleartext,) = json.loads((vectors / f"report_{number}_cleartext_payloads.json").read_text())
        sent = made_by_browser(case, version, public)
        assert len(sent) == (2 if case.debug else 1), number
        assert sorted("/debug/" in url for url, _ in sent) == ([False, True] if case.debug else [False])
        for url, report in sent:
            assert url.endswith(f"report-{case.api.value}")
            body = report.to_dict()
            payload = body["aggregation_service_payloads"][0].pop("payload")
            expected = json.loads(json.dumps(golden))
            assert len(base64.b64decode(payload)) == len(
                base64.b64decode(expected["aggregation_service_payloads"][0].pop("payload"))
            ), number
            assert body == expected, number
            assert base64.b64encode(wire.open_report(report, private)).decode() == cleartext, number
        ran += 1
    assert ran == {"latest": 19, "version_0.1": 10}[folder]
    assert ran == sum(1 for path in vectors.glob("report_*.json") if "cleartext" not in path.name)
