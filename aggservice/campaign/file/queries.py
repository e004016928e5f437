"""Reads ``[[queries]]`` of a campaign file."""

from __future__ import annotations

import os
from fractions import Fraction

from aggservice.campaign.settings.campaign import ClientSettings, Query
from aggservice.campaign.settings.key_layout import KeyLayout
from aggservice.files.toml import Section

_DOMAIN_BYTES_PER_KEY = 96
_MAX_WINDOW = 50


def parse_queries(top: Section, keys: KeyLayout, client: ClientSettings) -> tuple[Query, ...]:
    """Read every query; its domain must fit into memory."""
    queries = []
    for section in top.sections("queries"):
        discovery = section.flag("discovery", False)
        over = section.choice("over", ("each", "all", "rolling"), "all")
        names = [field.name for field in keys.fields]
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
            by=section.choices("by", names, names),
            over=over,  # type: ignore[arg-type]
            window=section.whole("window", 7, least=1, most=_MAX_WINDOW),
            repeat=section.whole("repeat", 1, least=1, most=1000),
            tau=section.number("tau", 0.0, least=0, most=1e15),
            job_per=section.choice("job_per", ("window", "batch"), "window"),  # type: ignore[arg-type]
        )
        if query.job_per == "batch" and (discovery or client.api == "w3c"):
            kind = "a sum of discovered keys misses what each batch left out" if discovery else "W3C tasks have jobs"
            section.refuse("job_per", "is 'batch'", f'Write "window" here: {kind}')
        if not discovery:
            if Fraction(query.delta):
                section.refuse("delta", f"is {query.delta}", "Declared keys cost no δ: leave it out, or discover keys")
            _check_memory(section, keys, query)
        if not query.name.replace("-", "").replace("_", "").replace(" ", "").isalnum() or not query.name.isascii():
            section.refuse("name", f"is {query.name!r}", "Write letters, digits, spaces, '-' and '_'")
        section.done()
        queries.append(query)
    # A space becomes a dash in the names of jobs and files.
    if len({query.label for query in queries}) != len(queries):
        top.refuse("queries", "has two of the same name (a space counts as a dash)", "Give each query its own name")
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
        values = found[0].values
        rows[name] = tuple(values.index(value) for value in inner.choices(name, values))
    return rows


def memory_bytes() -> int:
    """Return the memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_memory(section: Section, keys: KeyLayout, query: Query) -> None:
    size = keys.domain_size(query.rows)
    limit = min(200_000_000, memory_bytes() // 2 // _DOMAIN_BYTES_PER_KEY)
    if size > limit:
        need = size * _DOMAIN_BYTES_PER_KEY / (1 << 30)
        section.refuse(
            "",
            f"has a domain of {size:,} keys, which needs {need:,.0f} GiB; this machine can hold {limit:,} keys",
            "Write discovery = true with a delta, or restrict some fields under [queries.rows]",
        )
