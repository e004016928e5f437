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
from pathlib import Path

PACKAGE = "@sparticuz/chromium"
VERSION = "147.0.2"
"""The newest version with Attribution Reporting whose DevTools can also flush waiting reports."""
INTEGRITY = "sha512-oqXyPAlGQuT9wdZAhcx4nmhehVgEsDc2adL/+FlX8qsLh/YyOgl9GQp8dPMDIBRmktxgA9c1QSNJIQUj2UeHhQ=="

_BROTLI = """
const fs = require("fs"), zlib = require("zlib"), [from, to] = process.argv.slice(1);
fs.writeFileSync(to, zlib.brotliDecompressSync(fs.readFileSync(from)));
"""
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>
"""
"""The package's own file names folders of the machines that it is made for; without a font no text is drawn."""
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
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not program.is_file():
                _fetch(folder)
    except OSError as error:
        raise BuildUnavailable(f"cannot write to the cache {folder.parent}: {error}") from error
    return program


def _fetch(folder: Path) -> None:
    """Download the package, compare its digest, unpack it beside ``folder`` and move it there whole."""
    for tool in ("npm", "node"):
        if shutil.which(tool) is None:
            raise BuildUnavailable(f"{PACKAGE}@{VERSION} is not in {folder.parent} and there is no {tool} to fetch it")
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        work = Path(name)
        packed = _pack(work)
        found = "sha512-" + base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
        if found != INTEGRITY:
            raise BuildUnavailable(f"{PACKAGE}@{VERSION} has the digest {found}, expected {INTEGRITY}")
        with tarfile.open(packed) as archive:
            archive.extractall(work, filter="data")
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


def _pack(work: Path) -> Path:
    command = ["npm", "pack", "--silent", f"{PACKAGE}@{VERSION}"]
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=_FETCH_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BuildUnavailable(f"npm did not fetch {PACKAGE}@{VERSION} within {_FETCH_S} s") from error
    if done.returncode:
        reason = " ".join(done.stderr.split())[:200]
        raise BuildUnavailable(f"npm cannot fetch {PACKAGE}@{VERSION}: {reason}")
    return work / done.stdout.split()[-1]


def _decompress(compressed: Path, target: Path) -> None:
    subprocess.run(["node", "-e", _BROTLI, str(compressed), str(target)], check=True, timeout=_FETCH_S)


if __name__ == "__main__":
    try:
        print(chromium_program())
    except BuildUnavailable as error:
        sys.exit(f"no browser: {error}")
