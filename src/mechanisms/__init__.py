"""Randomness and exact noise: from random bits through integers to integers.

``Bits`` and ``Clock`` are where chance and time come from; ``DiscreteLaplace``, ``TruncatedDiscreteLaplace``,
``DiscreteGaussian`` and ``RandomizedResponse`` are noise with its law beside it; ``Real`` is a probability that is
never rounded; the rest are the numbers that a guarantee is made of.
"""

from mechanisms.bernoulli import bernoulli, bernoulli_batch, bernoulli_exp, bernoulli_exp_batch
from mechanisms.bits import Bits, ForbiddenBits, SecureBits, SeededBits
from mechanisms.clock import Clock, ManualClock, SystemClock
from mechanisms.composition import advanced_epsilon, epsilon_of_zcdp, rho_of_pure
from mechanisms.errors import MechanismError, ParameterError, RandomnessForbiddenError
from mechanisms.gaussian import DiscreteGaussian
from mechanisms.laplace import DiscreteLaplace, TruncatedDiscreteLaplace
from mechanisms.reals import Real, exp
from mechanisms.response import RandomizedResponse
from mechanisms.threshold import discovery_threshold, truncated_delta
from mechanisms.uniform import uniform_below, uniform_below_batch

__all__ = [
    "Bits",
    "Clock",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "ForbiddenBits",
    "ManualClock",
    "MechanismError",
    "ParameterError",
    "RandomizedResponse",
    "RandomnessForbiddenError",
    "Real",
    "SecureBits",
    "SeededBits",
    "SystemClock",
    "TruncatedDiscreteLaplace",
    "advanced_epsilon",
    "bernoulli",
    "bernoulli_batch",
    "bernoulli_exp",
    "bernoulli_exp_batch",
    "discovery_threshold",
    "epsilon_of_zcdp",
    "exp",
    "rho_of_pure",
    "truncated_delta",
    "uniform_below",
    "uniform_below_batch",
]
