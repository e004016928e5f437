"""``aggservice convert``: buckets, reports, domains and summaries, to and from Avro, JSON and text; and ``seal``."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TextIO

import numpy as np
import typer

from aggservice import wire
from aggservice.commands.console import Json, open_with_bar, option, show
from aggservice.files.atomic import whole_file
from aggservice.mechanisms import SecureBits
from aggservice.wire.avro.buckets import BucketWriter
from aggservice.wire.avro.container import Codec
from aggservice.wire.avro.schemas import BUCKET
from aggservice.wire.buckets import (
    bucket_from_base64,
    bucket_from_hex,
    bucket_from_int,
    bucket_to_base64,
    bucket_to_hex,
    bucket_to_short_bytes,
)
from aggservice.wire.hpke.sealing import seal as seal_one

convert = typer.Typer(help="Convert buckets, reports, domains and summaries.", no_args_is_help=True)

_ROWS = 4096
_BASE64_CHARACTERS = 24
_MAGIC = b"Obj\x01"
_Source = Annotated[Path, typer.Argument(help="The file to read.", exists=True, dir_okay=False)]
_Target = Annotated[Path, typer.Argument(help="The file to write; it is overwritten.", dir_okay=False)]


class Form(StrEnum):
    """How a bucket is written."""

    INT = "int"
    HEX = "hex"
    BASE64 = "base64"


_From = Annotated[
    Form | None, option("How buckets are written; default: recognised (digits alone are decimal).", "--from")
]


@convert.command()
def bucket(
    values: Annotated[list[str], typer.Argument(help="Buckets: decimal, 0x and hexadecimal digits, or base64.")],
    form: _From = None,
    as_json: Json = False,
) -> None:
    """Show buckets in every form.

    The forms are decimal, hexadecimal, base64 of the 16 bytes, and the bytes of an Avro file without leading zeros.
    """
    rows = []
    for value in values:
        number = _parse_bucket(value, form)
        rows.append(
            {
                "int": str(number),
                "hex": bucket_to_hex(number),
                "base64": bucket_to_base64(number),
                "avro": bucket_to_short_bytes(number).hex(),
            }
        )
    show(rows, (f"{name:7} {text}" for row in rows for name, text in row.items()), as_json=as_json)


def _parse_bucket(text: str, form: Form | None = None) -> int:
    """Return a bucket; without ``form``, only base64 of all 16 bytes is recognised, so that a word is an error."""
    if form is None:
        form = Form.HEX if text[:2].lower() == "0x" else Form.INT if text.isdecimal() else Form.BASE64
        if form is Form.BASE64 and len(text) != _BASE64_CHARACTERS:
            raise wire.WireError(
                f"{text!r} is not a bucket: give decimal digits, 0x and hexadecimal digits, or the base64 of 16 bytes "
                "(shorter base64 needs --from base64)"
            )
    return {Form.INT: bucket_from_int, Form.HEX: bucket_from_hex, Form.BASE64: bucket_from_base64}[form](text)


@convert.command()
def reports(
    source: _Source,
    target: _Target,
    cleartext: Annotated[
        bool, option("From JSON: take the debug cleartext payloads, for `aggservice aggregate`.")
    ] = False,
    keys: Annotated[
        Path | None, option("From Avro: open the reports with these private keys and show what is inside.")
    ] = None,
    inside: Annotated[bool, option("From Avro of cleartext payloads: show what is inside.")] = False,
    deflate: Annotated[bool, option("To Avro: compress.")] = False,
) -> None:
    """Convert reports from JSON to Avro, and from Avro to JSON.

    JSON input is one report, a list, or one report per line; JSON output is one report per line.
    """
    with _opened(source) as (stream, is_avro):
        if is_avro:
            opener = wire.read_key_set(keys) if keys is not None else None
            count = 0
            with _text(target) as out:
                for batch in wire.read_reports(stream):
                    for row in _report_rows(batch, opener, inside):
                        out.write(json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n")
                        count += 1
        else:
            with whole_file(target) as staged:
                count = wire.write_reports(
                    staged, _json_reports(stream, cleartext), codec="deflate" if deflate else "null"
                )
    typer.echo(f"{count} reports written to {target}")


def _json_reports(stream: BinaryIO, cleartext: bool) -> Iterator[wire.ReportBatch]:
    """Yield batches of the JSON bodies in a file: a list, one object, or one object per line."""
    held: list[wire.AggregatableReport] = []
    for where, body in _json_bodies(stream):
        try:
            held.append(wire.AggregatableReport.from_dict(body))
            if cleartext and held[-1].payloads[0].debug_cleartext_payload is None:
                raise wire.WireError("the report is not in debug mode, so it has no cleartext: leave --cleartext out")
        except wire.WireError as error:
            raise wire.WireError(f"{where}: {error}") from None
        if len(held) >= _ROWS:
            yield wire.ReportBatch.of(held, cleartext=cleartext)
            held = []
    if held:
        yield wire.ReportBatch.of(held, cleartext=cleartext)


def _json_bodies(stream: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Yield JSON values, each with its place in the file; only a file with one value per line is read in pieces."""
    first = stream.readline()
    try:
        body = json.loads(first)
    except (ValueError, RecursionError):
        try:
            body = json.loads(first + stream.read())
        except (ValueError, RecursionError):
            raise wire.WireError("the file is neither Avro nor JSON: give one JSON value, or one per line") from None
    if isinstance(body, list):
        yield from ((f"entry {index}", entry) for index, entry in enumerate(body))
        if stream.read().strip():
            raise wire.WireError("the list on line 1 is followed by more text: give one list, or one object per line")
        return
    yield "line 1", body
    for number, line in enumerate(stream, start=2):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError):
                raise wire.WireError(f"line {number} is not valid JSON: give one JSON value per line") from None


def _report_rows(batch: wire.ReportBatch, keys: wire.KeySet | None, inside: bool) -> Iterator[dict[str, Any]]:
    """Yield the JSON of each report, or with ``keys`` or ``inside`` its status and contributions."""
    infos = [raw.decode("utf-8", "replace") for raw in batch.shared_infos]
    if keys is None and not inside:
        for payload, key_id, info in zip(batch.payloads, batch.key_ids, infos, strict=True):
            entry = {"key_id": key_id.decode("utf-8", "replace"), "payload": base64.b64encode(payload).decode()}
            yield {"aggregation_service_payloads": [entry], "shared_info": info}
        return
    opened = wire.OpenedBatch.of_cleartext(batch) if keys is None else wire.open_batch(batch, keys.by_id)
    columns, status = wire.decode_batch(opened)
    listed: list[list[dict[str, str | int]]] = [[] for _ in infos]
    for row, one in zip(columns.row.tolist(), columns.contributions(), strict=True):
        listed[row].append({"bucket": str(one.bucket), "value": one.value, "filtering_id": str(one.filtering_id)})
    for info, found, code in zip(infos, listed, status.tolist(), strict=True):
        yield {"shared_info": info, "status": wire.ReportStatus(code).name, "contributions": found}


@convert.command()
def domain(
    source: _Source,
    target: _Target,
    source_form: _From = None,
    form: Annotated[Form, option("To text: how to write the buckets.", "--to")] = Form.INT,
    deflate: Annotated[bool, option("To Avro: compress.")] = False,
) -> None:
    """Convert an output domain from text to Avro or back.

    Text has one bucket per line, in any form; lines that start with # are comments.
    """
    count = 0
    with _opened(source) as (stream, is_avro):
        if is_avro:
            with _text(target) as out:
                for rows in wire.read_domain(stream):
                    out.writelines(f"{_write_bucket(number, form)}\n" for number in _numbers(rows))
                    count += len(rows)
        else:
            codec: Codec = "deflate" if deflate else "null"
            with whole_file(target) as staged, BucketWriter(staged, BUCKET, codec=codec) as writer:
                for rows in _domain_rows(stream, source_form):
                    writer.write(rows)
                    count += len(rows)
    typer.echo(f"{count} buckets written to {target}")


def _domain_rows(stream: BinaryIO, form: Form | None) -> Iterator[wire.BucketRows]:
    held: list[int] = []
    for number, line in enumerate(stream, start=1):
        text = line.decode("utf-8", "replace").strip()
        if not text or text.startswith("#"):
            continue
        try:
            held.append(_parse_bucket(text, form))
        except wire.WireError as error:
            raise wire.WireError(f"line {number}: {error}") from None
        if len(held) >= 16 * _ROWS:
            yield _columns(held)
            held = []
    if held:
        yield _columns(held)


def _columns(buckets: list[int]) -> wire.BucketRows:
    mask = (1 << 64) - 1
    high = np.fromiter((bucket >> 64 for bucket in buckets), dtype=np.uint64, count=len(buckets))
    low = np.fromiter((bucket & mask for bucket in buckets), dtype=np.uint64, count=len(buckets))
    return wire.BucketRows.domain(high, low)


def _numbers(rows: wire.BucketRows) -> Iterator[int]:
    return (high << 64 | low for high, low in zip(rows.key_high.tolist(), rows.key_low.tolist(), strict=True))


def _write_bucket(number: int, form: Form) -> str:
    if form is Form.INT:
        return str(number)
    return bucket_to_hex(number) if form is Form.HEX else bucket_to_base64(number)


@convert.command()
def summary(
    source: _Source,
    target: _Target,
    form: Annotated[Form, option("How to write the buckets.", "--to")] = Form.INT,
) -> None:
    """Convert a summary from Avro to JSON, one row per line.

    A row is {"bucket": ..., "metric": ...}.
    """
    count = 0
    with _opened(source) as (stream, is_avro):
        if not is_avro:
            raise wire.WireError(f"{source} is not an Avro file: give a summary as the service writes it")
        with _text(target) as out:
            for rows in wire.read_summary(stream):
                for number, metric in zip(_numbers(rows), rows.metric.tolist(), strict=True):
                    out.write(json.dumps({"bucket": _write_bucket(number, form), "metric": metric}) + "\n")
                count += len(rows)
    typer.echo(f"{count} rows written to {target}")


def seal(
    source: Annotated[Path, typer.Argument(help="Avro with cleartext payloads.", exists=True, dir_okay=False)],
    target: Annotated[Path, typer.Argument(help="The Avro file to write; it is overwritten.", dir_okay=False)],
    keys: Annotated[Path, option("The public-key document of the service, or of `keys new --public`.", exists=True)],
) -> None:
    """Seal cleartext reports to the public keys of a service.

    Input is what `aggservice aggregate` reads, such as debug cleartext payloads that `convert reports --cleartext`
    wrote. A shared_info stays as it is, so that the privacy unit of a report stays the same.
    """
    public = wire.PublicKeySet.parse(keys.read_text(encoding="utf-8"))
    with open_with_bar(source) as stream, whole_file(target) as staged:
        count = wire.write_reports(staged, _sealed_batches(wire.read_reports(stream), public))
    typer.echo(f"{count} reports written to {target}")


def _sealed_batches(batches: Iterator[wire.ReportBatch], public: wire.PublicKeySet) -> Iterator[wire.ReportBatch]:
    bits, first = SecureBits(), 1
    for batch in batches:
        _, status = wire.decode_batch(wire.OpenedBatch.of_cleartext(batch))
        bad = np.flatnonzero(status != wire.ReportStatus.OK)
        if bad.size:
            name = wire.ReportStatus(int(status[bad[0]])).name
            raise wire.WireError(
                f"row {first + int(bad[0])} has no cleartext payload ({name}): it may be sealed already"
            )
        picked = [public.pick(bits) for _ in range(len(batch))]
        payloads = [
            seal_one(payload, shared_info=info, key=key.key, bits=bits)
            for payload, info, key in zip(batch.payloads, batch.shared_infos, picked, strict=True)
        ]
        yield wire.ReportBatch(
            payloads=wire.Spans.of(payloads),
            key_ids=wire.Spans.of([key.id.encode() for key in picked]),
            shared_infos=batch.shared_infos,
        )
        first += len(batch)


@contextmanager
def _text(target: Path) -> Iterator[TextIO]:
    """Open a text file that is replaced at the end, if all went well; it may be the file that is read."""
    with whole_file(target) as staged, staged.open("w", encoding="utf-8") as out:
        yield out


@contextmanager
def _opened(source: Path) -> Iterator[tuple[BinaryIO, bool]]:
    """Open a file under a progress bar; yield it and whether it is an Avro file. Errors name the file."""
    with source.open("rb") as stream:
        is_avro = stream.read(len(_MAGIC)) == _MAGIC
    try:
        with open_with_bar(source) as stream:
            yield stream, is_avro
    except wire.WireError as error:
        raise wire.WireError(str(error) if str(source) in str(error) else f"{source}: {error}") from None
