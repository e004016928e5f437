"""``aggservice demo``: one conversion of the paper's Figure 1 as a browser seals it and the service opens it."""

from __future__ import annotations

import json

import typer


def register(app: typer.Typer) -> None:
    """Add ``demo``."""
    app.command("demo")(demo)


def demo() -> None:
    """Seal a report as a browser does, open it as the service does, and show what is inside."""
    from uuid import UUID

    from aggservice.wire import Api, Contribution, KeySet, SharedInfo, decode_payload, make_report, open_report
    from mechanisms import SecureBits, SystemClock

    bits, clock = SecureBits(), SystemClock()
    keys = KeySet.create(bits, clock)
    now_s = clock.now_ms() // 1000
    info = SharedInfo(
        api=Api.ATTRIBUTION_REPORTING,
        report_id=str(UUID(bytes=bits.read(16), version=4)),
        reporting_origin="https://ad-tech.example",
        scheduled_report_time_s=now_s + 600,
        attribution_destination="https://shoes.example",
        source_registration_time_s=now_s - now_s % 86_400,
    )
    sold = Contribution(bucket=0x159 << 64 | 0x70, value=70)
    report = make_report([sold], shared_info=info, keys=keys.public(clock), bits=bits, maximum=20)
    typer.echo("What the browser posts to https://ad-tech.example, and all that the ad-tech can read:\n")
    body = report.to_dict()
    payload = body["aggregation_service_payloads"][0]
    payload["payload"] = f"{payload['payload'][:48]}… ({len(payload['payload'])} characters)"
    body["shared_info"] = json.loads(body["shared_info"])
    typer.echo(json.dumps(body, indent=2))
    opened = decode_payload(open_report(report, keys))
    typer.echo("\nWhat the aggregation service finds inside, with its private key:\n")
    for contribution in opened.contributions:
        if contribution.value:
            typer.echo(f"  bucket {contribution.bucket:#x}  value {contribution.value}")
    nulls = sum(contribution.value == 0 for contribution in opened.contributions)
    typer.echo(f"  and {nulls} null contributions, so that the size says nothing")
