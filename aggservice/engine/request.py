"""The parameters of a job, checked when they are read from text."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from aggservice.engine.errors import InvalidJobError
from aggservice.engine.opening.attribution_tasks import AttributionTask
from aggservice.engine.shuffle import ShuffleRequest
from aggservice.engine.tables.sums import KeyMask
from aggservice.kinds import KindError
from aggservice.mechanisms import ParameterError
from aggservice.wire.errors import KeySetError
from aggservice.wire.hpke.summaries import check_output_key
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
_MAX_PERCENT_CHARACTERS = 32
_PERCENT = re.compile(r"\d{1,3}(\.\d{1,20})?", re.ASCII)


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
class JobRequest:
    """The parameters of one job. ``mechanism`` makes the noise of its sums; ``released`` is what the ledger charges
    for: that mechanism, or the one that key discovery or a task makes of it.

    ``task`` makes it a job over W3C Attribution.

    ``output_key`` is an X25519 public key that the result is sealed to (docs/wire.md).

    ``source`` holds the paths of a job over files, and is empty for a stream. It belongs to the request: the same job
    id with other files is another request.
    """

    job_request_id: str
    attribution_report_to: str | None = None
    reporting_site: str | None = None
    mechanism: Mechanism = field(default_factory=lambda: LaplaceNoise.parse(epsilon=DEFAULT_EPSILON))
    discovery: Discovery | None = None
    others: LaplaceNoise | None = None
    error_threshold_percent: Fraction = Fraction(10)
    input_report_count: int | None = None
    filtering_ids: tuple[int, ...] = (0,)
    debug_run: bool = False
    source: tuple[str, ...] = ()
    shuffle: ShuffleRequest | None = None
    task: AttributionTask | None = None
    output_key: bytes | None = None
    released: Mechanism = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_job_id(self.job_request_id)
        if (self.attribution_report_to is None) == (self.reporting_site is None):
            raise InvalidJobError(
                "attribution_report_to and reporting_site are both given or both missing: give exactly one"
            )
        if not self.mechanism.in_jobs:
            raise InvalidJobError(f"{self.mechanism.name} is not noise for sums: choose another mechanism")
        if self.others is not None and type(self.mechanism) is not LaplaceNoise:
            raise InvalidJobError("the others total uses Laplace noise: ask for it in a job with job_epsilon")
        if not 0 <= self.error_threshold_percent <= 100:
            raise InvalidJobError("report_error_threshold_percentage is out of range: use a number from 0 to 100")
        if self.input_report_count is not None and not self.input_report_count >= 0:
            raise InvalidJobError("input_report_count is negative: use 0 or more, or leave it out")
        if not self.filtering_ids or list(self.filtering_ids) != sorted(set(self.filtering_ids)):
            raise InvalidJobError(
                "filtering_ids are empty, repeated or out of order: give distinct numbers in ascending order"
            )
        if not (self.filtering_ids[0] >= 0 and self.filtering_ids[-1] < 1 << 64):
            raise InvalidJobError("a filtering ID is out of range: use whole numbers from 0 to 2^64 - 1")
        if not len(self.filtering_ids) <= MAX_FILTERING_IDS:
            raise InvalidJobError(f"the job has too many filtering IDs: give at most {MAX_FILTERING_IDS}")
        if self.output_key is not None:
            check_key(self.output_key)
            if self.debug_run:
                raise InvalidJobError(
                    "a debug run is not sealed, because it shows true values for debugging: leave output_public_key out"
                )
        if self.task is not None:
            if type(self.mechanism) is not LaplaceNoise or self.discovery is not None or self.others is not None:
                raise InvalidJobError(
                    "a job with an attribution_task has Laplace noise, every index of the histogram for its keys and "
                    "no others total: leave job_rho, key_discovery and others out"
                )
            if self.debug_run or self.shuffle is not None or self.filtering_ids != (0,):
                raise InvalidJobError(
                    "W3C reports have no debug mode, filtering IDs or randomizer: leave debug_run, filtering_ids and "
                    "shuffle out of a job with an attribution_task"
                )
        if self.shuffle is not None:
            if self.discovery is not None or self.others is not None or self.debug_run:
                raise InvalidJobError("a shuffle has no key discovery, others total or debug run: leave them out")
            if self.filtering_ids != (0,):
                raise InvalidJobError("local reports have no filtering IDs: leave filtering_ids out of a shuffle")
        object.__setattr__(self, "released", self._released())

    def _released(self) -> Mechanism:
        if self.task is not None and isinstance(self.mechanism, LaplaceNoise):
            return OneUseNoise(epsilon=self.mechanism.epsilon, max_value=self.task.max_value)
        if self.discovery is None:
            return self.mechanism
        try:
            return self.discovery.rule.beside(self.mechanism, self.discovery.delta)
        except BudgetError as problem:
            raise InvalidJobError(str(problem)) from problem

    def digest(self, content: bytes = b"") -> bytes:
        """Return a hash of the request; the ledger recognises a repeated request by it.

        ``content`` is the digest of what was streamed; a job over files is recognised by its paths.
        """
        mask = self.discovery.mask if self.discovery else None
        mechanism, amount = self.mechanism.job_form
        plain: dict[str, object] = {
            "job_request_id": self.job_request_id,
            "attribution_report_to": self.attribution_report_to,
            "reporting_site": self.reporting_site,
            "mechanism": mechanism,
            "amount": amount,
            "delta": str(self.discovery.delta) if self.discovery else None,
            "mask": f"{mask.high:016x}{mask.low:016x}" if mask else None,
            "others": str(self.others.epsilon) if self.others else None,
            "error_threshold": str(self.error_threshold_percent),
            "input_report_count": self.input_report_count,
            "filtering_ids": list(map(str, self.filtering_ids)),
            "debug_run": self.debug_run,
            "source": list(self.source),
            "content": content.hex(),
        }
        if self.shuffle is not None:
            plain["shuffle"] = self.shuffle.to_plain()
        if self.task is not None:
            plain["attribution_task"] = self.task.to_plain()
        if self.discovery is not None and self.discovery.rule is not LaplaceDiscovery:
            plain["discovery_rule"] = self.discovery.rule.name
        if self.output_key is not None:
            plain["output_public_key"] = self.output_key.hex()
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"aggservice job request v1\0" + text.encode()).digest()


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
