"""The errors of ``w3c_client``: those that a page sees, and those for the user of the simulator."""

from __future__ import annotations

from enum import StrEnum


class W3cError(Exception):
    """The base of every error this package raises."""


class ConfigError(W3cError, ValueError):
    """A limit or a budget of ``Config`` is outside its range."""


class ScenarioError(W3cError, ValueError):
    """A scenario, a line of scenarios or a file of header cases does not follow its format."""


class ErrorName(StrEnum):
    """The names of the errors with which the API rejects a call. The last two are names of a ``DOMException``."""

    TYPE = "TypeError"
    RANGE = "RangeError"
    REFERENCE = "ReferenceError"
    SYNTAX = "SyntaxError"
    NOT_ALLOWED = "NotAllowedError"


class CallError(W3cError, ValueError):
    """A call is rejected, and changes nothing. ``name`` is the platform's name of the error.

    The cause is always the page's own arguments, policy or activation, never stored impressions or budgets.
    """

    def __init__(self, name: ErrorName, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name

    @property
    def is_dom_exception(self) -> bool:
        """Whether the platform wraps the name in a ``DOMException``."""
        return self.name in (ErrorName.SYNTAX, ErrorName.NOT_ALLOWED)


class HeaderError(W3cError, ValueError):
    """A response header is malformed. A browser silently ignores that header and processes the others."""
