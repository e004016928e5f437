"""Figures and tables of the papers, each as data and as a plot, found by name.

Each module of this package is a family of figures in a tuple ``FIGURES``; ``all_figures`` finds new modules by itself.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from ldp_client.errors import FigureError
from ldp_client.experiments.figures.kinds import Figure, FigureFiles, FigureRequest

__all__ = ["Figure", "FigureFiles", "FigureRequest", "all_figures", "find_figure"]


def all_figures() -> dict[str, Figure]:
    """Return every figure by name, in the order of modules and of their tuples."""
    found: dict[str, Figure] = {}
    for module in sorted(iter_modules(__path__), key=lambda each: each.name):
        for figure in getattr(import_module(f"{__name__}.{module.name}"), "FIGURES", ()):
            if figure.name in found:
                raise FigureError(f"two figures are named {figure.name!r}: rename one of them")
            found[figure.name] = figure
    return found


def find_figure(name: str) -> Figure:
    """Return the figure ``name``; FigureError lists all names if there is none."""
    figures = all_figures()
    if name not in figures:
        raise FigureError(f"there is no figure {name!r}: choose one of {', '.join(figures)}")
    return figures[name]
