"""The errors of ``ara_client``. A malformed header is never one of these: a browser reports or drops it."""

from __future__ import annotations


class AraClientError(Exception):
    """The base of every error this package raises."""


class ConfigurationError(AraClientError, ValueError):
    """A vendor value, a configuration file or an argument of ``Browser`` is outside the range it is defined for."""


class RequestError(AraClientError, ValueError):
    """What the caller says a page did cannot have happened: an unsuitable context, a header no browser would send."""


class UnsealedReportError(AraClientError):
    """The JSON body of an aggregatable report was asked for, but the browser had no key to seal it to."""


class InteropCaseError(AraClientError, ValueError):
    """An interoperability case is not in the format that the suite defines; the message names the field."""
