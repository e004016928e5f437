"""The best use of a campaign's budget: scales, clipping bounds and ε, chosen on one half and judged on the other."""
