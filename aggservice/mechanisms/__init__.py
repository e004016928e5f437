"""Random bits, clocks, exact noise and privacy bounds. Noise is computed from bits with integers only, never floats.

``Bits`` and ``Clock`` supply randomness and time. ``DiscreteLaplace``, ``TruncatedDiscreteLaplace`` and
``DiscreteGaussian`` sample noise exactly and give its probabilities. ``Real`` is a probability that is never rounded.
The other modules compute privacy guarantees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggservice.exports import exports_of
from aggservice.mechanisms.bernoulli import bernoulli, bernoulli_batch, uniform_below, uniform_below_batch
from aggservice.mechanisms.bits import Bits, ForbiddenBits, SecureBits, SeededBits
from aggservice.mechanisms.clock import Clock, ManualClock, SystemClock
from aggservice.mechanisms.errors import MechanismError, ParameterError
from aggservice.mechanisms.gaussian import DiscreteGaussian
from aggservice.mechanisms.laplace import DiscreteLaplace, NoiseLaw, TruncatedDiscreteLaplace, discovery_threshold
from aggservice.mechanisms.reals import Real, exp
from aggservice.mechanisms.shuffling import AmplificationBound, amplified_micro, closed_epsilon, small_epsilon

if TYPE_CHECKING:
    from aggservice.mechanisms.clones import ExactBinaryShuffle, shuffled_epsilon
else:
    __getattr__ = exports_of(__name__, __file__)

__all__ = [
    "AmplificationBound",
    "Bits",
    "Clock",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "ExactBinaryShuffle",
    "ForbiddenBits",
    "ManualClock",
    "MechanismError",
    "NoiseLaw",
    "ParameterError",
    "Real",
    "SecureBits",
    "SeededBits",
    "SystemClock",
    "TruncatedDiscreteLaplace",
    "amplified_micro",
    "bernoulli",
    "bernoulli_batch",
    "closed_epsilon",
    "discovery_threshold",
    "exp",
    "shuffled_epsilon",
    "small_epsilon",
    "uniform_below",
    "uniform_below_batch",
]
