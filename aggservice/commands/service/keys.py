"""``aggservice keys``: the HPKE keys that reports are sealed to, and the key pair of a device registry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from aggservice.commands.console import Json, option, show, utc
from aggservice.files.atomic import whole_file
from aggservice.mechanisms import SecureBits, SystemClock
from aggservice.wire import KeySet, read_key_set, write_key_set
from aggservice.wire.errors import KeySetError
from aggservice.wire.hpke.key_sets import sole_writer
from aggservice.wire.report.registry import RegistryKeyPair

keys = typer.Typer(
    help="Make, list and rotate the keys that reports are sealed to.\n\nAlso: the key pair of a device registry.",
    no_args_is_help=True,
)

_HOUR_MS = 3_600_000
_File = Annotated[Path, typer.Argument(help="The file of private keys. Only its owner can read it.")]
_Public = Annotated[
    Path | None, option("Also write the public-key document that clients fetch to this file.", "--public")
]
_Lifetime = Annotated[float, option("Days for which the new keys are published.", min=0.01, max=1_000_000)]


@keys.command()
def new(
    file: _File,
    count: Annotated[int, option("Number of keys; a client picks one at random.", min=1)] = 1,
    lifetime_days: _Lifetime = 7.0,
    public: _Public = None,
    as_json: Json = False,
) -> None:
    """Make a new set of keys, published from now on."""
    _check_apart(file, public)
    keys = KeySet.create(SecureBits(), SystemClock(), count=count, lifetime_ms=round(lifetime_days * 24 * _HOUR_MS))
    write_key_set(file, keys)
    _show(keys, public, as_json)


@keys.command("list")
def list_keys(
    file: _File,
    public: _Public = None,
    as_json: Json = False,
) -> None:
    """List the keys of a set and say which are published.

    Private keys are never printed.
    """
    _check_apart(file, public)
    _show(read_key_set(file), public, as_json)


@keys.command()
def rotate(
    file: _File,
    lifetime_days: _Lifetime = 7.0,
    overlap_hours: Annotated[
        float,
        option("Hours for which the old keys stay published beside the new ones.", min=0, max=24_000_000),
    ] = 24.0,
    public: _Public = None,
    as_json: Json = False,
) -> None:
    """Add new keys; the published ones expire after the overlap.

    Keys that are too old to open any report are dropped.
    """
    _check_apart(file, public)
    with sole_writer(file):
        keys = read_key_set(file).rotate(
            SecureBits(),
            SystemClock(),
            lifetime_ms=round(lifetime_days * 24 * _HOUR_MS),
            overlap_ms=round(overlap_hours * _HOUR_MS),
        )
        write_key_set(file, keys, replace=True)
    _show(keys, public, as_json)


@keys.command()
def registry(
    file: Annotated[Path, typer.Argument(help="The file for the private key. Only its owner can read it.")],
    public: Annotated[Path, option("The file for the public key, which the service reads.")],
    as_json: Json = False,
) -> None:
    """Make the key pair of a device registry.

    With a registry's device tokens, a shuffled report is charged less than its local ε.
    """
    _check_apart(file, public)
    pair = RegistryKeyPair.create(SecureBits())
    pair.write(file)
    with whole_file(public) as staged:
        staged.write_text(pair.public.raw.hex() + "\n", encoding="ascii")
    key, digest = pair.public.raw.hex(), pair.public.digest
    show({"public_key": key, "sha256": digest}, [f"public key {key}, SHA-256 {digest}"], as_json=as_json)


def _check_apart(file: Path, public: Path | None) -> None:
    """Refuse to overwrite the private keys with the public ones."""
    if public is not None and public.resolve() == file.resolve():
        raise KeySetError(f"{file} holds the private keys: name another file for the public ones")


def _show(keys: KeySet, public: Path | None, as_json: bool) -> None:
    clock = SystemClock()
    if public is not None:
        with whole_file(public) as staged:
            staged.write_text(keys.public(clock).serialise() + "\n", encoding="utf-8")
    rows = _rows(keys, clock.now_ms())
    lines = [f"{row['id']}  {row['not_before']}  to {row['expiry']}  {row['state']}" for row in rows]
    published = sum(row["state"] == "published" for row in rows)
    show({"keys": rows}, [*lines, f"{len(rows)} keys, {published} published"], as_json=as_json)


def _rows(keys: KeySet, now_ms: int) -> list[dict[str, Any]]:
    published = {pair.id for pair in keys.published(now_ms)}
    return [
        {
            "id": pair.id,
            "not_before": utc(pair.not_before_ms),
            "expiry": utc(pair.expiry_ms),
            "state": "published"
            if pair.id in published
            else "opens old reports"
            if pair.expiry_ms <= now_ms
            else "not published yet",
        }
        for pair in keys.pairs
    ]
