"""A browser's W3C Attribution, Level 1: privacy budgets live on the device, per site and epoch.

``Browser(clock=, bits=, config=, keys=)`` is one browser. ``save_impression(page, options)`` stores an impression or
raises ``CallError``. ``measure_conversion(page, options)`` returns a ``Conversion`` with ``histogram``,
``max_value``, ``epsilon_micro``, ``conversion_site`` and ``caller``; with ``keys`` it also has the ``sealed`` report.
Its ``epochs`` and ``refused_by`` are for the simulator only: what each epoch paid, or which on-device rule refused it.
``page`` is a site or a ``Page``; options are ``ImpressionOptions`` and ``ConversionOptions`` or dictionaries with the
platform's names.

``Config`` holds every limit; ``design_config`` gives the rules of W3C, Big Bird, Cookie Monster or a global budget.
An on-device rule of your own is a subclass of ``OnDeviceRule``, an attribution rule one of ``AttributionRule``.
``Fleet`` is many browsers in columns; ``w3c_client.model`` is the specification's algorithm in its own words;
``w3c_client.scenarios`` runs its end-to-end vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggservice.exports import exports_of
from aggservice.wire.device import CallError, DeviceError

if TYPE_CHECKING:
    from w3c_client.attribution import EpochOutcome
    from w3c_client.browser import Browser, Conversion, ConversionReport
    from w3c_client.columns import ConversionColumns, ImpressionColumns
    from w3c_client.config import DEFAULT_SERVICE, DESIGNS, Arithmetic, Config, design_config
    from w3c_client.credit import ATTRIBUTION_RULES, AttributionRule
    from w3c_client.errors import ErrorName, HeaderError
    from w3c_client.fleet import Fleet
    from w3c_client.options import ConversionOptions, ImpressionOptions, Page
    from w3c_client.randomness import FixedW3cChoices
    from w3c_client.rules import RULES, OnDeviceRule, SharedCost
else:
    __getattr__ = exports_of(__name__, __file__)

__all__ = [
    "ATTRIBUTION_RULES",
    "DEFAULT_SERVICE",
    "DESIGNS",
    "RULES",
    "Arithmetic",
    "AttributionRule",
    "Browser",
    "CallError",
    "Config",
    "Conversion",
    "ConversionColumns",
    "ConversionOptions",
    "ConversionReport",
    "DeviceError",
    "EpochOutcome",
    "ErrorName",
    "FixedW3cChoices",
    "Fleet",
    "HeaderError",
    "ImpressionColumns",
    "ImpressionOptions",
    "OnDeviceRule",
    "Page",
    "SharedCost",
    "design_config",
]
