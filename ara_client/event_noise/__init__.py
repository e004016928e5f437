"""Randomized response over the states of an event-level source, and its correction."""
