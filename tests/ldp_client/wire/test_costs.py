"""Table 1 of the LOLOHA paper: bits against the number of reports that a client can send, and the page's table."""

from __future__ import annotations

import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggservice.mechanisms import SecureBits
from ldp_client import InnerProduct, bit_flip, build, l_grr, l_osue, l_sue, loloha
from ldp_client.enumeration import distribution
from ldp_client.errors import LdpParameterError, ReportError
from ldp_client.experiments.loloha import table_1
from ldp_client.protocols import methods
from ldp_client.protocols.hashed import UniversalHash

METHODS = tuple(methods())

PAGE = Path(__file__).resolve().parents[3] / "docs" / "ldp_client.md"
PAIR = {"epsilon_permanent_micro": 2_000_000, "epsilon_first_micro": 1_000_000}


@pytest.mark.parametrize(
    ("protocol", "given"),
    [
        *((l_grr(k=k, **PAIR), ()) for k in (2, 3, 4, 5)),
        *((make(k=k, **PAIR), ()) for make in (l_sue, l_osue) for k in (2, 3)),
        *((loloha(k=6, g=g, **PAIR), (UniversalHash(multiplier=3, addend=5, g=g),)) for g in (2, 3, 4, 5)),
        *((bit_flip(k=4, buckets=4, sampled=d, epsilon_permanent_micro=2_000_000), (range(d),)) for d in (1, 2, 4)),
    ],
)  # fmt: skip
def test_a_report_needs_as_many_bits_as_it_has_forms(protocol: Any, given: Any) -> None:
    """Every branch of the client for one value: 2^(bits − 1) < reports ≤ 2^bits."""
    reports = distribution(lambda draws: protocol.encode(protocol.client(draws, *given).report(1)))
    found = protocol.costs(10)
    assert math.ceil(math.log2(len(reports))) == found.report_bits
    assert {8 * len(report) for report in reports} == {found.sealed_bits}
    assert found.report_bits + found.first_bits <= found.sealed_bits


def test_the_servers_steps_are_those_of_its_loops() -> None:
    """Algorithm 2 written out counts n·k hash tests; unary counting reads n·k bits, L-GRR n symbols."""
    n, k = 7, 9
    protocol = loloha(k=k, g=3, **PAIR)
    sent = [protocol.client(SecureBits()).report(2) for _ in range(n)]
    counts, tests = np.zeros(k, dtype=np.int64), 0
    for report in sent:
        for value in range(k):
            counts[value] += report.function(value) == report.value
            tests += 1
    assert tests == protocol.costs(n).server_steps
    estimate = (counts / n - protocol.support.q) / (protocol.support.p - protocol.support.q)
    np.testing.assert_allclose(protocol.estimate(protocol.columns(sent)).frequencies, estimate, atol=1e-12)
    assert l_osue(k=k, **PAIR).costs(n).server_steps == sum(k for _ in range(n))
    assert l_grr(k=k, **PAIR).costs(n).server_steps == n
    assert bit_flip(k=k, buckets=4, sampled=2, epsilon_permanent_micro=1).costs(n).server_steps == 4 * n


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("### Table 1") :]
    rows = [re.split(r"\s*\|\s*", line)[1:-1] for line in section.splitlines() if line.startswith("| ")][2:9]
    shown = [[cell.replace(",", "") for cell in row] for row in rows]
    found = [[name, *(f"{number:.15g}" for number in asdict(row).values())] for name, row in table_1().items()]
    assert shown == found


def test_what_table_1_does_not_have_is_refused() -> None:
    for name in ("GRR", "SUE", "OUE", "BLH", "OLH"):
        with pytest.raises(LdpParameterError, match="one-shot"):
            build(name, k=4, **PAIR).costs(10)  # type: ignore[arg-type]
    with pytest.raises(LdpParameterError, match="no row"):
        InnerProduct(bits=3, stored=4, epsilon_pair_micro=5).costs(10)  # type: ignore[arg-type]
    with pytest.raises(ReportError, match="users must be"):
        l_grr(k=4, **PAIR).costs(0)
