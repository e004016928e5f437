"""The errors of ``paa_client``: those a page sees, and those only an operation inside a worklet can see."""

from __future__ import annotations


class PaaError(Exception):
    """The base of every error this package raises."""


class ConfigError(PaaError, ValueError):
    """The configuration has values that no browser could have."""


class CallError(PaaError, ValueError):
    """A call from a page has invalid arguments; what a worklet does never causes this.

    ``name`` is the platform's name of the exception (``DataError``, ``SyntaxError``, ``TypeError``).
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class WorkletError(PaaError):
    """The base of the errors inside a worklet. They never leave the worklet."""


class WorkletRangeError(WorkletError, ValueError):
    """The platform's ``RangeError``: a bucket, value or filtering ID outside its range."""


class WorkletTypeError(WorkletError, TypeError):
    """The platform's ``TypeError``: an argument that cannot be converted."""


class WorkletDataError(WorkletError, ValueError):
    """The platform's ``DataError``: a call that is not allowed with these data, or not allowed twice."""


class WorkletNotAllowedError(WorkletError, RuntimeError):
    """The platform's ``NotAllowedError``: the API is used before the operation starts or after it has ended."""
