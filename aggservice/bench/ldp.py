"""Local-DP collection, one core: LOLOHA's hash tests, a cell of DB_DE, and L-OSUE against multi-freq-ldpy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from aggservice.bench import conclude, interleaved, seconds
from aggservice.mechanisms import SecureBits, uniform_below_batch
from ldp_client import build, l_osue
from ldp_client.experiments.datasets import Dataset, load_dataset, synthetic_dataset
from ldp_client.experiments.run import run_method
from ldp_client.protocols.hashed import count_matches, draw_hashes

#: ε∞ and ε₁ of everything measured here, in millionths; the middle of the paper's grid.
_LIMIT, _ONCE = 3_000_000, 1_800_000

_TESTS_PROMISED = 500e6
_CELL_PROMISED_S = 3.5


def command(
    users: Annotated[int, typer.Option(help="Users of L-OSUE per round, one report each.")] = 5_000,
    values: Annotated[int, typer.Option(help="Number of values of L-OSUE.")] = 360,
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="AGGSERVICE_LDP_DATA",
            help="The folder with PWGTP_Delaware.csv; default: synthetic data.",
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="No effect: the promised sizes are the defaults.")] = False,
) -> None:
    """Local DP: our L-OSUE over multi-freq-ldpy's, reports per s.

    Also prints hash tests per second of the LOLOHA server, and seconds per OLOLOHA run over DB_DE.
    """
    _hash_tests()
    _cell(data)
    _against_peer(users, values)


def _hash_tests() -> None:
    users, values, collections, g = 9_123, 1_234, 80, 5
    bits = SecureBits()
    multipliers, addends = draw_hashes(bits, users)
    reported = [uniform_below_batch(bits, g, users) for _ in range(collections)]
    count_matches(multipliers, addends, reported[0], g, values)  # compile

    def ours() -> None:
        for each in reported:
            count_matches(multipliers, addends, each, g, values)

    tests = users * values * collections
    rate = tests / interleaved({"ours": ours})["ours"]
    print(
        f"LOLOHA server   {rate / 1e6:8,.0f} million (user, value) hash tests/s, g = {g}: "
        f"{rate / _TESTS_PROMISED:.1f} times the {_TESTS_PROMISED / 1e6:,.0f} million promised"
    )


def _cell(folder: Path | None) -> None:
    table = _delaware(folder)
    protocol = build("OLOLOHA", k=table.k, epsilon_permanent_micro=_LIMIT, epsilon_first_micro=_ONCE)
    run_method(table.part(100, 2), protocol, SecureBits())  # compile
    times = sorted(seconds(lambda: run_method(table, protocol, SecureBits())) for _ in range(3))
    print(
        f"OLOLOHA cell    {times[1]:8.3f} s for {table.name}: {table.users:,} users, {table.k:,} values, "
        f"{table.collections} collections; {_CELL_PROMISED_S / times[1]:.1f} times as fast as the "
        f"{_CELL_PROMISED_S} s promised"
    )


def _delaware(folder: Path | None) -> Dataset:
    """Return DB_DE, or without its folder synthetic data of its size."""
    if folder is not None:
        return load_dataset("DB_DE", SecureBits(), folder)
    return synthetic_dataset(SecureBits(), users=9_123, k=1_234, collections=80)


def _against_peer(users: int, values: int) -> None:
    from multi_freq_ldpy.long_freq_est.L_OSUE import L_OSUE_Aggregator_MI, L_OSUE_Client

    protocol = l_osue(k=values, epsilon_permanent_micro=_LIMIT, epsilon_first_micro=_ONCE)
    held = np.arange(users) % values
    limit, once = _LIMIT / 1e6, _ONCE / 1e6

    def our_client() -> object:
        return protocol.fleet(users, SecureBits()).report(held)

    def their_client() -> list[object]:
        return [L_OSUE_Client(int(value), values, limit, once) for value in held]

    def ours() -> None:
        protocol.estimate(protocol.fleet(users, SecureBits()).report(held)).normalised()

    def theirs() -> None:
        L_OSUE_Aggregator_MI(their_client(), limit, once)

    ours()
    theirs()  # compile both
    times = interleaved({"ours": ours, "theirs": theirs, "our client": our_client, "their client": their_client})
    for whose, client, both in (("ours", "our client", "ours"), ("multi-freq-ldpy", "their client", "theirs")):
        print(
            f"L-OSUE          {users / times[both]:12,.0f} reports/s {whose}, client and server "
            f"(client {times[client]:.4f} s, server {max(times[both] - times[client], 0):.4f} s)"
        )
    conclude(
        times["theirs"] / times["ours"],
        "our L-OSUE client and server over multi-freq-ldpy's, one core",
        f"{users / times['ours']:,.0f} against {users / times['theirs']:,.0f} reports/s over {values} values",
    )
