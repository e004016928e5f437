"""``aggservice aggregate``: what LocalTestingTool does, under the same flags: cleartext reports, no keys, no ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

if TYPE_CHECKING:
    from aggservice.engine import Outcome


def aggregate(
    input_data_avro_file: Annotated[
        Path, typer.Option("--input_data_avro_file", help="Reports with cleartext payloads, in Avro.")
    ],
    output_directory: Annotated[Path, typer.Option("--output_directory", help="Where the result is written.")],
    domain_avro_file: Annotated[
        Path | None, typer.Option("--domain_avro_file", help="The pre-listed keys, in Avro.")
    ] = None,
    epsilon: Annotated[str, typer.Option("--epsilon", help="ε of the noise, above 0 and at most 64.")] = "10",
    no_noising: Annotated[bool, typer.Option("--no_noising", help="No noise and no threshold.")] = False,
    json_output: Annotated[bool, typer.Option("--json_output", help="Write output.json in place of Avro.")] = False,
    debug_run: Annotated[bool, typer.Option("--debug_run", help="Also a debug result, in a folder debug.")] = False,
    skip_domain: Annotated[
        bool, typer.Option("--skip_domain", help="Every key that occurs, without a threshold.")
    ] = False,
    l1_sensitivity: Annotated[int, typer.Option("--l1_sensitivity", help="Λ₁ of the noise.")] = 65_536,
    report_error_threshold_percentage: Annotated[
        str, typer.Option("--report_error_threshold_percentage", help="Bad reports that are too many.")
    ] = "10",
    filtering_ids: Annotated[
        str, typer.Option("--local_job_params_input_filtering_ids", help="Filtering IDs, separated by commas.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Aggregate debug reports whose payloads are cleartext: no keys, no ledger, no age limit.

    The flags and files are LocalTestingTool's: output.avro or output.json, and debug/ beside it for a debug run.
    Nothing is charged and any report is taken, so this protects nobody: use it on your own test data.
    """
    from aggservice.engine import EngineError
    from aggservice.wire import WireError
    from budget import BudgetError

    if domain_avro_file is None and not skip_domain:
        typer.echo("give --domain_avro_file, or --skip_domain for every key that occurs", err=True)
        raise typer.Exit(2)
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
        written = write_outputs(output_directory, outcome, as_json=json_output, debug=debug_run, every_key=skip_domain)
    except (EngineError, WireError, BudgetError, OSError) as problem:
        typer.echo(f"aggservice aggregate: {problem}", err=True)
        raise typer.Exit(1) from None
    header = outcome.header
    if as_json:
        plain = {
            "return_code": header.return_code.value,
            "error_counts": dict(header.error_counts),
            "rows": header.row_count,
            "epsilon": None if no_noising else epsilon,
            "noise_standard_deviation": None if no_noising else header.statement.noise_standard_deviation,
            "files": [str(path) for path in written],
            "private": False,
        }
        typer.echo(json.dumps(plain, indent=2))
        return
    for name, count in header.error_counts.items():
        typer.echo(f"{name}: {count}")
    for path in written:
        typer.echo(f"wrote {path}")
    typer.echo("Local test: cleartext reports, no keys, no ledger, no age limit. Nothing was charged or protected.")


class NoNoise:
    """Zeros where noise would be."""

    def draw(self, noise: object, size: int) -> Any:
        import numpy as np

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

    It is a debug run, whose rows hold everything that the tool may write; ``debug_only`` leaves out reports that were
    not marked for debugging, as a debug run of the service does.
    """
    from aggservice.engine import EngineSettings, ExactNoise, InlineOpener, JobRequest, LocalEngine, Scope, ledger_terms
    from aggservice.engine.request import parse_epsilon, parse_filtering_ids, parse_percentage
    from aggservice.mechanisms import SecureBits, SystemClock
    from aggservice.wire import Api, KeySet, read_domain, read_reports
    from budget import EpsilonDeltaFilter, Ledger, MemoryStore, Sensitivity, Signer

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
    request = JobRequest(
        job_request_id="local",
        attribution_report_to="any",
        noise=parse_epsilon(epsilon),
        error_threshold_percent=parse_percentage(threshold_percentage),
        filtering_ids=parse_filtering_ids(filtering_ids),
        debug_run=True,
    )
    session = engine.begin(Scope(caller="local"), request, cleartext=True, debug_only=debug_only)
    if domain is not None:
        with _shown(domain) as stream:
            for rows in read_domain(stream):
                session.declare(rows.key_high, rows.key_low)
    with _shown(reports) as stream:
        for batch in read_reports(stream):
            session.add(batch)
    return session.finish()


@contextmanager
def _shown(path: Path) -> Iterator[BinaryIO]:
    """Open a file under a progress bar, on a terminal."""
    from rich.console import Console
    from rich.progress import open as open_with_progress

    console = Console(stderr=True)
    with open_with_progress(
        path, "rb", description=path.name, console=console, transient=True, disable=not console.is_terminal
    ) as stream:
        yield stream


def write_outputs(folder: Path, outcome: Outcome, *, as_json: bool, debug: bool, every_key: bool = False) -> list[Path]:
    """Write the summary as LocalTestingTool does, and the debug summary below it; return the files."""
    from aggservice.engine.release.debug import debug_avro_rows
    from aggservice.engine.release.output import summary_rows
    from aggservice.files.atomic import whole_file
    from aggservice.wire import write_buckets
    from aggservice.wire.avro.schemas import IN_DOMAIN

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
    """Return JSON text with letters as they are and control characters escaped, as LocalTestingTool writes it."""
    text = json.dumps(values, indent=2, ensure_ascii=False)
    return "".join(f"\\u{ord(one):04x}" if 0x7F <= ord(one) < 0xA0 else one for one in text) + "\n"


def bucket_text(bucket: int) -> str:
    """Return a bucket's bytes as Latin-1 text."""
    from aggservice.wire.buckets import bucket_to_short_bytes

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


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("aggregate")(aggregate)
