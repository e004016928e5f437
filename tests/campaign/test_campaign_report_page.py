"""``report.html`` in a real browser: no console error, no request, plots legible at 1280 × 800 (``make soak``)."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aggservice.campaign import run_campaign, thanksgiving

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MIN_FONT_PX = 12.0
DRAWN_WIDTH_PT, DRAWN_FONT_PT = 691.2, 11.0


class Page:
    """A tab of a headless browser, spoken to over its debugging pipe (descriptors 3 and 4)."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self.session = ""

    def send(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(60)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser says nothing")
            self._buffer += os.read(self._read, 1 << 20)
        raw, _, self._buffer = self._buffer.partition(b"\0")
        found = json.loads(raw)
        if "method" in found:
            self.events.append(found)
        return found

    def listen(self, seconds: float) -> None:
        """Take what the browser says for a while."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                self._next(deadline - time.monotonic())
            except TimeoutError:
                return


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Page]:
    to_browser, from_browser = os.pipe(), os.pipe()
    theirs = fcntl.fcntl(to_browser[0], fcntl.F_DUPFD, 20), fcntl.fcntl(from_browser[1], fcntl.F_DUPFD, 20)

    command = ["bash", "-c", f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}', "bash", program]
    command += ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    command += ["--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, pass_fds=theirs, stderr=subprocess.DEVNULL)
    try:
        yield Page(to_browser[1], from_browser[0])
    finally:
        process.kill()
        process.wait(30)
        for descriptor in (*to_browser, *from_browser, *theirs):
            os.close(descriptor)


@pytest.mark.soak
def test_the_report_opens_in_a_browser_without_a_word(tmp_path: Path) -> None:
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser is installed; looked for {', '.join(BROWSERS)}")
    result = run_campaign(thanksgiving(), tmp_path / "run", seed="page", workers=1)
    address = result.report.resolve().as_uri()
    with browser(program, tmp_path / "profile") as page:
        target = page.send("Target.createTarget", url="about:blank")["targetId"]
        page.session = page.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            page.send(f"{domain}.enable")
        page.send("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)
        page.events.clear()
        page.send("Page.navigate", url=address)
        page.listen(5)
        measured = page.send(
            "Runtime.evaluate",
            expression="JSON.stringify([...document.querySelectorAll('figure svg')].map(one => {"
            "const box = one.getBoundingClientRect(); return [box.left, box.right, box.width, box.height]}))",
        )
        boxes = json.loads(measured["result"]["value"])
        width = page.send("Runtime.evaluate", expression="document.documentElement.scrollWidth")["result"]["value"]
        for number in range(len(boxes)):
            page.send(
                "Runtime.evaluate",
                expression=f"document.querySelectorAll('figure')[{number}].scrollIntoView({{block: 'center'}})",
            )
            picture = page.send("Page.captureScreenshot", format="png")["data"]
            (tmp_path / f"figure-{number}.png").write_bytes(base64.b64decode(picture))
    words = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
    assert [event for event in page.events if event["method"] in words] == []
    requests = [event["params"] for event in page.events if event["method"] == "Network.requestWillBeSent"]
    asked = [one["request"]["url"] for one in requests]
    assert asked[0] == address
    assert [url for url in asked[1:] if not url.startswith("data:")] == []
    assert len(boxes) >= 4 and width <= 1280
    for left, right, wide, high in boxes:
        assert left >= 0 and right <= 1280 and high > 100
        assert DRAWN_FONT_PT * wide / DRAWN_WIDTH_PT >= MIN_FONT_PX
    print(f"{len(boxes)} plots, {min(box[2] for box in boxes):.0f} px wide at 1280 × 800; pictures in {tmp_path}")
