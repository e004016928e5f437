"""Runs: start a campaign in a process of its own, follow and cancel it, and read what a run left behind."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, Final

from aggservice.campaign.metrics import METRICS, shown_in
from aggservice.studio.errors import StudioError, TooManyError, UnknownItemError
from aggservice.studio.feeds import Feed, Feeds
from aggservice.studio.given import Given
from aggservice.studio.shelf import DEMO, MAX_FILE_BYTES, Kind, Shelf

MAX_RUNNING: Final = 2


class Runs:
    """The runs that this studio started, and the finished ones on its shelf."""

    def __init__(self, shelf: Shelf, feeds: Feeds) -> None:
        self._shelf = shelf
        self._feeds = feeds
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start(self, given: Given) -> dict[str, Any]:
        """Start a run of the campaign ``toml``; return the id of its feed and of the run's folder.

        Relative paths in the file are relative to the folder of the item ``campaign``, if it comes from the shelf.
        """
        text, number = given.text("toml"), given.whole("folder", 0, least=0, most=len(self._shelf.folders) - 1)
        item = given.text("campaign") if given.has("campaign") else DEMO
        campaign = self._shelf.parse(text, item, number=number)
        for done in [one for one, process in self._running.items() if process.poll() is not None]:
            del self._running[done]
        if len(self._running) >= MAX_RUNNING:
            raise TooManyError(f"{MAX_RUNNING} campaigns are running: cancel one, or wait for its end")
        out = self._free_folder(number, campaign.name)
        name = secrets.token_hex(8)
        feed = self._feeds.open(name)
        asked = {
            "toml": text,
            "folder": str(campaign.folder),
            "files": str(self._shelf.files(campaign.folder).folder),
            "out": str(out),
            "seed": given.text("seed", "", most=200),
            "draw": find_spec("matplotlib") is not None,
            "compare": given.flag("compare"),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "aggservice.studio.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        self._running[name] = process
        Thread(target=self._follow, args=(process, feed, out), daemon=True).start()
        return {"feed": name, "run": self._shelf.id_of(out)}

    def cancel(self, given: Given) -> dict[str, Any]:
        """End a run and remove what it had written."""
        process = self._running.get(given.text("feed", most=100))
        if process is None:
            raise UnknownItemError("this run has ended, or is unknown: there is nothing to cancel")
        _end(process)
        return {"cancelled": True}

    def stop(self) -> None:
        """End every run."""
        for process in self._running.values():
            _end(process)

    def result(self, given: Given) -> dict[str, Any]:
        """Return ``metrics.json`` of a run, which metrics to show, its transcript of losses and its ledger's id."""
        folder = self._shelf.path(given.text("run"), Kind.RUN)
        ledger = folder / "ledger" / "ledger.sqlite"
        return {
            "metrics": self._read_json(folder / "metrics.json"),
            "shown": [
                {"key": one.in_query, "title": one.title, "share": one.share}
                for one in shown_in("studio", map(METRICS.__getitem__, METRICS))
                if one.in_query
            ],
            "timings": self._read_json(folder / "timings.json"),
            "transcript": self._read_json(folder / "transcript.json"),
            "ledger": self._shelf.id_of(ledger) if self._shelf.files(ledger).is_file(ledger) else None,
        }

    def comparison(self, given: Given) -> dict[str, Any]:
        """Return ``comparison.json``: one campaign on several APIs, and the run of each."""
        folder = self._shelf.path(given.text("comparison"), Kind.COMPARISON)
        found = self._read_json(folder / "comparison.json")
        return found | {"runs": {api: self._shelf.id_of(folder / api) for api in found["apis"]}}

    def _read_json(self, path: Path) -> Any:
        if not self._shelf.files(path).is_file(path):
            return None
        try:
            return json.loads(self._shelf.read(path, MAX_FILE_BYTES))
        except OSError:
            raise StudioError(
                f"{path.name} is larger than {MAX_FILE_BYTES >> 20} MiB: read it with a program"
            ) from None
        except ValueError:
            raise StudioError(f"{path.name} of this run is not JSON: run the campaign again") from None

    def _free_folder(self, number: int, name: str) -> Path:
        stem = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:60] or "campaign"
        for count in range(1, 10_000):
            path = self._shelf.folders[number] / f"{stem}-run-{count}"
            if not path.exists() and not path.is_symlink():
                return path
        raise StudioError(f"there are 9,999 runs of {stem}: remove some")

    def _follow(self, process: subprocess.Popen[str], feed: Feed, out: Path) -> None:
        """Pass the worker's events on until it ends; a run that did not finish leaves no folder."""
        assert process.stdout is not None and process.stderr is not None
        state = {"state": "cancelled"}
        for line in process.stdout:
            event = json.loads(line)
            if "finished" in event:
                state = {"state": "finished"}
            elif "failed" in event:
                state = {"state": "failed", "error": event["failed"]}
            else:
                feed.add(event)
        problem = process.stderr.read()
        if process.wait() > 0 and state["state"] == "cancelled":
            state = {"state": "failed", "error": problem.strip().rpartition("\n")[2][:500] or "the run ended early"}
        if state["state"] != "finished":
            shutil.rmtree(out, ignore_errors=True)
        feed.close(**state)


def _end(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
