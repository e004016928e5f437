"""The experiment of the RAPPOR paper: a population with a Zipf distribution of strings, decoded among decoys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits
from ldp_client.checks import is_count, short_text
from ldp_client.errors import ProtocolError
from ldp_client.protocols.interface import check_users
from ldp_client.protocols.rappor import Rappor
from ldp_client.protocols.rappor_decoding import Decoded, decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The result of one run.

    ``leading`` counts the detected strings from the most frequent one down to the first that was not detected;
    ``found`` counts all detected strings of the population; ``false`` lists the decoys that were detected.
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
            f"count must be at least 1 and exponent at least 0, got (count, exponent) = {short_text((count, exponent))}"
        )
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def draw_population(shares: NDArray[np.float64], users: int, bits: Bits) -> NDArray[np.int64]:
    """Return the index of a string per user, independent with these shares (to 2⁻⁵³, enough for true values)."""
    uniform = (bits.words(users) >> np.uint64(11)) * 2.0**-53
    return np.minimum(np.searchsorted(np.cumsum(shares), uniform, side="right"), shares.size - 1).astype(np.int64)


def recover(protocol: Rappor, *, users: int, strings: int, decoys: int, bits: Bits, exponent: float = 1.0) -> Recovery:
    """Simulate ``users`` with ``strings`` strings of a Zipf distribution; decode them among ``decoys`` decoys."""
    if not is_count(decoys, 0) or not is_count(strings, 1):
        raise ProtocolError(f"a recovery needs strings, and 0 or more decoys, not {short_text((strings, decoys))}")
    check_users(users)
    names = [f"string {rank}" for rank in range(1, strings + 1)]
    others = [f"decoy {number}" for number in range(1, decoys + 1)]
    values = draw_population(zipf_shares(strings, exponent), users, bits)
    columns = protocol.fleet(users, names, bits).report(values)
    decoded = decode(protocol, protocol.count(columns), [*names, *others])
    detected = set(decoded.detected())
    truth = np.bincount(values, minlength=strings) / users
    ranked = [names[rank] for rank in np.argsort(-truth, kind="stable")]
    leading = next((rank for rank, name in enumerate(ranked) if name not in detected), strings)
    return Recovery(
        decoded=decoded,
        truth=truth,
        leading=leading,
        found=len(detected & {name for name, share in zip(names, truth, strict=True) if share > 0}),
        false=tuple(sorted(detected & set(others))),
    )
