"""The typed client library of the aggregation service."""

from aggservice.client.client import Client, balance_left
from aggservice.client.credentials import Credentials
from aggservice.client.errors import ClientError
from aggservice.client.parameters import JobParameters, ShuffleParameters
from aggservice.client.summary import Shuffled, Statement, Summary

__all__ = [
    "Client",
    "ClientError",
    "Credentials",
    "JobParameters",
    "ShuffleParameters",
    "Shuffled",
    "Statement",
    "Summary",
    "balance_left",
]
