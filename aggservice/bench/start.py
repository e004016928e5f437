"""Starting the program: CPU time of importing typer and rich, over that of printing help and the version.

``--help`` cannot be faster than importing the two libraries that print it; the ratio says how near it is.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Annotated

import typer

from aggservice.bench import conclude

_PROMISED = 0.40
_WORKS = {
    "import typer, rich": ("-c", "import typer, rich"),
    "aggservice --help": ("-m", "aggservice", "--help"),
    "aggservice --version": ("-m", "aggservice", "--version"),
}


def cpu_seconds(arguments: tuple[str, ...]) -> float:
    """Return the user and system time of one run of this Python with ``arguments``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def command(
    rounds: Annotated[int, typer.Option(help="Interleaved rounds; the best of each counts.", min=1)] = 20,
    full: Annotated[bool, typer.Option("--full", help="No effect: the promised size is the default.")] = False,
) -> None:
    """Starting: CPU time of importing typer and rich over --help."""
    times: dict[str, list[float]] = {name: [] for name in _WORKS}
    for _ in range(rounds):
        for name, arguments in _WORKS.items():
            times[name].append(cpu_seconds(arguments))
    imports, helped, version = (min(taken) for taken in times.values())
    for name, taken in times.items():
        print(f"{name:22} {1000 * min(taken):7.1f} ms of CPU time")
    print(f"importing typer and rich over --version: {imports / version:.3f}")
    conclude(
        imports / helped,
        "CPU time of importing typer and rich over CPU time of `aggservice --help`",
        f"{1000 * imports:.1f} ms against {1000 * helped:.1f} ms, best of {rounds}; promised {_PROMISED:.2f}; "
        f"--version {1000 * version:.1f} ms",
    )
