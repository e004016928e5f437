"""``aggservice keys``, ``convert`` and ``conformance reports``, as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import fastavro
import pytest
from click.testing import Result
from typer.testing import CliRunner

from aggservice.commands import app
from aggservice.mechanisms import SecureBits, SystemClock
from aggservice.wire import Api, Contribution, PublicKeySet, SharedInfo, make_report, read_key_set
from aggservice.wire.report.registry import RegistryKey, RegistryKeyPair


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def _good(*arguments: object) -> str:
    result = _run(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_keys_are_made_listed_and_rotated(tmp_path: Path) -> None:
    file, public = tmp_path / "keys.json", tmp_path / "public.json"
    made = json.loads(_good("keys", "new", file, "--count", 2, "--public", public, "--json"))
    assert [row["state"] for row in made["keys"]] == ["published"] * 2
    assert {key.id for key in PublicKeySet.parse(public.read_text()).keys} == {row["id"] for row in made["keys"]}
    assert json.loads(_good("keys", "list", file, "--json")) == made
    rotated = _good("keys", "rotate", file, "--overlap-hours", 0, "--public", public)
    assert rotated.count("opens old reports") == 2
    assert rotated.splitlines()[-1] == "4 keys, 2 published"
    assert not {key.id for key in PublicKeySet.parse(public.read_text()).keys} & {row["id"] for row in made["keys"]}
    assert len(read_key_set(file).pairs) == 4
    secret = json.loads(file.read_text())["keys"][0]["private_key"]
    assert secret not in rotated + public.read_text() + json.dumps(made)
    assert _run("keys", "new", file).exit_code == 2


def test_a_registry_gets_a_key_pair(tmp_path: Path) -> None:
    file, public = tmp_path / "registry.json", tmp_path / "registry.pub"
    made = json.loads(_good("keys", "registry", file, "--public", public, "--json"))
    key = RegistryKey.read(public)
    assert made == {"public_key": key.raw.hex(), "sha256": key.digest}
    assert RegistryKeyPair.read(file).public == key
    assert _run("keys", "registry", file, "--public", public).exit_code == 2
    assert _run("keys", "registry", tmp_path / "x", "--public", tmp_path / "x").exit_code == 2
    assert RegistryKey.read(public) == key
    shown = _good("keys", "registry", tmp_path / "two.json", "--public", tmp_path / "two.pub")
    assert RegistryKey.read(tmp_path / "two.pub").digest in shown


def test_private_keys_are_not_overwritten_by_public_ones_nor_times_out_of_range(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    assert _run("keys", "new", file, "--public", file).exit_code == 2
    assert not file.exists()
    _good("keys", "new", file)
    before = file.read_bytes()
    link = tmp_path / "link.json"
    link.symlink_to(file)
    for command in ("rotate", "list"):
        assert _run("keys", command, file, "--public", link).exit_code == 2
        assert file.read_bytes() == before
    for days in ("1e12", "1e300", "inf", "nan"):
        for command, name in (("new", "other.json"), ("rotate", "keys.json")):
            assert _run("keys", command, tmp_path / name, "--lifetime-days", days).exit_code == 2
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys.json", "link.json"]


def test_a_conversion_replaces_its_target_whole_or_not_at_all(tmp_path: Path) -> None:
    text, avro = tmp_path / "domain.txt", tmp_path / "domain.avro"
    text.write_text("5\n7\n")
    _good("convert", "domain", text, avro)
    avro.chmod(0o600)
    before = avro.read_bytes()
    wrong = tmp_path / "wrong.txt"
    wrong.write_text("5\nfive\n")
    assert _run("convert", "domain", wrong, avro).exit_code == 2
    assert avro.read_bytes() == before
    avro.write_bytes(before[:-5])
    assert _run("convert", "domain", avro, text).exit_code == 2
    assert text.read_text() == "5\n7\n"
    assert _good("convert", "domain", text, text).startswith("2 buckets")  # onto itself
    assert text.read_bytes() == before
    _good("convert", "domain", text, avro)
    assert (avro.read_text(), avro.stat().st_mode & 0o777) == ("5\n7\n", 0o600)
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    assert _run("convert", "reports", deep, avro).exit_code == 2
    assert _good("convert", "domain", text, "/dev/null").startswith("2 buckets")
    assert not Path("/dev/null").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"domain.txt", "domain.avro", "wrong.txt", "deep.json"}


def test_buckets_are_shown_in_every_form() -> None:
    rows = json.loads(_good("convert", "bucket", "256", "0x100", "AAAAAAAAAAAAAAAAAAABAA==", "--json"))
    assert rows[0] == {
        "int": "256",
        "hex": "0x00000000000000000000000000000100",
        "base64": "AAAAAAAAAAAAAAAAAAABAA==",
        "avro": "0100",
    }
    assert rows[1] == rows[2] == rows[0]
    assert json.loads(_good("convert", "bucket", "1111", "--from", "base64", "--json"))[0]["hex"].endswith("d75d75")
    for word in ("0xxyz", "many", "-1", "1.5"):
        assert _run("convert", "bucket", "--", word).exit_code == 2, word


@pytest.mark.parametrize("layout", ["lines", "list", "one"])
def test_reports_go_to_avro_and_back(tmp_path: Path, layout: str) -> None:
    file = tmp_path / "keys.json"
    _good("keys", "new", file)
    info = SharedInfo(
        api=Api.SHARED_STORAGE,
        report_id="21abd97f-73e8-4b88-9389-a9fee6abda5e",
        reporting_origin="https://report.test",
        scheduled_report_time_s=1_700_000_000,
        debug_mode=True,
    )
    public = read_key_set(file).public(SystemClock())
    made = [
        make_report(
            [Contribution(bucket=number, value=number)], shared_info=info, keys=public, bits=SecureBits(), maximum=20
        )
        for number in range(1, 2 if layout == "one" else 4)
    ]
    source, avro, back = tmp_path / "reports.json", tmp_path / "reports.avro", tmp_path / "back.json"
    if layout == "lines":
        source.write_text("\n".join(report.to_json() for report in made) + "\n\n")
    elif layout == "list":
        source.write_text(json.dumps([report.to_dict() for report in made], indent=1))
    else:
        source.write_text(json.dumps(made[0].to_dict(), indent=1))
    assert _good("convert", "reports", source, avro, "--deflate").startswith(f"{len(made)} reports")
    with avro.open("rb") as stream:
        records = list(fastavro.reader(stream))
    assert [record["payload"] for record in records] == [report.payloads[0].payload for report in made]
    _good("convert", "reports", avro, back)
    bodies = [json.loads(line) for line in back.read_text().splitlines()]
    assert [body["shared_info"] for body in bodies] == [report.shared_info for report in made]

    inside = [{"bucket": str(number), "value": number, "filtering_id": "0"} for number in range(1, len(made) + 1)]
    _good("convert", "reports", avro, back, "--keys", file)
    opened = [json.loads(line) for line in back.read_text().splitlines()]
    assert [row["contributions"] for row in opened] == [[one] for one in inside]
    _good("convert", "reports", source, avro, "--cleartext")
    _good("convert", "reports", avro, back, "--inside")
    assert [json.loads(line) for line in back.read_text().splitlines()] == opened


def test_domains_and_summaries(tmp_path: Path, shared: Path) -> None:
    text, avro, back = tmp_path / "domain.txt", tmp_path / "domain.avro", tmp_path / "back.txt"
    text.write_text("# a comment\n0\n0x10\n\n340282366920938463463374607431768211455\n")
    assert _good("convert", "domain", text, avro) == f"3 buckets written to {avro}\n"
    _good("convert", "domain", avro, back, "--to", "hex")
    assert back.read_text().split() == ["0x" + "0" * 32, "0x" + "0" * 30 + "10", "0x" + "f" * 32]
    sample = shared / "vectors" / "aggregation-service-sampledata"
    _good("convert", "summary", sample / "output_reports.avro", back)
    assert sorted(json.loads(line)["metric"] for line in back.read_text().splitlines()) == [4400, 32768]


def test_what_cannot_be_converted_says_where(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    for text, command, message in (
        ("1\nmany\n", "domain", "in: line 2"),
        ("{}", "reports", "in: line 1: aggregation_service_payloads"),
        ('[{"aggregation_service_payloads": [1]}]', "reports", "in: entry 0"),
        ("{}\n{", "reports", "in: "),
        ("what", "reports", "neither Avro nor JSON"),
        ("[]\n[]\n", "reports", "in: the list on line 1 is followed"),
        ("what", "summary", "not an Avro file"),
        ("Obj\x01", "summary", "byte 4"),
    ):
        source.write_text(text)
        result = _run("convert", command, source, target)
        assert result.exit_code == 2
        assert message in result.stderr
        assert str(source) in result.stderr


def test_conformance_of_the_golden_reports(shared: Path, tmp_path: Path) -> None:
    folder = shared / "vectors" / "chromium-report-goldens"
    lines = _good("conformance", "reports", folder).splitlines()
    assert lines[-1] == "84 passed, 0 failed"
    assert len(lines) == 85
    found = json.loads(_good("conformance", "reports", folder, "--json"))
    assert (found["passed"], found["failed"], len(found["results"])) == (84, 0, 84)
    nothing = _run("conformance", "reports", tmp_path)
    assert nothing.exit_code == 2
    assert nothing.stdout.splitlines()[-1] == "0 passed, 0 failed" and "no vectors" in nothing.stderr
    (tmp_path / "report_1.json").write_text("{}")
    broken = _run("conformance", "reports", tmp_path)
    assert broken.exit_code == 1
    assert broken.output.splitlines()[0] == "FAILED report_1.json"
    assert broken.output.splitlines()[-1] == "0 passed, 1 failed"


def test_an_error_ends_the_program_without_a_traceback(tmp_path: Path) -> None:
    program = "from aggservice.commands import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "keys", "list", str(tmp_path / "none.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("aggservice: cannot read")
    assert "keys new" in done.stderr
    assert "Traceback" not in done.stderr
