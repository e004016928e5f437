"""The ``[[queries]]`` of a campaign file."""

from __future__ import annotations

import os
from fractions import Fraction

from aggservice.campaign.settings.campaign import Client, Query
from aggservice.campaign.settings.key_layout import KeyLayout
from aggservice.files.toml import Section

_DOMAIN_BYTES_A_KEY = 96
_MAX_WINDOW = 50


def parse_queries(top: Section, keys: KeyLayout, client: Client) -> tuple[Query, ...]:
    """Read every query; each must fit into the machine's memory."""
    queries = []
    for section in top.sections("queries"):
        discovery = section.flag("discovery", False)
        over = section.choice("over", ("each", "all", "rolling"), "all")
        by = section.texts("by", tuple(field.name for field in keys.fields))
        for name in by:
            if name not in {field.name for field in keys.fields}:
                section.refuse("by", f"has {name!r}", f"Fields: {', '.join(field.name for field in keys.fields)}")
        epsilon = section.amount("epsilon", "10")
        if not Fraction(epsilon) <= 64:
            section.refuse("epsilon", f"is {epsilon}", "Write at most 64")
        query = Query(
            name=section.text("name", "summary"),
            epsilon=epsilon,
            delta=section.amount("delta", "0.00000001") if discovery else section.amount("delta", "0", zero=True),
            discovery=discovery,
            others_epsilon=section.amount("others_epsilon", "0", zero=True),
            rows=_rows(section, keys),
            by=by,
            over=over,  # type: ignore[arg-type]
            window=section.whole("window", 7, least=1, most=_MAX_WINDOW),
            repeat=section.whole("repeat", 1, least=1, most=1000),
            tau=section.number("tau", 0.0, least=0, most=1e15),
        )
        if not discovery:
            if Fraction(query.delta):
                section.refuse("delta", f"is {query.delta}", "Declared keys cost no δ: leave it out, or discover keys")
            _check_memory(section, keys, query)
        if not query.name.replace("-", "").replace("_", "").replace(" ", "").isalnum() or not query.name.isascii():
            section.refuse("name", f"is {query.name!r}", "Write letters, digits, spaces, '-' and '_'")
        section.done()
        queries.append(query)
    # A blank is a dash in the names of jobs and files.
    if len({query.label for query in queries}) != len(queries):
        top.refuse("queries", "has two of the same name (a blank is as good as a dash)", "Give each query its own name")
    if not queries and client.kind != "event-level":
        top.refuse("queries", "is missing", 'Write [[queries]] with epsilon = "10"')
    return tuple(queries)


def _rows(section: Section, keys: KeyLayout) -> dict[str, tuple[int, ...]]:
    inner = section.section("rows")
    rows = {}
    for name in inner.values:
        found = [field for field in keys.fields if field.name == name]
        if not found:
            inner.refuse(name, "is not a field of the keys", f"Fields: {', '.join(one.name for one in keys.fields)}")
        names = inner.texts(name)
        for value in names:
            if value not in found[0].values:
                inner.refuse(name, f"has {value!r}", f"Values: {', '.join(found[0].values[:20])}")
        rows[name] = tuple(found[0].values.index(value) for value in names)
    return rows


def memory_bytes() -> int:
    """Return how much memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_memory(section: Section, keys: KeyLayout, query: Query) -> None:
    size = keys.domain_size(query.rows)
    limit = min(200_000_000, memory_bytes() // 2 // _DOMAIN_BYTES_A_KEY)
    if size > limit:
        need = size * _DOMAIN_BYTES_A_KEY / (1 << 30)
        section.refuse(
            "",
            f"has a domain of {size:,} keys, which takes {need:,.0f} GiB, and this machine can hold {limit:,} keys",
            "Write discovery = true with a delta, or restrict some fields under [queries.rows]",
        )
