"""The browser build that these tests drive: a pinned headless Chromium from npm, in a cache outside the repository.

``python tests/browser/build.py`` fetches it and prints the program's path.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGE = "@sparticuz/chromium"
VERSION = "147.0.2"
"""The newest version with Attribution Reporting whose DevTools can also flush waiting reports."""
INTEGRITY = "sha512-oqXyPAlGQuT9wdZAhcx4nmhehVgEsDc2adL/+FlX8qsLh/YyOgl9GQp8dPMDIBRmktxgA9c1QSNJIQUj2UeHhQ=="

AXE = (
    "axe-core",
    "4.14.0",
    "sha512-9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ==",
)
"""The checker of accessible pages: its package, version and digest."""

_BROTLI = """
const fs = require("fs"), zlib = require("zlib"), [from, to] = process.argv.slice(1);
fs.writeFileSync(to, zlib.brotliDecompressSync(fs.readFileSync(from)));
"""
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>
"""
"""The package's own file names folders of the machines that it is made for; without a font no text is drawn."""
NPM_OPTIONS = (
    "--loglevel=error",
    "--fetch-retries=2",
    "--fetch-retry-mintimeout=1000",
    "--fetch-retry-maxtimeout=5000",
)
"""Errors only, and three attempts within seconds: npm's own pauses make a machine without a network wait a minute."""
_FETCH_S = 240


class BuildUnavailable(Exception):
    """The build is not in the cache and cannot be fetched; the text says why, in one line."""


def cache_folder() -> Path:
    """Return the folder of the unpacked build, whether it exists or not."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "aggservice" / f"chromium-{VERSION}"


def chromium_program() -> Path:
    """Return the program of the pinned build, fetched and unpacked if it is not in the cache.

    Several processes may call this at once: one fetches, the others wait. A folder in the cache is complete.
    """
    folder = cache_folder()
    program = folder / "chromium"
    if program.is_file():
        return program
    with _writing(folder.parent):
        if not program.is_file():
            _fetch(folder)
    return program


def axe_script() -> Path:
    """Return the script that checks a page for faults of accessibility, fetched if it is not in the cache."""
    package, version, integrity = AXE
    target = cache_folder().parent / f"{package}-{version}.js"
    if not target.is_file():
        with _writing(target.parent), tempfile.TemporaryDirectory(dir=target.parent) as name:
            _unpack(Path(name), f"{package}@{version}", integrity)
            (Path(name) / "package" / "axe.min.js").rename(target)
    return target


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Make the cache and hold its lock; BuildUnavailable if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise BuildUnavailable(f"cannot write to the cache {folder}: {error}") from error


def _unpack(work: Path, package: str, integrity: str) -> None:
    """Download a package, compare its digest, and unpack it into ``work``."""
    for tool in ("npm", "node"):
        if shutil.which(tool) is None:
            raise BuildUnavailable(f"{package} is not in the cache and there is no {tool} to fetch it")
    packed = _pack(work, package)
    found = "sha512-" + base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
    if found != integrity:
        raise BuildUnavailable(f"{package} has the digest {found}, expected {integrity}")
    with tarfile.open(packed) as archive:
        archive.extractall(work, filter="data")


def _fetch(folder: Path) -> None:
    """Download and unpack the build beside ``folder``, and move it there whole."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        work = Path(name)
        _unpack(work, f"{PACKAGE}@{VERSION}", INTEGRITY)
        unpacked = work / "unpacked"
        unpacked.mkdir()
        _decompress(work / "package/bin/chromium.br", unpacked / "chromium")
        for part in ("al2023", "swiftshader", "fonts"):
            _decompress(work / f"package/bin/{part}.tar.br", work / f"{part}.tar")
            with tarfile.open(work / f"{part}.tar") as archive:
                archive.extractall(unpacked, filter="data")
        (unpacked / "fonts.conf").write_text(_FONTS.format(folder=folder / "fonts"))
        (unpacked / "chromium").chmod(0o755)
        unpacked.rename(folder)


def _pack(work: Path, package: str) -> Path:
    command = ["npm", "pack", *NPM_OPTIONS, package]
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=_FETCH_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BuildUnavailable(f"npm did not fetch {package} within {_FETCH_S} s") from error
    if done.returncode:
        raise BuildUnavailable(f"npm cannot fetch {package}: {npm_reason(done.stderr)}")
    return work / done.stdout.split()[-1]


def npm_reason(said: str) -> str:
    """Return what npm says of its failure, in one line."""
    lines = [line.removeprefix("npm error").strip() for line in said.splitlines() if line.startswith("npm error")]
    return " ".join(line for line in lines if line and not line.startswith("at "))[:200] or "it does not say why"


def _decompress(compressed: Path, target: Path) -> None:
    subprocess.run(["node", "-e", _BROTLI, str(compressed), str(target)], check=True, timeout=_FETCH_S)


if __name__ == "__main__":
    try:
        print(chromium_program())
        print(axe_script())
    except BuildUnavailable as error:
        sys.exit(f"no browser: {error}")
