"""The errors of ``aggservice.wire``: each has the counter that counts the report.

A message may quote public text (a key id, a JSON field, a file). For sealed bytes it says only that they do not open;
for an opened payload it names only the kind of flaw, and never bytes, positions or values.
"""

from __future__ import annotations

from enum import StrEnum

from aggservice.wire.status import ReportStatus


class WireError(ValueError):
    """The base of every error this package raises; ``status`` is the counter of a report that fails with it."""

    status: ReportStatus = ReportStatus.REPORT_PARSING_ERROR


class EncodingError(WireError):
    """A value cannot be encoded: a bucket of more than 128 bits, for example, or too many contributions."""

    status = ReportStatus.INTERNAL_ERROR


class SharedInfoError(WireError):
    """``shared_info`` is not valid; ``status`` depends on the field that is wrong."""

    def __init__(self, status: ReportStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class KeyNotFoundError(WireError):
    """No private key has the id that a report names."""

    status = ReportStatus.DECRYPTION_KEY_NOT_FOUND


class DecryptionError(WireError):
    """A sealed payload does not open: truncated, altered, for another key or another ``shared_info``.

    The message does not say which: HPKE cannot tell these cases apart, and an observer should not be able to.
    """

    status = ReportStatus.DECRYPTION_ERROR

    def __init__(self) -> None:
        super().__init__(
            "the payload does not open: it, its key or its shared_info was changed after sealing; "
            "check that shared_info is passed on byte for byte"
        )


class SealedSummaryError(WireError):
    """A sealed summary cannot be opened: it is truncated, altered, or sealed to another key."""

    status = ReportStatus.DECRYPTION_ERROR


class PayloadFlaw(StrEnum):
    """What is wrong with an opened payload."""

    NOT_CBOR = "not one CBOR item"
    WRONG_SHAPE = "not the map of data and operation that the specification requires"
    OVERSIZED = "more bytes or contributions than a report may have"
    DUPLICATE_KEY = "a map that has a key twice"
    NEGATIVE_VALUE = "a contribution with a negative value"


class PayloadError(WireError):
    """An opened payload does not have the form that its operation requires; ``flaw`` says what is wrong."""

    def __init__(self, flaw: PayloadFlaw) -> None:
        super().__init__(f"the payload is malformed: {flaw.value}")
        self.flaw = flaw


class UnsupportedOperationError(WireError):
    """A well-formed payload has an operation that this decoder does not support."""

    status = ReportStatus.UNSUPPORTED_OPERATION

    def __init__(self) -> None:
        super().__init__("the payload's operation is not supported by this decoder")


class KeySetError(WireError):
    """A key set, or the file or document that holds one, cannot be used."""

    status = ReportStatus.DECRYPTION_KEY_FETCH_ERROR


class ReportBodyError(WireError):
    """The JSON body of a report is not what a browser sends."""


class AvroError(WireError):
    """An Avro file is malformed; the message names the file and the byte at which reading stopped."""

    def __init__(self, source: str, position: int, message: str) -> None:
        super().__init__(f"{source}, byte {position}: {message}")
        self.source = source
        self.position = position
