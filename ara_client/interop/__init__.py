"""Chromium's interoperability cases for Attribution Reporting: reading, running and comparing them."""

from ara_client.interop.cases import Case, load_case, load_config
from ara_client.interop.runner import CaseResult, run_case, run_directory

__all__ = ["Case", "CaseResult", "load_case", "load_config", "run_case", "run_directory"]
