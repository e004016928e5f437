"""The errors of ``ldp_client``."""

from __future__ import annotations


class LdpError(Exception):
    """The base of every error this package raises."""


class ProtocolError(LdpError, ValueError):
    """A protocol was asked for with parameters for which it is not defined."""


class ReportError(LdpError, ValueError):
    """A value, report or column does not belong to the protocol it was given to."""


class StateError(LdpError, ValueError):
    """A saved client state cannot be read, or belongs to a client of another protocol."""


class RegistryError(LdpError):
    """A device registry refuses a token: this client, or this report id, has one for the collection already."""


class DataError(LdpError):
    """A data set is missing or is not what its name says."""


class FigureError(LdpError):
    """A figure cannot be made as asked."""
