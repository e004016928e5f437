"""What the browsers of all APIs share: their errors, and a report as it leaves a browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from aggservice.wire.report.body import AggregatableReport


class DeviceError(Exception):
    """The base of every error that a browser's package raises."""


class DeviceConfigError(DeviceError, ValueError):
    """A value of a browser's ``Config``, or an argument of ``Browser``, is outside its range."""


class UnsealedReportError(DeviceError):
    """The body of an aggregatable report was requested, but the browser had no key to seal it."""


class CallError(DeviceError, ValueError):
    """A page's call is rejected, and changes nothing. ``name`` is the platform's name of the error.

    The cause is always the page's own arguments, policy or activation, never what the browser stores.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name

    @property
    def is_dom_exception(self) -> bool:
        """Whether the platform wraps the name in a ``DOMException``: every name that is not JavaScript's own."""
        return self.name not in ("TypeError", "RangeError", "ReferenceError")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentReport:
    """A report that a browser posts to ``url``. ``time_ms`` is when it was sent, None until then.

    ``sealed`` is its encrypted body: None if the browser had no key, or if reports of its kind are sent in the clear.
    """

    url: str
    time_ms: int | None = None
    sealed: AggregatableReport | None = None

    def to_json(self) -> str:
        """Return the body as it is posted; raise ``UnsealedReportError`` if it is not sealed."""
        if self.sealed is None:
            raise UnsealedReportError(f"this report to {self.url} has no sealed body: pass Browser the keys")
        return self.sealed.to_json()


class SendResult(Enum):
    """The result of one attempt to send a report. Only a transient failure is retried."""

    SENT = auto()
    TRANSIENT_FAILURE = auto()
    FAILURE = auto()


Send = Callable[[SentReport], SendResult]
"""The network of a browser: it is called with each report when it is sent."""


def always_sent(report: SentReport) -> SendResult:
    """Send every report: a network that never fails."""
    return SendResult.SENT
