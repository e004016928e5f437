"""Local reports through the service: sealed, streamed, shuffled, estimated and charged, both ways."""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from aggservice.client import Client, ClientError, JobParameters, ShuffleParameters, Summary
from aggservice.engine import ShuffleSettings
from aggservice.mechanisms import AmplificationBound, SecureBits, amplified_micro, shuffled_epsilon
from aggservice.service import ConfigError, ServiceConfig, embedded, load_config
from aggservice.wire import AggregatableReport, Api, ReportBatch, write_reports
from aggservice.wire.avro.shuffled import read_shuffled
from aggservice.wire.report.registry import RegistryKeyPair
from budget import EpsilonDeltaFilter, Receipt
from ldp_client import Registry, columns_of, l_osue, randomized_response, randomizer_of, seal_report

from ...engine.conftest import ORIGIN, Maker

PROTOCOL = randomized_response(k=12, epsilon_micro=450_000)
NAME = randomizer_of(PROTOCOL)
ALARM = 1e-9
KEYS = RegistryKeyPair.create(SecureBits())
COLLECTION = "november"


def configured(folder: Path, *, registered: bool, **changes: object) -> ServiceConfig:
    config = ServiceConfig(
        state=folder / "state",
        listen="127.0.0.1:0",
        filter=EpsilonDeltaFilter.parse(delta="0.01"),
        shuffle=ShuffleSettings(origins={ORIGIN: KEYS.public} if registered else {}),
        **changes,  # type: ignore[arg-type]
    )
    return replace(config, limits=replace(config.limits, processes=0))


def collection(maker: Maker, users: int) -> tuple[np.ndarray, list[AggregatableReport]]:
    """One collection of ``users`` devices: their values, and their randomized reports, sealed with their tokens."""
    registry = Registry(KEYS)
    values = np.minimum(np.arange(users) * 12 // users, (np.arange(users) * 7) % 12).astype(np.int64)
    columns = PROTOCOL.fleet(users, SecureBits()).report(values)
    keys = maker.keys.public(maker.clock)
    reports = []
    for device, report in enumerate(columns.tolist()):
        info = maker.info(api=Api.SHARED_STORAGE, attribution_destination=None)
        token = registry.token(f"device {device}", collection=COLLECTION, shared_info=info)
        reports.append(seal_report(PROTOCOL, report, shared_info=info, keys=keys, bits=maker.bits, token=token))
    return values, reports


def shuffle(client: Client, job_id: str, reports: list[AggregatableReport], **asked: str) -> Summary:
    wanted = ShuffleParameters(**{"randomizer": NAME.hex, "collection": COLLECTION, **asked})
    return client.aggregate(job_id, JobParameters(attribution_report_to=ORIGIN, shuffle=wanted), reports)


def check_estimates(values: np.ndarray, summary: Summary) -> float:
    """Every frequency is within its normal bound (alarm 10⁻⁹ over all) of the truth; return the largest error."""
    estimate = PROTOCOL.estimate(columns_of(PROTOCOL, summary.reports))
    truth = np.bincount(values, minlength=12) / values.size
    deviations = np.sqrt(PROTOCOL.support.variance(values.size, truth))
    errors = np.abs(estimate.frequencies - truth)
    assert (errors <= norm.isf(ALARM / 24) * deviations).all()
    return float(errors.max())


def both_ways(maker: Maker, folder: Path, users: int) -> list[str]:
    """Shuffle one collection in a service that knows the registry and in one that does not; return what was shown."""
    values, reports = collection(maker, users)
    lines = []
    for registered in (False, True):
        config = configured(folder / str(registered), registered=registered)
        with embedded(config, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
            summary = shuffle(client, "collection", reports, delta="0.000001")
            assert summary.return_code == "SUCCESS"
            assert len(summary.reports) == users
            error = check_estimates(values, summary)
            part = summary.statement.shuffle
            assert part is not None and part.amplified is registered
            assert part.local_epsilon == "0.45" and part.permanent_epsilon == ""
            if registered:
                expected = amplified_micro(
                    AmplificationBound.NUMERICAL, local_micro=450_000, reports=users, delta_atto=10**12
                )
                assert expected == math.ceil(shuffled_epsilon(0.45, users, 1e-6) * 1e6)
                assert summary.statement.cost == {"epsilon": str(expected / 1e6), "delta": "0.000001"}
                assert part.assumption == "n honest clients, one collection" in summary.statement.text
                assert "share nothing" in summary.statement.text
                assert part.collection == COLLECTION and part.registry_key_sha256 == KEYS.public.digest
                assert "signs one token per client and collection" in summary.statement.text
            else:
                assert summary.statement.cost == {"epsilon": "0.45", "delta": "0"}
                assert "no device registry" in part.not_amplified and not part.registry_key_sha256
            receipt = Receipt.from_bytes(summary.receipt)
            logged = receipt.entry["release"]["parameters"]
            assert logged["collection"] == part.collection and logged["registry_key_sha256"] == part.registry_key_sha256
            assert receipt.entry["result"]["sha256"] == summary.result_digest().hex()
            verified = client.verify_ledger([summary.receipt])
            assert verified.ok and verified.entry_count == 2 and verified.unit_count == users
            fetched = client.summary("collection")
            assert fetched.reports == summary.reports and fetched.result_digest() == summary.result_digest()
            lines.append(
                f"{users} sealed reports with device tokens, registry {'' if registered else 'not '}configured: each "
                f"paid epsilon {summary.statement.cost['epsilon']}, delta {summary.statement.cost['delta']}; "
                f"largest error of 12 frequencies {error:.5f}; ledger verified: "
                f"{verified.entry_count} entries, {verified.unit_count} units"
            )
    return lines


def test_a_collection_is_shuffled_estimated_and_charged_both_ways(maker: Maker, tmp_path: Path) -> None:
    assert len(both_ways(maker, tmp_path, 1200)) == 2


@pytest.mark.soak
def test_a_hundred_thousand_reports_both_ways(maker: Maker, tmp_path: Path) -> None:
    for line in both_ways(maker, tmp_path, 100_000):
        print(line)


def test_the_bound_that_needs_a_thousand_reports_says_so(maker: Maker, tmp_path: Path) -> None:
    _, reports = collection(maker, 999)
    config = configured(tmp_path, registered=True)
    with embedded(config, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        parameters = JobParameters(
            attribution_report_to=ORIGIN,
            shuffle=ShuffleParameters(randomizer=NAME.hex, delta="0.002", bound="small", collection=COLLECTION),
        )
        dry = client.check_budget(parameters, [report.shared_info for report in reports])
        assert dry.sufficient and dry.cost.epsilon == "0.45"
        summary = shuffle(client, "small", reports, delta="0.002", bound="small")
        part = summary.statement.shuffle
        assert part is not None and not part.amplified
        assert summary.statement.cost == {"epsilon": "0.45", "delta": "0"}
        assert "at least 1000 reports of the same randomizer and there are 999" in part.not_amplified
        again = client.check_budget(parameters, [report.shared_info for report in reports])
        assert not again.sufficient and again.unpaid_count == 999
        with pytest.raises(ClientError) as refused:
            shuffle(client, "again", reports[1:], delta="0.002")
        assert refused.value.return_code == "PRIVACY_BUDGET_EXHAUSTED" and refused.value.count == 998


def test_a_shuffle_over_files(maker: Maker, tmp_path: Path) -> None:
    values, reports = collection(maker, 300)
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    config = configured(tmp_path, registered=True, input_folder=tmp_path / "in", output_folder=tmp_path / "out")
    with embedded(config, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        write_reports(tmp_path / "in" / "reports.avro", [ReportBatch.of(reports)])
        parameters = JobParameters(
            attribution_report_to=ORIGIN,
            shuffle=ShuffleParameters(randomizer=NAME.hex, delta="0.0001", collection=COLLECTION),
        )
        client.create_job(
            "files",
            parameters,
            input_data_blob_prefix="reports.avro",
            output_data_blob_prefix="shuffled.avro",
        )
        done = client.watch_job("files")
        assert done.summary.statement.shuffle.amplified
        (name,) = done.summary.files
        with (tmp_path / "out" / name).open("rb") as file:
            found = list(read_shuffled(file))
        assert len(found) == 300
        assert PROTOCOL.estimate(columns_of(PROTOCOL, found)).reports == values.size
        with pytest.raises(ClientError, match="no output domain"):
            client.create_job(
                "domain",
                parameters,
                input_data_blob_prefix="reports.avro",
                output_data_blob_prefix="x.avro",
                output_domain_blob_prefix="reports.avro",
            )


def test_requests_that_make_no_sense_are_refused(maker: Maker, tmp_path: Path) -> None:
    other = randomizer_of(l_osue(k=9, epsilon_permanent_micro=2_000_000, epsilon_first_micro=1_000_000))
    _, reports = collection(maker, 3)
    with embedded(keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        for asked, words in (
            (ShuffleParameters(randomizer="zz"), "hexadecimal"),
            (ShuffleParameters(randomizer=NAME.hex, bound="best"), "numerical, closed, small"),
            (ShuffleParameters(randomizer=NAME.hex, delta="-1"), "negative"),
            (ShuffleParameters(randomizer=NAME.hex, collection="x" * 65), "64 printable ASCII"),
            (ShuffleParameters(randomizer=other.hex), "nothing to shuffle"),
        ):
            with pytest.raises(ClientError, match=words):
                client.aggregate("bad", JobParameters(attribution_report_to=ORIGIN, shuffle=asked), reports)
        with pytest.raises(ClientError, match="no epsilon"):
            wanted = ShuffleParameters(randomizer=NAME.hex)
            client.aggregate("bad", JobParameters(attribution_report_to=ORIGIN, epsilon="1", shuffle=wanted), reports)
        with pytest.raises(ClientError, match="no output domain"):
            client.aggregate("bad", JobParameters(attribution_report_to=ORIGIN, shuffle=wanted), reports, domain=[1, 2])


def test_the_operator_names_registries_in_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "service.toml"
    other = RegistryKeyPair.create(SecureBits()).public
    (tmp_path / "origin.pub").write_text(KEYS.public.raw.hex() + "\n")
    (tmp_path / "site.pub").write_text(base64.b64encode(other.raw).decode())
    path.write_text(
        'state = "state"\n'
        f'[[shuffle.registry_keys]]\norigin = "{ORIGIN}"\npublic_key = "origin.pub"\n'
        f'[[shuffle.registry_keys]]\nsite = "{ORIGIN}"\npublic_key = "{tmp_path / "site.pub"}"\n'
    )
    found = load_config(path).shuffle
    assert found.key(origin=ORIGIN, site=None) == KEYS.public
    assert found.key(origin="https://a.adtech.example", site=None) == other
    assert found.key(origin=None, site=ORIGIN) == other
    assert found.key(origin="https://other.example", site=None) is None
    path.write_text('state = "state"\n')
    assert load_config(path).shuffle == ShuffleSettings()


def test_a_configuration_of_registries_that_is_wrong_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "service.toml"
    (tmp_path / "good.pub").write_text(KEYS.public.raw.hex())
    (tmp_path / "zero.pub").write_text("00" * 32)
    (tmp_path / "short.pub").write_text("abc")
    KEYS.write(tmp_path / "private.json")
    one = f'[[shuffle.registry_keys]]\norigin = "{ORIGIN}"\npublic_key = "good.pub"\n'
    cases = {
        f'[shuffle]\nauthenticated_origins = ["{ORIGIN}"]\n': r"authenticated_origins was removed.*registry_keys",
        "[shuffle]\nauthenticated_sites = []\n": r"authenticated_sites was removed.*registry_keys",
        f'[shuffle]\nregistry_keys = {{ "{ORIGIN}" = "good.pub" }}\n': "Write an array of tables",
        '[shuffle]\nregistry_keys = ["good.pub"]\n': r"Write an array of tables: \[\[shuffle.registry_keys\]\]",
        one + one: "has a key already",
        one + f'site = "{ORIGIN}"\n': "exactly one of origin and site",
        '[[shuffle.registry_keys]]\npublic_key = "good.pub"\n': "exactly one of origin and site",
        f'[[shuffle.registry_keys]]\norigin = "{ORIGIN}"\n': "public_key is missing",
        one.replace("https://", ""): r"registry_keys\[0\].origin.*such as https",
        one.replace("origin =", "site =").replace("https://", "https://a."): r"registry_keys\[0\].site.*such as https",
        one.replace("good", "none"): r"registry_keys\[0\].public_key.*cannot read .*aggservice keys registry",
        one.replace("good.pub", "zero.pub"): "not a valid Ed25519 public key",
        one.replace("good.pub", "short.pub"): "64 hexadecimal digits or the base64",
        one.replace("good.pub", "private.json"): "holds a registry's private key",
        one + 'key = "x"\n': r"line 5: shuffle.registry_keys\[0\].key is not a field",
    }
    for text, words in cases.items():
        path.write_text('state = "state"\n' + text)
        with pytest.raises(ConfigError, match=words):
            load_config(path)
    assert len(cases) == 15
