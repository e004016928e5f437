"""The status of a report, and the errors of ``aggservice.wire``: each has the counter that counts the report.

A message may quote public text (a key id, a JSON field, a file). For sealed bytes it says only that they do not open;
for an opened payload it names only the kind of flaw, and never bytes, positions or values.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class ReportStatus(IntEnum):
    """The status of a report: ``OK``, or the counter of its first problem.

    The names are counters of the deployed Aggregation Service (2.14, ``ErrorCounter``). The numbers are our own; a
    column of them holds the status of each row of a batch.
    """

    OK = 0
    DECRYPTION_ERROR = 1
    DECRYPTION_KEY_NOT_FOUND = 2
    DECRYPTION_KEY_FETCH_ERROR = 3
    REPORT_PARSING_ERROR = 4
    UNSUPPORTED_OPERATION = 5
    UNSUPPORTED_REPORT_API_TYPE = 6
    UNSUPPORTED_SHAREDINFO_VERSION = 7
    REQUIRED_SHAREDINFO_FIELD_INVALID = 8
    INVALID_REPORT_ID = 9
    ATTRIBUTION_REPORT_TO_MALFORMED = 10
    ATTRIBUTION_REPORT_TO_MISMATCH = 11
    REPORTING_SITE_MISMATCH = 12
    DEBUG_NOT_ENABLED = 13
    ORIGINAL_REPORT_TIME_TOO_OLD = 14
    INTERNAL_ERROR = 15
    UNSUPPORTED_REPORT_VERSION = 16
    """A major version above the newest we know: the deployed service fails the whole job with this return code."""
    CONTRIBUTIONS_EXCEED_BOUNDS = 17
    """Our own name: the report contributes more than its API allows, which no honest browser sends."""
    ATTRIBUTION_TASK_MISMATCH = 18
    """Our own name: a W3C report of another conversion site, histogram size or maximum value than the job's."""
    REPORT_EPSILON_TOO_LOW = 19
    """Our own name: a W3C report whose page asked for a smaller ε than the job's."""


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
