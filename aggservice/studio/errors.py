"""What the studio refuses, with the HTTP status of each kind."""

from __future__ import annotations


class StudioError(Exception):
    """A request that the studio refuses; the message says what to do."""

    status = 400


class UnknownItemError(StudioError):
    """The named file, run, ledger or session is not one that this studio shows."""

    status = 404


class TooManyError(StudioError):
    """A limit of the studio is reached: open streams, running campaigns or devices."""

    status = 429
