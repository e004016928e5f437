"""Reads ``[[queries]]`` of a campaign file."""

from __future__ import annotations

import os
from fractions import Fraction
from itertools import pairwise

from aggservice.campaign.settings.campaign import ClientSettings, Hierarchy, Query
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
            kind = "discovery in each batch leaves keys out" if discovery else "each W3C task has its own job"
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


def parse_hierarchies(top: Section, queries: tuple[Query, ...], client: ClientSettings) -> tuple[Hierarchy, ...]:
    """Read every hierarchy; the slices of each level must add up to those of the level before."""
    by_name, found = {query.name: query for query in queries}, []
    for section in top.sections("hierarchies"):
        name, levels = section.text("name", "hierarchy"), section.choices("levels", list(by_name))
        if client.api == "w3c":
            section.refuse("levels", "has W3C reports, each of which pays for one job", "Leave the hierarchy out")
        if len(set(levels)) != len(levels) or len(levels) < 2:
            section.refuse("levels", f"is {list(levels)}", "Name two queries or more, the coarsest first")
        chosen = [by_name[level] for level in levels]
        for query in chosen:
            if query.discovery or query.over == "rolling" or query.repeat > 1:
                why = (
                    "discovers keys"
                    if query.discovery
                    else "repeats"
                    if query.repeat > 1
                    else "has windows that overlap"
                )
                section.refuse("levels", f"has {query.name!r}, which {why}", "Name queries whose slices add up")
        for above, below in pairwise(chosen):
            if above.over == "each" and below.over == "all":
                section.refuse("levels", f"has {below.name!r} below {above.name!r}", 'Put over = "all" first')
            if not set(above.by) <= set(below.by) or above.rows != below.rows:
                section.refuse(
                    "levels",
                    f"has {below.name!r} below {above.name!r}, whose slices it does not divide",
                    "Give both the same rows, and the lower one all fields of the upper one's by",
                )
        section.done()
        found.append(Hierarchy(name=name, levels=tuple(levels)))
    if len({one.name for one in found}) != len(found):
        top.refuse("hierarchies", "has two of the same name", "Give each hierarchy its own name")
    return tuple(found)


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
