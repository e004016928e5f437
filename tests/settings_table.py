"""The tables of settings in docs, from their declarations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from fractions import Fraction

from aggservice.files.settings import REQUIRED, Setting


def default_text(one: Setting) -> str:
    """The default as the docs show it."""
    if one.shown or one.default is REQUIRED or callable(one.default):
        return one.shown or "–"
    if isinstance(one.default, bool):
        return str(one.default).lower()
    if isinstance(one.default, (int, Fraction)):
        return f"{one.default:,}" if isinstance(one.default, int) else f"{float(one.default):g}"
    if isinstance(one.default, tuple):
        return ", ".join(map(str, one.default)) or "none"
    return (
        "none"
        if one.default is None
        else f"{one.default:g}"
        if isinstance(one.default, float)
        else (f"`{one.default}`" if one.default else '""')
    )


def settings_table(parts: Iterable[tuple[str, str, type]]) -> str:
    """Return the table of a page in Markdown. A part is a header such as ``[limits]``, a sentence and a dataclass."""
    lines = ["| field | default | allowed | meaning |", "| --- | --- | --- | --- |"]
    for header, sentence, of in parts:
        if header:
            lines.append(f"| **`{header}`** | | | {sentence} |".replace("|  |", "| |"))
        for one in fields(of):
            if isinstance(found := one.metadata.get("setting"), Setting) and found.says:
                name = found.key or one.name
                lines.append(f"| `{name}` | {default_text(found)} | {found.allowed} | {found.says} |")
    return "\n".join(lines) + "\n"
