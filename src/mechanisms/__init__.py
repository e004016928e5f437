"""Randomness and exact noise: from random bits through integers to integers.

``Bits`` and ``Clock`` are where chance and time come from; ``DiscreteLaplace``, ``TruncatedDiscreteLaplace``,
``DiscreteGaussian`` and ``RandomizedResponse`` are noise with its law beside it; ``Real`` is a probability that is
never rounded; the rest are the numbers that a guarantee is made of.
"""

from mechanisms.amplification import AmplificationBound, amplified_micro
from mechanisms.bernoulli import bernoulli, bernoulli_batch, bernoulli_exp, bernoulli_exp_batch
from mechanisms.bits import Bits, ForbiddenBits, SecureBits, SeededBits
from mechanisms.chaining import basic_chain, chain, second_step, small_chain, tight_chain
from mechanisms.clock import Clock, ManualClock, SystemClock
from mechanisms.clones import ExactBinaryShuffle, shuffled_delta, shuffled_epsilon
from mechanisms.composition import advanced_epsilon, epsilon_of_zcdp, rho_of_pure
from mechanisms.errors import MechanismError, ParameterError, RandomnessForbiddenError
from mechanisms.gaussian import DiscreteGaussian
from mechanisms.laplace import DiscreteLaplace, TruncatedDiscreteLaplace
from mechanisms.reals import Real, exp
from mechanisms.response import RandomizedResponse
from mechanisms.shuffling import (
    closed_epsilon,
    epsilon_of_shuffles,
    moderate_epsilon,
    rdp_epsilon,
    small_case_refusal,
    small_epsilon,
)
from mechanisms.threshold import discovery_threshold, truncated_delta
from mechanisms.uniform import uniform_below, uniform_below_batch

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
    "ParameterError",
    "RandomizedResponse",
    "RandomnessForbiddenError",
    "Real",
    "SecureBits",
    "SeededBits",
    "SystemClock",
    "TruncatedDiscreteLaplace",
    "advanced_epsilon",
    "amplified_micro",
    "basic_chain",
    "bernoulli",
    "bernoulli_batch",
    "bernoulli_exp",
    "bernoulli_exp_batch",
    "chain",
    "closed_epsilon",
    "discovery_threshold",
    "epsilon_of_shuffles",
    "epsilon_of_zcdp",
    "exp",
    "moderate_epsilon",
    "rdp_epsilon",
    "rho_of_pure",
    "second_step",
    "shuffled_delta",
    "shuffled_epsilon",
    "small_case_refusal",
    "small_chain",
    "small_epsilon",
    "tight_chain",
    "truncated_delta",
    "uniform_below",
    "uniform_below_batch",
]
