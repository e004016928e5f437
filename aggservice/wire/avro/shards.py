"""Shard names, as the deployed service has them: ``[prefix]-[shard]-of-[total]``, with ``.avro`` last if at all."""

from __future__ import annotations

import re
from pathlib import Path

from aggservice.wire.errors import EncodingError, WireError

_SHARD = re.compile(r"(?P<prefix>.*)-(?P<shard>\d+)-of-(?P<total>[1-9]\d*)(?P<extension>\.avro)?", re.ASCII | re.DOTALL)


def shard_name(prefix: str, shard: int, total: int) -> str:
    """Return the name of one of ``total`` shards, counted from 1 and with as many digits as the total.

    >>> shard_name("summary.avro", 15, 1000)
    'summary-0015-of-1000.avro'
    """
    if not 1 <= shard <= total:
        raise EncodingError(f"there is no shard {shard} of {total}")
    extension = ".avro" if prefix.endswith(".avro") else ""
    return f"{prefix.removesuffix('.avro')}-{shard:0{len(str(total))}d}-of-{total}{extension}"


def find_shards(folder: Path, prefix: str) -> list[Path]:
    """Return the files of ``folder`` whose names begin with ``prefix``, in order of their names.

    A set of shards that says how many it has must be complete. A prefix that names one file means that file.
    """
    exact = folder / prefix
    parent, start = exact.parent, exact.name
    if prefix.endswith("/") or prefix in ("", "."):
        parent, start = exact, ""
    try:
        if not exact.resolve().is_relative_to(folder.resolve()):
            raise WireError(f"the prefix {prefix!r} leads out of its folder")
        if exact.is_file():
            return [exact]
        files = sorted(path for path in parent.glob("*") if path.is_file() and path.name.startswith(start))
    except (OSError, UnicodeEncodeError, ValueError) as problem:
        if isinstance(problem, WireError):
            raise
        raise WireError(f"the prefix {prefix[:60]!r} cannot be looked for: {problem}") from None
    files = [path for path in files if not path.name.startswith(".")]
    if not files:
        raise WireError(f"no file under {parent} begins with {start!r}")
    _check_complete(files)
    return files


def _check_complete(files: list[Path]) -> None:
    found: dict[tuple[str, int], set[int]] = {}
    for path in files:
        if match := _SHARD.fullmatch(path.name):
            found.setdefault((match["prefix"], int(match["total"])), set()).add(int(match["shard"]))
    for (prefix, total), shards in found.items():
        there = sorted(shard for shard in shards if 1 <= shard <= total)
        if missing := total - len(there):
            first = next((place for place, shard in enumerate(there, start=1) if shard != place), len(there) + 1)
            raise WireError(f"{prefix}: {missing} of {total} shards are missing, the first is {first}")
