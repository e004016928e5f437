"""A run as a chain of stages. Each declares what it reads, and is computed once for all campaigns that agree in that.

The digest of a stage covers the seed, the parts of the campaign that it declares, what else it is given, and the
digests of the stages before it. A stage sees only the parts that it declares, so its result depends on nothing else.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.errors import CampaignError, RunError
from aggservice.campaign.settings.campaign import Campaign
from aggservice.files.atomic import whole_file
from aggservice.mechanisms import Bits, SecureBits, SeededBits


class CampaignView:
    """A campaign of which only the parts in ``reads`` can be read; properties work if they read no other part."""

    def __init__(self, campaign: Campaign, stage: str, reads: tuple[str, ...]) -> None:
        self._campaign = campaign
        self._stage = stage
        self._reads = reads

    def __getattr__(self, name: str) -> Any:
        if name in self._reads:
            return getattr(self._campaign, name)
        derived = getattr(Campaign, name, None)
        if isinstance(derived, property) and derived.fget is not None:
            return derived.fget(self)
        raise CampaignError(f"the stage {self._stage} read {name} of the campaign: declare it")


def view_of(campaign: Campaign, stage: str, reads: tuple[str, ...]) -> Campaign:
    """Return the campaign as a stage sees it. A part that the stage does not declare raises ``CampaignError``."""
    return cast(Campaign, CampaignView(campaign, stage, reads))


_SCALARS = (str, int, bool, type(None), Fraction, Path, datetime.date, datetime.time)


def digest_of(*parts: Any) -> str:
    """Return 40 hex digits of SHA-256 over values, each with its type and length, so that no two texts run together.

    Takes dataclasses, mappings (in order of their keys), sequences, arrays, enumerations, numbers, text and paths; an
    object with a ``digest`` of its own is known by that. Anything else raises ``TypeError``.
    """
    hasher = hashlib.sha256(b"aggservice stage v1\0")
    _feed(hasher, parts)
    return hasher.hexdigest()[:40]


def _feed(hasher: Any, value: Any) -> None:
    kind = type(value)
    if isinstance(value, np.ndarray):
        _mark(hasher, "array", value.dtype.str, value.shape)
        hasher.update(np.ascontiguousarray(value).data)
    elif isinstance(value, (bytes, bytearray)):
        _mark(hasher, "bytes", len(value))
        hasher.update(value)
    elif isinstance(value, Enum):
        _mark(hasher, kind.__qualname__, value.name)
    elif isinstance(value, float):
        _mark(hasher, "float", value.hex())
    elif isinstance(value, _SCALARS):
        _mark(hasher, kind.__name__, str(value))
    elif isinstance(getattr(value, "digest", None), str) and value.digest:
        _mark(hasher, kind.__qualname__, value.digest)
    elif isinstance(value, type):
        _mark(hasher, "class", value.__module__, value.__qualname__)
    elif is_dataclass(value):
        _mark(hasher, kind.__qualname__, len(fields(value)))
        for field in fields(value):
            _mark(hasher, field.name)
            _feed(hasher, getattr(value, field.name))
    elif isinstance(value, Mapping):
        _mark(hasher, "mapping", len(value))
        for key in sorted(value):
            _feed(hasher, key)
            _feed(hasher, value[key])
    elif isinstance(value, (tuple, list)):
        _mark(hasher, "sequence", len(value))
        for one in value:
            _feed(hasher, one)
    else:
        raise TypeError(f"a stage cannot depend on a {kind.__name__}: give it columns, text, numbers or dataclasses")


def _mark(hasher: Any, *words: object) -> None:
    text = "\0".join(map(str, words)).encode()
    hasher.update(len(text).to_bytes(8, "big") + text)


_OUTLINE = "outline"
_OURS = ("aggservice.campaign.", "aggservice.engine.", "aggservice.wire.")
"""Only dataclasses and enumerations of these packages are read back."""


def write_stage(path: Path, value: Any) -> None:
    """Write a value to ``path``, whole or not at all."""
    arrays: dict[str, NDArray[Any]] = {}
    outline = json.dumps(_outline(value, arrays), allow_nan=True).encode()
    arrays[_OUTLINE] = np.frombuffer(outline, dtype=np.uint8)
    with whole_file(path) as staged, staged.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def read_stage(path: Path) -> Any:
    """Return the value that ``write_stage`` wrote; ``ValueError`` for a file that it did not write."""
    try:
        with np.load(path, allow_pickle=False) as file:
            outline = json.loads(file[_OUTLINE].tobytes())
            return _value(outline, lambda name: file[name])
    except (ValueError, KeyError, TypeError, AttributeError, ImportError, OSError, EOFError) as problem:
        raise ValueError(f"{path} is not a finished stage of this version: delete it") from problem


def _outline(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, Enum):
        return {"enum": _name(type(value)), "member": value.name}
    if is_dataclass(value) and not isinstance(value, type):
        inner = {field.name: _outline(getattr(value, field.name), arrays) for field in fields(value)}
        return {"class": _name(type(value)), "fields": inner}
    if isinstance(value, Mapping):
        return {"mapping": [[_outline(key, arrays), _outline(one, arrays)] for key, one in value.items()]}
    if isinstance(value, (tuple, list)):
        return {type(value).__name__ if type(value) is list else "tuple": [_outline(one, arrays) for one in value]}
    if isinstance(value, Fraction):
        return {"fraction": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a stage cannot hold a {type(value).__name__}: use arrays, text, numbers or dataclasses")


def _value(outline: Any, array: Callable[[str], NDArray[Any]]) -> Any:
    if not isinstance(outline, dict):
        return outline
    if "array" in outline:
        return array(outline["array"])
    if "enum" in outline:
        return _class(outline["enum"])[outline["member"]]
    if "class" in outline:
        return _class(outline["class"])(**{key: _value(one, array) for key, one in outline["fields"].items()})
    if "mapping" in outline:
        return {_value(key, array): _value(one, array) for key, one in outline["mapping"]}
    if "fraction" in outline:
        return Fraction(outline["fraction"])
    if "list" in outline:
        return [_value(one, array) for one in outline["list"]]
    return tuple(_value(one, array) for one in outline["tuple"])


def _name(kind: type) -> str:
    if not kind.__module__.startswith(_OURS):
        raise TypeError(f"a stage cannot hold a {kind.__qualname__}: use classes of this project")
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str) -> Any:
    module, _, kind = name.partition(":")
    if not module.startswith(_OURS):
        raise TypeError(f"a stage cannot hold a {name}")
    found = getattr(import_module(module), kind)
    if not (isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum))):
        raise TypeError(f"a stage cannot hold a {name}")
    return found


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


#: Called with the stage, the amount done, and the total (0 if unknown).
Progress = Callable[[str, int, int], None]


def no_progress(stage: str, done: int, total: int) -> None:
    """Report nothing."""


@dataclass(slots=True)
class Stopwatch:
    """Times stages. A peak is the largest memory so far, in bytes, of this process or of one child."""

    progress: Progress = no_progress
    seconds: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, dict[str, int]] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str, total: int = 0) -> Iterator[Callable[[int], None]]:
        """Time a stage. It yields a function that the block may call with the amount done so far."""
        self.progress(name, 0, total)
        start = time.perf_counter()
        yield lambda done: self.progress(name, done, total)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        self.peaks[name] = {
            "process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "largest_child": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        }
        self.progress(name, max(total, 1), max(total, 1))

    def to_plain(self) -> dict[str, Any]:
        return {
            "seconds": {name: round(taken, 4) for name, taken in self.seconds.items()},
            "total_seconds": round(sum(self.seconds.values()), 4),
            "peak_bytes_so_far": self.peaks,
        }


_FORMAT = 3
"""Part of every digest: raise it when a stage computes something else from the same inputs."""

_KNOWN_PARTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStage:
    """One step of a run: the parts of the campaign that it reads, and the stages whose results it takes."""

    name: str
    reads: tuple[str, ...]
    after: tuple[RunStage, ...] = ()


class RunChain:
    """Runs stages with one source of randomness, ``bits``, that ``identity`` names in digests.

    Without an identity nothing is shared with another chain, because the bits are fresh.
    """

    def __init__(
        self,
        bits: Bits,
        *,
        identity: str | None = None,
        store: StageStore | None = None,
        watch: Stopwatch | None = None,
    ) -> None:
        self.bits = bits
        self.store = store or StageStore()
        self.watch = watch or Stopwatch()
        self._identity = identity or f"unseeded {SecureBits().read(16).hex()}"
        self._known: dict[int, tuple[Any, str]] = {}

    @classmethod
    def seeded(cls, seed: str | None, *, store: StageStore | None = None, watch: Stopwatch | None = None) -> RunChain:
        """Return the chain of a campaign's seed; without one, of the system's entropy."""
        if seed is None:
            return cls(SecureBits(), store=store, watch=watch)
        return cls(SeededBits(f"campaign {seed}"), identity=f"campaign {seed}", store=store, watch=watch)

    def digest(self, stage: RunStage, campaign: Campaign, given: Any = None) -> str:
        """Return the digest of everything that the result of a stage depends on."""
        before = [self.digest(one, campaign) for one in stage.after]
        parts = {name: self._part(getattr(campaign, name)) for name in stage.reads}
        return digest_of(_FORMAT, self._identity, stage.name, parts, given, before)

    def _part(self, part: Any) -> str:
        """Return the digest of a part of a campaign; parts are frozen, so each is read once while it is held here."""
        if id(part) not in self._known:
            if len(self._known) >= _KNOWN_PARTS:
                self._known.clear()
            self._known[id(part)] = part, digest_of(part)
        return self._known[id(part)][1]

    def run(
        self,
        stage: RunStage,
        campaign: Campaign,
        compute: Callable[[Campaign], T],
        *,
        given: Any = None,
        total: int = 0,
    ) -> T:
        """Return the result of a stage; ``compute`` gets the campaign as the stage may see it.

        ``given`` is what the stage takes beside the campaign; ``total`` is for the progress bar.
        """

        def timed() -> T:
            with self.watch.stage(stage.name, total):
                return compute(view_of(campaign, stage.name, stage.reads))

        return self.store.get(stage.name, self.digest(stage, campaign, given), timed)
