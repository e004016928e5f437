"""Private draws come from the system's entropy: two services given the same job, reports and id do not agree."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aggservice.client import Client, JobParameters, ShuffleParameters
from aggservice.mechanisms import Bits, ManualClock, SecureBits
from aggservice.service import embedded
from aggservice.service.config.callers import new_token
from aggservice.wire import Api, KeySet
from aggservice.wire.report.registry import RegistryKeyPair
from budget.log.proofs import Signer
from ldp_client import randomized_response, randomizer_of, seal_report

from ...engine.conftest import ORIGIN, Maker

ASKS = JobParameters(attribution_report_to=ORIGIN, epsilon="1")
KEYS = 64
"""So many draws at a scale of 65,536 are equal in two services with a chance below 10⁻³⁰⁰."""


def test_two_services_given_the_same_job_draw_other_noise(maker: Maker) -> None:
    reports = [maker.report({1: 5})]
    rows = []
    for _ in range(2):
        with embedded(keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
            rows.append(client.aggregate("same", ASKS, reports, domain=range(KEYS)).to_dict())
    assert rows[0].keys() == rows[1].keys() and rows[0] != rows[1]


def test_two_services_given_the_same_shuffle_draw_another_order(maker: Maker) -> None:
    """200 distinct reports come in the same order twice with a chance of 1 in 200!."""
    protocol = randomized_response(k=250, epsilon_micro=1_000_000)
    public = maker.keys.public(maker.clock)
    reports = []
    for value in range(200):
        info = maker.info(api=Api.SHARED_STORAGE, attribution_destination=None)
        reports.append(seal_report(protocol, value, shared_info=info, keys=public, bits=maker.bits))
    asks = JobParameters(
        attribution_report_to=ORIGIN, shuffle=ShuffleParameters(randomizer=randomizer_of(protocol).hex)
    )
    orders = []
    for _ in range(2):
        with embedded(keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
            orders.append(client.aggregate("same", asks, reports).reports)
    assert sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]


def _drawn(bits: Bits) -> bytes:
    return bits.read(32)


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_a_worker_that_is_given_bits_draws_its_own(how: str) -> None:
    bits = SecureBits()
    kept = bits.child("job")
    drawn = [bits.read(32), kept.read(32)]
    with multiprocessing.get_context(how).Pool(2) as pool:
        drawn += pool.map(_drawn, [bits, bits, kept, kept])
    drawn += [bits.read(32), kept.read(32), bits.child("job").read(32), bits.child("job").read(32)]
    assert len(set(drawn)) == len(drawn)


def test_copies_of_secure_bits_carry_no_key() -> None:
    bits = SecureBits()
    bits.read(8)
    for other in (pickle.loads(pickle.dumps(bits)), copy.copy(bits), copy.deepcopy(bits)):
        assert "_stream" not in other.__dict__
        assert other.read(32) != bits.read(32)


class GivenBits(Bits):
    """Reads the bytes that it was given, one after another."""

    private = True

    def __init__(self, given: bytes) -> None:
        self._left = given

    def read(self, count: int) -> bytes:
        taken, self._left = self._left[:count], self._left[count:]
        assert len(taken) == count
        return taken

    def words(self, count: int) -> Any:
        raise NotImplementedError

    def child(self, label: str) -> Bits:
        raise NotImplementedError


def _stored_signer(bits: Bits) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return Signer.load_or_create(Path(folder) / "signing.key", bits).public_key


SECRETS: dict[str, Callable[[Bits], object]] = {
    "a key that opens reports": lambda bits: (
        KeySet.create(bits, ManualClock(0)).pairs[0].private.public_key().public_bytes_raw()
    ),
    "a registry's key": lambda bits: RegistryKeyPair.create(bits).public.raw,
    "a ledger's key": lambda bits: Signer.generate(bits).public_key,
    "a ledger's key in a file": _stored_signer,
    "a caller's token": new_token,
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_depends_on_each_of_256_bits(name: str) -> None:
    """Every bit of the first 32 bytes makes another key, so that none is guessed by trying fewer."""
    given = bytes(range(64))
    found = {SECRETS[name](GivenBits(given))}
    for bit in range(256):
        changed = bytearray(given)
        changed[bit // 8] ^= 1 << bit % 8
        found.add(SECRETS[name](GivenBits(bytes(changed))))
    assert len(found) == 257
