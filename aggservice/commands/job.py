"""``aggservice job``: create, look at, watch and fetch jobs of a running service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from aggservice.client import Client, Credentials, Job, Summary

job = typer.Typer(help="Jobs of a running service.", no_args_is_help=True)

Service = Annotated[str, typer.Option("--service", help="Where the service listens.", envvar="AGGSERVICE_ADDRESS")]
TokenFile = Annotated[Path | None, typer.Option(help="A file that holds your bearer token.")]
RootFile = Annotated[Path | None, typer.Option(help="PEM certificates to trust; turns on TLS.")]
CertificateFile = Annotated[Path | None, typer.Option(help="Your client certificate (PEM).")]
KeyFile = Annotated[Path | None, typer.Option(help="The private key of your client certificate (PEM).")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobId = Annotated[str, typer.Argument(help="job_request_id")]
DEFAULT_ADDRESS = "127.0.0.1:50051"


@contextmanager
def connected(address: str, credentials: Credentials) -> Iterator[Client]:
    """Connect, and turn what the service refuses into a message and an exit code."""
    from aggservice.client import Client, ClientError

    try:
        with Client(address, credentials=credentials) as client:
            yield client
    except ClientError as problem:
        typer.echo(f"{problem}", err=True)
        for name, count in problem.error_counts.items():
            typer.echo(f"  {name}: {count}", err=True)
        for unit in problem.units:
            typer.echo(f"  unit {unit.hex()}", err=True)
        if problem.count > len(problem.units) > 0:
            typer.echo(f"  … {problem.count - len(problem.units)} more: aggservice job unpaid", err=True)
        if problem.remedy:
            typer.echo(f"{problem.remedy}", err=True)
        raise typer.Exit(1) from None


def credentials_of(
    token_file: Path | None, root: Path | None, certificate: Path | None, private_key: Path | None
) -> Credentials:
    """Read credentials, or say which file cannot be read."""
    from aggservice.client import ClientError, Credentials

    try:
        return Credentials.from_files(
            token_file=token_file, root_certificates=root, certificate=certificate, private_key=private_key
        )
    except ClientError as problem:
        typer.echo(problem.message, err=True)
        raise typer.Exit(2) from None
    except OSError as problem:
        typer.echo(f"cannot read {problem.filename}: {problem.strerror}", err=True)
        raise typer.Exit(2) from None


@job.command()
def create(
    job_request_id: JobId,
    input_data_blob_prefix: Annotated[list[str], typer.Option(help="Reports; may be given several times.")],
    output_data_blob_prefix: Annotated[str, typer.Option(help="Where the summary goes.")],
    output_domain_blob_prefix: Annotated[str, typer.Option(help="The output domain.")] = "",
    attribution_report_to: Annotated[str, typer.Option(help="The reporting origin of the reports.")] = "",
    reporting_site: Annotated[str, typer.Option(help="Their reporting site instead.")] = "",
    epsilon: Annotated[str, typer.Option(help="ε of the job, decimal text; 10 when left out.")] = "",
    rho: Annotated[str, typer.Option(help="ρ of Gaussian noise instead of ε.")] = "",
    discovery_delta: Annotated[str, typer.Option(help="Discover keys, at this δ.")] = "",
    key_mask: Annotated[str, typer.Option(help="Only keys without a bit outside this mask (hex).")] = "",
    others_epsilon: Annotated[str, typer.Option(help="Also the total of what is left out, at this ε.")] = "",
    filtering_ids: Annotated[str, typer.Option(help="Whole numbers separated by commas.")] = "",
    report_error_threshold_percentage: Annotated[str, typer.Option(help="10 when left out.")] = "",
    input_report_count: Annotated[int, typer.Option(help="How many reports there are, if you know.")] = 0,
    debug_run: Annotated[bool, typer.Option("--debug-run", help="True values beside noisy ones; no charge.")] = False,
    shuffle_randomizer: Annotated[str, typer.Option(help="Shuffle local reports of this randomizer instead.")] = "",
    shuffle_delta: Annotated[str, typer.Option(help="δ of amplification by shuffling.")] = "",
    shuffle_bound: Annotated[str, typer.Option(help="numerical, closed or small.")] = "",
    shuffle_collection: Annotated[
        str, typer.Option(help="The collection that device tokens must be for; amplification needs it.")
    ] = "",
    watch_it: Annotated[bool, typer.Option("--watch", help="Wait until it has finished.")] = False,
    service: Service = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    root_certificates: RootFile = None,
    certificate: CertificateFile = None,
    private_key: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Begin a job over files that the service can read."""
    from aggservice.client import JobParameters, ShuffleParameters

    if (shuffle_delta or shuffle_bound or shuffle_collection) and not shuffle_randomizer:
        typer.echo("shuffle-delta, shuffle-bound and shuffle-collection need shuffle-randomizer", err=True)
        raise typer.Exit(2)
    try:
        mask = int(key_mask, 16) if key_mask else None
        ids = tuple(int(one) for one in filtering_ids.split(",")) if filtering_ids else ()
    except ValueError:
        typer.echo("key-mask is hexadecimal and filtering-ids are whole numbers separated by commas", err=True)
        raise typer.Exit(2) from None
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
        debug_run=debug_run,
        shuffle=ShuffleParameters(
            randomizer=shuffle_randomizer, delta=shuffle_delta, bound=shuffle_bound, collection=shuffle_collection
        )
        if shuffle_randomizer
        else None,
    )
    credentials = credentials_of(token_file, root_certificates, certificate, private_key)
    with connected(service, credentials) as client:
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
def get(
    job_request_id: JobId,
    service: Service = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    root_certificates: RootFile = None,
    certificate: CertificateFile = None,
    private_key: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Show a job as it is now."""
    with connected(service, credentials_of(token_file, root_certificates, certificate, private_key)) as client:
        show_job(client.get_job(job_request_id), as_json=as_json)


@job.command()
def watch(
    job_request_id: JobId,
    service: Service = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    root_certificates: RootFile = None,
    certificate: CertificateFile = None,
    private_key: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Wait until a job has finished; the exit code says whether it has a summary."""
    with connected(service, credentials_of(token_file, root_certificates, certificate, private_key)) as client:
        show_job(_watched(client, job_request_id, quiet=as_json), as_json=as_json)


@job.command()
def cancel(
    job_request_id: JobId,
    service: Service = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    root_certificates: RootFile = None,
    certificate: CertificateFile = None,
    private_key: KeyFile = None,
    as_json: Json = False,
) -> None:
    """End a job that has not been paid for yet."""
    with connected(service, credentials_of(token_file, root_certificates, certificate, private_key)) as client:
        show_job(client.cancel_job(job_request_id), as_json=as_json)


@job.command()
def summary(
    job_request_id: JobId,
    service: Service = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    root_certificates: RootFile = None,
    certificate: CertificateFile = None,
    private_key: KeyFile = None,
    receipt: Annotated[Path | None, typer.Option(help="Write the signed receipt to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Print the summary of a finished job, with its statement of guarantee."""
    with connected(service, credentials_of(token_file, root_certificates, certificate, private_key)) as client:
        found = client.summary(job_request_id)
    if receipt is not None:
        receipt.write_bytes(found.receipt)
    show_summary(found, as_json=as_json)


@job.command()
def unpaid(
    job_request_id: JobId,
    service: Service = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    root_certificates: RootFile = None,
    certificate: CertificateFile = None,
    private_key: KeyFile = None,
    as_json: Json = False,
) -> None:
    """List every unit that could not pay for a refused job."""
    with connected(service, credentials_of(token_file, root_certificates, certificate, private_key)) as client:
        units = list(client.unpaid_units(job_request_id))
    if as_json:
        typer.echo(to_json([asdict(one) for one in units]))
        return
    for one in units:
        jobs = ", ".join(one.job_request_ids)
        typer.echo(f"{one.unit.hex()}  spent {one.spent.epsilon or one.spent.rho}, δ {one.spent.delta}, jobs: {jobs}")


def to_json(plain: object) -> str:
    """Return plain values as JSON; bytes become hexadecimal digits."""
    return json.dumps(plain, indent=2, default=bytes.hex)


def _watched(client: Client, job_request_id: str, *, quiet: bool) -> Job:
    """Wait with a line of progress on a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        return client.watch_job(job_request_id)
    with console.status("waiting …") as status:
        return client.watch_job(job_request_id, lambda read, stage: status.update(f"{stage}: {read:,} reports opened"))


def show_job(found: Job, *, as_json: bool) -> None:
    """Print a job."""
    if as_json:
        typer.echo(to_json(asdict(found)))
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
        "files": list(found.files),
        "facts": [{"bucket": hex(bucket), "metric": metric} for bucket, metric in found.to_dict().items()],
        "reports": [report.hex() for report in found.reports],
    }


def show_summary(found: Summary, *, as_json: bool) -> None:
    """Print a summary."""
    if as_json:
        typer.echo(to_json(summary_to_plain(found)))
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
    typer.echo(found.statement.text)
    left = ", ".join(f"{name} {value}" for name, value in found.statement.remaining.items())
    if left:
        typer.echo(f"Left for the unit that has least: {left}.")


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(job, name="job")
