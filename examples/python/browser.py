"""One browser: a click, a purchase, and a sealed report that the service's key opens."""

import json

from aggservice.mechanisms import ManualClock, SecureBits
from aggservice.wire import AggregatableReport, KeySet, decode_payload, open_report
from ara_client import Browser, Request, Response

bits, clock = SecureBits(), ManualClock(0)  # time passes only when the program says so
keys = KeySet.create(bits, clock)  # the aggregation service's keys; the browser gets the public half
browser = Browser(clock=clock, bits=bits, keys=keys.public(clock))


def register(page: str, kind: str, header: dict[str, object], eligible: str | None = None) -> None:
    """Let the ad tech answer a request from ``page`` with one registration header."""
    headers = {f"Attribution-Reporting-Register-{kind}": json.dumps(header)}
    answer = Response(url="https://adtech.example/register", headers=headers)
    browser.register(Request(context=page, eligible=eligible), answer)


# A user clicks an ad on news.example: the source gives the first half of the key.
source = {"destination": "https://shop.example", "aggregation_keys": {"campaign": "0x100"}}
register("https://news.example", "Source", source, eligible="navigation-source")

# An hour later they buy something: the trigger gives the other half, and the value.
browser.advance(3_600_000)
trigger = {
    "aggregatable_trigger_data": [{"key_piece": "0x7", "source_keys": ["campaign"]}],
    "aggregatable_values": {"campaign": 32_768},
}
register("https://shop.example", "Trigger", trigger)

# The report leaves within ten minutes. Everyone can read shared_info; only the service can open the payload.
(sent,) = browser.advance(2 * 3_600_000)
posted = AggregatableReport.from_json(sent.to_json())
print("sent to:    ", sent.url)
print("everyone:   ", posted.shared_info)
opened = decode_payload(open_report(posted, keys)).contributions
for one in opened:
    if one.value:  # the others are padding
        print("the service:", f"key {one.bucket:#x}, value {one.value}")
print("padding:    ", sum(not one.value for one in opened), "contributions of value 0")
