"""Estimates from noisy sums that are more than a sum: hierarchies, quantiles, ratios, lift, and their intervals."""
