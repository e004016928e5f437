"""Parts of a run on their own: columns sealed as ``wire`` would, keys that come back as names, laws with means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.campaign import CampaignError
from aggservice.campaign.columns import ReportColumns
from aggservice.campaign.service.sealing import Payloads, SealingSettings, sealed_batches
from aggservice.campaign.settings.distributions import Distribution, weighted_indexes
from aggservice.campaign.settings.key_layout import KeyField, KeyLayout, KeyTable
from aggservice.mechanisms import ManualClock, SecureBits, SeededBits
from aggservice.wire import Api, Contribution, KeySet, SharedInfo, encode_payload
from aggservice.wire.hpke.sealing import open_sealed

CONTRIBUTION = st.builds(
    Contribution,
    bucket=st.integers(0, (1 << 128) - 1),
    value=st.integers(1, 65_536),
    filtering_id=st.integers(0, 255),
)


def reports_of(rows: list[list[Contribution]]) -> ReportColumns:
    flat = [one for row in rows for one in row]
    size = len(rows)
    return ReportColumns(
        scheduled_ms=np.arange(size, dtype=np.int64) * 1000 + 1_700_000_000_999,
        report_id=np.frombuffer(SeededBits("ids").read(16 * size), dtype=np.uint8).reshape(size, 16).copy(),
        destination=np.arange(size, dtype=np.int64) % 2,
        offset=np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64),
        key_high=np.array([one.bucket >> 64 for one in flat], dtype=np.uint64),
        key_low=np.array([one.bucket & (1 << 64) - 1 for one in flat], dtype=np.uint64),
        value=np.array([one.value for one in flat], dtype=np.int64),
        filtering_id=np.array([one.filtering_id for one in flat], dtype=np.uint64),
        null=np.zeros(size, dtype=np.bool_),
    )


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(CONTRIBUTION, max_size=4), min_size=1, max_size=6),
    slots=st.sampled_from([4, 20, 23, 24, 100]),
)
def test_payloads_are_what_wire_encodes(rows: list[list[Contribution]], slots: int) -> None:
    made = Payloads(slots).encode(reports_of(rows), 0, len(rows))
    assert made == [encode_payload(row, maximum=slots) for row in rows]


def test_too_many_contributions_are_refused() -> None:
    with pytest.raises(ValueError, match="room for 2"):
        Payloads(2).encode(reports_of([[Contribution(bucket=1, value=1)] * 3]), 0, 1)


@pytest.mark.parametrize("api", [Api.ATTRIBUTION_REPORTING, Api.SHARED_STORAGE])
def test_sealed_reports_are_what_wire_makes(api: Api) -> None:
    clock = ManualClock(1_700_000_000_000)
    keys = KeySet.create(SecureBits(), clock, count=3)
    rows = [[Contribution(bucket=row << 90 | 5, value=row + 1)] for row in range(9)]
    addressee = SealingSettings(
        api=api,
        reporting_origin="https://ad-tech.example",
        destinations=("https://shop.example", "https://other.example"),
        slots=20,
        public_keys=keys.public(clock).serialise(),
    )
    (batch,) = sealed_batches(reports_of(rows), addressee, SecureBits())
    columns = zip(rows, batch.payloads, batch.key_ids, batch.shared_infos, strict=True)
    for number, (row, payload, key_id, info) in enumerate(columns):
        found = SharedInfo.parse(info)
        assert found.serialise().encode() == info
        assert found.api == api and found.scheduled_report_time_s == 1_700_000_000 + number
        opened = open_sealed(payload, shared_info=info, key=keys.private_key(key_id.decode()))
        assert opened == encode_payload(row, maximum=20)


@st.composite
def layouts(draw: Any) -> KeyLayout:
    fields, at = [], 0
    for number in range(draw(st.integers(1, 5))):
        at += draw(st.integers(0, 20))
        bits = draw(st.integers(1, min(40, 128 - at))) if at < 128 else 0
        if not bits:
            break
        values = tuple(f"v{one}" for one in range(draw(st.integers(1, min(9, 1 << bits)))))
        weights = (1.0,) * len(values)
        fields.append(
            KeyField(name=f"f{number}", origin="impression", offset=at, bits=bits, values=values, weights=weights)
        )
        at += bits
    return KeyLayout(fields=tuple(fields))


@settings(deadline=None)
@given(layout=layouts(), data=st.data())
def test_keys_come_back_as_names(layout: KeyLayout, data: st.DataObject) -> None:
    codes = {field.name: np.array([data.draw(st.integers(0, len(field.values) - 1))]) for field in layout.fields}
    high, low = layout.keys(codes, 1)
    whole = sum(int(codes[field.name][0]) << field.offset for field in layout.fields)
    assert int(high[0]) << 64 | int(low[0]) == whole
    assert layout.names(int(high[0]), int(low[0])) == {
        field.name: field.values[int(codes[field.name][0])] for field in layout.fields
    }
    everything = layout.domain()
    assert len(KeyTable(*everything)) == everything[0].size == layout.domain_size()
    assert int(KeyTable(*everything).find(high, low)[0]) >= 0


def test_fields_that_overlap_are_no_layout() -> None:
    def field(name: str, offset: int) -> KeyField:
        return KeyField(name=name, origin="impression", offset=offset, bits=8, values=("a",), weights=(1.0,))

    with pytest.raises(CampaignError, match="overlap"):
        KeyLayout(fields=(field("x", 0), field("y", 7)))


LAWS = [
    ("constant", {"value": 3.0}, 3.0, 0.0),
    ("uniform", {"low": 2.0, "high": 6.0}, 4.0, 16 / 12),
    ("poisson", {"mean": 2.5}, 2.5, 2.5),
    ("geometric", {"mean": 4.0}, 4.0, 12.0),
    ("exponential", {"mean": 2.0}, 2.0, 4.0),
    ("normal", {"mean": 50.0, "deviation": 10.0}, 50.0, 100.0),
    ("lognormal", {"median": 10.0, "sigma": 0.5}, 10 * np.exp(0.125), 100 * np.exp(0.25) * (np.exp(0.25) - 1)),
    ("pareto", {"least": 10.0, "alpha": 5.0}, 12.5, 100 * 5 / (16 * 3)),
]


@pytest.mark.parametrize(("name", "parameters", "mean", "variance"), LAWS)
def test_laws_have_their_means(name: str, parameters: dict[str, float], mean: float, variance: float) -> None:
    """Within 6 standard errors of 100,000 draws: by the central limit theorem below 10⁻⁸ each, 10⁻⁷ in all."""
    drawn = Distribution(name=name, parameters=parameters).draw(SecureBits(), 100_000)
    assert abs(float(drawn.mean()) - mean) <= 6 * (variance / drawn.size) ** 0.5 + 1e-12


def test_choices_follow_their_weights() -> None:
    """As above, for three counts."""
    found = np.bincount(weighted_indexes(SecureBits(), np.array([1.0, 0.0, 3.0]), 100_000), minlength=3)
    assert found[1] == 0 and abs(found[0] - 25_000) <= 6 * (100_000 * 0.25 * 0.75) ** 0.5
