"""Finished stages, found by the digest of what they read: in memory while they are in use, or in a cache folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from aggservice.campaign.errors import RunError
from aggservice.campaign.stages.codec import read_stage, write_stage

T = TypeVar("T")


@dataclass(slots=True)
class StageStore:
    """Computes each stage once. ``folder`` keeps every finished stage for later runs.

    Memory holds what was used since the last ``forget_unused``: one chain of stages, whatever the number of points.
    ``computed`` and ``read`` list the names and digests of stages that were computed, or read from the folder.
    """

    folder: Path | None = None
    computed: list[tuple[str, str]] = field(default_factory=list)
    read: list[tuple[str, str]] = field(default_factory=list)
    _held: dict[tuple[str, str], Any] = field(default_factory=dict)
    _used: set[tuple[str, str]] = field(default_factory=set)

    def get(self, name: str, digest: str, compute: Callable[[], T]) -> T:
        """Return the result of a stage: from memory, from the folder, or computed now and stored."""
        key = (name, digest)
        self._used.add(key)
        if key in self._held:
            return self._held[key]
        path = None if self.folder is None else self.folder / f"{name}-{digest}.npz"
        if path is not None and path.is_file():
            try:
                value: T = read_stage(path)
            except ValueError as problem:
                raise RunError(str(problem)) from problem
            self.read.append(key)
        else:
            value = compute()
            if path is not None:
                self._keep(path, value)
            self.computed.append(key)
        self._held[key] = value
        return value

    def _keep(self, path: Path, value: Any) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_stage(path, value)
        except OSError as problem:
            raise RunError(f"{path} cannot be written: {problem.strerror}: name another folder with --cache") from None

    def forget_unused(self) -> None:
        """Release from memory every stage that was not used since this was last called."""
        for key in self._held.keys() - self._used:
            del self._held[key]
        self._used.clear()
