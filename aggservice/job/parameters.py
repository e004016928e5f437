"""The parameters of a job as a caller writes them: texts and numbers, which the service checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleParameters:
    """Parameters of a shuffle: the randomizer (56 hexadecimal digits) whose reports it takes, and amplification at δ.

    Amplification needs ``delta`` and the ``collection`` that the reports' device tokens are for; without both, each
    report pays its own ε₀. ``bound`` is numerical (the default), closed or small.
    """

    randomizer: str
    delta: str = ""
    bound: str = ""
    collection: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionTask:
    """What all reports of a W3C Attribution job share: conversion site, size of the histogram, maximum value."""

    conversion_site: str
    histogram_size: int
    max_value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobParameters:
    """Parameters of a job. Amounts are decimal text, such as "10" or "0.25"; the service checks them.

    Give one of ``attribution_report_to`` and ``reporting_site``. ``epsilon`` asks for Laplace noise, ``rho`` for
    Gaussian noise, ``mechanism`` for any of the service's by name, with its ``mechanism_parameters``.
    ``discovery_delta`` also releases undeclared keys within ``key_mask``; ``others_epsilon`` also
    releases the total of what the summary leaves out. With ``shuffle`` the job releases local reports in random order
    instead. With ``attribution_task`` it aggregates W3C reports, each of which can be used once.
    With fewer than ``minimum_report_count`` usable reports the job fails and charges nothing.
    ``output_public_key`` (32 bytes) seals the summary to that X25519 key; ``Summary.opened`` and
    ``aggservice job open-summary`` open it.
    """

    attribution_report_to: str = ""
    reporting_site: str = ""
    epsilon: str = ""
    rho: str = ""
    mechanism: str = ""
    mechanism_parameters: Mapping[str, str] = field(default_factory=dict)
    discovery_delta: str = ""
    discovery_rule: str = ""
    key_mask: int | None = None
    others_epsilon: str = ""
    filtering_ids: Sequence[int] = ()
    report_error_threshold_percentage: str = ""
    input_report_count: int = 0
    minimum_report_count: int = 0
    debug_run: bool = False
    shuffle: ShuffleParameters | None = None
    attribution_task: AttributionTask | None = None
    output_public_key: bytes = b""
