"""The errors of ``ldp_client``."""

from __future__ import annotations


class LdpError(Exception):
    """The base of every error this package raises."""


class LdpParameterError(LdpError, ValueError):
    """A protocol is not defined for the parameters given."""


class ReportError(LdpError, ValueError):
    """A value, report or column does not fit the protocol that it was given to."""


class StateError(LdpError, ValueError):
    """A saved client state cannot be read, or belongs to another protocol."""


class RegistryError(LdpError):
    """A device registry refuses a token: the client or the report id already has one for the collection."""


class DataError(LdpError):
    """A data set is missing, or its contents differ from what its name says."""


class FigureError(LdpError):
    """A figure cannot be made from this request."""
