"""The kit of local-DP protocols: the whole table passes it, and protocols that lie fail with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aggservice.kits.failures import KitFailure
from aggservice.kits.ldp import check_protocol
from ldp_client import PROTOCOLS, FrequencyEstimate, LocalProtocol
from ldp_client.estimation import Floats, Support
from ldp_client.protocols import methods
from ldp_client.protocols.base import SMALL, Privacy
from ldp_client.protocols.direct import DirectEncoding
from ldp_client.tracking import StreamLaw, SymbolLaw

CLASSES = list(dict.fromkeys(PROTOCOLS[name] for name in PROTOCOLS))
EXAMPLES = [protocol for entry in CLASSES for protocol in entry.examples()]


@pytest.mark.parametrize("protocol", EXAMPLES, ids=str)
def test_the_table_passes_its_kit(protocol: LocalProtocol) -> None:
    check_protocol(protocol)


def test_every_class_and_kind_of_the_table_is_checked() -> None:
    assert {type(protocol) for protocol in EXAMPLES} == set(CLASSES)
    over_values = {PROTOCOLS[name].for_values(name, SMALL).kind for name in methods()}
    assert over_values <= {protocol.kind for protocol in EXAMPLES}


class Cheap(DirectEncoding):
    """States half of what a report loses."""

    @property
    def privacy(self) -> Privacy:
        stated = DirectEncoding.privacy.fget(self)  # type: ignore[attr-defined]
        return replace(stated, first=stated.first / 2)


class Forgetful(DirectEncoding):
    """States an ε∞ that its second report exceeds."""

    @property
    def privacy(self) -> Privacy:
        stated = DirectEncoding.privacy.fget(self)  # type: ignore[attr-defined]
        return replace(stated, permanent=stated.first)


class Lonely(DirectEncoding):
    """Says that its memoized reports are independent."""

    shares = ""


class Biased(DirectEncoding):
    """Adds a thousandth to the last frequency."""

    def estimate(self, columns: Any) -> FrequencyEstimate:
        found = DirectEncoding.estimate(self, columns)
        found.frequencies[-1] += 1e-3
        return found


class Sure(DirectEncoding):
    """States a smaller variance than its estimates have."""

    def estimate(self, columns: Any) -> FrequencyEstimate:
        return DirectEncoding.support.fget(self).estimate(np.bincount(columns, minlength=self.k), columns.size)  # type: ignore[attr-defined, no-any-return]

    @property
    def support(self) -> Support:
        true = DirectEncoding.support.fget(self)  # type: ignore[attr-defined]
        return Support(p=true.p, q=true.q * 0.99)


class HeavyLaw(SymbolLaw):
    def log_probability(self, *parts: Any) -> Floats:
        return np.asarray(super().log_probability(*parts) + 1e-6)


class TiltedLaw(SymbolLaw):
    def part(self, reports: Any) -> Any:
        return super().part([(report + 1) % self._size for report in reports])


class Heavy(DirectEncoding):
    """Its stream law adds up to a millionth more than 1."""

    def stream_law(self, value: int, *, cohort: Any = 0) -> StreamLaw:
        return HeavyLaw(value, self.k, self.chain)


class Tilted(DirectEncoding):
    """Its stream law is that of another value."""

    def stream_law(self, value: int, *, cohort: Any = 0) -> StreamLaw:
        return TiltedLaw(value, self.k, self.chain)


class Shifted(DirectEncoding):
    """Decodes another report than it encoded."""

    def unpack_report(self, data: bytes) -> int:
        return (DirectEncoding.unpack_report(self, data) + 1) % self.k


class Lossy(DirectEncoding):
    """Encodes two reports alike."""

    def pack_report(self, report: Any) -> bytes | None:
        return DirectEncoding.pack_report(self, report // 2)


class Longer(DirectEncoding):
    """States another length than its reports have."""

    @property
    def report_bytes(self) -> int:
        return 5


LIES = {
    Cheap: r"one report loses ε = 0\.\d+, more than the 0\.\d+ of `privacy\.first`",
    Forgetful: r"two reports of a value lose ε = 0\.\d+, more than the 0\.\d+ of `privacy\.permanent`",
    Lonely: "says that the reports of a device share nothing, and they are not independent",
    Biased: r"the decoder is biased: for a user who holds 0, the estimate of cell 2 is 0\.001 on average, not 0",
    Sure: r"has the variances .*, and `support` says",
    Heavy: r"the stream law's probabilities of two reports add up to 1\.000001, not to 1",
    Tilted: r"the stream law gives two reports of 0 the probability 0\.\d+, and the client sends them with",
    Shifted: "`decode` of an encoded report is 1, not the report 0",
    Lossy: "two different reports have the same bytes",
    Longer: "a report has 4 bytes, and `report_bytes` says 5",
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_protocol_that_lies_fails_with_the_reason(lie: type[DirectEncoding]) -> None:
    parameters: dict[str, Any] = {"k": 3, "epsilon_permanent_micro": 1_000_000, "epsilon_first_micro": 400_000}
    check_protocol(DirectEncoding(calibration="exact", **parameters))
    with pytest.raises(KitFailure, match=LIES[lie]):
        check_protocol(lie(calibration="exact", **parameters))
