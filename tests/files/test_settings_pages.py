"""The tables of settings in docs are those of the declarations. Run with PYTHONPATH=tests to write them again."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from aggservice.campaign.attacks.settings import AdversarySettings, AttackScenario, QuerySettings, VisitPopulation
from aggservice.campaign.file.campaign import FieldSettings
from aggservice.campaign.metrics import METRICS
from aggservice.campaign.plan import BudgetSettings, LineSettings, PlanFile
from aggservice.campaign.requery.file import STEPS, LedgerSettings, ReportGroup, RequeryScenario
from aggservice.campaign.settings.campaign import (
    Campaign,
    CollectionSettings,
    FilterSettings,
    Hierarchy,
    Measure,
    PlotSettings,
    Population,
    Query,
    ServiceSettings,
)
from aggservice.campaign.world.log_events import LogFiles
from aggservice.service.config.callers import Caller
from aggservice.service.config.settings import (
    BoundsTable,
    FoldersTable,
    LedgerTable,
    Limits,
    RegistryTable,
    ServiceConfig,
    SparkTable,
    TlsFiles,
)
from settings_table import settings_table

DOCS = Path(__file__).resolve().parents[2] / "docs"
TABLES: dict[str, tuple[str, list[tuple[str, str, type]]]] = {
    "campaign": (
        "campaign.md",
        [
            ("", "", Campaign),
            ("[population]", "people, ads and purchases", Population),
            ("[population.log]", "your own sources and triggers instead of a simulated population", LogFiles),
            ("[[keys.fields]]", "the named bit fields of the 128-bit key", FieldSettings),
            ("[filters]", "which conversions belong to the ads; without it, all", FilterSettings),
            (
                "[[measures]]",
                "what each conversion contributes; several share one report; without any, one count of scale 4,096",
                Measure,
            ),
        ],
    ),
    "campaign, after [client]": (
        "campaign.md",
        [
            ("[collection]", "what happens to reports on their way", CollectionSettings),
            ("[service]", "the embedded service's ledger", ServiceSettings),
            ("[[queries]]", "what is asked", Query),
            ("[[hierarchies]]", "see [hierarchies](hierarchies.md#in-a-campaign-file)", Hierarchy),
            ("[draw]", "what the report shows", PlotSettings),
        ],
    ),
    "attack": (
        "w3c_designs.md",
        [
            ("", "", AttackScenario),
            ("[population]", "devices, the ads they see and what they buy", VisitPopulation),
            ("[queries]", "what every conversion site asks", QuerySettings),
            ("[attack]", "the adversary", AdversarySettings),
        ],
    ),
    "scenario": (
        "requerying.md",
        [
            ("", "", RequeryScenario),
            ("[service]", "the service's ledger and bounds", LedgerSettings),
            ("[[reports]]", "a group that was sent before the first step", ReportGroup),
            *((f'do = "{name}"', "", step) for name, step in STEPS.items() if name != "query again"),
        ],
    ),
    "plan": (
        "requerying.md",
        [
            ("", "", PlanFile),
            ("[budget]", "the limits of a report", BudgetSettings),
            ("[[queries]]", "a line of queries, with at most one target", LineSettings),
        ],
    ),
    "service": (
        "service.md",
        [
            ("", "", ServiceConfig),
            ("[tls]", "without it, no TLS, which is allowed on loopback only", TlsFiles),
            ("[ledger]", "where the ledger is, its filter and its totals", LedgerTable),
            ("[sensitivity.API]", "what clients of an API enforce per privacy unit", BoundsTable),
            ("[folders]", "the roots of jobs over files, with a folder per caller", FoldersTable),
            ("[limits]", "what jobs, messages and callers may take", Limits),
            ("[[callers]]", "who may call, and what", Caller),
            ("[[shuffle.registry_keys]]", "see [shuffling](shuffling.md)", RegistryTable),
            ("[spark]", "see [scale](scale.md)", SparkTable),
        ],
    ),
}


def metrics_table() -> str:
    """Return the table of metrics of docs/campaign.md."""
    rows = [f"| `{one.name}` | {one.says} |\n" for one in map(METRICS.__getitem__, METRICS)]
    return "| metric | what it is |\n| --- | --- |\n" + "".join(rows)


def with_metrics(page: str) -> str:
    """Return the page with its table of metrics as the classes have it."""
    changed, found = re.subn(
        r"(<!-- metrics -->\n).*?(<!-- end of metrics -->)",
        lambda match: match[1] + metrics_table() + match[2],
        page,
        flags=re.S,
    )
    assert found == 1
    return changed


def test_the_table_of_metrics_is_that_of_the_classes() -> None:
    page = (DOCS / "campaign.md").read_text(encoding="utf-8")
    assert with_metrics(page) == page, f"run PYTHONPATH=tests python {Path(__file__).name}"


def written(page: str, name: str) -> str:
    """Return the page with the table between its markers as the declarations have it."""
    block = re.compile(rf"(<!-- settings: {re.escape(name)} -->\n).*?(<!-- end of settings -->)", re.S)
    changed, found = block.subn(lambda match: match[1] + settings_table(TABLES[name][1]) + match[2], page)
    assert found == 1, f"the page has {found} blocks named {name!r}"
    return changed


@pytest.mark.parametrize("name", TABLES)
def test_the_table_of_the_page_is_that_of_the_declarations(name: str) -> None:
    page = (DOCS / TABLES[name][0]).read_text(encoding="utf-8")
    assert written(page, name) == page, f"run PYTHONPATH=tests python {Path(__file__).name}"


def test_every_block_has_declarations() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    assert sorted(re.findall(r"<!-- settings: (.*?) -->", pages)) == sorted(TABLES)


if __name__ == "__main__":
    for name, (file, _) in TABLES.items():
        (DOCS / file).write_text(written((DOCS / file).read_text(encoding="utf-8"), name), encoding="utf-8")
        sys.stdout.write(f"{file}: {name}\n")
    page = DOCS / "campaign.md"
    page.write_text(with_metrics(page.read_text(encoding="utf-8")), encoding="utf-8")
