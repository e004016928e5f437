"""Chromium's golden reports: we open what Chrome seals and encode what it encodes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from aggservice.conformance.goldens import check_goldens


def test_every_golden_report_opens_and_encodes_to_the_same_bytes(shared: Path) -> None:
    results = list(check_goldens(shared / "vectors" / "chromium-report-goldens"))
    assert [result for result in results if not result.passed] == []
    assert len(results) == 84


def test_a_golden_that_was_changed_fails_with_its_difference(shared: Path, tmp_path: Path) -> None:
    folder = shared / "vectors" / "chromium-report-goldens" / "ara-debug" / "latest"
    for name in ("private_key.txt", "public_key.json", "report_1.json", "report_1_cleartext_payloads.json"):
        shutil.copyfile(folder / name, tmp_path / name)
    other = json.loads((folder / "report_2_cleartext_payloads.json").read_text())
    (tmp_path / "report_1_cleartext_payloads.json").write_text(json.dumps(other))
    (result,) = check_goldens(tmp_path)
    assert not result.passed
    assert result.differences[0].startswith("payload: expected a2")

    body = json.loads((folder / "report_1.json").read_text())
    body["shared_info"] = body["shared_info"].replace("1234486400", "1234486401")
    (tmp_path / "report_1.json").write_text(json.dumps(body))
    (result,) = check_goldens(tmp_path)
    assert "does not open" in result.differences[0]


def test_a_golden_that_is_not_one_fails_and_does_not_end_the_run(shared: Path, tmp_path: Path) -> None:
    folder = shared / "vectors" / "chromium-report-goldens" / "ara-debug" / "latest"
    for name in ("private_key.txt", "public_key.json", "report_1.json"):
        shutil.copyfile(folder / name, tmp_path / name)
    for text in ("7", "[7]", "null", "[" * 100_000):
        (tmp_path / "report_1_cleartext_payloads.json").write_text(text)
        (result,) = check_goldens(tmp_path)
        assert result.differences[0].startswith("cannot be read")
