"""The verifier in one file agrees with the audit on good and on tampered logs, without this package."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cffi
import cryptography
import pytest

from aggservice.mechanisms import AmplificationBound, ParameterError, amplified_micro, discovery_threshold
from budget import ExportedLog, Receipt, Store, verify_log
from budget.audit import standalone

from .test_tamper import Book, flip, write_book

SCRIPT = Path(standalone.__file__)


@pytest.fixture
def book(make_store: Callable[[str], Store], tmp_path: Path) -> Book:
    return write_book(make_store("sqlite"), tmp_path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    """Run the verifier in this process; return its exit code and what it printed."""
    former, sys.argv = sys.argv, ["verify.py", *map(str, arguments)]
    try:
        status = standalone.main()
    finally:
        sys.argv = former
    said = capsys.readouterr()
    return status, said.out + said.err


def kept(book: Book) -> list[str | Path]:
    """Write the receipts and a checkpoint to files; return them as options."""
    options: list[str | Path] = []
    for number, raw in enumerate(book.receipts):
        path = book.folder / f"receipt-{number}"
        path.write_bytes(raw)
        options += ["--receipt", path]
    checkpoint = book.folder / "checkpoint"
    checkpoint.write_bytes(book.ledger.checkpoint().to_bytes())
    return [*options, "--checkpoint", checkpoint]


def test_it_is_one_short_file_that_imports_nothing_of_ours() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 500
    assert "import budget" not in text and "from budget" not in text and "aggservice." not in text


def test_it_agrees_with_the_audit_on_a_good_log(book: Book, capsys: pytest.CaptureFixture[str]) -> None:
    log = book.export()
    report = verify_log(ExportedLog(log))
    key = book.ledger.genesis.public_key.hex()
    code, said = run(capsys, log, *kept(book), "--public-key", key)
    assert code == 0 and report.root.hex() in said and f"{report.units_charged} charges" in said
    assert f"to {report.units_known} units" in said and f"{len(book.receipts)} receipts" in said


def test_its_thresholds_and_amplified_prices_are_those_of_the_library() -> None:
    """Its own code: τ to the last digit, and prices that it accepts as they are and refuses half a percent lower."""
    draw = random.Random(7)
    for _ in range(200):
        l1 = draw.choice([1, 65_536, 2**32, draw.randrange(1, 2**32)])
        l0, epsilon = draw.randrange(1, l1 + 1), draw.choice([1, 10**6, draw.randrange(1, 64 * 10**6)])
        delta = draw.choice([1, 10**18, draw.randrange(1, 10**18), 10 ** draw.randrange(18)])
        expected = discovery_threshold(epsilon_micro=epsilon, delta_atto=delta, l0=l0, l1=l1)
        assert standalone.threshold(epsilon, delta, l0, l1) == expected
    checked = 0
    for bound, reports, local, delta in itertools.product(
        AmplificationBound, (2, 50, 1000, 100_000), (100_000, 450_000, 3_000_000), (10**3, 10**12)
    ):
        try:
            owed = amplified_micro(bound, local_micro=local, reports=reports, delta_atto=delta)
        except ParameterError:
            with pytest.raises(standalone.Mismatch, match="does not apply"):
                standalone.price_covers(bound.value, local, local, reports, delta)
            continue
        assert standalone.price_covers(bound.value, owed, local, reports, delta)
        lower = int(owed * 0.995) - 2
        assert lower < 1 or not standalone.price_covers(bound.value, lower, local, reports, delta)
        checked += 1
    assert checked == 56


def test_it_runs_where_nothing_else_is(book: Book, tmp_path: Path) -> None:
    """In an isolated process whose only other package is cryptography."""
    alone = tmp_path / "alone"
    alone.mkdir()
    for package in (cryptography, cffi):
        (alone / package.__name__).symlink_to(Path(str(package.__file__)).parent)
    for extra in Path(cffi.__file__).parent.parent.glob("_cffi_backend*"):
        (alone / extra.name).symlink_to(extra)
    script = tmp_path / "verify.py"
    script.write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    code = (
        f"import sys, runpy; sys.path.append({str(alone)!r}); sys.argv = ['v', {str(book.export())!r}]; "
        f"runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and done.stdout.startswith("ok: 9 entries"), done.stderr


def tampered(book: Book, capsys: pytest.CaptureFixture[str], times: int, seed: int) -> int:
    """Change a byte of the log, a checkpoint or a receipt; count how often the verifier says so."""
    place, log, options = random.Random(seed), book.export(), kept(book)
    evidence = [Path(one) for one in options[1::2]]
    found = 0
    for _ in range(times):
        path = place.choice([log, *evidence])
        raw = path.read_bytes()
        path.write_bytes(flip(raw, place))
        code, said = run(capsys, log, *options)
        found += code == 1 and said.startswith("DISAGREEMENT")
        path.write_bytes(raw)
    assert run(capsys, log, *options)[0] == 0
    return found


def test_it_finds_changed_bytes(book: Book, capsys: pytest.CaptureFixture[str]) -> None:
    assert tampered(book, capsys, 200, seed=5) == 200


@pytest.mark.soak
def test_it_finds_ten_thousand_changed_bytes(book: Book, capsys: pytest.CaptureFixture[str]) -> None:
    assert tampered(book, capsys, 10_000, seed=6) == 10_000


def test_it_finds_removed_entries_and_other_keys(book: Book, capsys: pytest.CaptureFixture[str]) -> None:
    options = kept(book)
    whole = book.export().read_bytes()
    receipt = Receipt.from_bytes(book.receipts[0])
    cut = book.folder / "cut"
    # The log as it was when the first receipt was signed: valid alone, but shorter than what was kept.
    header = json.dumps(receipt.entry, sort_keys=True, separators=(",", ":")).encode()
    end = whole.index(header) + len(header) + 20 * receipt.entry["units"]["count"]
    signed = receipt.checkpoint.to_bytes()
    cut.write_bytes(whole[:end] + bytes(4) + len(signed).to_bytes(4, "big") + signed)
    assert run(capsys, cut)[0] == 0
    code, said = run(capsys, cut, *options)
    assert code == 1 and "a checkpoint covers 9" in said
    assert run(capsys, book.export(), "--public-key", "00" * 32)[0] == 1
    assert run(capsys, book.folder / "missing")[0] == 2


def test_it_ties_a_summary_to_its_receipt(book: Book, capsys: pytest.CaptureFixture[str]) -> None:
    options, log = kept(book), book.export()
    files = [path for path in book.folder.rglob("*") if path.is_file()]
    named = {digest for raw in book.receipts for digest in Receipt.from_bytes(raw).result_digests()}
    results = [path for path in files if standalone.summary_digest(str(path)) in named]
    assert results, "some results are files"
    assert run(capsys, log, *options, "--summary", results[0])[0] == 0
    results[0].write_bytes(results[0].read_bytes() + b"x")
    code, said = run(capsys, log, *options, "--summary", results[0])
    assert code == 1 and "not the result" in said
