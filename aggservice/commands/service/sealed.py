"""Sealed summaries at the terminal: the key that a job seals to, and opening what it sealed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from aggservice.client import Summary
from aggservice.commands.console import option
from aggservice.files.atomic import whole_file
from aggservice.wire import BucketRows, KeySet, PublicKeySet, read_key_set, write_buckets
from aggservice.wire.avro.shuffled import write_shuffled
from aggservice.wire.errors import KeySetError, SealedSummaryError
from aggservice.wire.hpke.summaries import SEALED_SUFFIX, SealedKind, histogram_columns, open_document, read_label

OutputPublicKey = Annotated[
    Path | None,
    option(
        "Seal the summary to the key of this public-key document, which keys new --public wrote.",
        exists=True,
        dir_okay=False,
    ),
]
OpenWith = Annotated[Path | None, option("Open a sealed summary with these private keys.", "--keys", exists=True)]


def output_key(document: Path | None) -> bytes:
    """Return the only key of a public-key document; empty without a document."""
    if document is None:
        return b""
    try:
        keys = PublicKeySet.parse(document.read_bytes()).keys
    except KeySetError as problem:
        raise KeySetError(f"{document}: {problem}") from None
    if len(keys) != 1:
        raise KeySetError(f"{document} has {len(keys)} public keys: give a document with exactly one")
    return keys[0].key.public_bytes_raw()


def opened(found: Summary, keys: Path | None) -> Summary:
    """Return a summary, opened if there are keys."""
    return found if keys is None else found.opened(read_key_set(keys))


def open_shard(path: Path, keys: KeySet, folder: Path | None) -> tuple[Path, int]:
    """Open one sealed file into an Avro file, beside it or in ``folder``; return its path and its number of rows.

    The Avro file has the bytes that the job would have written without a key. An existing file is refused.
    """
    name = path.name.removesuffix(SEALED_SUFFIX)
    if name == path.name:
        raise SealedSummaryError(f"{path} does not end in {SEALED_SUFFIX}: give the sealed files of a job")
    document = path.read_bytes()
    try:
        label, _ = read_label(document)
        body = open_document(document, keys, name=path.name)
    except SealedSummaryError as problem:
        raise SealedSummaryError(f"{path}: {problem}") from None
    target = (folder or path.parent) / name
    try:
        with whole_file(target, replace=False) as staged:
            if label.kind is SealedKind.HISTOGRAM:
                write_buckets(staged, BucketRows.summary(*histogram_columns(body)))
            else:
                write_shuffled(staged, (body[at : at + label.width] for at in range(0, len(body), label.width)))
    except FileExistsError:
        raise SealedSummaryError(f"{target} exists: move it away, or name another --output folder") from None
    return target, label.rows
