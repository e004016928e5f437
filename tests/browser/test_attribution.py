"""A real Chromium runs a campaign of Attribution Reporting: its reports are ours, and their sums are the truth."""

from __future__ import annotations

from collections import Counter

import pytest

from aggservice.client import JobParameters
from aggservice.wire import AggregatableReport, decode_payload, open_report

from .attribution import DEBUG_MODE, RealBrowser, simulate
from .comparison import compare
from .conftest import Counts, Stack, collected
from .devtools import Chromium
from .differential import is_null
from .scenario import ADTECH, DEBUG_TRUTH, STEPS, TRUTH

KINDS = {
    "report-aggregate-attribution": 8,
    "debug/report-aggregate-attribution": 8,
    "debug/report-aggregate-debug": 2,
    "report-event-attribution": 4,
    "debug/report-event-attribution": 4,
    "debug/verbose": 9,
}
"""How many reports of each kind the scenario must give, whatever chance adds."""


def cleartext_sums(stack: Stack, path: str) -> Counter[int]:
    """Open every report that was posted to a path, and sum its contributions by bucket."""
    sums: Counter[int] = Counter()
    for posted in stack.site.posted:
        if posted.url.endswith(path):
            report = AggregatableReport.from_json(posted.body)
            for entry in decode_payload(open_report(report, stack.keys)).contributions:
                sums[entry.bucket] += entry.value
    return +sums


@pytest.mark.parametrize("flags", [(DEBUG_MODE,), ()], ids=["debug flags", "as shipped"])
def test_a_campaign(stack: Stack, counts: Counts, flags: tuple[str, ...]) -> None:
    """Every report is the one that ``ara_client`` predicts; a debug run's sums are the truth.

    As shipped the browser adds null reports and noise. Null reports are recognised when opened; of noise DevTools
    tells. So nothing here fails by chance.
    """
    with Chromium(resolve=stack.site.address, flags=flags) as browser:
        real = RealBrowser(browser, stack.site)
        for step in STEPS:
            real.play(step)
        noised = real.noised
        reports = real.finish(stack.keys)
    predicted, _ = simulate(real.played, stack.keys, noised=noised, real=reports)
    found = compare(reports, predicted, times=not flags)
    nulls = [one for one in found.only_real if is_null(one) and not flags]
    counts.record(found.equal, max(len(found.only_real) - len(nulls), len(found.only_simulated)))
    assert len(found.only_real) == len(nulls) and not found.only_simulated and not found.times, found

    posted = stack.site.posted
    assert {one.status for one in posted} == {200}
    kinds = Counter(one.url.split("/.well-known/attribution-reporting/")[1] for one in posted)
    for kind, count in KINDS.items():
        expected = count + (len(nulls) if kind == "report-aggregate-attribution" else 0)
        assert kinds[kind] == expected or (noised and "event" in kind), kinds
    for one in posted:
        host = one.url.split("/")[2]
        assert one.headers["Content-Type"] == "application/json"
        assert one.headers["Origin"] == f"https://{host}" and "Cookie" not in one.headers

    batches = collected(stack.collected / "attribution-reporting")
    domain = sorted({bucket for sums in TRUTH.values() for bucket in sums})
    for filtering_id, sums in TRUTH.items():
        parameters = JobParameters(
            attribution_report_to=f"https://{ADTECH}",
            epsilon="1",
            filtering_ids=(filtering_id,),
            debug_run=True,
            report_error_threshold_percentage="100",
        )
        summary = stack.client.aggregate(f"campaign-{filtering_id}", parameters, batches, domain=domain)
        assert summary.unnoised is not None
        unnoised = dict(zip(summary.low.tolist(), summary.unnoised.tolist(), strict=True))
        assert {bucket: value for bucket, value in unnoised.items() if value} == sums
    assert cleartext_sums(stack, "debug/report-aggregate-debug") == DEBUG_TRUTH
