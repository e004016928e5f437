"""Numba starts without scipy's linear algebra, and leaves it to others."""

from __future__ import annotations

import subprocess
import sys

_KERNEL = """
import sys
from aggservice.compiler import start_numba
start_numba()
from aggservice.engine.opening import preload  # runs kernels
print("scipy.linalg" in sys.modules)
import scipy.linalg
print(scipy.linalg.det([[2.0, 0.0], [0.0, 3.0]]))
start_numba()
print("scipy.linalg" in sys.modules)
"""


def test_kernels_run_without_scipys_linear_algebra_which_stays_importable() -> None:
    done = subprocess.run([sys.executable, "-c", _KERNEL], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "6.0", "True"]
