"""``make mutants``: put every seeded fault into a copy, two at a time; the last line is `N killed, M survived`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from kit import Mutant, StaleMutantError, Verdict, copy_project, mutants, run, run_unchanged

WORKERS = 2


def main() -> int:
    """Run the chosen mutants; return 0 if all were killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants to run: parts of names; all if none is given")
    parser.add_argument("--no-baseline", action="store_true", help="do not first run the tests on the unchanged code")
    options = parser.parse_args()
    chosen = [one for one in mutants() if not options.names or any(part in one.name for part in options.names)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        pristine = copy_project(Path(scratch) / "pristine")
        stale = [text for one in chosen if (text := staleness(one, pristine))]
        print(*stale, sep="\n", end="\n" if stale else "")
        if stale:
            print(f"{len(stale)} of {len(chosen)} mutants are stale")
            return 1
        if not options.no_baseline and not unchanged_passes(chosen, pristine):
            return 1
        return attack(chosen, pristine, Path(scratch))


def staleness(mutant: Mutant, pristine: Path) -> str:
    """Return what is wrong with a mutant whose text is no longer there; empty if nothing is."""
    try:
        mutant.mutated(pristine)
    except StaleMutantError as problem:
        return str(problem)
    return ""


def unchanged_passes(chosen: list[Mutant], pristine: Path) -> bool:
    """Run every named test once without a fault. This also compiles what the copies share."""
    tests = sorted({test for one in chosen for test in one.tests})
    print(f"Running the tests of {len(chosen)} mutants on the unchanged code ...", flush=True)
    verdict = run_unchanged(tests, pristine)
    if verdict.code != 0:
        print(verdict.output, f"the tests fail on the unchanged code (exit code {verdict.code})", sep="\n")
    else:
        print(f"They pass ({verdict.seconds:.0f} s).", flush=True)
    return verdict.code == 0


def attack(chosen: list[Mutant], pristine: Path, scratch: Path) -> int:
    """Run the mutants two at a time and print a line for each as it ends."""
    verdicts: list[Verdict] = []
    with ThreadPoolExecutor(WORKERS) as pool:
        waiting = [pool.submit(run, one, pristine, scratch / f"copy-{at}") for at, one in enumerate(chosen)]
        for done in as_completed(waiting):
            verdict = done.result()
            verdicts.append(verdict)
            place = f"[{len(verdicts)}/{len(chosen)}]"
            print(f"{place:>9} {verdict.word:<9} {verdict.seconds:5.1f} s  {verdict.mutant.name}", flush=True)
    survivors = [one for one in verdicts if not one.killed]
    for one in survivors:
        print(f"\n{one.word}: {one.mutant.name} ({one.mutant.file})\n  {one.mutant.why}")
        if one.code not in (0, None):
            print(one.output)
    print(f"{len(verdicts) - len(survivors)} killed, {len(survivors)} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
