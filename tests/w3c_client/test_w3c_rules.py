"""Rules are one class each: nothing else in the product knows them by name or by class."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggservice.wire.device import DeviceConfigError
from w3c_client import ATTRIBUTION_RULES, DEFAULT_SERVICE, RULES, Browser, Config, OnDeviceRule, design_config
from w3c_client.rules import RuleCost, ScopeColumn, SiteBudget, rule_of

ROOT = Path(__file__).resolve().parents[2]
HOMES = {"w3c_client/rules.py", "w3c_client/credit.py"}
NAMES = {*RULES.names, *ATTRIBUTION_RULES.names}
CLASSES = {rule.__name__ for table in (RULES, ATTRIBUTION_RULES) for rule in map(table.__getitem__, table.names)}  # type: ignore[union-attr]


def branches(source: str) -> Iterator[ast.AST]:
    """Yield what chooses by the name or the class of a rule: comparisons, cases, keys of tables and type tests."""
    for node in ast.walk(ast.parse(source)):
        asked: list[ast.AST | None] = []
        if isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            asked = [node.value]
        elif isinstance(node, ast.Dict):
            asked = list(node.keys)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            asked = list(ast.walk(node.args[1]))
        for one in asked:
            if (isinstance(one, ast.Constant) and one.value in NAMES) or (
                isinstance(one, ast.Name) and one.id in CLASSES
            ):
                yield one


def test_no_other_module_branches_on_a_rule() -> None:
    found = []
    for package in ("aggservice", "ara_client", "paa_client", "ldp_client", "w3c_client", "budget"):
        for path in (ROOT / package).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            if name not in HOMES:
                found += [f"{name}:{one.lineno}" for one in branches(path.read_text(encoding="utf-8"))]  # type: ignore[attr-defined]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "a == 'site-budget'",
        "b = {'action-cap': 1}",
        "isinstance(a, (int, SiteBudget))",
        "match a:\n case 'last-n-touch': pass",
        "a is SiteBudget",
    ],
)
def test_the_search_sees_each_way_to_branch(source: str) -> None:
    assert list(branches(source))


def test_rules_are_given_as_names_classes_or_objects_and_asked_in_order() -> None:
    config = Config(rules=("impression-site-quota", SiteBudget, rule_of("global-budget")))  # type: ignore[arg-type]
    assert [rule.name for rule in config.rules] == ["site-budget", "global-budget", "impression-site-quota"]
    assert config == Config() and hash(config.rules) == hash(Config().rules)
    assert [rule.name for rule in design_config("big-bird").rules] == list(RULES)[
        : len(design_config("big-bird").rules)
    ]


class Tight(OnDeviceRule):
    """A budget that charges the norm although it is not known."""

    name = "tight"

    def capacity(self, config: Config) -> int:
        return 1

    def cost(self, config: Config, *, one_epoch: bool, named_sites: int) -> RuleCost:
        return RuleCost(norm=1, value=0)


class Counting(Tight):
    """Counts sites by publisher, which a call that saves does not have."""

    name = "counting"
    counts_sites = True
    scope = (ScopeColumn.IMPRESSION_SITE,)


def test_rules_that_cannot_run_are_refused() -> None:
    with pytest.raises(DeviceConfigError, match="two on-device rules are named tight"):
        Config(rules=(Tight(), Tight()))
    with pytest.raises(DeviceConfigError, match="counting counts sites"):
        Config(rules=(Counting(),))
    with pytest.raises(DeviceConfigError, match="at most twice the value"):
        RuleCost(norm=1, value=2)
    with pytest.raises(ValueError, match="there is no on-device rule 'site-budge': did you mean 'site-budget'"):
        Config(rules=("site-budge",))  # type: ignore[arg-type]
    with pytest.raises(DeviceConfigError, match="there is no design 'w3': choose one of w3c, big-bird"):
        design_config("w3")


def test_a_norm_that_is_not_known_yet_cannot_be_charged() -> None:
    from aggservice.mechanisms import ManualClock, SeededBits

    browser = Browser(clock=ManualClock(10**12), bits=SeededBits("x"), config=Config(rules=(Tight(),)))
    browser.save_impression("news.example", {"histogramIndex": 0})
    with pytest.raises(DeviceConfigError, match="tight charges the norm of a window over several epochs"):
        browser.measure_conversion("shop.example", {"aggregationService": DEFAULT_SERVICE, "histogramSize": 1})
