"""The terms that most ledgers in these tests have, and releases that they allow."""

from __future__ import annotations

from budget import Mechanism, Release, Sensitivity, Terms

API = "attribution-reporting"
TERMS = Terms(bounds={API: Sensitivity()})


def release_of(*mechanisms: Mechanism, terms: Terms = TERMS, units: int = 1, **parameters: str) -> Release:
    """Return a release over one API, which states what the terms ask for."""
    return terms.release(*mechanisms, covers={API: 1}, units=units, parameters=parameters)
