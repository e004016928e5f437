"""The parameters of a job as the client library takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from aggservice.client.errors import bad_argument
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2


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
    debug_run: bool = False
    shuffle: ShuffleParameters | None = None
    attribution_task: AttributionTask | None = None
    output_public_key: bytes = b""

    def message(self, job_request_id: str) -> aggregation_pb2.JobParameters:
        """Return the message for a job id; raise ``ClientError`` for a number that does not fit into it."""
        if self.key_mask is not None and not 0 <= self.key_mask < 1 << 128:
            raise bad_argument(f"key_mask {self.key_mask} is outside 0 to 2^128 - 1")
        if not -(1 << 63) <= self.input_report_count < 1 << 63:
            raise bad_argument(f"input_report_count {self.input_report_count} does not fit into 64 bits")
        if sum(map(bool, (self.epsilon, self.rho, self.mechanism))) > 1:
            raise bad_argument("epsilon, rho and mechanism are different kinds of noise: give one of them")
        task = self.attribution_task
        if task is not None:
            for name, number in (("histogram_size", task.histogram_size), ("max_value", task.max_value)):
                if not 0 <= number < 1 << 32:
                    raise bad_argument(f"{name} {number} does not fit into 32 bits")
        message = aggregation_pb2.JobParameters(
            job_request_id=job_request_id,
            attribution_report_to=self.attribution_report_to,
            reporting_site=self.reporting_site,
            report_error_threshold_percentage=self.report_error_threshold_percentage,
            input_report_count=self.input_report_count,
            filtering_ids=",".join(map(str, self.filtering_ids)),
            debug_run=self.debug_run,
            output_public_key=self.output_public_key,
        )
        if self.epsilon:
            message.privacy_params.laplace_dp_params.job_epsilon = self.epsilon
        if self.rho:
            message.privacy_params.gaussian_dp_params.job_rho = self.rho
        if self.mechanism:
            message.privacy_params.named_mechanism.name = self.mechanism
            message.privacy_params.named_mechanism.parameters.update(self.mechanism_parameters)
        if self.discovery_delta:
            message.key_discovery.delta = self.discovery_delta
            message.key_discovery.rule = self.discovery_rule
            if self.key_mask is not None:
                message.key_discovery.key_mask = self.key_mask.to_bytes(16, "big")
        if self.others_epsilon:
            message.others.epsilon = self.others_epsilon
        if self.shuffle is not None:
            message.shuffle.CopyFrom(aggregation_pb2.Shuffle(**asdict(self.shuffle)))
        if task is not None:
            message.attribution_task.CopyFrom(aggregation_pb2.AttributionTask(**asdict(task)))
        return message
