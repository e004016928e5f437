"""Starts numba's compiler without scipy's linear algebra, for processes that run only kernels of this project.

With the first kernel of a process numba imports ``scipy.linalg`` to learn whether a kernel could multiply matrices.
None of ours does, and that import takes a twentieth of the CPU time of ``aggservice demo``.
"""

from __future__ import annotations

import sys
from importlib import import_module


def start_numba() -> None:
    """Import what numba needs for its first kernel. In this process, its kernels cannot multiply matrices afterwards.

    Does nothing if scipy's linear algebra or that part of numba is already imported.
    """
    name = "scipy.linalg"
    if name in sys.modules or "numba.np.arraymath" in sys.modules:
        return
    sys.modules[name] = None  # type: ignore[assignment]  # an import of this module now fails
    try:
        import_module("numba.np.arraymath")
    finally:
        del sys.modules[name]
