"""Limits of a report that several subpackages need."""

MAX_TIME_S = 253_402_300_799
"""The last second of the year 9999. Later times have no ISO-8601 instant, which the deployed shared ID needs."""

MAX_SHARED_INFO_BYTES = 4096

MAX_CONTRIBUTIONS = 1000
MAX_PAYLOAD_BYTES = 1 << 16
"""A payload of ``MAX_CONTRIBUTIONS`` contributions in canonical form has at most 48,026 bytes."""

MAX_FILTERING_ID = (1 << 64) - 1

MAX_UINT32 = (1 << 32) - 1

MAX_W3C_VALUE = (1 << 31) - 1
"""The largest maximum value of a W3C report: a contribution holds 31 bits."""

UNIT_BYTES = 20
"""The length of a unit key: four bytes of the hour, and 16 bytes of a SHA-256."""
