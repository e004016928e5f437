"""Randomness and exact noise: from random bits through integers to integers."""

from mechanisms.bernoulli import bernoulli, bernoulli_batch, bernoulli_exp, bernoulli_exp_batch
from mechanisms.bits import Bits, ForbiddenBits, SecureBits, SeededBits
from mechanisms.clock import Clock, ManualClock, SystemClock
from mechanisms.errors import MechanismError, ParameterError, RandomnessForbiddenError
from mechanisms.reals import Real, exp
from mechanisms.uniform import uniform_below, uniform_below_batch

__all__ = [
    "Bits",
    "Clock",
    "ForbiddenBits",
    "ManualClock",
    "MechanismError",
    "ParameterError",
    "RandomnessForbiddenError",
    "Real",
    "SecureBits",
    "SeededBits",
    "SystemClock",
    "bernoulli",
    "bernoulli_batch",
    "bernoulli_exp",
    "bernoulli_exp_batch",
    "exp",
    "uniform_below",
    "uniform_below_batch",
]
