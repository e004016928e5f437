"""``aggservice job``: create, list, watch, cancel and read jobs of a running service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from aggservice.client import AttributionTask, Client, ClientError, Job, JobParameters, ShuffleParameters, Summary
from aggservice.commands.console import Json, option, print_json, refuse, utc
from aggservice.commands.service.connection import connected, refusal_details
from aggservice.commands.service.report_files import (
    FilteringIds,
    PrivacyUnit,
    Reports,
    place_words,
    places_of,
    reports_of,
    unit_batches,
    without_units,
)
from aggservice.files.atomic import whole_file
from aggservice.wire import (
    BucketRows,
    KeySet,
    PublicKeySet,
    ReportBatch,
    read_domain,
    read_key_set,
    read_reports,
    write_buckets,
    write_reports,
)
from aggservice.wire.avro.shuffled import write_shuffled
from aggservice.wire.errors import KeySetError, SealedSummaryError
from aggservice.wire.hpke.summaries import SEALED_SUFFIX, SealedKind, histogram_columns, open_document, read_label

job = typer.Typer(help="Create, list, watch, cancel and read jobs of a service.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(help="Your name for the job: job_request_id.")]
OutputPublicKey = Annotated[
    Path | None,
    option(
        "Seal the summary to the key of this public-key document, which keys new --public wrote.",
        exists=True,
        dir_okay=False,
    ),
]
OpenWith = Annotated[Path | None, option("Open a sealed summary with these private keys.", "--keys", exists=True)]


@job.command()
@connected
def create(
    client: Client,
    job_request_id: JobId,
    input_data_blob_prefix: Annotated[
        list[str], option("Prefix of the report files, below the service's input folder; may be repeated.")
    ],
    output_data_blob_prefix: Annotated[str, option("Prefix of the summary files.")],
    output_domain_blob_prefix: Annotated[str, option("Prefix of the files of the output domain.")] = "",
    attribution_report_to: Annotated[str, option("The reporting origin of the reports.")] = "",
    reporting_site: Annotated[str, option("Instead of --attribution-report-to: the reporting site.")] = "",
    epsilon: Annotated[str, option("ε of the job; default: 10.")] = "",
    rho: Annotated[str, option("Instead of --epsilon: ρ of Gaussian noise.")] = "",
    discovery_delta: Annotated[str, option("Discover keys instead of reading a domain, at this δ.")] = "",
    key_mask: Annotated[str, option("Sum only keys that have no bit outside this mask (hex).")] = "",
    others_epsilon: Annotated[str, option("Also release the total of all other keys, at this ε.")] = "",
    filtering_ids: Annotated[str, option("Filtering IDs, separated by commas.")] = "",
    report_error_threshold_percentage: Annotated[
        str, option("Fail above this percentage of bad reports; default: 10.")
    ] = "",
    input_report_count: Annotated[int, option("Number of reports, if known.")] = 0,
    minimum_report_count: Annotated[int, option("Fail, without a charge, with fewer usable reports.")] = 0,
    debug_run: Annotated[
        bool, option("Show true values beside noisy ones; nothing is charged.", "--debug-run")
    ] = False,
    shuffle_randomizer: Annotated[str, option("Instead of summing: shuffle local-DP reports of this randomizer.")] = "",
    shuffle_delta: Annotated[str, option("δ of amplification by shuffling.")] = "",
    shuffle_bound: Annotated[str, option("Bound of amplification: numerical, closed or small.")] = "",
    shuffle_collection: Annotated[
        str, option("The collection that device tokens must name; amplification needs it.")
    ] = "",
    conversion_site: Annotated[
        str, option("Aggregate W3C Attribution reports of this site, such as https://shop.example.")
    ] = "",
    histogram_size: Annotated[int, option("Size of the histogram of W3C reports.")] = 0,
    max_value: Annotated[int, option("Maximum value of W3C reports.")] = 0,
    output_public_key: OutputPublicKey = None,
    watch_it: Annotated[bool, option("Wait until the job has finished.", "--watch")] = False,
    as_json: Json = False,
) -> None:
    """Create a job over files that the service can read."""
    if not (bool(conversion_site) == bool(histogram_size) == bool(max_value)):
        refuse("--conversion-site, --histogram-size and --max-value belong together: give all of them, or none")
    if (shuffle_delta or shuffle_bound or shuffle_collection) and not shuffle_randomizer:
        refuse("--shuffle-delta, --shuffle-bound and --shuffle-collection need --shuffle-randomizer: give it too")
    try:
        mask = int(key_mask, 16) if key_mask else None
        ids = tuple(int(one) for one in filtering_ids.split(",")) if filtering_ids else ()
    except ValueError:
        refuse("--key-mask or --filtering-ids is wrong: give hexadecimal digits, and whole numbers separated by commas")
    parameters = JobParameters(
        attribution_report_to=attribution_report_to,
        reporting_site=reporting_site,
        epsilon=epsilon,
        rho=rho,
        discovery_delta=discovery_delta,
        key_mask=mask,
        others_epsilon=others_epsilon,
        filtering_ids=ids,
        report_error_threshold_percentage=report_error_threshold_percentage,
        input_report_count=input_report_count,
        minimum_report_count=minimum_report_count,
        debug_run=debug_run,
        shuffle=ShuffleParameters(
            randomizer=shuffle_randomizer, delta=shuffle_delta, bound=shuffle_bound, collection=shuffle_collection
        )
        if shuffle_randomizer
        else None,
        attribution_task=AttributionTask(
            conversion_site=conversion_site, histogram_size=histogram_size, max_value=max_value
        )
        if conversion_site
        else None,
        output_public_key=output_key(output_public_key),
    )
    begun = client.create_job(
        job_request_id,
        parameters,
        input_data_blob_prefix=input_data_blob_prefix,
        output_data_blob_prefix=output_data_blob_prefix,
        output_domain_blob_prefix=output_domain_blob_prefix,
    )
    if watch_it:
        begun = _watched(client, job_request_id, quiet=as_json)
    show_job(begun, as_json=as_json)


@job.command()
@connected
def get(
    client: Client,
    job_request_id: JobId,
    as_json: Json = False,
) -> None:
    """Show the state of a job."""
    show_job(client.get_job(job_request_id), as_json=as_json)


@job.command("list")
@connected
def list_jobs(
    client: Client,
    most: Annotated[int, option("Show at most this many.", min=1)] = 100,
    as_json: Json = False,
) -> None:
    """List your jobs, newest first.

    Lists your jobs over files, and your streams on this service. A restarted service lists no earlier streams; those
    that were paid for are in its ledger, and `aggservice job summary` finds them.
    """
    found = list(islice(client.jobs(min(most, 1000)), most))
    if as_json:
        print_json([asdict(one) for one in found])
        return
    for one in found:
        ended = one.result.return_code if one.result is not None else one.progress.stage
        received = "-" if one.received_ms is None else utc(one.received_ms)
        kind = "files" if one.input_data_blob_prefixes else "stream"
        typer.echo(f"{received:<20}  {one.job_status:<11}  {kind:<6}  {one.job_request_id}  {ended}")
    if not found:
        typer.echo("no jobs", err=True)


@job.command()
@connected
def watch(
    client: Client,
    job_request_id: JobId,
    as_json: Json = False,
) -> None:
    """Wait until a job has finished.

    The exit code is 0 when the job has a summary, and 2 when it failed.
    """
    show_job(_watched(client, job_request_id, quiet=as_json), as_json=as_json)


@job.command()
@connected
def cancel(
    client: Client,
    job_request_id: JobId,
    as_json: Json = False,
) -> None:
    """Cancel a job that has not been charged yet."""
    show_job(client.cancel_job(job_request_id), as_json=as_json)


@job.command()
@connected
def summary(
    client: Client,
    job_request_id: JobId,
    receipt: Annotated[Path | None, option("Write the signed receipt to this file.")] = None,
    keys: OpenWith = None,
    as_json: Json = False,
) -> None:
    """Print the summary of a finished job and its guarantee."""
    found = opened(client.summary(job_request_id), keys)
    if receipt is not None:
        receipt.write_bytes(found.receipt)
    show_summary(found, as_json=as_json)


class _Batches:
    """The reports of several files, which can be read again if a stream is sent again."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files

    def __iter__(self) -> Iterator[ReportBatch]:
        for path in self._files:
            yield from read_reports(path)


@job.command()
@connected
def aggregate(
    client: Client,
    job_request_id: JobId,
    files: Annotated[list[Path], typer.Argument(help="Avro files of sealed reports.", exists=True, dir_okay=False)],
    domain: Annotated[Path | None, option("The output domain, in Avro.", exists=True, dir_okay=False)] = None,
    attribution_report_to: Annotated[str, option("The reporting origin of the reports.")] = "",
    reporting_site: Annotated[str, option("Instead of --attribution-report-to: the reporting site.")] = "",
    epsilon: Annotated[str, option("ε of the job; default: 10.")] = "",
    discovery_delta: Annotated[str, option("Discover keys, at this δ.")] = "",
    filtering_ids: Annotated[str, option("Filtering IDs, separated by commas.")] = "",
    output_public_key: OutputPublicKey = None,
    keys: OpenWith = None,
    as_json: Json = False,
) -> None:
    """Stream your own files to the service; print the summary."""
    if domain is None and not discovery_delta:
        refuse("the job names no keys: give --domain or --discovery-delta")
    try:
        ids = tuple(int(one) for one in filtering_ids.split(",")) if filtering_ids else ()
    except ValueError:
        refuse("--filtering-ids is wrong: give whole numbers separated by commas")
    parts = [] if domain is None else list(read_domain(domain))
    high, low = (np.concatenate([getattr(one, name) for one in parts] or [np.empty(0, np.uint64)]) for name in _HALVES)
    parameters = JobParameters(
        attribution_report_to=attribution_report_to,
        reporting_site=reporting_site,
        epsilon=epsilon,
        discovery_delta=discovery_delta,
        filtering_ids=ids,
        output_public_key=output_key(output_public_key),
    )
    try:
        found = client.aggregate(job_request_id, parameters, _Batches(files), domain=(high, low))
    except ClientError as problem:
        if not problem.units:
            raise
        refuse(str(problem), *refusal_details(problem, places_of(files, filtering_ids or "0", problem.units)))
    show_summary(opened(found, keys), as_json=as_json)


_HALVES = ("key_high", "key_low")


@job.command()
@connected
def unpaid(
    client: Client,
    job_request_id: JobId,
    reports: Reports = None,
    filtering_ids: FilteringIds = "0",
    privacy_unit: PrivacyUnit = "report",
    keep: Annotated[
        Path | None, option("With --reports: write the reports that can still pay to this Avro file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List every unit that could not pay for a refused job.

    With --reports, also lists the reports of each unit, by id, file and row.
    """
    if keep is not None and not reports:
        refuse("--keep writes the reports that can still pay: give their files with --reports")
    units = list(client.unpaid_units(job_request_id))
    keys = [one.unit for one in units]
    places = reports_of(unit_batches(reports or (), filtering_ids, privacy_unit), keys)
    if keep is not None:
        with whole_file(keep) as staged:
            kept = write_reports(staged, without_units(unit_batches(reports or (), filtering_ids, privacy_unit), keys))
        typer.echo(f"wrote {kept} reports that can pay to {keep}", err=True)
    if as_json:
        print_json([asdict(one) | ({"reports": places.get(one.unit, [])} if reports else {}) for one in units])
        return
    for one in units:
        jobs = ", ".join(one.job_request_ids)
        typer.echo(f"{one.unit.hex()}  spent {one.spent.epsilon or one.spent.rho}, δ {one.spent.delta}, jobs: {jobs}")
        for line in place_words(places.get(one.unit, ())):
            typer.echo(f"  {line}")


@job.command()
def open_summary(
    keys: Annotated[Path, typer.Argument(help="The private keys: the file that keys new made.", exists=True)],
    files: Annotated[list[Path], typer.Argument(help="Sealed files of a job.", exists=True, dir_okay=False)],
    output: Annotated[
        Path | None, option("Folder for the Avro files; default: beside each file.", file_okay=False)
    ] = None,
) -> None:
    """Open files that a job sealed to your public key.

    Needs no service. The files of a job end in .avro.sealed or .sealed.
    """
    private = read_key_set(keys)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    for path in files:
        target, rows = open_shard(path, private, output)
        typer.echo(f"{target}: {rows:,} rows")


def output_key(document: Path | None) -> bytes:
    """Return the only key of a public-key document; empty without a document."""
    if document is None:
        return b""
    try:
        keys = PublicKeySet.parse(document.read_bytes()).keys
    except KeySetError as problem:
        raise KeySetError(f"{document}: {problem}") from None
    if len(keys) != 1:
        raise KeySetError(f"{document} has {len(keys)} public keys: give a document with exactly one")
    return keys[0].key.public_bytes_raw()


def opened(found: Summary, keys: Path | None) -> Summary:
    """Return a summary, opened if there are keys."""
    return found if keys is None else found.opened(read_key_set(keys))


def open_shard(path: Path, keys: KeySet, folder: Path | None) -> tuple[Path, int]:
    """Open one sealed file into an Avro file, beside it or in ``folder``; return its path and its number of rows.

    The Avro file has the bytes that the job would have written without a key. An existing file is refused.
    """
    name = path.name.removesuffix(SEALED_SUFFIX)
    if name == path.name:
        raise SealedSummaryError(f"{path} does not end in {SEALED_SUFFIX}: give the sealed files of a job")
    document = path.read_bytes()
    try:
        label, _ = read_label(document)
        body = open_document(document, keys, name=path.name)
    except SealedSummaryError as problem:
        raise SealedSummaryError(f"{path}: {problem}") from None
    target = (folder or path.parent) / name
    try:
        with whole_file(target, replace=False) as staged:
            if label.kind is SealedKind.HISTOGRAM:
                write_buckets(staged, BucketRows.summary(*histogram_columns(body)))
            else:
                write_shuffled(staged, (body[at : at + label.width] for at in range(0, len(body), label.width)))
    except FileExistsError:
        raise SealedSummaryError(f"{target} exists: move it away, or name another --output folder") from None
    return target, label.rows


def _watched(client: Client, job_request_id: str, *, quiet: bool) -> Job:
    """Wait for a job; on a terminal, show its stage."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        return client.watch_job(job_request_id)
    with console.status("waiting …") as status:
        return client.watch_job(job_request_id, lambda read, stage: status.update(f"{stage}: {read:,} reports opened"))


def show_job(found: Job, *, as_json: bool) -> None:
    """Print a job."""
    if as_json:
        print_json(asdict(found))
        return
    typer.echo(f"{found.job_request_id}: {found.job_status}")
    if found.result is not None:
        typer.echo(f"  {found.result.return_code}: {found.result.message}")
        for one in found.result.error_counts:
            typer.echo(f"  {one.category}: {one.count}  ({one.description})")
    if found.summary is not None:
        typer.echo(f"  {found.summary.row_count:,} rows; {found.summary.statement.text}")
        for name in found.summary.files:
            typer.echo(f"  {name}")


def summary_to_plain(found: Summary) -> dict[str, Any]:
    """Return a summary as plain values."""
    return {
        "job_request_id": found.job_request_id,
        "return_code": found.return_code,
        "error_counts": dict(found.error_counts),
        "statement": asdict(found.statement),
        "others": found.others,
        "undeclared": found.undeclared,
        "ledger_entry": found.ledger_entry,
        "receipt": found.receipt.hex(),
        "result_head": found.result_head.hex(),
        "files": list(found.files),
        "facts": [{"bucket": hex(bucket), "metric": metric} for bucket, metric in found.to_dict().items()],
        "reports": [report.hex() for report in found.reports],
        "output_public_key": found.output_public_key.hex(),
        "sealed_totals": found.sealed_totals.hex(),
        "sealed": "" if len(found) or found.reports else found.sealed.hex(),
    }


def show_summary(found: Summary, *, as_json: bool) -> None:
    """Print a summary."""
    if as_json:
        print_json(summary_to_plain(found))
        return
    typer.echo(f"{found.job_request_id}: {found.return_code}")
    for name, count in found.error_counts.items():
        typer.echo(f"  {name}: {count}")
    for bucket, metric in found.to_dict().items():
        typer.echo(f"{bucket:#034x}  {metric}")
    for report in found.reports:
        typer.echo(report.hex())
    if found.others is not None:
        typer.echo(f"others  {found.others}")
    for name in found.files:
        typer.echo(name)
    if found.output_public_key and not found.files and not len(found) and not found.reports:
        typer.echo(f"{found.row_count:,} rows, sealed: read them with --keys and your private keys")
    typer.echo(found.statement.text)
    left = ", ".join(f"{name} {value}" for name, value in found.statement.remaining.items())
    if left:
        typer.echo(f"Least budget left of any unit: {left}.")
