"""The connection of a command to a running service: its options, and what a refusal prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

from aggservice.client import Client, ClientError, Credentials
from aggservice.commands.console import option, refuse

Service = Annotated[str, option("host:port of the service.", "--service", envvar="AGGSERVICE_ADDRESS")]
TokenFile = Annotated[Path | None, option("A file that holds your bearer token.")]
RootFile = Annotated[Path | None, option("PEM certificates to trust; turns on TLS.")]
CertificateFile = Annotated[Path | None, option("Your client certificate (PEM).")]
KeyFile = Annotated[Path | None, option("The private key of your client certificate (PEM).")]
DEFAULT_ADDRESS = "127.0.0.1:50051"


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a connection to a command, whose first parameter gets the connected client."""

    def connect(
        *,
        service: Service = DEFAULT_ADDRESS,
        token_file: TokenFile = None,
        root_certificates: RootFile = None,
        certificate: CertificateFile = None,
        private_key: KeyFile = None,
        **given: Any,
    ) -> None:
        try:
            credentials = Credentials.from_files(
                token_file=token_file,
                root_certificates=root_certificates,
                certificate=certificate,
                private_key=private_key,
            )
        except ClientError as problem:
            refuse(problem.message)
        try:
            with Client(service, credentials=credentials) as client:
                command(client, **given)
        except ClientError as problem:
            refuse(str(problem), *refusal_details(problem))

    own, options = (list(signature(one, eval_str=True).parameters.values()) for one in (command, connect))
    keywords = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in (*own[1:], *options[:-1])]
    update_wrapper(connect, command)
    connect.__signature__ = Signature(keywords)  # type: ignore[attr-defined]
    connect.__annotations__ = {one.name: one.annotation for one in keywords}
    return connect


def refusal_details(problem: ClientError, places: Mapping[bytes, Sequence[str]] | None = None) -> Iterator[str]:
    """Yield what the service said besides its message: why reports failed, which units cannot pay, what to do.

    ``places`` has the lines to print for a unit, if the files of its reports are at hand.
    """
    yield from (f"{name}: {count}" for name, count in problem.error_counts.items())
    for unit in problem.units:
        yield f"unit {unit.hex()}"
        yield from (f"  {line}" for line in (places or {}).get(unit, ()))
    if problem.count > len(problem.units) > 0:
        yield f"… and {problem.count - len(problem.units)} more: `aggservice job unpaid` lists them"
    if problem.units:
        yield "`aggservice job unpaid JOB --reports FILE --keep PAYABLE.avro` writes the reports that can still pay."
    if problem.remedy:
        yield problem.remedy
