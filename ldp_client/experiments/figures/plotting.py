"""Plots without global state: a grid of panels, and saving it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ldp_client.errors import FigureError


def grid_of_panels(rows: int, columns: int, *, width: float = 4.0, height: float = 3.2) -> tuple[Any, list[Any]]:
    """Return a figure and its panels, row by row. Needs matplotlib (the ``plots`` extra)."""
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise FigureError("plots need matplotlib: pip install 'aggservice[plots]'") from error
    figure = Canvas(figsize=(width * columns, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def save(figure: Any, path: Path) -> Path:
    """Write the figure as PNG and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path
