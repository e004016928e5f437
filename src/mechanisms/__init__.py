"""Randomness and exact noise: from random bits through integers to integers."""

from mechanisms.bits import Bits, ForbiddenBits, SecureBits, SeededBits
from mechanisms.clock import Clock, ManualClock, SystemClock
from mechanisms.errors import MechanismError, ParameterError, RandomnessForbiddenError

__all__ = [
    "Bits",
    "Clock",
    "ForbiddenBits",
    "ManualClock",
    "MechanismError",
    "ParameterError",
    "RandomnessForbiddenError",
    "SecureBits",
    "SeededBits",
    "SystemClock",
]
