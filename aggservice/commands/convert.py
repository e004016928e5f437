"""``aggservice convert``: buckets, reports, domains and summaries between integers, hex, base64, Avro and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TextIO

import typer

if TYPE_CHECKING:
    from aggservice.wire import BucketRows, KeySet, ReportBatch

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
    Form | None, typer.Option("--from", help="How buckets are written; guessed when not given (digits are decimal).")
]


def register(app: typer.Typer) -> None:
    """Add ``convert``."""
    convert = typer.Typer(help="Convert buckets, reports, domains and summaries.", no_args_is_help=True)
    convert.command("bucket")(bucket)
    convert.command("reports")(reports)
    convert.command("domain")(domain)
    convert.command("summary")(summary)
    app.add_typer(convert, name="convert")


def bucket(
    values: Annotated[list[str], typer.Argument(help="Buckets: decimal, 0x and hexadecimal digits, or base64.")],
    form: _From = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show buckets in every form: decimal, hexadecimal, base64 of the 16 bytes, and the short bytes of a summary."""
    from aggservice.wire.buckets import bucket_to_base64, bucket_to_hex, bucket_to_short_bytes

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
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo("\n".join(f"{name:7} {text}" for name, text in row.items()))


def _parse_bucket(text: str, form: Form | None = None) -> int:
    """Return a bucket; without ``form``, base64 is recognised only of all 16 bytes, so that no word passes for one."""
    from aggservice.wire import WireError
    from aggservice.wire.buckets import bucket_from_base64, bucket_from_hex, bucket_from_int

    if form is None:
        form = Form.HEX if text[:2].lower() == "0x" else Form.INT if text.isdecimal() else Form.BASE64
        if form is Form.BASE64 and len(text) != _BASE64_CHARACTERS:
            raise WireError(
                f"{text!r} is neither decimal, nor 0x and hexadecimal digits, nor the base64 of 16 bytes "
                "(shorter base64 needs --from base64)"
            )
    return {Form.INT: bucket_from_int, Form.HEX: bucket_from_hex, Form.BASE64: bucket_from_base64}[form](text)


def reports(
    source: _Source,
    target: _Target,
    cleartext: Annotated[
        bool, typer.Option(help="From JSON: take the debug cleartext payloads, for `aggservice aggregate`.")
    ] = False,
    keys: Annotated[
        Path | None, typer.Option(help="From Avro: open the reports with these private keys and show what is inside.")
    ] = None,
    inside: Annotated[bool, typer.Option(help="From Avro of cleartext payloads: show what is inside.")] = False,
    deflate: Annotated[bool, typer.Option(help="To Avro: compress.")] = False,
) -> None:
    """Convert reports: from JSON bodies (one a line, or a list) to Avro, and from Avro to JSON, one a line."""
    from aggservice.files.atomic import whole_file
    from aggservice.wire import read_key_set, read_reports, write_reports

    with _opened(source) as (stream, is_avro):
        if is_avro:
            opener = read_key_set(keys) if keys is not None else None
            count = 0
            with _text(target) as out:
                for batch in read_reports(stream):
                    for row in _report_rows(batch, opener, inside):
                        out.write(json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n")
                        count += 1
        else:
            with whole_file(target) as staged:
                count = write_reports(staged, _json_reports(stream, cleartext), codec="deflate" if deflate else "null")
    typer.echo(f"{count} reports written to {target}")


def _json_reports(stream: BinaryIO, cleartext: bool) -> Iterator[ReportBatch]:
    """Yield batches of the JSON bodies in a file: a list, one object, or an object a line."""
    from aggservice.wire import AggregatableReport, ReportBatch, WireError

    held: list[AggregatableReport] = []
    for place, body in _json_bodies(stream):
        try:
            held.append(AggregatableReport.from_dict(body))
            if cleartext and held[-1].payloads[0].debug_cleartext_payload is None:
                raise WireError("a report without debug mode has no cleartext payload")
        except WireError as error:
            raise WireError(f"{place}: {error}") from None
        if len(held) >= _ROWS:
            yield ReportBatch.of(held, cleartext=cleartext)
            held = []
    if held:
        yield ReportBatch.of(held, cleartext=cleartext)


def _json_bodies(stream: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Yield JSON values with their places; only a file of lines is read without holding it whole."""
    from aggservice.wire import WireError

    first = stream.readline()
    try:
        body = json.loads(first)
    except (ValueError, RecursionError):
        try:
            body = json.loads(first + stream.read())
        except (ValueError, RecursionError):
            raise WireError("neither Avro, nor one JSON value, nor one a line") from None
    if isinstance(body, list):
        yield from ((f"entry {place}", entry) for place, entry in enumerate(body))
        if stream.read().strip():
            raise WireError("line 2: there is more after the list; give one list, or one object a line")
        return
    yield "line 1", body
    for number, line in enumerate(stream, start=2):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError):
                raise WireError(f"line {number}: not JSON") from None


def _report_rows(batch: ReportBatch, keys: KeySet | None, inside: bool) -> Iterator[dict[str, Any]]:
    """Yield the JSON of each report, or, opened or in cleartext, its contributions and what became of it."""
    import base64

    from aggservice.wire import OpenedBatch, ReportStatus, decode_batch, open_batch

    infos = [raw.decode("utf-8", "replace") for raw in batch.shared_infos]
    if keys is None and not inside:
        for payload, key_id, info in zip(batch.payloads, batch.key_ids, infos, strict=True):
            entry = {"key_id": key_id.decode("utf-8", "replace"), "payload": base64.b64encode(payload).decode()}
            yield {"aggregation_service_payloads": [entry], "shared_info": info}
        return
    opened = OpenedBatch.of_cleartext(batch) if keys is None else open_batch(batch, keys.by_id)
    columns, status = decode_batch(opened)
    listed: list[list[dict[str, str | int]]] = [[] for _ in infos]
    for row, one in zip(columns.row.tolist(), columns.contributions(), strict=True):
        listed[row].append({"bucket": str(one.bucket), "value": one.value, "filtering_id": str(one.filtering_id)})
    for info, found, code in zip(infos, listed, status.tolist(), strict=True):
        yield {"shared_info": info, "status": ReportStatus(code).name, "contributions": found}


def domain(
    source: _Source,
    target: _Target,
    source_form: _From = None,
    form: Annotated[Form, typer.Option("--to", help="To text: how to write the buckets.")] = Form.INT,
    deflate: Annotated[bool, typer.Option(help="To Avro: compress.")] = False,
) -> None:
    """Convert an output domain: from text, a bucket a line in any form, to Avro, and from Avro to text."""
    from aggservice.files.atomic import whole_file
    from aggservice.wire import read_domain
    from aggservice.wire.avro.buckets import BucketWriter
    from aggservice.wire.avro.container import Codec
    from aggservice.wire.avro.schemas import BUCKET

    count = 0
    with _opened(source) as (stream, is_avro):
        if is_avro:
            with _text(target) as out:
                for rows in read_domain(stream):
                    out.writelines(f"{_write_bucket(number, form)}\n" for number in _numbers(rows))
                    count += len(rows)
        else:
            codec: Codec = "deflate" if deflate else "null"
            with whole_file(target) as staged, BucketWriter(staged, BUCKET, codec=codec) as writer:
                for rows in _domain_rows(stream, source_form):
                    writer.write(rows)
                    count += len(rows)
    typer.echo(f"{count} buckets written to {target}")


def _domain_rows(stream: BinaryIO, form: Form | None) -> Iterator[BucketRows]:
    from aggservice.wire import WireError

    held: list[int] = []
    for number, line in enumerate(stream, start=1):
        text = line.decode("utf-8", "replace").strip()
        if not text or text.startswith("#"):
            continue
        try:
            held.append(_parse_bucket(text, form))
        except WireError as error:
            raise WireError(f"line {number}: {error}") from None
        if len(held) >= 16 * _ROWS:
            yield _columns(held)
            held = []
    if held:
        yield _columns(held)


def _columns(buckets: list[int]) -> BucketRows:
    import numpy as np

    from aggservice.wire import BucketRows

    mask = (1 << 64) - 1
    high = np.fromiter((bucket >> 64 for bucket in buckets), dtype=np.uint64, count=len(buckets))
    low = np.fromiter((bucket & mask for bucket in buckets), dtype=np.uint64, count=len(buckets))
    return BucketRows.domain(high, low)


def _numbers(rows: BucketRows) -> Iterator[int]:
    return (high << 64 | low for high, low in zip(rows.key_high.tolist(), rows.key_low.tolist(), strict=True))


def _write_bucket(number: int, form: Form) -> str:
    from aggservice.wire.buckets import bucket_to_base64, bucket_to_hex

    if form is Form.INT:
        return str(number)
    return bucket_to_hex(number) if form is Form.HEX else bucket_to_base64(number)


def summary(
    source: _Source,
    target: _Target,
    form: Annotated[Form, typer.Option("--to", help="How to write the buckets.")] = Form.INT,
) -> None:
    """Convert a summary from Avro to JSON, one row a line: ``{"bucket": ..., "metric": ...}``."""
    from aggservice.wire import WireError, read_summary

    count = 0
    with _opened(source) as (stream, is_avro):
        if not is_avro:
            raise WireError(f"{source} is not an Avro file")
        with _text(target) as out:
            for rows in read_summary(stream):
                for number, metric in zip(_numbers(rows), rows.metric.tolist(), strict=True):
                    out.write(json.dumps({"bucket": _write_bucket(number, form), "metric": metric}) + "\n")
                count += len(rows)
    typer.echo(f"{count} rows written to {target}")


@contextmanager
def _text(target: Path) -> Iterator[TextIO]:
    """Open a text file that is written whole or not at all; it may be the file that is read."""
    from aggservice.files.atomic import whole_file

    with whole_file(target) as staged, staged.open("w", encoding="utf-8") as out:
        yield out


@contextmanager
def _opened(source: Path) -> Iterator[tuple[BinaryIO, bool]]:
    """Open a file under a progress bar on a terminal; say whether it is an Avro file. Errors name the file."""
    from rich.console import Console
    from rich.progress import open as open_with_progress

    from aggservice.wire import WireError

    with source.open("rb") as stream:
        is_avro = stream.read(len(_MAGIC)) == _MAGIC
    console = Console(stderr=True)
    try:
        with open_with_progress(
            source, "rb", description=source.name, console=console, transient=True, disable=not console.is_terminal
        ) as stream:
            yield stream, is_avro
    except WireError as error:
        raise WireError(str(error) if str(source) in str(error) else f"{source}: {error}") from None
