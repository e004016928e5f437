"""What every test may use: the shared vectors when they are there, and the rule that soak tests run only when asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A property that holds holds on a busy machine too.
settings.register_profile("aggservice", deadline=None)
settings.load_profile("aggservice")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of vectors and data that nobody here wrote; the test is skipped where it does not exist."""
    folder = Path(os.environ.get("AGGSERVICE_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no shared vectors at {folder}: set AGGSERVICE_SHARED to the folder that holds vectors/ and data/")
    return folder


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave soak tests out unless the run asked for them with ``-m soak``."""
    if "soak" in (config.option.markexpr or ""):
        return
    kept = [item for item in items if item.get_closest_marker("soak") is None]
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("soak") is not None])
    items[:] = kept
