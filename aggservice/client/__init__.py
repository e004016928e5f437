"""The typed client library of the aggregation service."""

from aggservice.client.client import Client
from aggservice.client.credentials import Credentials
from aggservice.client.errors import ClientError
from aggservice.client.values import Job, JobStatus
from aggservice.job.parameters import AttributionTask, JobParameters, ShuffleParameters
from aggservice.job.result import Statement, Summary

__all__ = [
    "AttributionTask",
    "Client",
    "ClientError",
    "Credentials",
    "Job",
    "JobParameters",
    "JobStatus",
    "ShuffleParameters",
    "Statement",
    "Summary",
]
