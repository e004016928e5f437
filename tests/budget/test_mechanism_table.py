"""Nothing but the tables knows the names and classes of mechanisms, rules and filters: a new one is one class."""

from __future__ import annotations

import ast
from pathlib import Path

from budget import DISCOVERY_RULES, FILTERS, MECHANISMS

ROOT = Path(__file__).parents[2]
#: The lone verifier is written a second time on purpose, and shares no code with what it verifies.
INDEPENDENT = {"budget/audit/standalone.py"}
TABLES = {"budget/mechanisms.py", "budget/filters.py"}
#: Where ε alone stands for Laplace noise: in jobs, campaigns and the command that prices a release.
LAPLACE_BY_DEFAULT = {
    "aggservice/job/request.py",
    "aggservice/campaign/settings/campaign.py",
    "aggservice/campaign/service/jobs.py",
}


def branches() -> list[tuple[str, int, str]]:
    """Return every comparison and isinstance with a name or class of the tables."""
    entries = [table[name] for table in (MECHANISMS, DISCOVERY_RULES, FILTERS) for name in table]  # type: ignore[attr-defined]
    known = {one.name for one in entries} | {one.__name__ for one in entries}
    found = []
    for package in ("aggservice", "budget", "w3c_client", "ldp_client", "ara_client", "paa_client"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name in INDEPENDENT | TABLES or "_pb2" in name:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                asks = isinstance(node, ast.Compare | ast.MatchValue | ast.MatchClass) or (
                    isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass")
                )
                for one in ast.walk(node) if asks else ():
                    text = one.id if isinstance(one, ast.Name) else one.value if isinstance(one, ast.Constant) else None
                    if isinstance(text, str) and text in known:
                        found.append((name, node.lineno, text))
    return found


def test_nothing_else_branches_on_a_mechanism_a_rule_or_a_filter() -> None:
    found = branches()
    others = [one for one in found if one[0] not in LAPLACE_BY_DEFAULT or not one[2].startswith("Laplace")]
    assert others == []
    assert {one[0] for one in found} == LAPLACE_BY_DEFAULT
