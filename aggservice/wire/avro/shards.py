"""Shard names of the deployed service: ``[prefix]-[shard]-of-[total]``, then ``.avro`` if the prefix has it."""

from __future__ import annotations

import re
from pathlib import Path

from aggservice.wire.errors import EncodingError, WireError

_SHARD = re.compile(r"(?P<prefix>.*)-(?P<shard>\d+)-of-(?P<total>[1-9]\d*)(?P<extension>\.avro)?", re.ASCII | re.DOTALL)


def shard_name(prefix: str, shard: int, total: int) -> str:
    """Return the name of one of ``total`` shards, counted from 1, with as many digits as the total has.

    >>> shard_name("summary.avro", 15, 1000)
    'summary-0015-of-1000.avro'
    """
    if not 1 <= shard <= total:
        raise EncodingError(f"shard {shard} of {total} cannot exist: use a number from 1 to {total}")
    extension = ".avro" if prefix.endswith(".avro") else ""
    return f"{prefix.removesuffix('.avro')}-{shard:0{len(str(total))}d}-of-{total}{extension}"


def find_shards(folder: Path, prefix: str) -> list[Path]:
    """Return the files of ``folder`` whose names begin with ``prefix``, ordered by name and shard number.

    Names such as ``a-1-of-3`` state the number of shards: raises ``WireError`` if one is missing, or if no file is
    found. A prefix that is the whole name of a file means that file only.
    """
    exact = folder / prefix
    parent, start = exact.parent, exact.name
    if prefix.endswith("/") or prefix in ("", "."):
        parent, start = exact, ""
    try:
        if not exact.resolve().is_relative_to(folder.resolve()):
            raise WireError(f"the prefix {prefix!r} leads out of its folder: remove '..' and links")
        if exact.is_file():
            return [exact]
        found = (path for path in parent.glob("*") if path.is_file() and path.name.startswith(start))
        files = sorted((path for path in found if not path.name.startswith(".")), key=_reading_order)
    except (OSError, UnicodeEncodeError, ValueError) as problem:
        if isinstance(problem, WireError):
            raise
        raise WireError(f"files with the prefix {prefix[:60]!r} could not be listed: {problem}") from None
    if not files:
        raise WireError(f"no file in {parent} has a name that begins with {start!r}: check the prefix")
    _check_complete(files)
    return files


def _reading_order(path: Path) -> tuple[str, int, str]:
    match = _SHARD.fullmatch(path.name)
    return (path.name, 0, "") if match is None else (match["prefix"], int(match["shard"]), path.name)


def _check_complete(files: list[Path]) -> None:
    found: dict[tuple[str, int], set[int]] = {}
    for path in files:
        if match := _SHARD.fullmatch(path.name):
            found.setdefault((match["prefix"], int(match["total"])), set()).add(int(match["shard"]))
    for (prefix, total), shards in found.items():
        there = sorted(shard for shard in shards if 1 <= shard <= total)
        if missing := total - len(there):
            first = next((number for number, shard in enumerate(there, start=1) if shard != number), len(there) + 1)
            raise WireError(f"{prefix}: {missing} of {total} shards are missing, the first is number {first}")
