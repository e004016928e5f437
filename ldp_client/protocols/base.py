"""The base class of local-DP protocols, of their devices and of their fleets, and the saved state of a device.

``LocalProtocol`` answers all that anybody asks of a protocol; ``ldp_client.protocols.PROTOCOLS`` maps names to classes.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits
from ldp_client.checks import as_list, check_rows, check_users, short_text
from ldp_client.errors import LdpParameterError, ReportError, StateError
from ldp_client.estimation import FrequencyEstimate, ResponseChain, ResponseStep, Support
from ldp_client.sampling import ExactDraws, MemoizedAnswers, Words, count_bits, pack, rows_from_bytes, unpack, words_of
from ldp_client.tracking import StreamLaw

_MOST_DIGITS = 30
MEMOIZED_ANSWERS = "memoized answers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """The privacy loss of a protocol, in ε.

    ``asked`` is the requested ε₁ of a first report and ``first`` its exact value; ``permanent`` is ε∞, the limit of all
    reports of one value; ``worst_case`` is the total over the user's values when every possible answer is
    memoized (LOLOHA paper, Definition 3.2 and Theorem 3.5). A one-shot protocol memoizes nothing: each report costs
    ``first`` again, and the worst case is infinite.
    """

    asked: float
    first: float
    permanent: float
    worst_case: float

    @staticmethod
    def of(*, first: float, permanent: float, asked: float | None, answers: int) -> Privacy:
        """Return the privacy of a protocol that memoizes up to ``answers`` answers; one-shot if ``asked`` is None."""
        if asked is None:
            return Privacy(asked=permanent, first=first, permanent=permanent, worst_case=math.inf)
        return Privacy(asked=asked, first=first, permanent=permanent, worst_case=answers * permanent)

    @staticmethod
    def of_grr(chain: ResponseChain, asked: float | None, *, answers: int) -> Privacy:
        """Return the privacy of a chain of GRR steps."""
        permanent = ResponseChain(permanent=chain.permanent).first_grr()
        return Privacy.of(first=chain.first_grr(), permanent=permanent, asked=asked, answers=answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """A row of the LOLOHA paper's Table 1 in numbers.

    ``report_bits`` are per user and time step. ``first_bits`` are sent once per user (the hash function, or the sampled
    buckets); the table leaves them out. ``sealed_bits`` is the length of this package's reports, each of which includes
    ``first_bits``. ``server_steps`` are those of one time step of all users as in the paper; for dBitFlipPM that is
    n·b, but this package's server takes n·d. ``worst_case`` is the ε over all of a user's values.
    """

    report_bits: int
    first_bits: int
    sealed_bits: int
    server_steps: int
    worst_case: float


class EpsilonPair(TypedDict):
    """ε∞ and ε₁ in millionths, by the names of a longitudinal protocol's parameters."""

    epsilon_permanent_micro: int
    epsilon_first_micro: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolRequest:
    """The parameters that a command or a page can give; a protocol takes those that it has.

    ``options`` are further parameters by name, for protocols that have more.
    """

    k: int
    epsilon_permanent_micro: int
    epsilon_first_micro: int
    buckets: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pair(self) -> EpsilonPair:
        """ε∞ and ε₁, as keyword arguments."""
        return {
            "epsilon_permanent_micro": self.epsilon_permanent_micro,
            "epsilon_first_micro": self.epsilon_first_micro,
        }


#: The parameters of examples.
SMALL = ProtocolRequest(k=3, epsilon_permanent_micro=1_000_000, epsilon_first_micro=400_000)


class LocalProtocol(ABC):
    """A protocol of local differential privacy: what devices report, what it costs, and what a server learns.

    A class is a frozen dataclass of its parameters, valid once built. It gives ``kind`` and ``k``, and the methods that
    are abstract here; ``support`` with ``supports``, or an ``estimate`` of its own; and ``stream_law`` if devices
    memoize. ``aggservice.kits.ldp`` checks that these agree.
    """

    __slots__ = ()

    #: The names under which commands and pages offer the protocol over any number of values, and words for each.
    methods: ClassVar[Mapping[str, str]] = {}

    if TYPE_CHECKING:  # a dataclass would take these for the defaults of its fields

        @property
        def kind(self) -> str:
            """The protocol's name in saved states and in the identifiers of randomizers."""

        @property
        def k(self) -> int:
            """The number of values, which are 0, 1, …, k − 1."""

    @classmethod
    def for_values(cls, name: str, request: ProtocolRequest) -> LocalProtocol:
        """Return the protocol that the table names ``name``; a one-shot protocol uses ε∞ for its only report."""
        raise LdpParameterError(f"{name} is not defined over {request.k} values: choose another protocol")

    @classmethod
    def for_tracking(cls, name: str, request: ProtocolRequest) -> LocalProtocol:
        """Return the protocol whose streams ``aggservice ldp track`` draws; by default, the one over values."""
        return cls.for_values(name, request)

    @classmethod
    def examples(cls) -> Sequence[LocalProtocol]:
        """Return protocols small enough to enumerate: kits check them all, and audits attack the first of each kind."""
        return [cls.for_values(name, SMALL) for name in cls.methods]

    def describe(self) -> dict[str, Any]:
        """Return the kind and the parameters, as a saved state holds them."""
        named: Any = self
        return {"kind": self.kind} | {each.name: getattr(self, each.name) for each in fields(named) if each.init}

    @property
    def randomizer_id(self) -> str:
        """32 hexadecimal digits that identify the protocol and its parameters; shuffles mix reports of one only."""
        text = json.dumps(self.describe(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(b"aggservice ldp randomizer\0" + text.encode()).hexdigest()[:32]

    @property
    def values(self) -> int | None:
        """The number of values that a user can hold; None if they are strings."""
        return self.k

    # Privacy

    @property
    @abstractmethod
    def privacy(self) -> Privacy:
        """The privacy loss of the protocol."""

    @property
    def shares(self) -> str:
        """What a device's reports have in common besides its values, in words; empty if they are independent.

        A later report shows it, and with it which earlier report was the device's: shuffling amplifies only reports
        that share nothing (docs/shuffling.md).
        """
        return ""

    @property
    def memoizes(self) -> bool:
        """Whether ε∞ bounds all reports of one value; otherwise every report costs ε₁ again."""
        return math.isfinite(self.privacy.worst_case)

    # Devices

    @abstractmethod
    def client(self, bits: Bits | ExactDraws) -> Any:
        """Return a new device."""

    def restore(self, saved: bytes, bits: Bits | ExactDraws) -> Any:
        """Return a device from a saved state; here, one that keeps nothing."""
        self.load(saved)
        return self.client(bits)

    def load(self, saved: bytes) -> dict[str, Any]:
        """Return the memo of a saved state; StateError if it is broken or of another protocol."""
        return load_state(saved, self.describe())

    @abstractmethod
    def fleet(self, users: int, bits: Bits) -> Any:
        """Return ``users`` new devices in columns."""

    # Reports as bytes

    @property
    @abstractmethod
    def report_bytes(self) -> int:
        """The length of every report, so that the length reveals nothing."""

    @abstractmethod
    def pack_report(self, report: Any) -> bytes | None:
        """Return a client's report as bytes, or None if it is not a report; ReportError if a part of it is wrong."""

    @abstractmethod
    def unpack_report(self, data: bytes) -> Any:
        """Return the report in bytes of the right length; ReportError if no client can have made it."""

    def encode(self, report: Any) -> bytes:
        """Return a client's report as bytes: big-endian numbers, and packed bits with the first bit lowest."""
        data = self.pack_report(report)
        if data is None:
            raise ReportError(f"this is not a report of {self.kind}: give what its client's `report` returned")
        return data

    def decode(self, data: bytes) -> Any:
        """Return the report in ``data``; ReportError if no client of this protocol can have made it."""
        if not isinstance(data, bytes):
            raise ReportError(f"a report of {self.kind} must be bytes, not a {type(data).__name__}")
        if len(data) != self.report_bytes:
            raise ReportError(f"a report of this {self.kind} must have {self.report_bytes} bytes, not {len(data)}")
        return self.unpack_report(data)

    # The server

    @property
    def cells(self) -> int:
        """The number of estimated frequencies: k, or b for a protocol over buckets."""
        return self.k

    def cell(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the cell in which each value is counted."""
        return values

    @property
    def support(self) -> Support:
        """The estimator's probabilities."""
        raise LdpParameterError(f"{self.kind} does not count support for values: use its own estimator")

    @abstractmethod
    def columns(self, reports: Sequence[Any]) -> Any:
        """Return the reports of single clients as columns for ``estimate``."""

    def supports(self, columns: Any, cell: int) -> NDArray[np.bool_]:
        """Return, per report of a collection, whether it supports a cell."""
        raise LdpParameterError(f"a report of {self.kind} does not support single values: use its own estimator")

    def estimate(self, columns: Any) -> Any:
        """Return the frequencies behind one collection's columns."""
        found = [self.supports(columns, cell) for cell in range(self.cells)]
        return self.support.estimate(np.array([each.sum() for each in found]), found[0].size)

    def repeated(self, columns: Any) -> NDArray[np.uint64] | None:
        """Return the memoized answers that a collection shows as they are, one row per user; None if it hides them."""
        return None

    def traffic(self) -> tuple[int, int, int] | None:
        """Return bits per report, bits that a user sends once, and the server's steps per report (Table 1), or None."""
        return None

    def costs(self, users: int) -> Costs:
        """Return the row of Table 1 for n users; ``LdpParameterError`` for a one-shot protocol."""
        check_users(users)
        traffic = self.traffic()
        if traffic is None:
            raise LdpParameterError(f"Table 1 has no row for {type(self).__name__}: give a longitudinal protocol")
        if not self.memoizes:
            raise LdpParameterError(
                f"Table 1 has no row for {self.kind}, which is one-shot: give a longitudinal protocol"
            )
        report, first, steps = traffic
        return Costs(
            report_bits=report,
            first_bits=first,
            sealed_bits=8 * self.report_bytes,
            server_steps=users * steps,
            worst_case=self.privacy.worst_case,
        )

    # Tracking

    def stream_law(self, value: Any, *, cohort: int | Literal["sent"] = 0) -> StreamLaw:
        """Return the law of the reports of a user who holds ``value``.

        RAPPOR's users are all in one ``cohort``, as in the tracking paper; with "sent", each draws one and sends it.
        Clients that send an identifier with every report (the hash function of LOLOHA, the sampled positions of
        dBitFlipPM) have a law too: reports of two users cannot come from one user, so τ is infinite.
        """
        raise LdpParameterError(f"{type(self).__name__} has no permanent state, so its reports cannot be tracked")

    def proved(self, reports: int) -> dict[str, float]:
        """Return what is proved or enumerated about tracking by this many reports, besides Theorem 13, by name."""
        return {}


class RowsOfBits(LocalProtocol):
    """The base of a protocol whose reports are packed rows of k bits, one per value."""

    __slots__ = ()

    @property
    def report_bytes(self) -> int:
        return -(-self.k // 8)

    def pack_report(self, report: Any) -> bytes | None:
        return self.unpack_report(report) if isinstance(report, bytes) else None

    def unpack_report(self, data: bytes) -> bytes:
        unpack(data, self.k)
        return data

    def columns(self, reports: Sequence[bytes]) -> Words:
        return rows_from_bytes(as_list(reports, "reports"), self.k)

    def supports(self, columns: Words, cell: int) -> NDArray[np.bool_]:
        return np.asarray(columns[:, cell // 64] >> np.uint64(cell % 64) & np.uint64(1) != 0)

    def estimate(self, columns: Words) -> FrequencyEstimate:
        """Return the frequencies behind one collection (Eq. 1 or Eq. 3 of the LOLOHA paper)."""
        rows = check_rows(columns, words_of(self.k), f"reports over {self.k} values")
        return self.support.estimate(count_bits(rows, self.k), rows.shape[0])


Owner = TypeVar("Owner")
Key = TypeVar("Key")
Answer = TypeVar("Answer")


class MemoizingDevice(Generic[Owner, Key, Answer]):
    """One device of a protocol: it draws its answer to each key once and keeps it."""

    def __init__(self, protocol: Owner, bits: Bits | ExactDraws, memo: dict[Key, Answer]) -> None:
        self.protocol = protocol
        self._draws = as_draws(bits)
        self._memo = memo

    @property
    def memoized(self) -> int:
        """How many answers are memoized; each has cost ε∞ on the user's values."""
        return len(self._memo)

    def _kept(self, key: Key, draw: Callable[[], Answer]) -> Answer:
        """Return the memoized answer to ``key``, drawing it at its first use."""
        kept = self._memo.get(key)
        if kept is None:
            kept = self._memo[key] = draw()
        return kept

    def _flip(self, row: NDArray[np.bool_], step: ResponseStep) -> bytes:
        """Randomize each bit of a row by ``step``; return the new row, packed."""
        return pack(np.array([self._draws.coin(step.p if bit else step.q) for bit in row], dtype=np.bool_))

    def save(self) -> bytes:
        """Return the state as JSON, for the protocol's ``restore``."""
        owner: Any = self.protocol
        return json.dumps({"protocol": owner.describe(), "memo": self._saved()}, sort_keys=True).encode()

    def _saved(self) -> dict[str, Any]:
        """Return what ``save`` stores: the memoized answer to each key. A device with more state overrides this."""
        return {str(key): kept.hex() if isinstance(kept, bytes) else kept for key, kept in self._memo.items()}


class DeviceColumns(Generic[Owner]):
    """The base of a fleet: many devices of one protocol in columns."""

    def __init__(self, protocol: Owner, users: int, bits: Bits) -> None:
        self.protocol = protocol
        self.users = check_users(users)
        self._bits = bits

    def memoized(self) -> NDArray[np.int64]:
        """Return how many answers each user has memoized: none, unless a fleet keeps some."""
        return np.zeros(self.users, dtype=np.int64)


class MemoizingColumns(DeviceColumns[Owner]):
    """The base of a fleet that keeps one answer per (user, key), with keys below ``span``, in rows of words."""

    def __init__(self, protocol: Owner, users: int, bits: Bits, *, span: int, width: int = 1) -> None:
        super().__init__(protocol, users, bits)
        self._memo = MemoizedAnswers(users, span, width)

    def memoized(self) -> NDArray[np.int64]:
        return self._memo.counts()

    def distinct_answers(self) -> NDArray[np.int64]:
        """Return how many different answers each user has memoized: two keys may have drawn the same one."""
        return self._memo.distinct_counts()


def as_draws(source: Bits | ExactDraws) -> ExactDraws:
    """Return the draws of a client, made from bits if needed."""
    return source if isinstance(source, ExactDraws) else ExactDraws(source)


def load_state(saved: bytes, protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return the memo of a saved state; StateError if it is broken or of another protocol."""
    state: Any = None
    # Raised below, outside of any handler: the parser's error would hold the whole text, and so the user's values.
    with suppress(ValueError, TypeError, RecursionError):
        state = json.loads(saved)
    if not isinstance(state, dict) or not {"protocol", "memo"} <= state.keys():
        raise StateError("this is not a saved client: give the JSON that `save` returned")
    owner, memo = state["protocol"], state["memo"]
    if owner != protocol:
        raise StateError(
            f"the state belongs to {short_text(owner, 300)}, not to {dict(protocol)}: answers would not be private"
        )
    if not isinstance(memo, dict):
        raise StateError("this is not a saved client: its memo is not a JSON object")
    return memo


def memo_row(text: Any, size: int) -> bytes:
    """Return a packed row of a saved memo from hexadecimal digits; StateError unless it has ``size`` bits."""
    try:
        row = bytes.fromhex(text)
        unpack(row, size)
    except (TypeError, ValueError) as error:
        raise StateError(f"a saved row of bits cannot be read: {error}") from error
    return row


def memo_int(value: Any, size: int, what: str) -> int:
    """Return an integer of a saved memo; StateError if it is outside [0, size)."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < _MOST_DIGITS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
        raise StateError(f"{what} in a saved client must be in [0, {size})")
    return value
