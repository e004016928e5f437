"""The errors of ``mechanisms``."""

from __future__ import annotations


class MechanismError(Exception):
    """The base of every error this package raises."""


class ParameterError(MechanismError, ValueError):
    """A parameter is outside the range for which the mechanism is defined."""


class RandomnessForbiddenError(MechanismError):
    """Bits were drawn from ``ForbiddenBits``."""
