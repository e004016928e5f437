"""Packages import what they export when it is first used, and worker processes load no more than they run."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import aggservice.campaign

PACKAGES = ("aggservice.campaign", "aggservice.service", "ara_client", "paa_client", "paa_client.recipes", "w3c_client")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_export_is_found_in_a_fresh_process(package: str) -> None:
    names = import_module(package).__all__
    code = f"from {package} import {', '.join(names)}; import {package} as p; assert p.{names[0]} is {names[0]}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'aggservice\.campaign' has no attribute 'run_everything'"):
        aggservice.campaign.run_everything  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("module", ["aggservice.campaign.service.sealing", "aggservice.engine.opening.preload"])
def test_workers_load_neither_network_nor_plots(module: str) -> None:
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(shown.stdout.split())
    assert loaded & {"numpy", "cryptography"} and not loaded & {"grpc", "starlette", "matplotlib", "typer", "rich"}
