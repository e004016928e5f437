"""Seeded privacy faults and what must find them: each is applied to a copy of the project, and its tests run there.

A mutant is an entry of a TOML file beside this one: a file, a text that it holds exactly once, what to put there, why
that breaks privacy, and the tests that must fail (or the audit path that must say so). A text that is no longer there
makes the mutant stale, which fails a run by name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
COPIED = ("aggservice", "ara_client", "paa_client", "ldp_client", "w3c_client", "budget", "tests", "examples", "docs")
TIME_LIMIT_S = 400.0
"""How long the tests of one mutant may take; none that passes on the unchanged code takes a quarter of it."""


class StaleMutantError(Exception):
    """The text that a mutant replaces is not in its file exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault: what changes where, why it is one, and the tests or the audit path that must find it."""

    name: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...] = ()
    audit: str = ""

    def __post_init__(self) -> None:
        if bool(self.tests) == bool(self.audit):
            raise ValueError(f"{self.name}: name the tests that must fail, or the audit path, and not both")

    def mutated(self, root: Path) -> str:
        """Return the text of its file below ``root`` with the fault in it."""
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text.count(self.old) != 1:
            raise StaleMutantError(
                f"{self.name} is stale: {self.file} has its old text {text.count(self.old)} times, not once; "
                "write the fault again for the code as it is now"
            )
        return text.replace(self.old, self.new)

    def command(self) -> list[str]:
        """Return what must fail in a copy with the fault."""
        if self.audit:
            return [sys.executable, "-m", "aggservice", "audit", "--quick", "--path", self.audit]
        plain = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        return [sys.executable, *plain, *self.tests]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How the tests of a mutant ended; ``output`` is the end of what they printed."""

    mutant: Mutant
    code: int | None
    seconds: float
    output: str

    @property
    def killed(self) -> bool:
        """Whether a test failed, or the audit found a loss above the charge. A time-out or a broken run is not that."""
        return self.code == 1

    @property
    def word(self) -> str:
        """What happened, in a word or two."""
        if self.killed:
            return "killed"
        return {0: "SURVIVED", None: "TIMED OUT"}.get(self.code, f"DID NOT RUN (exit code {self.code})")


def mutants() -> list[Mutant]:
    """Return every mutant, in the order of files and entries."""
    found = []
    for path in sorted(HERE.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            found.append(Mutant(**{**entry, "tests": tuple(entry.get("tests", ()))}))
    names = [mutant.name for mutant in found]
    if len(set(names)) != len(names):
        raise ValueError(f"two mutants have the same name: {sorted({name for name in names if names.count(name) > 1})}")
    return found


def copy_project(folder: Path) -> Path:
    """Copy what tests need, compiled code included, and return the copy."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name)
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy2(path, folder / path.name)
    shutil.copytree(ROOT / "proto", folder / "proto")
    return folder


def run(mutant: Mutant, pristine: Path, folder: Path, limit_s: float = TIME_LIMIT_S) -> Verdict:
    """Run the tests of a mutant in ``folder``, a copy of ``pristine`` made of hard links and one changed file."""
    changed = mutant.mutated(pristine)
    shutil.copytree(pristine, folder, copy_function=os.link)
    try:
        path = folder / mutant.file
        path.unlink()
        path.write_text(changed, encoding="utf-8")
        for cached in stale_kernels(folder, mutant.file):
            cached.unlink()
        return _verdict(mutant, folder, limit_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_unchanged(tests: Sequence[str], pristine: Path) -> Verdict:
    """Run tests on the unchanged copy: they must pass, or a mutant's death would say nothing."""
    everything = Mutant(name="no fault", file="", old="", new="", why="", tests=tuple(tests))
    return _verdict(everything, pristine, 20 * TIME_LIMIT_S)


def stale_kernels(folder: Path, file: str) -> Iterator[Path]:
    """Yield the caches of compiled functions that import from ``file``: they hold its old code, and nothing tells."""
    module = file.removesuffix(".py").replace("/", ".")
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "njit" in text and f"from {module} import" in text:
            yield from (path.parent / "__pycache__").glob(f"{path.stem}.*.nbi")


def _verdict(mutant: Mutant, folder: Path, limit_s: float) -> Verdict:
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "AGGSERVICE_SHARED": os.environ.get("AGGSERVICE_SHARED", str(ROOT.parent / "shared")),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.monotonic()
    process = subprocess.Popen(
        mutant.command(),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    code: int | None
    try:
        output, _ = process.communicate(timeout=limit_s)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        code = None
    return Verdict(mutant=mutant, code=code, seconds=time.monotonic() - start, output=output[-4000:])
