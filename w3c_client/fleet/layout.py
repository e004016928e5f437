"""The layout of rows in the kernels of a fleet: numbers of columns, filters and outcomes."""

from __future__ import annotations

from typing import Final

ATTRIBUTED, NO_MATCH, REFUSED, CLEARED, OFF = range(5)
IMPRESSIONS_FOR_SITE, SITE_DATA, FORGET_SITE, FORGET_ALL = range(4)
SITE, GLOBAL, CONVERSION_QUOTA, IMPRESSION_QUOTA, ACTION_CAP = range(5)
HOUR_MS: Final = 3_600_000
NEVER: Final = 1 << 62
"""The start of epochs of a device that never needed it."""
EPOCH_ZERO: Final = 1 << 26
SITE_BITS, KIND_BITS = 32, 2
ABSENT: Final = -1
UNSAVED, LIVE, GONE = range(3)

#: Columns of ``imp``. The last are the kernel's own: whether it is stored, its epoch, and (two columns of bits) which
#: items of its lists of conversion sites and callers were cleared.
(I_TIME, I_UNTIL, I_SITE, I_CALLER, I_INDEX, I_PRIORITY, I_MATCH_VALUE, I_SITES, I_CALLERS, I_ACTION, I_ENABLED,
 I_STATE, I_EPOCH, I_GONE) = range(14)  # fmt: skip
IMP_WIDTH: Final = 15
#: Columns of ``con``. ``C_WHOLE`` is what an epoch of a wide window costs; the coins of a row begin at ``C_WORD``.
(C_TIME, C_LOOKBACK, C_SITE, C_CALLER, C_SIZE, C_VALUE, C_MAX_VALUE, C_EPSILON, C_WHOLE, C_CREDIT, C_MATCH_VALUES,
 C_SITES, C_CALLERS, C_ACTION, C_ENABLED, C_WORD) = range(16)  # fmt: skip
CON_WIDTH: Final = 16
#: Columns of ``clears``.
K_TIME, K_KIND, K_SITE = range(3)
#: Columns of ``res``, the results of conversions.
R_OUTCOME, R_END, R_OUTSIDE, R_PAID, R_UNPAID, R_REFUSED, R_SINGLE = range(7)
RES_WIDTH: Final = 7
#: Rows of ``ent`` (budgets), columns of ``sent`` (contributions) and of ``ends`` (devices).
E_KEY, E_LEFT = range(2)
S_INDEX, S_AMOUNT = range(2)
D_START, D_ENTRIES = range(2)
#: Entries of ``rules``; capacities and whether filters run follow in the order of filters, then impressions per site
#: and epoch (0: no limit).
EPOCH_MS, LOOKBACK_MS, SITES_PER_ACTION, INDIVIDUAL, CAPACITY = range(5)
RUNS: Final = CAPACITY + 4
PER_SITE: Final = RUNS + 5
#: Rows of ``room``: matches, distinct sites and their rows. Rows of ``top``: credited impressions, amounts, fractions.
MATCHES, SITES, ROWS = range(3)
CREDITED, AMOUNTS, PARTS = range(3)
