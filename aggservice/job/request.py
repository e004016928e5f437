"""What a job asks for, checked: a histogram, a histogram of W3C reports of one task, or a shuffle of local reports."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.job.errors import DomainError, InvalidJobError
from aggservice.job.parameters import AttributionTask
from aggservice.kinds import KindError
from aggservice.mechanisms import AmplificationBound, ParameterError
from aggservice.wire import Randomizer
from aggservice.wire.errors import EncodingError, KeySetError
from aggservice.wire.hpke.summaries import check_output_key
from aggservice.wire.limits import MAX_UINT32, MAX_W3C_VALUE
from aggservice.wire.origins import site_of
from aggservice.wire.report.registry import check_collection
from budget import (
    DISCOVERY_RULES,
    MECHANISMS,
    AmountError,
    BudgetError,
    Delta,
    DiscoveryRule,
    GaussianNoise,
    LaplaceDiscovery,
    LaplaceNoise,
    Mechanism,
    OneUseNoise,
)

DEFAULT_EPSILON = "10"
DEFAULT_ERROR_THRESHOLD = "10"
MAX_JOB_ID_CHARACTERS = 128
MAX_FILTERING_IDS = 256
ALL_BITS = (1 << 64) - 1
_MAX_PERCENT_CHARACTERS = 32
_PERCENT = re.compile(r"\d{1,3}(\.\d{1,20})?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMask:
    """Which keys may be discovered: those without a bit outside the mask. By default, all keys."""

    high: int = ALL_BITS
    low: int = ALL_BITS

    def __post_init__(self) -> None:
        if not (0 <= self.high <= ALL_BITS and 0 <= self.low <= ALL_BITS):
            raise DomainError("the key mask is out of range: use a number of at most 128 bits")

    @classmethod
    def of(cls, mask: int) -> KeyMask:
        """Return the mask of a 128-bit number."""
        if not 0 <= mask < 1 << 128:
            raise DomainError("the key mask is out of range: use a number of at most 128 bits")
        return cls(high=mask >> 64, low=mask & ALL_BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """Release undeclared keys whose noisy sum exceeds a threshold, at a price of δ (Algorithm 1)."""

    delta: Delta
    mask: KeyMask = field(default_factory=KeyMask)
    rule: type[DiscoveryRule] = LaplaceDiscovery

    def __post_init__(self) -> None:
        if not self.delta.atto > 0:
            raise InvalidJobError("key discovery needs a delta above 0: set key_discovery_delta")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest(ABC):
    """What jobs of every kind ask for. Give one of ``attribution_report_to`` and ``reporting_site``.

    ``output_key`` is an X25519 public key that the result is sealed to (docs/wire.md).

    ``source`` holds the paths of a job over files, and is empty for a stream. It belongs to the request: the same job
    id with other files is another request.
    """

    job_request_id: str
    attribution_report_to: str | None = None
    reporting_site: str | None = None
    error_threshold_percent: Fraction = Fraction(10)
    input_report_count: int | None = None
    minimum_report_count: int = 0
    source: tuple[str, ...] = ()
    output_key: bytes | None = None

    def __post_init__(self) -> None:
        check_job_id(self.job_request_id)
        if (self.attribution_report_to is None) == (self.reporting_site is None):
            raise InvalidJobError(
                "attribution_report_to and reporting_site are both given or both missing: give exactly one"
            )
        if not 0 <= self.error_threshold_percent <= 100:
            raise InvalidJobError("report_error_threshold_percentage is out of range: use a number from 0 to 100")
        if self.input_report_count is not None and not self.input_report_count >= 0:
            raise InvalidJobError("input_report_count is negative: use 0 or more, or leave it out")
        if not self.minimum_report_count >= 0:
            raise InvalidJobError("minimum_report_count is negative: use 0 or more, or leave it out")
        if self.output_key is not None:
            check_key(self.output_key)

    @property
    def scope(self) -> str:
        """The reporting origin or site whose reports the job takes."""
        return self.attribution_report_to or self.reporting_site or ""

    @property
    def filtering_ids(self) -> tuple[int, ...]:
        """The filtering IDs that each report pays for; only Attribution Reporting and Private Aggregation have them."""
        return (0,)

    @property
    def debug_run(self) -> bool:
        """Whether the job shows true values of reports that browsers marked for debugging, and charges nothing."""
        return False

    @property
    def has_domain(self) -> bool:
        """Whether the caller declares keys."""
        return True

    @abstractmethod
    def to_plain(self) -> dict[str, object]:
        """Return what this kind of job adds to the plain form, from which the ledger knows a repeated request."""

    def digest(self, content: bytes = b"") -> bytes:
        """Return a hash of the request; the ledger recognises a repeated request by it.

        ``content`` is the digest of what was streamed; a job over files is recognised by its paths. All names of a
        histogram are in the form of every kind of job, so that digests of older ledgers stay as they are.
        """
        plain: dict[str, object] = {
            "job_request_id": self.job_request_id,
            "attribution_report_to": self.attribution_report_to,
            "reporting_site": self.reporting_site,
            "error_threshold": str(self.error_threshold_percent),
            "input_report_count": self.input_report_count,
            "filtering_ids": list(map(str, self.filtering_ids)),
            "debug_run": self.debug_run,
            "source": list(self.source),
            "content": content.hex(),
            **dict.fromkeys(("delta", "mask", "others")),
            **self.to_plain(),
        }
        if self.minimum_report_count:
            plain["minimum_report_count"] = self.minimum_report_count
        if self.output_key is not None:
            plain["output_public_key"] = self.output_key.hex()
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"aggservice job request v1\0" + text.encode()).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SumRequest(JobRequest):
    """A job that sums contributions per key. ``mechanism`` makes the noise of its sums."""

    mechanism: Mechanism = field(default_factory=lambda: LaplaceNoise.parse(epsilon=DEFAULT_EPSILON))

    @property
    @abstractmethod
    def released(self) -> Mechanism:
        """What the ledger charges for: the mechanism, or the one that key discovery or a task makes of it."""

    @property
    def discovery(self) -> Discovery | None:
        """How undeclared keys are released; None if they are not."""
        return None

    @property
    def others(self) -> LaplaceNoise | None:
        """The noise of the total over keys that are left out; None if the job does not ask for it."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramRequest(SumRequest):
    """A histogram over reports of Attribution Reporting or Private Aggregation."""

    discovery: Discovery | None = None
    others: LaplaceNoise | None = None
    filtering_ids: tuple[int, ...] = (0,)
    debug_run: bool = False

    def __post_init__(self) -> None:
        JobRequest.__post_init__(self)
        if not self.mechanism.in_jobs:
            raise InvalidJobError(f"{self.mechanism.name} is not noise for sums: choose another mechanism")
        if self.others is not None and type(self.mechanism) is not LaplaceNoise:
            raise InvalidJobError("the others total uses Laplace noise: ask for it in a job with job_epsilon")
        if not self.filtering_ids or list(self.filtering_ids) != sorted(set(self.filtering_ids)):
            raise InvalidJobError(
                "filtering_ids are empty, repeated or out of order: give distinct numbers in ascending order"
            )
        if not (self.filtering_ids[0] >= 0 and self.filtering_ids[-1] < 1 << 64):
            raise InvalidJobError("a filtering ID is out of range: use whole numbers from 0 to 2^64 - 1")
        if not len(self.filtering_ids) <= MAX_FILTERING_IDS:
            raise InvalidJobError(f"the job has too many filtering IDs: give at most {MAX_FILTERING_IDS}")
        if self.output_key is not None and self.debug_run:
            raise InvalidJobError(
                "a debug run is not sealed, because it shows true values for debugging: leave output_public_key out"
            )
        _ = self.released  # refuses a rule that does not fit beside the mechanism

    @property
    def released(self) -> Mechanism:
        if self.discovery is None:
            return self.mechanism
        try:
            return self.discovery.rule.beside(self.mechanism, self.discovery.delta)
        except BudgetError as problem:
            raise InvalidJobError(str(problem)) from problem

    def to_plain(self) -> dict[str, object]:
        mask = self.discovery.mask if self.discovery else None
        mechanism, amount = self.mechanism.job_form
        plain: dict[str, object] = {
            "mechanism": mechanism,
            "amount": amount,
            "delta": str(self.discovery.delta) if self.discovery else None,
            "mask": f"{mask.high:016x}{mask.low:016x}" if mask else None,
            "others": str(self.others.epsilon) if self.others else None,
        }
        if self.discovery is not None and self.discovery.rule is not LaplaceDiscovery:
            plain["discovery_rule"] = self.discovery.rule.name
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest(SumRequest):
    """A histogram over W3C Attribution reports of one task; each report can be used once."""

    task: AttributionTask

    def __post_init__(self) -> None:
        JobRequest.__post_init__(self)
        if type(self.mechanism) is not LaplaceNoise:
            raise InvalidJobError(TASK_HAS)
        site = self.task.conversion_site
        if site_of(site) != site:
            raise InvalidJobError(
                f"attribution_task.conversion_site is {site!r}: use a site such as https://shop.example"
            )
        for name, most in (("histogram_size", MAX_UINT32), ("max_value", MAX_W3C_VALUE)):
            number = getattr(self.task, name)
            if not 1 <= number <= most:
                raise InvalidJobError(f"attribution_task.{name} is {number}: use a whole number from 1 to {most}")

    @property
    def has_domain(self) -> bool:
        return False

    @property
    def released(self) -> Mechanism:
        assert isinstance(self.mechanism, LaplaceNoise)
        return OneUseNoise(epsilon=self.mechanism.epsilon, max_value=self.task.max_value)

    @property
    def sensitivity(self) -> int:
        """The most that one report can change the sums, in L1, if its histogram is replaced by another."""
        return 2 * self.task.max_value

    @property
    def keys(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The high and low halves of the keys of the summary: every index of the histogram."""
        size = self.task.histogram_size
        return np.zeros(size, dtype=np.uint64), np.arange(size, dtype=np.uint64)

    def to_plain(self) -> dict[str, object]:
        mechanism, amount = self.mechanism.job_form
        return {"mechanism": mechanism, "amount": amount, "attribution_task": task_texts(self.task)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleRequest(JobRequest):
    """A shuffle: reports of ``randomizer`` in random order, amplified at ``delta`` (None: not amplified).

    Device tokens must be for ``collection``; without it, no token is checked and nothing is amplified.
    """

    randomizer: Randomizer
    delta: Delta | None = None
    bound: AmplificationBound = AmplificationBound.NUMERICAL
    collection: str = ""

    def __post_init__(self) -> None:
        JobRequest.__post_init__(self)
        if self.delta is not None and not 0 < self.delta.atto < 10**18:
            raise InvalidJobError("the delta of the shuffle is out of range: use a number above 0 and below 1")
        if not self.randomizer.epsilon_micro <= 64 * 10**6:
            raise InvalidJobError(
                "the randomizer's epsilon is above 64, the most that a unit may pay: use one with a smaller epsilon"
            )
        if self.collection:
            try:
                check_collection(self.collection)
            except EncodingError as problem:
                raise InvalidJobError(str(problem)) from problem

    @property
    def has_domain(self) -> bool:
        return False

    def to_plain(self) -> dict[str, object]:
        plain = {"randomizer": self.randomizer.hex, "delta": str(self.delta or ""), "bound": self.bound.value}
        shuffle = {**plain, "collection": self.collection} if self.collection else plain
        # A shuffle adds no noise. Its digest names the default noise of other jobs, as in older ledgers.
        mechanism, amount = LaplaceNoise.parse(epsilon=DEFAULT_EPSILON).job_form
        return {"mechanism": mechanism, "amount": amount, "shuffle": shuffle}


TASK_HAS = (
    "a job with an attribution_task has Laplace noise, every index of the histogram for its keys and "
    "no others total: leave job_rho, key_discovery and others out"
)


def task_of(request: JobRequest) -> AttributionTask | None:
    """Return the task of a job over W3C reports; None for other jobs."""
    return request.task if isinstance(request, TaskRequest) else None


def task_texts(task: AttributionTask) -> dict[str, str]:
    """Return a task as it is written into digests and ledgers."""
    return {name: str(value) for name, value in asdict(task).items()}


def check_job_id(job_request_id: str) -> None:
    """Refuse a job id that is empty, longer than 128 characters or not printable ASCII."""
    if not 1 <= len(job_request_id) <= MAX_JOB_ID_CHARACTERS:
        raise InvalidJobError(f"job_request_id has {len(job_request_id)} characters: use 1 to {MAX_JOB_ID_CHARACTERS}")
    if not (job_request_id.isascii() and job_request_id.isprintable()):
        raise InvalidJobError(
            "job_request_id has characters that are not printable ASCII: use letters, digits and punctuation"
        )


def check_key(raw: bytes) -> bytes:
    """Return an output key; InvalidJobError if it is not an X25519 public key that protects what it seals."""
    try:
        return check_output_key(raw)
    except KeySetError as problem:
        raise InvalidJobError(f"output_public_key: {problem}") from problem


def parse_noise(*, epsilon: str = "", rho: str = "") -> Mechanism:
    """Return Laplace noise of ε or Gaussian noise of ρ; ε is 10 when neither is given."""
    if epsilon and rho:
        raise InvalidJobError("epsilon and rho are both given: give one of them")
    if not rho:
        return parse_laplace(epsilon or DEFAULT_EPSILON)
    try:
        return GaussianNoise.parse(rho=rho)
    except AmountError as problem:
        raise InvalidJobError(str(problem)) from problem


def parse_laplace(epsilon: str) -> LaplaceNoise:
    """Return Laplace noise of ε from decimal text."""
    try:
        return LaplaceNoise.parse(epsilon=epsilon)
    except AmountError as problem:
        raise InvalidJobError(str(problem)) from problem


def parse_mechanism(name: str, parameters: Mapping[str, str]) -> Mechanism:
    """Return a mechanism by its name in the table, with its fields as texts."""
    try:
        return MECHANISMS[name].parse(**parameters)
    except (BudgetError, ParameterError, ValueError) as problem:
        raise InvalidJobError(str(problem)) from problem


def parse_discovery(*, delta: str, key_mask: bytes = b"", rule: str = "") -> Discovery:
    """Return key discovery from the text of δ and the 16 bytes of a mask; an empty mask allows all keys.

    ``rule`` is a name of ``DISCOVERY_RULES``; the default is truncated Laplace noise.
    """
    if len(key_mask) not in (0, 16):
        raise InvalidJobError(f"the key mask has {len(key_mask)} bytes: give 16, big-endian")
    mask = KeyMask.of(int.from_bytes(key_mask, "big")) if key_mask else KeyMask()
    try:
        return Discovery(delta=Delta.parse(delta), mask=mask, rule=DISCOVERY_RULES[rule or LaplaceDiscovery.name])
    except (AmountError, KindError) as problem:
        raise InvalidJobError(str(problem)) from problem


def parse_percentage(text: str) -> Fraction:
    """Return a percentage from decimal text; 10 when empty."""
    text = text.strip() or DEFAULT_ERROR_THRESHOLD
    if len(text) > _MAX_PERCENT_CHARACTERS or _PERCENT.fullmatch(text) is None or not Fraction(text) <= 100:
        raise InvalidJobError("report_error_threshold_percentage is invalid: use a decimal number from 0 to 100")
    return Fraction(text)


def parse_filtering_ids(text: str) -> tuple[int, ...]:
    """Return filtering IDs from whole numbers separated by commas; 0 when empty."""
    if not text.strip():
        return (0,)
    if len(text) > MAX_FILTERING_IDS * 24:
        raise InvalidJobError(f"the job has too many filtering IDs: give at most {MAX_FILTERING_IDS}")
    found = set()
    for part in text.split(","):
        digits = part.strip()
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
            raise InvalidJobError(f"filtering_ids: {digits!r} is not a whole number; separate numbers with commas")
        found.add(int(digits))
    return tuple(sorted(found))


def parse_shuffle(*, randomizer: str, delta: str = "", bound: str = "", collection: str = "") -> dict[str, Any]:
    """Return the fields of a ``ShuffleRequest`` from texts; an empty text means that the field is not given."""
    try:
        return {
            "randomizer": Randomizer.from_hex(randomizer),
            "delta": Delta.parse(delta) if delta else None,
            "bound": AmplificationBound(bound) if bound else AmplificationBound.NUMERICAL,
            "collection": collection,
        }
    except (EncodingError, AmountError) as problem:
        raise InvalidJobError(str(problem)) from problem
    except ValueError:
        known = ", ".join(AmplificationBound)
        raise InvalidJobError(f"the bound {bound!r} is unknown: use one of {known}") from None
