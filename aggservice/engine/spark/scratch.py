"""Files that tasks write into the private scratch folder. Each attempt writes its own; its receipt names the file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from aggservice.job.errors import EngineError
from aggservice.mechanisms import SecureBits

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def new_name(kind: str) -> str:
    """Return a name that no other attempt has."""
    return f"{kind}.{SecureBits().read(16).hex()}"


def write_columns(folder: str, kind: str, columns: Sequence[NDArray[np.generic]]) -> str:
    """Write columns one after the other into a new file that only its owner can read; return its name.

    The folder is not created: if the job has ended, its folder is gone, and a task that still runs fails here.
    """
    name = new_name(kind)
    with os.fdopen(os.open(Path(folder) / name, _NEW, 0o600), "wb") as file:
        for column in columns:
            if column.size:
                file.write(np.ascontiguousarray(column).data)
    return name


def remove_written(folder: str, *kinds: str) -> None:
    """Remove what tasks wrote of these kinds, so that the disk has room again."""
    for kind in kinds:
        for path in Path(folder).glob(f"{kind}.*"):
            path.unlink(missing_ok=True)


def mapped_column(path: Path, dtype: DTypeLike, count: int, offset: int = 0) -> NDArray[np.generic]:
    """Return ``count`` values of a file without reading them; they are read when they are used."""
    if not count:
        return np.empty(0, dtype=dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(count,)))


def check_size(path: Path, size: int) -> None:
    """Refuse a file that is not as long as its receipt says."""
    try:
        found = path.stat().st_size
    except OSError:
        found = -1
    if found != size:
        raise EngineError("a file in the staging folder is not what its task wrote: check that all machines share it")
