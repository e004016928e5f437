"""Exact discrete Laplace noise, beside its law: P[x] is proportional to exp(-ε|x|/Λ₁), with no float in between."""

from fractions import Fraction

import numpy as np

from aggservice.mechanisms import DiscreteLaplace, SecureBits

DRAWS = 1_000_000
noise = DiscreteLaplace(epsilon_micro=1_000_000, sensitivity=4)  # ε = 1, Λ₁ = 4: a scale of 4
drawn = noise.sample(SecureBits(), DRAWS)

print("value   drawn      law")
worst = 0.0
for value in range(-6, 7):
    share, law = float(np.mean(drawn == value)), float(noise.pmf(value))
    deviation = (law * (1 - law) / DRAWS) ** 0.5
    worst = max(worst, abs(share - law) / deviation)
    print(f"{value:5}   {share:.5f}   {law:.5f}")

# Each share is a mean of a million coins. One of the 13 lies 7 standard deviations off with probability below 1e-10.
print(f"largest difference: {worst:.1f} standard deviations")
assert worst < 7

high = noise.quantile(Fraction(39, 40))  # at least 95 % of the noise lies within this distance of 0
print(f"within ±{high}: {np.mean(np.abs(drawn) <= high):.4f} of the draws, at least 0.95 by the law")
