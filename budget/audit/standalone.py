"""Verify an exported privacy-budget log, with checkpoints, receipts and summaries, in one file of plain Python.

It needs Python 3.11 and `cryptography`, and shares no code with the program that wrote the log. It replays every entry:
chain, costs, units, limits, refunds; then the signed checkpoint at the end and the evidence that is given. Exit code 0:
everything agrees; 1: the first difference is printed; 2: a file cannot be read. It takes about 300 bytes of memory per
unit, and up to some seconds for the amplified price of a million shuffled reports.
"""

import argparse
import hashlib
import json
import math
import re
import sys
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from functools import reduce
from pathlib import Path
from typing import Any, BinaryIO

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

MAGIC = b"aggservice-log-1\n"
MICRO, ATTO, UNBOUNDED, UNIT_BYTES = 10**6, 10**18, 2**32 - 1, 20
LOCAL, SHUFFLED, ONE_USE = "local_response", "shuffled_local_response", "discrete_laplace_one_use"
FIELDS = {
    "discrete_laplace": {"epsilon"},
    "truncated_discrete_laplace": {"epsilon", "delta"},
    "discrete_gaussian": {"rho", "delta"},
    "bounded_discrete_laplace": {"epsilon", "delta"},
    LOCAL: {"epsilon"},
    SHUFFLED: {"epsilon", "delta", "local_epsilon", "reports", "bound"},
    ONE_USE: {"epsilon", "max_value"},
}
DELTA_ABOVE_0 = ("truncated_discrete_laplace", "bounded_discrete_laplace")
KEYS = {
    "genesis": {"format", "filter", "terms", "recovery", "public_key", "nonce", "unit_bytes"},
    "release": {"cost", "units", "caller", "job_id", "request", "release", "result"},
    "recovery": {"cost", "units", "operator", "reason", "recovers"},
}
Cost = tuple[int, int, int]


class Mismatch(Exception):
    """Two values that must agree differ."""


def need(condition: object, text: str) -> None:
    if not condition:
        raise Mismatch(text)


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def decode(raw: bytes) -> dict[str, Any]:
    """Return the object of canonical JSON: sorted keys, no spaces, ASCII, text and integers below 2^53 only."""
    try:
        value = json.loads(raw.decode("ascii"))
        simple(value, 0)
    except (ValueError, RecursionError) as problem:
        raise Mismatch(f"not canonical JSON: {problem}") from None
    need(isinstance(value, dict) and canonical(value) == raw, "not in canonical form")
    return value


def simple(value: Any, depth: int) -> None:
    plain = isinstance(value, dict | list | str) or (type(value) is int and abs(value) < 2**53)
    need(plain and depth <= 12, "a value that is neither text nor a small integer, or nested too deeply")
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        simple(one, depth + 1)


def amount(text: Any, unit: int, most: int, least: int = 0) -> int:
    """Return decimal text as a whole number of 1/unit; Mismatch unless it has its one canonical spelling."""
    need(isinstance(text, str) and re.fullmatch(r"[0-9]{1,30}(\.[0-9]{1,20})?", text), f"{text!r} is not an amount")
    steps = Fraction(text) * unit
    need(steps.denominator == 1 and least <= steps <= most, f"the amount {text} is out of range")
    whole, part = divmod(int(steps), unit)
    places = len(str(unit)) - 1
    spelled = f"{whole}.{part:0{places}d}".rstrip("0").rstrip(".") if part else str(whole)
    need(spelled == text, f"{text!r} is not spelled canonically")
    return int(steps)


def digits(text: Any, least: int, most: int) -> int:
    need(isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20, f"{text!r} is not a number")
    need(str(int(text)) == text and least <= int(text) <= most, f"the number {text} is out of range")
    return int(text)


def hexadecimal(text: Any, size: int) -> bytes:
    need(isinstance(text, str) and re.fullmatch(f"[0-9a-f]{{{2 * size}}}", text), "expected lower-case hex digits")
    return bytes.fromhex(text)


def name(text: Any, most: int = 128) -> str:
    need(
        isinstance(text, str) and re.fullmatch(f"[\x20-\x7e]{{1,{most}}}", text), "a name is not short printable ASCII"
    )
    return text


def leaf(raw: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + raw).digest()


def node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def merkle_root(frontier: list[bytes]) -> bytes:
    return reduce(lambda right, left: node(left, right), reversed(frontier))


def path_root(found: bytes, index: int, size: int, path: list[bytes]) -> bytes | None:
    """Return the root that an inclusion proof leads to (RFC 9162, section 2.1.3.2), or None."""
    last = size - 1
    if not 0 <= index <= last:
        return None
    for sibling in path:
        if last == 0:
            return None
        if index & 1 or index == last:
            found = node(sibling, found)
            while index and not index & 1:
                index, last = index >> 1, last >> 1
        else:
            found = node(found, sibling)
        index, last = index >> 1, last >> 1
    return found if last == 0 else None


def checkpoint(plain: Any) -> Any:
    """Check the form and the signature of a checkpoint; return it."""
    members = {"format", "ledger", "entries", "head", "root", "time_ms", "public_key", "signature"}
    need(isinstance(plain, dict) and set(plain) == members, "this is not a checkpoint")
    numbers = type(plain["entries"]) is int and type(plain["time_ms"]) is int
    need(numbers and plain["format"] == "aggservice-checkpoint-1", "this is not a checkpoint")
    for field in ("ledger", "head", "root"):
        hexadecimal(plain[field], 32)
    signed = canonical({key: value for key, value in plain.items() if key != "signature"})
    try:
        key = Ed25519PublicKey.from_public_bytes(hexadecimal(plain["public_key"], 32))
        key.verify(hexadecimal(plain["signature"], 64), signed)
    except (InvalidSignature, ValueError):
        raise Mismatch("the signature of a checkpoint does not verify") from None
    return plain


def receipt(raw: bytes) -> Any:
    """Check a receipt by itself: its signature, and the path from its entry to the signed root."""
    plain = decode(raw)
    need(set(plain) == {"format", "entry", "path", "checkpoint"}, "this is not a receipt")
    need(plain["format"] == "aggservice-receipt-1" and isinstance(plain["entry"], dict), "this is not a receipt")
    need(type(plain["entry"].get("seq")) is int, "this is not a receipt")
    signed = checkpoint(plain["checkpoint"])
    path = [hexadecimal(one, 32) for one in plain["path"]]
    found = path_root(leaf(canonical(plain["entry"])), plain["entry"]["seq"], signed["entries"], path)
    need(found is not None and found.hex() == signed["root"], "the path of a receipt does not lead to the signed root")
    return plain


def threshold(epsilon: int, delta: int, l0: int, l1: int) -> int:
    """Return τ, l1(1 + ln(l0/δ)/ε) rounded up, from 60 digits: the logarithm is 0 or irrational, so they decide it."""
    with_digits = Context(prec=60)
    log = with_digits.ln(with_digits.divide(l0 * ATTO, delta))
    share = with_digits.divide(with_digits.multiply(with_digits.multiply(l1, MICRO), log), epsilon)
    return l1 + int(share.to_integral_value(ROUND_CEILING))


def log_chance(count: int, trials: int, chance: float) -> float:
    """Return the logarithm of the probability of ``count`` successes."""
    ways = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
    return ways + count * math.log(chance) + (trials - count) * math.log1p(-chance)


def shuffled_delta(local: float, reports: int, epsilon: float) -> float:
    """Return the δ at ε of one of n shuffled reports of ε₀: one user among Bin(n − 1, 2/(e^ε₀ + 1)) clones.

    Among M items, b of Bin(M, ½) have the other value, and δ is the mean of (A(M − b) + Bb)₊ · 2/(M(e^ε₀ + 1)), with
    A = e^ε₀ − e^ε and B = 1 − e^(ε₀+ε). More clones never reveal more, so a block of values of M counts as its first.
    """
    chance, others = 2 / (math.exp(local) + 1), reports - 1
    gain, spread = math.exp(local) - math.exp(epsilon), math.expm1(local) * (math.exp(epsilon) + 1)
    reach = 70.0  # e^-70 of the clones' law lies further out than this (Bernstein)
    width = reach / 3 + math.sqrt(reach**2 / 9 + 2 * others * chance * (1 - chance) * reach)
    low, high = max(0, int(others * chance - width)), min(others, math.ceil(others * chance + width))
    block = -(-(high - low + 1) // 1024)
    total = 0.0
    for first in range(low, high + 1, block):
        last = min(first + block - 1, high)
        weight = math.fsum(math.exp(log_chance(count, others, chance)) for count in range(first, last + 1))
        items = first + 1
        limit = items * gain / spread
        count = int(limit)
        term, mean = math.exp(log_chance(count, items, 0.5)), 0.0
        while count >= 0 and term * limit > 1e-17 * mean:
            mean += term * (limit - count)
            term, count = term * count / (items - count + 1), count - 1
        total += weight * mean * spread * chance / items
    return total


def price_covers(bound: Any, price: int, local: int, reports: int, delta: int) -> bool:
    """Return whether ε = ``price`` is what shuffling leaves of ε₀ by ``bound``, to a millionth, for rounding."""
    applies = reports >= 2 and 0 < delta < ATTO and bound in ("numerical", "closed", "small")
    own, share, epsilon = local / MICRO, delta / ATTO, (price + 1) / MICRO
    if bound == "small":
        applies = applies and reports >= 1000 and own < 0.5 and share < 0.01
    need(applies, f"the {bound} bound of its amplified price does not apply")
    if price == local:
        return True
    if bound == "small":
        return epsilon >= 12 * own * math.sqrt(-math.log(share) / reports)
    step = 2 * math.exp(2 * own) * math.expm1(own) / reports
    if step < 700 and epsilon >= step * math.sqrt(-2 * reports * math.log(share)) + reports * step * math.expm1(step):
        return True
    return bound == "numerical" and shuffled_delta(own, reports, epsilon) <= share * (1 + 1e-6)


class Replay:
    """The state of a log after some entries."""

    def __init__(self) -> None:
        self.count = self.time = self.charges = 0
        self.head, self.ledger, self.loss, self.limit = bytes(32), b"", "", (0, 0, 0)
        self.frontier: list[bytes] = []
        self.genesis: Any = None
        self.spent: dict[bytes, Cost] = {}
        self.releases: dict[int, tuple[Any, Any, bool]] = {}
        self.jobs, self.refunded = set[tuple[str, str]](), set[int]()

    def add(self, raw: bytes, units: bytes) -> Any:
        """Check the next entry and charge its units."""
        entry = decode(raw)
        kind = entry.get("type")
        need(
            kind in KEYS and set(entry) == KEYS[kind] | {"type", "seq", "previous", "time_ms"},
            "its members are not those of an entry",
        )
        need(entry["seq"] == self.count and type(entry["seq"]) is int, "its number is wrong")
        need(hexadecimal(entry["previous"], 32) == self.head, "its previous hash is not the hash of the entry before")
        need(type(entry["time_ms"]) is int and entry["time_ms"] >= self.time, "its time is before the last entry's")
        need((kind == "genesis") == (self.count == 0), "the genesis must be the first entry, and only the first")
        if kind == "genesis":
            need(not units, "a genesis entry must not charge units")
            self.start(entry, raw)
        else:
            cost = self.release_cost(entry) if kind == "release" else self.refund(entry)
            self.charge(entry["units"], units, cost, 1 if kind == "release" else -1)
        size, top = self.count, leaf(raw)
        while size & 1:
            size, top = size >> 1, node(self.frontier.pop(), top)
        self.frontier.append(top)
        self.head, self.time, self.count = leaf(raw), entry["time_ms"], self.count + 1
        return entry

    def start(self, entry: Any, raw: bytes) -> None:
        need(entry["format"] == "aggservice-ledger-2" and entry["unit_bytes"] == UNIT_BYTES, "an unknown ledger format")
        chosen = entry["filter"]
        self.loss = {"epsilon-delta": "epsilon", "zcdp": "rho"}.get(chosen.get("name"), "")
        need(self.loss and set(chosen) == {"name", self.loss, "delta", "uses"}, "its filter has wrong members")
        uses = UNBOUNDED if chosen["uses"] == "unbounded" else digits(chosen["uses"], 1, UNBOUNDED - 1)
        self.limit = (amount(chosen[self.loss], MICRO, 10**15, 1), amount(chosen["delta"], ATTO, ATTO), uses)
        need(set(entry["terms"]) == {"unit", "bounds"}, "its terms have wrong members")
        name(entry["terms"]["unit"], 64)
        for api, bounds in entry["terms"]["bounds"].items():
            need(name(api, 64) and set(bounds) == {"l1", "l0"}, "the bounds of an API have wrong members")
            digits(bounds["l0"], 1, digits(bounds["l1"], 1, 2**32))
        need(entry["recovery"] in ("on", "off"), "its recovery is not 'on' or 'off'")
        hexadecimal(entry["public_key"], 32)
        hexadecimal(entry["nonce"], 16)
        self.genesis, self.ledger = entry, leaf(raw)

    def release_cost(self, entry: Any) -> Cost:
        """Check a release against terms and filter; return what each unit owes."""
        job = (name(entry["caller"]), name(entry["job_id"]))
        need(job not in self.jobs, f"job {job[1]!r} of {job[0]!r} was committed before")
        self.jobs.add(job)
        hexadecimal(entry["request"], 32)
        result = entry["result"]
        need(set(result) == {"sha256", "size", "files"} and type(result["size"]) is int, "its result has wrong members")
        for one in [result, *result["files"]]:
            hexadecimal(one["sha256"], 32)
            need(one is result or set(one) == {"name", "size", "sha256"}, "a result file has wrong members")
            need(
                type(one["size"]) is int and one["size"] >= 0 and "/" not in one.get("name", "x"), "a bad size or name"
            )
        release = entry["release"]
        need(set(release) == {"mechanisms", "unit", "covers", "parameters"}, "its release has wrong members")
        need(0 < len(release["mechanisms"]) <= 16 and len(release["parameters"]) <= 64, "too many mechanisms")
        for key, text in release["parameters"].items():
            need(0 < len(key) <= 64 and isinstance(text, str) and len(text) <= 4096, "a parameter is not short text")
        for api, times in release["covers"].items():
            need(0 < len(api) <= 64 and type(times) is int and times >= 1, "an API is covered less than once")
        loss = delta = 0
        names = [one.get("name") for one in release["mechanisms"]]
        for one in release["mechanisms"]:
            price, extra = self.price(one, entry["units"])
            loss, delta = loss + price, delta + extra
        need(delta <= ATTO, "the deltas of a release add up to more than 1")
        final = not {LOCAL, SHUFFLED, ONE_USE}.isdisjoint(names)
        self.check_terms(release, names, final, entry["units"]["count"])
        cost = (loss, delta, self.limit[2] if final else 1)
        need(cost == self.cost_of(entry["cost"]), "its cost is not what the filter charges for its mechanisms")
        self.releases[entry["seq"]] = (entry["cost"], entry["units"], final)
        return cost

    def price(self, one: Any, units: Any) -> tuple[int, int]:
        """Return the loss and delta of one mechanism."""
        kind = one.get("name")
        need(kind in FIELDS and set(one) == FIELDS[kind] | {"name"}, f"{kind!r} is not a mechanism")
        delta = amount(one.get("delta", "0"), ATTO, ATTO, 1 if kind in DELTA_ABOVE_0 else 0)
        if kind == "discrete_gaussian":
            need(self.loss == "rho", "Gaussian noise is not pure DP")
            return amount(one["rho"], MICRO, 2048 * MICRO, 1), delta
        epsilon = amount(one["epsilon"], MICRO, 64 * MICRO, 1)
        if kind == ONE_USE:
            digits(one["max_value"], 1, 2**31 - 1)
        if kind == SHUFFLED:
            local, reports = amount(one["local_epsilon"], MICRO, 64 * MICRO, 1), digits(one["reports"], 1, 2**53)
            need(epsilon <= local, "shuffling raises its epsilon")
            need(reports == units.get("count"), "it is priced for another number of reports")
            enough = price_covers(one["bound"], epsilon, local, reports, delta)
            need(enough, f"a report owes more than {one['epsilon']} by the {one['bound']} bound: its amplified price")
        return (epsilon if self.loss == "epsilon" else -(-epsilon * epsilon // (2 * MICRO))), delta

    def check_terms(self, release: Any, names: list[Any], final: bool, units: int) -> None:
        """Check the privacy unit, the APIs, and every parameter that follows from them and the mechanisms."""
        terms, covers, stated = self.genesis["terms"], release["covers"], release["parameters"]
        need(release["unit"] == ("report" if final else terms["unit"]), "it charges another unit than the ledger's")
        need(covers or not units, "it charges units and names no API")
        need(not final or len(names) == 1, "local reports and one-use noise must stand alone")
        first = release["mechanisms"][0]
        if ONE_USE in names:
            need(terms["bounds"].keys().isdisjoint(covers), "one-use noise must stand alone, over APIs without bounds")
            both = str(2 * int(first["max_value"]))
            derived = {"l1": both, "l0": both, "threshold": "0", "max_value": first["max_value"]}
        else:
            need(covers.keys() <= terms["bounds"].keys(), "it covers an API that the ledger has no bounds for")
            bounds = [(int(one["l1"]), int(one["l0"]), covers.get(api, 0)) for api, one in terms["bounds"].items()]
            l1, l0 = (sum(one[place] * one[2] for one in bounds) for place in (0, 1))
            if not covers:
                l1, l0, _ = max(bounds, default=(65_536, 65_536, 0))
            need(l1 <= 2**32, "its bounds add up to more than 2^32")
            found = [one for one in release["mechanisms"] if one["name"] == "truncated_discrete_laplace"]
            need(len(found) <= 1, "it discovers keys more than once")
            priced = [(amount(one["epsilon"], MICRO, 64 * MICRO), amount(one["delta"], ATTO, ATTO)) for one in found]
            tau = threshold(*priced[0], l0, l1) if priced else 0
            derived = {"l1": str(l1), "l0": str(l0), "threshold": str(tau)}
        if not {LOCAL, SHUFFLED}.isdisjoint(names):
            derived = self.of_local_reports(first, stated.get("randomizer"), units)
        for key, text in derived.items():
            default = "0" if key == "threshold" else None if key in ("l1", "l0") else text
            need(stated.get(key, default) == text, f"it states {key} = {stated.get(key)} and not {text}")

    def of_local_reports(self, one: Any, randomizer: Any, units: int) -> dict[str, str]:
        """Check the price of local reports against the name of their randomizer; return the derived parameters."""
        raw = hexadecimal(randomizer, 28)
        local, permanent = (Fraction(int.from_bytes(raw[at : at + 4], "big"), MICRO) for at in (20, 24))
        priced = one.get("local_epsilon", one["epsilon"])
        need(Fraction(priced) == local, "its price is for another epsilon than its randomizer has")
        alone = one["name"] != SHUFFLED or (raw[16] & 0x80 and not permanent)
        need(alone, "its price is amplified, but the randomizer does not say that a device's reports share nothing")
        forever = f"{float(permanent):.6f}".rstrip("0").rstrip(".") if permanent else ""
        bound = one.get("bound", "")
        return {"reports": str(units), "local_epsilon": priced, "permanent_epsilon": forever, "bound": bound}

    def cost_of(self, plain: Any) -> Cost:
        need(set(plain) == {self.loss, "delta", "uses"}, "its cost has wrong members")
        loss, delta = amount(plain[self.loss], MICRO, 10**15), amount(plain["delta"], ATTO, ATTO)
        return loss, delta, digits(plain["uses"], 0, UNBOUNDED)

    def refund(self, entry: Any) -> Cost:
        paid = self.releases.get(entry["recovers"], (None, None, False))
        need(self.genesis["recovery"] == "on", "budget recovery is off in this ledger")
        need(isinstance(entry["operator"], str) and isinstance(entry["reason"], str), "it has no operator or reason")
        need(paid[0] is not None and entry["recovers"] not in self.refunded, "it refunds no release, or one twice")
        need(not paid[2], "it refunds a final release")
        need(paid[:2] == (entry["cost"], entry["units"]), "its amount or units differ from the refunded release")
        self.refunded.add(entry["recovers"])
        return self.cost_of(entry["cost"])

    def charge(self, stated: Any, units: bytes, cost: Cost, sign: int) -> None:
        need(set(stated) == {"count", "sha256"}, "its units have wrong members")
        need(len(units) == stated["count"] * UNIT_BYTES, "the number of units differs from the entry")
        need(hashlib.sha256(units).hexdigest() == stated["sha256"], "the digest of the units differs from the entry")
        last = b""
        for start in range(0, len(units), UNIT_BYTES):
            unit = units[start : start + UNIT_BYTES]
            need(unit > last, "the units are not in strictly ascending order")
            had = self.spent.get(unit, (0, 0, 0))
            now = (had[0] + sign * cost[0], had[1] + sign * cost[1], had[2] + sign * cost[2])
            fits = all(0 <= one <= most for one, most in zip(now, self.limit, strict=True))
            need(fits, f"unit {unit.hex()} is charged beyond its limit")
            self.spent[unit] = now
            last = unit
        self.charges += len(units) // UNIT_BYTES

    def agrees(self, signed: Any) -> None:
        key, root = self.genesis["public_key"], merkle_root(self.frontier).hex()
        mine = {"ledger": self.ledger.hex(), "entries": self.count, "head": self.head.hex(), "root": root}
        need(signed | mine | {"public_key": key} == signed, "it differs from a signed checkpoint")


def exactly(file: BinaryIO, count: int) -> bytes:
    need(len(raw := file.read(count)) == count, "the file ends too early")
    return raw


def replay(path: str, checkpoints: list[Any], receipts: list[Any], public_key: str | None) -> Replay:
    """Replay a whole log with its evidence; return its last state."""
    state, evidence = Replay(), checkpoints + [one["checkpoint"] for one in receipts]
    with open(path, "rb") as file:
        need(file.read(len(MAGIC)) == MAGIC, "this is not an exported log")
        while length := int.from_bytes(exactly(file, 4), "big"):
            need(length <= 1 << 26, "an entry is too long")
            raw = exactly(file, length)
            units = decode(raw).get("units", {"count": 0})
            count = units.get("count") if isinstance(units, dict) else None
            need(type(count) is int and 0 <= count < 2**40, "an entry does not state its number of units")
            try:
                entry = state.add(raw, exactly(file, int(count or 0) * UNIT_BYTES))
                for one in receipts:
                    need(one["entry"]["seq"] != entry["seq"] or one["entry"] == entry, "a receipt holds another entry")
                for signed in evidence:
                    if signed["entries"] == state.count:
                        state.agrees(signed)
                need(public_key in (None, state.genesis["public_key"]), "the ledger has another signing key")
            except (KeyError, TypeError, AttributeError, ValueError) as problem:
                raise Mismatch(f"entry {state.count}: it is not an entry: {problem!r}") from None
            except Mismatch as problem:
                raise Mismatch(f"entry {state.count}: {problem}") from None
        need(state.count, "the log has no entry")
        final = checkpoint(decode(exactly(file, min(int.from_bytes(exactly(file, 4), "big"), 1 << 26))))
        need(not file.read(1), "bytes follow the checkpoint")
        state.agrees(final)
        longest = max((signed["entries"] for signed in evidence), default=0)
        need(longest <= state.count, f"the log has {state.count} entries, but a checkpoint covers {longest}")
    return state


def summary_digest(path: str) -> str:
    """Return SHA-256 of a summary: of a file, or of the result inside what `job summary --json` printed."""
    raw = Path(path).read_bytes()
    if raw.startswith(b"{") and b"result_head" in raw:
        plain = json.loads(raw)
        parts = [int(one["bucket"], 16).to_bytes(16, "big") for one in plain["facts"]]
        parts += [one["metric"].to_bytes(8, "big", signed=True) for one in plain["facts"]]
        texts = [*plain["reports"], plain.get("sealed", "")]  # hexadecimal; a sealed summary has no facts here
        raw = b"".join([bytes.fromhex(plain["result_head"]), *parts, *map(bytes.fromhex, texts)])
    return hashlib.sha256(raw).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log", help="the exported log (aggservice ledger export)")
    for option in ("checkpoint", "receipt", "summary"):
        parser.add_argument(f"--{option}", action="append", default=[], help=f"a {option} kept elsewhere; repeatable")
    parser.add_argument("--public-key", help="the ledger's public key, if known: 64 hex digits")
    asked = parser.parse_args()
    try:
        checkpoints = [checkpoint(decode(Path(path).read_bytes())) for path in asked.checkpoint]
        receipts = [receipt(Path(path).read_bytes()) for path in asked.receipt]
        state = replay(asked.log, checkpoints, receipts, asked.public_key)
        results = [one["entry"]["result"] for one in receipts if "result" in one["entry"]]
        named = {one["sha256"] for result in results for one in [result, *result["files"]]}
        for path in asked.summary:
            need(summary_digest(path) in named, f"{path} is not the result of any given receipt")
    except Mismatch as problem:
        print(f"DISAGREEMENT: {problem}")
        return 1
    except (OSError, ValueError, LookupError, TypeError) as problem:
        print(f"cannot read: {problem}", file=sys.stderr)
        return 2
    root = merkle_root(state.frontier).hex()
    print(f"ok: {state.count} entries, {state.charges} charges to {len(state.spent)} units, root {root}")
    print(f"evidence: {len(checkpoints)} checkpoints, {len(receipts)} receipts, {len(asked.summary)} summaries")
    return 0


if __name__ == "__main__":
    sys.exit(main())
