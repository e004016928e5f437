"""Avro files: ours read by fastavro and fastavro's by us, damaged ones refused with file and position."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.wire import (
    BucketRows,
    OpenedBatch,
    ReportBatch,
    ReportWriter,
    Spans,
    WireError,
    decode_batch,
    parse_shared_info_batch,
    read_domain,
    read_reports,
    read_summary,
    write_buckets,
    write_reports,
)
from aggservice.wire.avro.buckets import MOST_ROWS as ROWS_OF_BUCKETS
from aggservice.wire.avro.buckets import BucketWriter, read_debug_summary
from aggservice.wire.avro.container import ContainerWriter, encode_long
from aggservice.wire.avro.reports import MOST_BYTES, MOST_ROWS
from aggservice.wire.avro.schemas import BUCKET, DEBUG_FACT, FACT, IN_DOMAIN, IN_REPORTS, REPORT, RecordSchema
from aggservice.wire.avro.shards import find_shards, shard_name
from aggservice.wire.buckets import bucket_to_bytes, bucket_to_short_bytes
from aggservice.wire.errors import AvroError, EncodingError

CODECS = st.sampled_from(["null", "deflate"])
BUCKETS = st.integers(0, 2**128 - 1) | st.integers(0, 300) | st.sampled_from([2**64, 2**64 - 1, 2**72, 2**120])
LONGS = st.integers(-(2**63), 2**63 - 1)


def _halves(buckets: list[int]) -> tuple[Any, Any]:
    high = np.array([bucket >> 64 for bucket in buckets], dtype=np.uint64)
    low = np.array([bucket & (2**64 - 1) for bucket in buckets], dtype=np.uint64)
    return high, low


def _buckets(rows: list[BucketRows]) -> list[int]:
    return [
        high << 64 | low
        for part in rows
        for high, low in zip(part.key_high.tolist(), part.key_low.tolist(), strict=True)
    ]


def _fastavro_bytes(schema: RecordSchema, records: list[dict[str, Any]], codec: str, interval: int = 100) -> bytes:
    stream = io.BytesIO()
    fastavro.writer(stream, json.loads(schema.to_json()), records, codec=codec, sync_interval=interval)
    return stream.getvalue()


@settings(deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=300), st.text(max_size=20), st.text(max_size=200)), max_size=12), CODECS)
def test_reports_both_ways(rows: list[tuple[bytes, str, str]], codec: Any) -> None:
    records = [{"payload": payload, "key_id": key_id, "shared_info": info} for payload, key_id, info in rows]
    for size in (1, 5, 4096):
        batches = list(read_reports(io.BytesIO(_fastavro_bytes(REPORT, records, codec)), rows=size))
        assert [row for batch in batches for row in batch.payloads] == [row[0] for row in rows]
        assert [row.decode() for batch in batches for row in batch.key_ids] == [row[1] for row in rows]
        assert [row.decode() for batch in batches for row in batch.shared_infos] == [row[2] for row in rows]
        assert all(len(batch) >= size for batch in batches[:-1])
    stream = io.BytesIO()
    assert write_reports(stream, batches, codec=codec) == len(rows)
    assert list(fastavro.reader(io.BytesIO(stream.getvalue()))) == records


@settings(deadline=None)
@given(st.lists(BUCKETS, max_size=50), CODECS)
def test_domains_both_ways(buckets: list[int], codec: Any) -> None:
    stream = io.BytesIO()
    write_buckets(stream, BucketRows.domain(*_halves(buckets)), codec=codec)
    records = [{"bucket": bucket_to_bytes(bucket)} for bucket in buckets]
    assert list(fastavro.reader(io.BytesIO(stream.getvalue()))) == records
    short = [{"bucket": bucket_to_short_bytes(bucket)} for bucket in buckets]
    for written in (records, short):
        assert _buckets(list(read_domain(io.BytesIO(_fastavro_bytes(BUCKET, written, codec))))) == buckets


@settings(deadline=None)
@given(st.lists(st.tuples(BUCKETS, LONGS), max_size=50), CODECS)
def test_summaries_both_ways(rows: list[tuple[int, int]], codec: Any) -> None:
    buckets, metrics = [row[0] for row in rows], [row[1] for row in rows]
    stream = io.BytesIO()
    write_buckets(stream, BucketRows.summary(*_halves(buckets), np.array(metrics, dtype=np.int64)), codec=codec)
    records = [{"bucket": bucket_to_short_bytes(bucket), "metric": metric} for bucket, metric in rows]
    assert list(fastavro.reader(io.BytesIO(stream.getvalue()))) == records
    read = list(read_summary(io.BytesIO(_fastavro_bytes(FACT, records, codec))))
    assert _buckets(read) == buckets
    assert [metric for part in read for metric in part.metric.tolist()] == metrics


@settings(deadline=None)
@given(st.lists(st.tuples(BUCKETS, LONGS, LONGS, st.integers(0, 3)), max_size=50), CODECS)
def test_debug_summaries_both_ways(rows: list[tuple[int, int, int, int]], codec: Any) -> None:
    high, low = _halves([row[0] for row in rows])
    numbers = np.array([row[1:3] for row in rows], dtype=np.int64).reshape(-1, 2)
    tags = np.array([row[3] for row in rows], dtype=np.uint8)
    stream = io.BytesIO()
    write_buckets(stream, BucketRows(key_high=high, key_low=low, numbers=numbers, tags=tags), codec=codec)
    names = {0: [], IN_DOMAIN: ["in_domain"], IN_REPORTS: ["in_reports"], 3: ["in_domain", "in_reports"]}
    records = [
        {"bucket": bucket_to_short_bytes(bucket), "unnoised_metric": first, "noise": second, "annotations": names[tag]}
        for bucket, first, second, tag in rows
    ]
    assert list(fastavro.reader(io.BytesIO(stream.getvalue()))) == records
    read = list(read_debug_summary(io.BytesIO(_fastavro_bytes(DEBUG_FACT, records, codec))))
    assert _buckets(read) == [row[0] for row in rows]
    assert [row for part in read for row in part.numbers.tolist()] == numbers.tolist()
    assert [tag for part in read for tag in part.tags.tolist()] == tags.tolist()


def test_many_rows_cross_blocks(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    high, low = rng.integers(0, 2**64, (2, 200_000), dtype=np.uint64)
    metric = rng.integers(-(2**40), 2**40, 200_000)
    path = tmp_path / "summary.avro"
    with BucketWriter(path, FACT) as writer:
        for start in range(0, 200_000, 90_000):
            part = slice(start, start + 90_000)
            writer.write(BucketRows.summary(high[part], low[part], metric[part]))
    read = list(read_summary(path))
    assert len(read) == 5
    assert np.array_equal(np.concatenate([part.key_high for part in read]), high)
    assert np.array_equal(np.concatenate([part.key_low for part in read]), low)
    assert np.array_equal(np.concatenate([part.metric for part in read]), metric)
    again = tmp_path / "again.avro"
    write_buckets(again, BucketRows.summary(high[:10], low[:10], metric[:10]))
    first = again.read_bytes()
    write_buckets(again, BucketRows.summary(high[:10], low[:10], metric[:10]))
    assert again.read_bytes() == first


def test_the_sample_data_of_the_deployed_service(shared: Path) -> None:
    folder = shared / "vectors" / "aggregation-service-sampledata"
    (domain,) = read_domain(folder / "output_domain.avro")
    (summary,) = read_summary(folder / "output_reports.avro")
    (reports,) = read_reports(folder / "output_debug_reports.avro")
    columns, status = decode_batch(OpenedBatch.of_cleartext(reports))
    assert not status.any()
    assert not parse_shared_info_batch(reports.shared_infos).status.any()
    sums: dict[int, int] = {}
    for one in columns.contributions():
        sums[one.bucket] = sums.get(one.bucket, 0) + one.value
    assert sorted(sums.values()) == [4400, 32768]
    assert set(_buckets([domain])) == set(sums)
    assert dict(zip(_buckets([summary]), summary.metric.tolist(), strict=True)) == sums


def test_reading_holds_one_batch_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "reports.avro"
    row = Spans.of([bytes(900)] * 2000)
    batch = ReportBatch(payloads=row, key_ids=row, shared_infos=row)
    assert write_reports(path, [batch] * 5) == 10_000
    with path.open("rb") as stream:
        batches = read_reports(stream, rows=100)
        first = next(batches)
        assert 100 <= len(first) < 1000
        assert stream.tell() < path.stat().st_size // 5
        assert len(first) + sum(len(batch) for batch in batches) == 10_000


def _deflated(blocks: list[tuple[int, bytes]]) -> io.BytesIO:
    stream = io.BytesIO()
    writer = ContainerWriter(stream, REPORT, codec="deflate")
    for count, data in blocks:
        writer.write_block(count, data)
    writer.close()
    stream.seek(0)
    return stream


def test_a_small_file_of_much_does_not_become_one_batch() -> None:
    tiny = MOST_ROWS + 5
    batches = list(read_reports(_deflated([(3, bytes(9)), (tiny, bytes(3 * tiny)), (2, bytes(6))])))
    assert [len(batch) for batch in batches] == [3, MOST_ROWS, 5, 2]
    assert all(stop == start for batch in batches for start, stop in zip(*_ends(batch), strict=True))
    long = encode_long(MOST_BYTES) + bytes(MOST_BYTES + 2)
    lengths = [len(batch) for batch in read_reports(_deflated([(1, long), (1, bytes(3)), (1, long)]))]
    assert lengths == [1, 2]
    assert list(read_reports(_deflated([(0, b""), (0, b"")]))) == []
    with pytest.raises(AvroError, match="a block of 0 reports cannot have 30 bytes"):
        list(read_reports(_deflated([(0, bytes(30))])))
    for wrong in ((tiny, bytes(3 * tiny + 1)), (tiny, bytes(3 * tiny - 1) + b"\x01"), (tiny, bytes(3 * tiny - 1))):
        with pytest.raises(AvroError, match=r"malformed|cannot have"):
            list(read_reports(_deflated([wrong])))


def test_a_small_domain_of_many_rows_comes_in_parts() -> None:
    stream = io.BytesIO()
    writer = ContainerWriter(stream, BUCKET, codec="deflate")
    many = 2 * ROWS_OF_BUCKETS + 3
    writer.write_block(many, bytes(many))
    writer.write_block(1, b"\x02\x07")
    writer.close()
    parts = list(read_domain(io.BytesIO(stream.getvalue())))
    assert [len(part) for part in parts] == [ROWS_OF_BUCKETS, ROWS_OF_BUCKETS, 3, 1]
    assert not any(part.key_low.any() for part in parts[:3])
    assert parts[3].key_low.tolist() == [7]
    for count in (many - 1, many + 1):
        stream = io.BytesIO()
        writer = ContainerWriter(stream, BUCKET, codec="deflate")
        writer.write_block(count, bytes(many))
        with pytest.raises(AvroError, match=r"malformed|cannot hold"):
            list(read_domain(io.BytesIO(stream.getvalue())))


def _ends(batch: ReportBatch) -> tuple[list[int], list[int]]:
    return batch.payloads.starts.tolist(), batch.payloads.stops.tolist()


def _damaged() -> list[tuple[bytes, str]]:
    good = _fastavro_bytes(FACT, [{"bucket": b"\x01", "metric": 5}], "null")
    other = _fastavro_bytes(BUCKET, [{"bucket": b"\x01"}], "null")
    long = _fastavro_bytes(FACT, [{"bucket": bytes(17), "metric": 5}], "null")
    sync = good[-16:]
    header = good[: good.index(sync) + 16]
    block = good[len(header) :]
    return [
        (b"", "ends in the middle"),
        (b"PK\x03\x04" + good, "not an Avro file"),
        (other, "schema of the file is AggregationBucket"),
        (long, "malformed"),
        (good[:-1], "truncated"),
        (good[:-1] + b"\x00", "sync marker"),
        (good + b"\x02", "truncated"),
        (header + encode_long(-1) + block[1:], "-1 records"),
        (header + encode_long(2) + block[1:], "cannot hold|malformed"),
        (header + encode_long(2**62) + block[1:], "cannot hold"),
        (header + encode_long(0) + block[1:], "malformed"),
        (header + encode_long(1) + encode_long(-5) + block[2:], "size of -5"),
        (header + encode_long(1) + encode_long(2**40), "size of"),
        (header + b"\xff" * 11, "more than 64 bits"),
        (good.replace(b"null", b"snap"), "codec"),
        (good.replace(b'"long"', b'"int" '), "schema"),
        (good.replace(b'"record"', b'"recard"'), "schema"),
        (_fastavro_bytes(FACT, [{"bucket": b"\x01", "metric": 5}], "deflate")[:-20] + bytes(20), "damaged|truncated"),
    ]


@pytest.mark.parametrize(("data", "message"), _damaged())
def test_a_damaged_file_is_refused_with_its_name_and_position(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "broken.avro"
    path.write_bytes(data)
    with pytest.raises(AvroError, match=message) as caught:
        list(read_summary(path))
    assert str(caught.value).startswith(f"{path}, byte {caught.value.position}: ")
    assert 0 <= caught.value.position <= len(data)


def test_no_mutated_file_does_anything_but_read_or_refuse() -> None:
    draw = random.Random(11)
    report = {"payload": bytes(40), "key_id": "key", "shared_info": "{}"}
    fact = {"bucket": b"\x01\x02", "unnoised_metric": 5, "noise": -3, "annotations": ["in_domain", "in_reports"]}
    refused = 0
    for schema, record, read in ((REPORT, report, read_reports), (DEBUG_FACT, fact, read_debug_summary)):
        for codec in ("null", "deflate"):
            good = _fastavro_bytes(schema, [record] * 8, codec)
            for _ in range(2500):
                data = bytearray(good)
                for _ in range(draw.choice((1, 1, 2, 5))):
                    at = draw.randrange(len(data))
                    if draw.random() < 0.8:
                        data[at] = draw.randrange(256)
                    else:
                        del data[at : at + draw.choice((1, 20))]
                try:
                    list(read(io.BytesIO(bytes(data))))  # type: ignore[operator]
                except AvroError:
                    refused += 1
    assert refused > 5000


def test_headers_in_other_words_are_read() -> None:
    schema = {
        "type": "record",
        "name": "AggregatedFact",
        "namespace": "com.example",
        "doc": "words",
        "fields": [
            {"name": "bucket", "type": {"type": "bytes"}, "doc": "words"},
            {"name": "metric", "type": {"type": "long", "more": 1}, "default": 0},
        ],
    }
    stream = io.BytesIO()
    fastavro.writer(stream, fastavro.parse_schema(json.loads(json.dumps(schema))), [{"bucket": b"\x07", "metric": 9}])
    (rows,) = read_summary(io.BytesIO(stream.getvalue()))
    assert (rows.key_low.tolist(), rows.metric.tolist()) == ([7], [9])


def test_rows_that_do_not_fit_their_file_are_refused(tmp_path: Path) -> None:
    one = np.ones(1, dtype=np.uint64)
    with BucketWriter(tmp_path / "a.avro", FACT) as writer, pytest.raises(EncodingError):
        writer.write(BucketRows.domain(one, one))
    assert list(read_summary(tmp_path / "a.avro")) == []
    for fields in (
        {"numbers": np.zeros((1, 2), dtype=np.int64)},
        {"numbers": np.zeros((1, 3), dtype=np.int64)},
        {"numbers": np.zeros((2, 1), dtype=np.int64)},
        {"numbers": np.zeros((1, 1), dtype=np.int64), "tags": np.zeros(1, dtype=np.uint8)},
        {"numbers": np.zeros((1, 2), dtype=np.int64), "tags": np.full(1, 4, dtype=np.uint8)},
    ):
        with pytest.raises(EncodingError):
            BucketRows(key_high=one, key_low=one, **fields)
    with ReportWriter(tmp_path / "b.avro") as reports:
        reports.close()
    assert list(read_reports(tmp_path / "b.avro")) == []


def test_shards(tmp_path: Path) -> None:
    assert shard_name("out/summary", 1, 1) == "out/summary-1-of-1"
    assert shard_name("out/summary.avro", 7, 12) == "out/summary-07-of-12.avro"
    with pytest.raises(EncodingError):
        shard_name("x", 0, 1)
    for shard in (1, 2, 3):
        (tmp_path / shard_name("domain.avro", shard, 3)).write_bytes(b"")
    (tmp_path / "other").write_bytes(b"")
    found = find_shards(tmp_path, "domain")
    assert [path.name for path in found] == [f"domain-{shard}-of-3.avro" for shard in (1, 2, 3)]
    assert find_shards(tmp_path, "other") == [tmp_path / "other"]
    assert len(find_shards(tmp_path, "")) == 4
    found[1].unlink()
    with pytest.raises(WireError, match="1 of 3 shards are missing, the first is number 2"):
        find_shards(tmp_path, "domain")
    with pytest.raises(WireError, match="no file"):
        find_shards(tmp_path, "none")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "link").symlink_to(tmp_path / "other")
    for prefix in ("../other", str(tmp_path / "other"), "/etc/hosts", "link"):
        with pytest.raises(WireError, match="leads out"):
            find_shards(tmp_path / "inner", prefix)


@pytest.mark.parametrize("padded", [True, False])
def test_shards_are_read_in_the_order_of_their_numbers(tmp_path: Path, padded: bool) -> None:
    names = [shard_name("s.avro", shard, 12) if padded else f"s-{shard}-of-12.avro" for shard in range(1, 13)]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in find_shards(tmp_path, "s")] == names


def test_shards_that_cannot_be_there_are_said_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "in-secret").write_bytes(b"")
    with pytest.raises(WireError, match="no file"):
        find_shards(folder, ".")
    for prefix in ("a\0b", "x" * 300, "\ud800"):
        with pytest.raises(WireError, match="could not be listed"):
            find_shards(folder, prefix)
    for shard in (1, 2, 4):
        (folder / f"r-{shard}-of-99999999999999").write_bytes(b"")
    with pytest.raises(WireError, match="99999999999996 of 99999999999999 shards are missing, the first is number 3"):
        find_shards(folder, "r")


def test_a_shard_that_is_there_twice_does_not_stand_for_another(tmp_path: Path) -> None:
    """Numbers 1, 01 and 2 are three files and two shards."""
    for name in ("a-1-of-3", "a-01-of-3", "a-2-of-3"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(WireError, match="1 of 3 shards are missing, the first is number 3"):
        find_shards(tmp_path, "a")
