"""``aggservice studio``: the web page over campaigns, runs and ledgers, on loopback."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from aggservice.commands.console import option, refuse
from aggservice.studio import Access, Shelf, build_studio


def studio(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders with campaign files, runs, ledgers or scenarios.")
    ] = None,
    listen: Annotated[str, option("host:port; another host than loopback needs --token.")] = "127.0.0.1:0",
    token: Annotated[bool, option("Allow another host than loopback: the token keeps others out.", "--token")] = False,
    browser: Annotated[bool, option("Open a browser if there is one.", "--browser/--no-browser")] = True,
) -> None:
    """Open the web page: tune, run, follow, audit, try budgets.

    Without a folder it shows this one. Everything on the page comes from the installed package. The printed address
    holds a token, which is new at each start: nobody else on this machine can use the studio without it.
    """
    host, _, port = listen.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        refuse(f"--listen is {listen!r}: write host:port with a port up to 65535")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        refuse(f"--listen is {listen!r}: write an IP address or localhost, and a port")
    if not loopback and not token:
        refuse(f"{host} is reachable by others: add --token, or listen on 127.0.0.1")
    shelf = Shelf(folders or [Path.cwd()])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.create_server((host.strip("[]"), int(port)), family=family)
    number = bound.getsockname()[1]
    secret = secrets.token_urlsafe(24)
    access = Access.on_loopback(number, secret)
    if not loopback:
        access = Access(hosts=access.hosts | {f"{host}:{number}"}, token=secret)
    address = f"http://{host}:{number}/?token={secret}"
    typer.echo(f"studio: {address}")
    if browser and loopback:
        webbrowser.open(address)
    server = uvicorn.Server(
        uvicorn.Config(build_studio(shelf, access), log_level="warning", timeout_graceful_shutdown=1)
    )
    server.run(sockets=[bound])
