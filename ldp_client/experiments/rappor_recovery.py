"""The experiment of RAPPOR's paper: a population with a Zipf distribution of strings, decoded among decoys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from aggservice.mechanisms import Bits
from ldp_client.checks import is_chance, is_count, shown
from ldp_client.errors import ProtocolError
from ldp_client.protocols.interface import check_users
from ldp_client.protocols.rappor import Rappor
from ldp_client.protocols.rappor_decoding import Decoded, decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What one run found.

    ``leading`` is how many of the commonest strings were detected before the first that was not, ``found`` how many of
    all that are there, ``false`` the decoys that were detected though nobody holds them.
    """

    decoded: Decoded
    truth: NDArray[np.float64]
    leading: int
    found: int
    false: tuple[str, ...]


def zipf_shares(count: int, exponent: float = 1.0) -> NDArray[np.float64]:
    """Return shares proportional to 1/rank^exponent."""
    if not is_count(count, 1) or not exponent >= 0:
        raise ProtocolError(
            f"needs at least one string and an exponent of at least 0, not {shown(count)}, {shown(exponent)}"
        )
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def draw_population(shares: NDArray[np.float64], users: int, bits: Bits) -> NDArray[np.int64]:
    """Return a number of a string for each user, independently with these shares (to 2⁻⁵³: the truth is not noise)."""
    uniform = (bits.words(users) >> np.uint64(11)) * 2.0**-53
    return np.minimum(np.searchsorted(np.cumsum(shares), uniform, side="right"), shares.size - 1).astype(np.int64)


def recover(protocol: Rappor, *, users: int, strings: int, decoys: int, bits: Bits, exponent: float = 1.0) -> Recovery:
    """Return what decoding finds of ``strings`` strings with a Zipf distribution, tested along with ``decoys`` more."""
    if not is_count(decoys, 0) or not is_count(strings, 1):
        raise ProtocolError(f"needs strings, and decoys or none, not {shown(strings)} and {shown(decoys)}")
    check_users(users)
    names = [f"string {rank}" for rank in range(1, strings + 1)]
    others = [f"decoy {number}" for number in range(1, decoys + 1)]
    values = draw_population(zipf_shares(strings, exponent), users, bits)
    columns = protocol.fleet(users, names, bits).report(values)
    decoded = decode(protocol, protocol.count(columns), [*names, *others])
    detected = set(decoded.detected())
    truth = np.bincount(values, minlength=strings) / users
    ranked = [names[rank] for rank in np.argsort(-truth, kind="stable")]
    leading = next((place for place, name in enumerate(ranked) if name not in detected), strings)
    return Recovery(
        decoded=decoded,
        truth=truth,
        leading=leading,
        found=len(detected & {name for name, share in zip(names, truth, strict=True) if share > 0}),
        false=tuple(sorted(detected & set(others))),
    )


def false_runs_limit(runs: int, significance: float, alarm: float = 1e-6) -> int:
    """Return the most runs with a false detection that Bonferroni's rate allows, but with probability ``alarm``.

    The number of such runs is at most Bin(runs, significance).
    """
    if not is_count(runs, 1) or not is_chance(significance) or not is_chance(alarm):
        raise ProtocolError("needs runs, a significance and an alarm rate in (0, 1)")
    return int(binom.isf(alarm, runs, significance))
