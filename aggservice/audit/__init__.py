"""Attacks a service with neighbour games: lower bounds on ε beside what was charged, and exact games."""

from aggservice.audit.exact import ExactGame
from aggservice.audit.run import GamesReport, run_audit
from aggservice.audit.target import RemoteTarget

__all__ = ["ExactGame", "GamesReport", "RemoteTarget", "run_audit"]
