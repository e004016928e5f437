"""``aggservice aggregate``: does what LocalTestingTool does, with its flags: cleartext reports, no keys, no ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from aggservice.commands.console import Json, open_with_bar, option, print_json, refuse
from aggservice.engine import EngineSettings, InlineOpener, LocalEngine, Scope, ledger_terms
from aggservice.engine.release.debug import debug_avro_rows
from aggservice.engine.release.noise import ExactNoise
from aggservice.engine.release.output import summary_rows
from aggservice.files.atomic import whole_file
from aggservice.job.errors import DESCRIPTIONS, TooManyBadReportsError
from aggservice.job.request import HistogramRequest, parse_filtering_ids, parse_laplace, parse_percentage
from aggservice.job.result import Outcome
from aggservice.mechanisms import SecureBits, SystemClock
from aggservice.wire import Api, KeySet, read_domain, read_reports, write_buckets
from aggservice.wire.avro.schemas import IN_DOMAIN
from aggservice.wire.buckets import bucket_to_short_bytes
from budget import EpsilonDeltaFilter, Ledger, MemoryStore, Sensitivity, Signer


def aggregate(
    input_data_avro_file: Annotated[
        Path, option("Reports with cleartext payloads, in Avro.", "--input_data_avro_file")
    ],
    output_directory: Annotated[Path, option("The folder for the result.", "--output_directory")],
    domain_avro_file: Annotated[Path | None, option("The output domain, in Avro.", "--domain_avro_file")] = None,
    epsilon: Annotated[str, option("ε of the noise, above 0 and at most 64.")] = "10",
    no_noising: Annotated[bool, option("Add no noise and apply no threshold.", "--no_noising")] = False,
    json_output: Annotated[bool, option("Write output.json instead of output.avro.", "--json_output")] = False,
    debug_run: Annotated[bool, option("Also write a debug result, in the folder debug.", "--debug_run")] = False,
    skip_domain: Annotated[
        bool, option("Release every key that occurs, without a threshold.", "--skip_domain")
    ] = False,
    l1_sensitivity: Annotated[int, option("Λ₁ of the noise.", "--l1_sensitivity")] = 65_536,
    report_error_threshold_percentage: Annotated[
        str, option("Fail above this percentage of bad reports.", "--report_error_threshold_percentage")
    ] = "10",
    filtering_ids: Annotated[
        str, option("Filtering IDs, separated by commas.", "--local_job_params_input_filtering_ids")
    ] = "",
    as_json: Json = False,
) -> None:
    """Aggregate cleartext debug reports on this machine.

    Flags and files are those of Google's LocalTestingTool: output.avro or output.json, and for a debug run the folder
    debug. There are no keys, no ledger and no age limit: nothing is charged and nobody is protected, so use it on your
    own test data.
    """
    if domain_avro_file is None and not skip_domain:
        refuse("no output domain: give --domain_avro_file, or --skip_domain to release every key that occurs")
    try:
        outcome = local_outcome(
            input_data_avro_file,
            None if skip_domain else domain_avro_file,
            epsilon=epsilon,
            noise=not no_noising,
            l1=l1_sensitivity,
            threshold_percentage=report_error_threshold_percentage,
            filtering_ids=filtering_ids,
            debug_only=debug_run,
        )
    except TooManyBadReportsError as problem:
        if as_json:
            print_json({"return_code": problem.code.value, "error_counts": problem.counts, "files": []})
        refuse(str(problem), *_explained(problem.counts))
    written = write_outputs(output_directory, outcome, as_json=json_output, debug=debug_run, every_key=skip_domain)
    header = outcome.header
    if as_json:
        plain = {
            "return_code": str(header.return_code),
            "error_counts": dict(header.error_counts),
            "rows": header.row_count,
            "epsilon": None if no_noising else epsilon,
            "noise_standard_deviation": None if no_noising else header.statement.noise_standard_deviation,
            "files": [str(path) for path in written],
            "private": False,
        }
        print_json(plain)
        return
    for name, count in header.error_counts.items():
        typer.echo(f"{name}: {count}")
    for path in written:
        typer.echo(f"wrote {path}")
    typer.echo("Local test: cleartext reports, no keys, no ledger, no age limit. Nothing was charged or protected.")


def _explained(counts: Mapping[str, int]) -> list[str]:
    """Return a line for each counter of bad reports, with its meaning, and for the most common one what to do."""
    found = [f"{name}: {count}. {DESCRIPTIONS.get(name, '')}".rstrip(". ") for name, count in counts.items()]
    if "DEBUG_NOT_ENABLED" in counts:
        found.append('Leave --debug_run out, or make reports with "debug_mode": "enabled" in their shared_info.')
    return found


class NoNoise:
    """A source of noise whose draws are all zero."""

    def draw(self, noise: object, size: int) -> Any:
        return np.zeros(size, dtype=np.int64)


def local_outcome(
    reports: Path,
    domain: Path | None,
    *,
    epsilon: str = "10",
    noise: bool = True,
    l1: int = 65_536,
    threshold_percentage: str = "10",
    filtering_ids: str = "",
    debug_only: bool = False,
) -> Outcome:
    """Run a job over a file of cleartext reports against an empty ledger in memory.

    The job is a debug run, because its rows hold everything that the tool may write. ``debug_only`` skips reports that
    were not marked for debugging, as a debug run of the service does.
    """
    bits, clock = SecureBits(), SystemClock()
    bounds = Sensitivity(l1=l1, l0=l1)
    engine = LocalEngine(
        ledger=Ledger.create(
            MemoryStore(),
            filter=EpsilonDeltaFilter(),
            signer=Signer.generate(bits),
            clock=clock,
            bits=bits,
            terms=ledger_terms(sensitivities=dict.fromkeys(Api, bounds)),
        ),
        opener=InlineOpener(KeySet(())),
        clock=clock,
        bits=bits,
        settings=EngineSettings(max_report_age_ms=1 << 62),
        noise_of=ExactNoise if noise else lambda _: NoNoise(),
    )
    request = HistogramRequest(
        job_request_id="local",
        attribution_report_to="any",
        mechanism=parse_laplace(epsilon),
        error_threshold_percent=parse_percentage(threshold_percentage),
        filtering_ids=parse_filtering_ids(filtering_ids),
        debug_run=True,
    )
    session = engine.begin(Scope(caller="local"), request, cleartext=True, debug_only=debug_only)
    if domain is not None:
        with open_with_bar(domain) as stream:
            for rows in read_domain(stream):
                session.declare(rows.key_high, rows.key_low)
    with open_with_bar(reports) as stream:
        for batch in read_reports(stream):
            session.add(batch)
    return session.finish()


def write_outputs(folder: Path, outcome: Outcome, *, as_json: bool, debug: bool, every_key: bool = False) -> list[Path]:
    """Write the summary as LocalTestingTool does, and the debug summary in the folder debug; return the files."""
    rows = outcome.rows
    assert rows is not None and rows.annotations is not None and rows.unnoised is not None
    shown = rows if every_key else rows.take((rows.annotations & IN_DOMAIN) != 0)
    folder.mkdir(parents=True, exist_ok=True)
    name = "output.json" if as_json else "output.avro"
    written = [folder / name]
    with whole_file(written[0]) as staged:
        if as_json:
            staged.write_text(json_text(facts(shown.to_dict())), encoding="utf-8")
        else:
            write_buckets(staged, summary_rows(shown))
    if debug:
        written.append(folder / "debug" / name)
        written[1].parent.mkdir(exist_ok=True)
        with whole_file(written[1]) as staged:
            if as_json:
                staged.write_text(json_text(debug_facts(rows)), encoding="utf-8")
            else:
                write_buckets(staged, debug_avro_rows(rows))
    return written


def facts(metrics: dict[int, int]) -> list[dict[str, Any]]:
    """Return facts as LocalTestingTool writes them: the bucket's bytes as a Latin-1 string, leading zeros dropped."""
    return [{"bucket": bucket_text(bucket), "metric": metric} for bucket, metric in metrics.items()]


def json_text(values: list[dict[str, Any]]) -> str:
    """Return JSON as LocalTestingTool writes it: letters unchanged, control characters escaped."""
    text = json.dumps(values, indent=2, ensure_ascii=False)
    return "".join(f"\\u{ord(one):04x}" if 0x7F <= ord(one) < 0xA0 else one for one in text) + "\n"


def bucket_text(bucket: int) -> str:
    """Return a bucket's bytes as Latin-1 text."""
    return bucket_to_short_bytes(bucket).decode("latin-1")


def debug_facts(rows: Any) -> list[dict[str, Any]]:
    """Return debug facts as JSON values."""
    names = {0: [], 1: ["in_domain"], 2: ["in_reports"], 3: ["in_domain", "in_reports"]}
    noises = (rows.metrics - rows.unnoised).tolist()
    keys = rows.to_dict()
    columns = zip(keys, rows.unnoised.tolist(), noises, rows.annotations.tolist(), strict=True)
    return [
        {"bucket": bucket_text(bucket), "unnoised_metric": true, "noise": noise, "annotations": names[tag]}
        for bucket, true, noise, tag in columns
    ]
