"""What saved states compare: the kind and parameters of every protocol, written out."""

from __future__ import annotations

import pytest

from ldp_client import BitwiseEverlasting, DyadicTree, InnerProduct, Rappor, bit_flip, build, l_sue

PAIR = {"epsilon_permanent_micro": 2_000_000, "epsilon_first_micro": 1_000_000}
ONCE = {"epsilon_permanent_micro": 2_000_000, "epsilon_first_micro": None}
FLIP = {"kind": "dBitFlipPM", "k": 6, "buckets": 6, "epsilon_permanent_micro": 2_000_000}
PAPER = {"calibration": "paper"}
METHODS = {
    "RAPPOR": {"kind": "L-SUE", "k": 6, **PAIR},
    "L-OSUE": {"kind": "L-OSUE", "k": 6, **PAIR},
    "L-GRR": {"kind": "L-GRR", "k": 6, **PAIR, **PAPER},
    "1BitFlipPM": {**FLIP, "sampled": 1},
    "1BitFlipPM-bucket": {**FLIP, "sampled": 1, "memo": "bucket"},
    "bBitFlipPM": {**FLIP, "sampled": 6},
    "BiLOLOHA": {"kind": "LOLOHA", "k": 6, "g": 2, **PAIR, **PAPER},
    "OLOLOHA": {"kind": "LOLOHA", "k": 6, "g": 3, **PAIR, **PAPER},
    "OLOLOHA-exact": {"kind": "LOLOHA", "k": 6, "g": 4, **PAIR, "calibration": "exact"},
    "L-GRR-exact": {"kind": "L-GRR", "k": 6, **PAIR, "calibration": "exact"},
    "GRR": {"kind": "GRR", "k": 6, **ONCE, **PAPER},
    "SUE": {"kind": "SUE", "k": 6, **ONCE},
    "OUE": {"kind": "OUE", "k": 6, **ONCE},
    "BLH": {"kind": "LH", "k": 6, "g": 2, **ONCE, **PAPER},
    "OLH": {"kind": "LH", "k": 6, "g": 8, **ONCE, **PAPER},
    "SS": {"kind": "SS", "k": 6, "chosen": 1, "epsilon_micro": 2_000_000},
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_keeps_its_description(name: str) -> None:
    protocol = build(name, k=6, epsilon_permanent_micro=2_000_000, epsilon_first_micro=1_000_000)
    assert protocol.describe() == METHODS[name]


def test_the_other_protocols_keep_their_descriptions() -> None:
    assert bit_flip(k=8, buckets=4, sampled=2, epsilon_permanent_micro=1_000_000).describe() == {
        "kind": "dBitFlipPM", "k": 8, "buckets": 4, "sampled": 2, "epsilon_permanent_micro": 1_000_000,
    }  # fmt: skip
    assert l_sue(k=5, epsilon_permanent_micro=1_000_000).describe() == {
        "kind": "L-SUE", "k": 5, "epsilon_permanent_micro": 1_000_000, "epsilon_first_micro": None,
    }  # fmt: skip
    assert BitwiseEverlasting(epsilon_permanent_micro=1, epsilon_report_micro=2).describe() == {
        "kind": "BEP", "epsilon_permanent_micro": 1, "epsilon_report_micro": 2,
    }  # fmt: skip
    assert InnerProduct(bits=3, stored=4, epsilon_pair_micro=5).describe() == {
        "kind": "RNIP", "bits": 3, "stored": 4, "epsilon_pair_micro": 5,
    }  # fmt: skip
    assert DyadicTree(periods=4, changes=2, epsilon_micro=7).describe() == {
        "kind": "dyadic", "periods": 4, "changes": 2, "epsilon_micro": 7,
    }  # fmt: skip
    bits = {"kind": "RAPPOR", "size": 128, "hashes": 2, "cohorts": 64, "p": "1/2", "q": "3/4"}
    assert Rappor().describe() == {**bits, "f": "1/2"}
    assert Rappor(f=0).describe() == {**bits, "f": "0"}  # type: ignore[arg-type]
