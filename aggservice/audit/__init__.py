"""Attacks a service with neighbour games: lower bounds on ε beside what was charged, and exact games."""

from aggservice.audit.exact import ExactGame

__all__ = ["ExactGame"]
