"""The errors of ``w3c_client``: those that a page sees, and those for the user of the simulator."""

from __future__ import annotations

from enum import StrEnum

from aggservice.wire.device import DeviceError


class ScenarioError(DeviceError, ValueError):
    """A scenario, a line of scenarios or a file of header cases does not follow its format."""


class ErrorName(StrEnum):
    """The names of the errors with which the API rejects a call. The last two are names of a ``DOMException``."""

    TYPE = "TypeError"
    RANGE = "RangeError"
    REFERENCE = "ReferenceError"
    SYNTAX = "SyntaxError"
    NOT_ALLOWED = "NotAllowedError"


class HeaderError(DeviceError, ValueError):
    """A response header is malformed. A browser silently ignores that header and processes the others."""
