"""Attacks a service with neighbour games: lower bounds on ε beside what was charged, and exact games."""

from aggservice.audit.exact import ExactGame
from aggservice.audit.run import AuditReport, run_audit
from aggservice.audit.target import Remote

__all__ = ["AuditReport", "ExactGame", "Remote", "run_audit"]
