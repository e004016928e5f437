"""Effects: how worklet code acts on the browser, as tuples of plain values that a child process can write as JSON.

| effect | emitted by |
| --- | --- |
| ("set", key, value, ignore_if_present), ("append", key, value), ("delete", key), ("clear",) | Shared Storage |
| ("contribute", bucket, value, filtering_id, named_budget, error_event) | every worklet |
| ("contribute-on-exception", bucket, value, filtering_id, named_budget) | Shared Storage worklets |
| ("on-event", event, bucket, value, filtering_id, named_budget) | auction functions |
| ("debug", debug_key), ("reserve", name, numerator, denominator), ("refuse", message) | every worklet |
| ("end", message, result) | a child process, once, at its end |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aggservice.wire.device import DeviceError

Effect = tuple[Any, ...]
"""One action of worklet code: a name and plain values (text, integers, floats, booleans, lists of them)."""

Emit = Callable[[Effect], None]
"""Passes on an effect at the moment it happens."""


class WorkletError(DeviceError):
    """The base of the errors inside a worklet."""


class WorkletRangeError(WorkletError, ValueError):
    """The platform's ``RangeError``: a bucket, value or filtering ID outside its range."""


class WorkletTypeError(WorkletError, TypeError):
    """The platform's ``TypeError``: an argument that cannot be converted."""


class WorkletDataError(WorkletError, ValueError):
    """The platform's ``DataError``: a call that is not allowed with these data, or not allowed twice."""


class WorkletNotAllowedError(WorkletError, RuntimeError):
    """The platform's ``NotAllowedError``: the API is used before the operation starts or after it has ended."""
