"""Attacks on on-device budgets: a population, a design of filters, an adversary, and what it leaves to others."""
