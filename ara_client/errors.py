"""The errors of ``ara_client``. A malformed header raises none of them: a browser reports or drops it."""

from __future__ import annotations


class AraClientError(Exception):
    """The base of every error this package raises."""


class ConfigurationError(AraClientError, ValueError):
    """A vendor value, a configuration file or an argument of ``Browser`` is outside its range."""


class RequestError(AraClientError, ValueError):
    """The caller describes a request that no browser sends: an unsuitable context, or an impossible header."""


class UnsealedReportError(AraClientError):
    """The JSON body of an aggregatable report was requested, but the browser had no key to seal it."""


class InteropCaseError(AraClientError, ValueError):
    """An interoperability case is not in the format that the suite defines; the message names the field."""
