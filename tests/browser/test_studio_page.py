"""The studio in a real browser: every part loads, is usable, asks nobody else, and shows what the library says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..studio.conftest import RunningStudio, serve, shelf_folder  # noqa: F401
from .devtools import Chromium, Page

PARTS = ("tune", "run", "follow", "ledger", "device", "local")
WAIT_S = 90.0
WIDTHS = (1280, 390)
_AXE = """axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => `${one.id}: ${one.nodes.map((node) => node.target.join(" ")).join(", ")}`))"""
#: Screenshots are kept when this names a folder.
_KEEP = os.environ.get("AGGSERVICE_SCREENSHOTS")


@pytest.fixture(scope="module")
def site(shelf_folder: Path) -> Iterator[RunningStudio]:  # noqa: F811
    yield from serve(shelf_folder)


@pytest.fixture(scope="module")
def browser(build: Path) -> Iterator[Chromium]:
    with Chromium() as running:
        yield running


def open_part(browser: Chromium, site: RunningStudio, part: str, width: int = 1280) -> Page:
    page = browser.open_page()
    page.resize(width, 1000)
    page.navigate(f"{site.address}#{part}")
    page.wait_for(f"document.body.dataset.part === {json.dumps(part.split('/', maxsplit=1)[0])}", wait_s=WAIT_S)
    return page


def check_quiet(page: Page, site: RunningStudio) -> None:
    """No console message, no error shown, no request to another machine."""
    assert page.console == []
    assert all(url.startswith((site.url, "data:", "blob:")) for _, url in page.requests), page.requests
    assert page.evaluate("[...document.querySelectorAll('.error')].map((one) => one.textContent)") == []
    page.close()


def keep(page: Page, name: str) -> None:
    if _KEEP:
        page.screenshot(Path(_KEEP) / f"studio-{name}.png", whole=True)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("part", PARTS)
def test_every_part_loads_accessible_at_both_widths(
    browser: Chromium, site: RunningStudio, axe: str, part: str, width: int
) -> None:
    page = open_part(browser, site, part, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    page.evaluate(f"{axe}; 0")
    assert page.evaluate(_AXE) == []
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert page.evaluate(_AXE) == []
    check_quiet(page, site)


def test_moving_epsilon_changes_the_expected_error(browser: Chromium, site: RunningStudio) -> None:
    page = open_part(browser, site, "tune")
    first = "document.querySelectorAll('#expected h3 + .tiles b')[0].textContent"
    before = page.wait_for(first, wait_s=WAIT_S)
    page.evaluate(
        """(() => { const slider = document.querySelector('[data-path="queries.0.epsilon"] input[type=range]');
        slider.value = Number(slider.max) / 4; slider.dispatchEvent(new Event("input")); })()"""
    )
    page.wait_for(f"{first} !== {json.dumps(before)}", wait_s=WAIT_S)
    after = page.evaluate(first)
    assert float(after.lstrip("± ").replace(",", "")) > float(before.lstrip("± ").replace(",", ""))
    text = page.evaluate("document.querySelector('textarea').value")
    asked = page.evaluate("document.querySelector('[data-path=\"queries.0.epsilon\"] input[type=number]').value")
    assert f'epsilon = "{asked}"' in text
    found = site.post("tune", toml=text)["queries"][0]["measures"][0]["rmse"]
    assert float(after.lstrip("± ").replace(",", "")) == pytest.approx(found, rel=0.01)
    page.evaluate("document.querySelector('details').open = true")
    keep(page, "tune")
    check_quiet(page, site)


def test_a_campaign_runs_to_its_end_and_another_is_cancelled(browser: Chromium, site: RunningStudio) -> None:
    page = open_part(browser, site, "run")
    page.evaluate("document.querySelector('main select').value = '0/small.toml'")
    page.evaluate("document.getElementById('run-start').click()")
    page.wait_for("document.querySelectorAll('#part progress').length >= 6", wait_s=WAIT_S)
    page.wait_for("document.querySelector('section h2')?.textContent", wait_s=WAIT_S)
    runs = sorted(site.folder.glob("thanksgiving-shoes-run-*"))
    metrics = json.loads((runs[-1] / "metrics.json").read_text(encoding="utf-8"))
    rows = page.evaluate("[...document.querySelectorAll('section table')][0].tBodies[0].rows.length")
    assert rows == len(metrics["jobs"][-1]["slices"])
    keep(page, "run")
    large = site.folder / "large.toml"
    text = (site.folder / "thanksgiving" / "campaign.toml").read_text(encoding="utf-8")
    large.write_text(text.replace("size = 20_000", "size = 900_000"), encoding="utf-8")
    page = open_part(browser, site, "run")
    page.evaluate("document.querySelector('main select').value = '0/large.toml'")
    page.evaluate("document.getElementById('run-start').click()")
    page.wait_for("document.getElementById('run-cancel') !== null", wait_s=WAIT_S)
    page.evaluate("document.getElementById('run-cancel').click()")
    assert "cancelled" in page.wait_for("document.getElementById('run-end')?.textContent", wait_s=WAIT_S)
    large.unlink()
    assert len(sorted(site.folder.glob("thanksgiving-shoes-run-*"))) == len(runs)
    check_quiet(page, site)


def test_a_report_is_followed(browser: Chromium, site: RunningStudio) -> None:
    page = open_part(browser, site, "follow")
    steps = "document.querySelectorAll('ol.steps > li').length"
    assert page.wait_for(steps, wait_s=WAIT_S) == 8
    keep(page, "follow")
    first = page.evaluate("document.querySelector('main h2').textContent")
    page.evaluate("document.getElementById('follow-next').click()")
    page.wait_for(
        f"(document.querySelector('main h2')?.textContent ?? {json.dumps(first)}) !== {json.dumps(first)}",
        wait_s=WAIT_S,
    )
    check_quiet(page, site)


def test_a_ledger_verifies_and_a_tampered_copy_does_not(browser: Chromium, site: RunningStudio) -> None:
    page = open_part(browser, site, "ledger/0/small-run/ledger/ledger.sqlite")
    page.wait_for("document.getElementById('ledger-verify') !== null", wait_s=WAIT_S)
    page.evaluate("document.getElementById('ledger-verify').click()")
    page.wait_for("document.querySelector('#audit .ok') !== null", wait_s=WAIT_S)
    keep(page, "ledger")
    page.evaluate("document.getElementById('ledger-tamper').click()")
    said = page.wait_for("document.querySelector('#audit .error')?.textContent", wait_s=WAIT_S)
    assert said.startswith("Disagreement")
    page.evaluate("document.querySelector('#audit .error').className = ''")
    check_quiet(page, site)


def test_a_scenario_is_stepped_through(browser: Chromium, site: RunningStudio) -> None:
    page = open_part(browser, site, "device")
    page.evaluate("document.getElementById('device-save').click()")
    page.wait_for("document.querySelectorAll('ul.steps > li').length === 1", wait_s=WAIT_S)
    page.evaluate("document.getElementById('device-wait').click()")
    page.wait_for("document.querySelectorAll('ul.steps > li').length === 2", wait_s=WAIT_S)
    page.evaluate("document.getElementById('device-convert').click()")
    page.wait_for("document.querySelector('figure svg') !== null", wait_s=WAIT_S)
    keep(page, "device")
    page.evaluate(
        """(() => { const pick = document.querySelector('main select'); pick.value = '0/scenarios/cost-rounds-up.json';
        pick.dispatchEvent(new Event("change")); })()"""
    )
    page.wait_for("document.getElementById('device-step') !== null", wait_s=WAIT_S)
    for _ in range(2):
        page.evaluate("document.getElementById('device-step').click()")
        page.wait_for("document.querySelector('.good') !== null", wait_s=WAIT_S)
    assert page.evaluate("document.querySelectorAll('.good').length") >= 1
    check_quiet(page, site)


def test_text_of_a_campaign_is_never_markup(browser: Chromium, site: RunningStudio) -> None:
    """A name that holds a script and an image with a handler stands on the page as text."""
    text = (site.folder / "small.toml").read_text(encoding="utf-8")
    evil = "<img src=x onerror=globalThis.broken=1><script>globalThis.broken=1</script>"
    text = text.replace('"Thanksgiving", "Black Friday"', f"'{evil}', 'Black Friday'").replace(
        'name = "Thanksgiving shoes"', f"name = '{evil}'"
    )
    path = site.folder / "evil.toml"
    path.write_text(text, encoding="utf-8")
    started = site.post("runs", toml=text, seed="evil")
    assert site.follow(started["feed"])[-1] == {"state": "finished"}
    page = open_part(browser, site, "run")
    page.evaluate(
        f"""(() => {{ const pick = [...document.querySelectorAll('main select')].find((one) => [...one.options].some(
        (option) => option.value === {json.dumps(started["run"])})); pick.value = {json.dumps(started["run"])};
        pick.dispatchEvent(new Event("change")); }})()"""
    )
    page.wait_for("document.querySelector('section h2') !== null", wait_s=WAIT_S)
    assert page.evaluate("document.querySelector('section h2').textContent") == evil
    assert (
        page.evaluate("globalThis.broken ?? null") is None
        and page.evaluate("document.querySelectorAll('main img').length") == 0
    )
    path.unlink()
    check_quiet(page, site)
