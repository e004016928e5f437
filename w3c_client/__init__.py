"""A browser's W3C Attribution, Level 1: privacy budgets live on the device, per site and epoch.

``Browser(clock=, bits=, config=, keys=)`` is one browser. ``save_impression(page, options)`` stores an impression or
raises ``CallError``. ``measure_conversion(page, options)`` returns a ``Conversion`` with ``histogram``, ``max_value``,
``epsilon_micro``, ``conversion_site`` and ``caller``. If the browser has ``keys``, it also has the sealed ``report``.
Its ``epochs`` and ``refused_by`` are for the simulator only: what each epoch paid, or which ``Filter`` refused it.
``page`` is a site or a ``Page``; options are ``ImpressionOptions`` and ``ConversionOptions`` or dictionaries with the
platform's names.

``Config`` holds every limit; ``design_config`` gives the filters of W3C, Big Bird, Cookie Monster or a global budget.
``Fleet`` is many browsers in columns; ``w3c_client.model`` is the specification's algorithm in its own words;
``w3c_client.scenarios`` runs its end-to-end vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggservice.exports import exports_of

if TYPE_CHECKING:
    from w3c_client.attribution import EpochOutcome
    from w3c_client.browser import Browser, Conversion, SentReport
    from w3c_client.budgets import Charge, epsilon_micro
    from w3c_client.calls.options import ConversionOptions, ImpressionOptions
    from w3c_client.config import DEFAULT_SERVICE, Arithmetic, Config, Design, Filter, SharedCost, design_config
    from w3c_client.errors import CallError, ErrorName, HeaderError, W3cError
    from w3c_client.fleet.columns import ConversionColumns, ImpressionColumns
    from w3c_client.fleet.fleet import Fleet
    from w3c_client.randomness import FixedDraws
    from w3c_client.sites import Page
    from w3c_client.storage.impressions import Impression
else:
    __getattr__ = exports_of(
        __name__,
        {
            "attribution": ("EpochOutcome",),
            "browser": ("Browser", "Conversion", "SentReport"),
            "budgets": ("Charge", "epsilon_micro"),
            "calls.options": ("ConversionOptions", "ImpressionOptions"),
            "config": ("DEFAULT_SERVICE", "Arithmetic", "Config", "Design", "Filter", "SharedCost", "design_config"),
            "errors": ("CallError", "ErrorName", "HeaderError", "W3cError"),
            "fleet.columns": ("ConversionColumns", "ImpressionColumns"),
            "fleet.fleet": ("Fleet",),
            "randomness": ("FixedDraws",),
            "sites": ("Page",),
            "storage.impressions": ("Impression",),
        },
    )

__all__ = [
    "DEFAULT_SERVICE",
    "Arithmetic",
    "Browser",
    "CallError",
    "Charge",
    "Config",
    "Conversion",
    "ConversionColumns",
    "ConversionOptions",
    "Design",
    "EpochOutcome",
    "ErrorName",
    "Filter",
    "FixedDraws",
    "Fleet",
    "HeaderError",
    "Impression",
    "ImpressionColumns",
    "ImpressionOptions",
    "Page",
    "SentReport",
    "SharedCost",
    "W3cError",
    "design_config",
    "epsilon_micro",
]
