"""The process that runs one campaign for the studio: ``python -m aggservice.studio.worker``.

Its first line of standard input is the request, as JSON; its lines of standard output are events. When its standard
input ends, because the studio cancelled the run or died, it ends with all of its own processes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

_EVERY_S = 0.05


def _say(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    sys.stdin.read()
    os.killpg(os.getpgid(0), signal.SIGKILL)


def main() -> None:
    """Run the campaign of the request and print its events."""
    asked = json.loads(sys.stdin.readline())
    Thread(target=_end_with_parent, daemon=True).start()
    from aggservice.campaign import CampaignError, parse_campaign, run_campaign
    from aggservice.campaign.compare import run_comparison
    from aggservice.files.below import Below

    latest, at = "", 0.0

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal latest, at
        now = time.monotonic()
        if stage != latest or done >= total or now - at > _EVERY_S:
            latest, at = stage, now
            _say(stage=stage, done=done, total=total)

    try:
        files = Below(folder=Path(asked["files"]))
        campaign = parse_campaign(asked["toml"], folder=Path(asked["folder"]), files=files)
        run = run_comparison if asked["compare"] else run_campaign
        run(campaign, Path(asked["out"]), seed=asked["seed"] or None, progress=progress, draw=asked["draw"])
    except CampaignError as problem:
        _say(failed=str(problem))
    else:
        _say(finished=True)


if __name__ == "__main__":
    main()
