"""Configuration: strict, with secrets in files, and nothing exposed that is not protected."""

from __future__ import annotations

import multiprocessing
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aggservice.client import Client, ClientError, JobParameters
from aggservice.engine.opening.coverage import BOUNDED_APIS
from aggservice.mechanisms import ManualClock, SecureBits
from aggservice.service import (
    Caller,
    ConfigError,
    Role,
    ServiceConfig,
    embedded,
    load_config,
    parse_config,
    token_digest,
)
from aggservice.service.config.callers import Register, Token
from aggservice.service.config.settings import TlsFiles, is_loopback, read_secret
from aggservice.service.errors import UnauthenticatedError
from aggservice.wire.errors import KeySetError
from aggservice.wire.report.registry import RegistryKeyPair
from budget import BudgetError, EpsilonDeltaFilter, ZcdpFilter
from budget.errors import LedgerMismatchError, StoreError

from ...engine.conftest import Maker
from ..api.authority import Authority

CALLER = {"name": "adtech", "roles": ["adtech"], "tokens": [{"sha256": "0" * 64}]}
TLS = {"certificate": "c.pem", "private_key": "k.pem"}


def test_the_defaults_need_only_a_state_folder(tmp_path: Path) -> None:
    config = parse_config({"state": "s"}, tmp_path)
    assert config.state == tmp_path / "s"
    assert config.listen == "127.0.0.1:50051"
    assert config.filter == EpsilonDeltaFilter()
    assert config.terms.unit == "report"
    assert {api: one.l1 for api, one in config.terms.bounds.items()} == dict.fromkeys(map(str, BOUNDED_APIS), 65_536)


def test_what_bounds_privacy_reaches_the_ledger_and_the_engine(tmp_path: Path) -> None:
    """Every limit at a value of its own, read from a file and seen where a running service uses it."""
    document: dict[str, object] = {
        "state": "s",
        "listen": "127.0.0.1:0",
        "privacy_unit": "shared_id",
        "ledger": {"store": "memory", "epsilon": "3.5", "delta": "0.000002", "uses": 7},
        "sensitivity": {"shared-storage": {"l1": 100, "l0": 9}, "attribution-reporting": {"l1": 50}},
        "limits": {"processes": 0, "max_report_age_days": 11, "w3c_minimum_batch": 23, "domain_keys": 29, "units": 31},
    }
    with embedded(parse_config(document, tmp_path)) as running:
        ledger, settings = running.ledger, running.service.engine.settings
        assert ledger.filter == EpsilonDeltaFilter(epsilon_micro=3_500_000, delta_atto=2 * 10**12, uses=7)
        assert ledger.terms.unit == "shared_id"
        bounds = {api: (one.l1, one.l0) for api, one in ledger.terms.bounds.items()}
        assert bounds["shared-storage"] == (100, 9) and bounds["attribution-reporting"] == (50, 50)
        assert bounds["protected-audience"] == (65_536, 65_536)
        assert settings.max_report_age_ms == 11 * 86_400_000
        assert (settings.w3c_minimum_batch, settings.max_domain_keys, settings.max_units) == (23, 29, 31)


def test_a_registry_key_is_given_once_for_each_origin_and_site(tmp_path: Path) -> None:
    """With two keys a client could have two tokens for a collection."""
    key = RegistryKeyPair.create(SecureBits()).public
    (tmp_path / "key").write_text(key.raw.hex())
    for name, value in (("origin", "https://adtech.example"), ("site", "https://adtech.example")):
        one = {name: value, "public_key": "key"}
        config = parse_config({"state": "s", "shuffle": {"registry_keys": [one]}}, tmp_path)
        assert config.shuffle.key(origin="https://adtech.example", site=None) == key
        assert config.shuffle.key(origin="https://rival.example", site=None) is None
        assert config.shuffle.key(origin=None, site="https://rival.example") is None
        with pytest.raises(ConfigError, match="has a key already"):
            parse_config({"state": "s", "shuffle": {"registry_keys": [one, one]}}, tmp_path)


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({}, "state"),
        ({"state": "s\0"}, "state holds a null character"),
        ({"state": "s", "lisen": "x"}, "lisen"),
        ({"state": "s", "limits": {"job": 3}}, "limits.job"),
        ({"state": "s", "limits": {"jobs": 0}}, "limits.jobs"),
        ({"state": "s", "limits": {"jobs": True}}, "limits.jobs"),
        ({"state": "s", "limits": {"jobs": 2.5}}, "limits.jobs"),
        ({"state": "s", "ledger": {"store": "mongo"}}, "ledger.store"),
        ({"state": "s", "ledger": {"store": "postgres"}}, "dsn_file"),
        ({"state": "s", "ledger": {"filter": "renyi"}}, "ledger.filter"),
        ({"state": "s", "ledger": {"filter": "zcdp"}}, "ledger.rho"),
        ({"state": "s", "ledger": {"epsilon": 64}}, "ledger.epsilon"),
        ({"state": "s", "ledger": {"epsilons": "64"}}, "ledger.epsilons"),
        ({"state": "s", "privacy_unit": "user"}, "privacy_unit"),
        ({"state": "s", "sensitivity": {"topics": {"l1": 3}}}, "sensitivity.topics"),
        ({"state": "s", "sensitivity": {"shared-storage": {"l1": 3, "l0": 4}}}, "l0"),
        ({"state": "s", "sensitivity": {"shared-storage": {"l2": 3}}}, "l2"),
        ({"state": "s", "callers": [{**CALLER, "role": "adtech"}]}, "role"),
        ({"state": "s", "callers": [{**CALLER, "roles": ["root"]}]}, "role"),
        ({"state": "s", "callers": [{**CALLER, "roles": []}]}, "role"),
        ({"state": "s", "callers": [{**CALLER, "name": "../x"}]}, "name"),
        ({"state": "s", "callers": [{**CALLER, "tokens": [{"sha256": "secret"}]}]}, "token"),
        ({"state": "s", "callers": {"name": "x"}}, "callers"),
        ({"state": "s", "callers": [{**CALLER, "reporting_origins": ["https://A.example"]}]}, "reporting_origins"),
        ({"state": "s", "callers": [{**CALLER, "reporting_origins": ["https://a.example/"]}]}, "reporting_origins"),
        ({"state": "s", "callers": [{**CALLER, "reporting_origins": ["a.example"]}]}, "reporting_origins"),
        ({"state": "s", "callers": [{**CALLER, "reporting_sites": ["https://www.a.example"]}]}, "reporting_sites"),
        ({"state": "s", "callers": [{**CALLER, "reporting_sites": ["https://co.uk"]}]}, "reporting_sites"),
        ({"state": "s", "http_listen": "unix:/tmp/x"}, "http_listen"),
        ({"state": "s", "http_hosts": ["https://service.example"]}, "http_hosts"),
        ({"state": "s", "http_hosts": ["service.example:8080"]}, "http_hosts"),
        ({"state": "s", "http_hosts": "service.example"}, "http_hosts"),
        ({"state": "s", "listen": "127.0.0.1:99999"}, "127.0.0.1:99999 has no such port"),
        ({"state": "s", "listen": "127.0.0.1:" + "9" * 5000}, "not an address"),
        ({"state": "s", "buckets": {"a/b": "x"}}, "a/b"),
        ({"state": "s", "buckets": {"a": "ftp://x"}}, "buckets.a"),
        ({"state": "s", "engine": "hadoop"}, "engine"),
        ({"state": "s", "engine": "spark"}, "spark.master"),
        ({"state": "s", "spark": {"master": "local[2]"}}, "engine"),
        ({"state": "s", "engine": "spark", "spark": {"master": "x", "workers": 3}}, "spark.workers"),
        ({"state": "s", "engine": "spark", "spark": {"master": "x", "settings": {"memory": "4g"}}}, "memory"),
        ({"state": "s", "engine": "spark", "spark": {"master": "x", "settings": {"spark.cores.max": 2}}}, "cores"),
        ({"state": "s", "tls": {"certificate": "c"}}, "tls"),
        ({"state": "s", "tls": {**TLS, "key": "x"}}, "tls.key"),
        ({"state": "s", "listen": "nowhere"}, "nowhere"),
        ({"state": "s", "listen": "0.0.0.0:1"}, "TLS|tls"),
        ({"state": "s", "listen": "0.0.0.0:1", "tls": TLS}, "callers"),
        ({"state": "s", "listen": "0.0.0.0:1", "callers": [CALLER]}, "tls"),
        ({"state": "s", "http_listen": "192.0.2.1:80"}, "192.0.2.1"),
        ({"state": "s", "listen_mtls": "127.0.0.1:1", "tls": TLS, "callers": [CALLER]}, "client_authority"),
        ({"state": "s", "callers": [{**CALLER, "certificates": ["x"]}]}, "listen_mtls"),
    ],
)
def test_a_bad_configuration_is_refused_by_name(document: dict[str, object], word: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=word):
        parse_config(document, tmp_path)


def test_the_operator_chooses_the_engine(tmp_path: Path) -> None:
    assert parse_config({"state": "s"}, tmp_path).spark is None
    table = {"master": "spark://host:7077", "least_input_bytes": 7, "settings": {"spark.executor.memory": "4g"}}
    spark = parse_config({"state": "s", "engine": "spark", "spark": table}, tmp_path).spark
    assert spark is not None and spark.master == "spark://host:7077" and spark.least_input_bytes == 7
    assert spark.options == {"spark.executor.memory": "4g"}


@pytest.mark.parametrize(
    "places", [{"folders": {"input": "in"}}, {"folders": {"output": "out"}}, {"buckets": {"b": "in"}}]
)
def test_no_caller_among_several_has_the_folder_of_all(places: dict[str, object], tmp_path: Path) -> None:
    """Without a folder of their own a caller would read the others' reports and summaries."""
    everything = {**CALLER, "folder": ""}
    other = {"name": "rival", "roles": ["adtech"], "tokens": [{"sha256": "1" * 64}]}
    with pytest.raises(ConfigError, match="'adtech' has no folder"):
        parse_config({"state": "s", "callers": [everything, other], **places}, tmp_path)
    assert parse_config({"state": "s", "callers": [everything], **places}, tmp_path).callers[0].folder == ""
    named = parse_config({"state": "s", "callers": [CALLER, other], **places}, tmp_path).callers
    assert [one.folder for one in named] == ["adtech", "rival"]


def test_a_file_is_read_with_its_own_folder_and_named_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "service.toml"
    path.write_text('state = "here"\n[ledger]\nfilter = "zcdp"\nrho = "2.5"\nuses = 3\n[callers]\n')
    with pytest.raises(
        ConfigError, match=r"service\.toml, line 6: callers is {}\. Write an array of tables: \[\[callers\]\]"
    ):
        load_config(path)
    path.write_text('state = "here"\n[ledger]\nfilter = "zcdp"\nrho = "2.5"\nuses = 3\n')
    config = load_config(path)
    assert config.state == tmp_path / "here"
    assert config.filter == ZcdpFilter.parse(rho="2.5", uses=3)
    path.write_text('state = "here"\n[limits]\njobs_per_calller = 3\n')
    with pytest.raises(
        ConfigError, match=r"line 3: limits\.jobs_per_calller is not a field\. Did you mean 'jobs_per_caller'"
    ):
        load_config(path)
    path.write_text("state = ")
    with pytest.raises(ConfigError, match="not TOML"):
        load_config(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "none.toml")
    path.write_text('state = "s"\n[ledger]\nepsilon = "NaN"\n')
    with pytest.raises(ConfigError, match="epsilon"):
        load_config(path)


def test_loopback_is_told_from_the_rest() -> None:
    assert all(is_loopback(one) for one in ("127.0.0.1:0", "127.8.8.8:1", "[::1]:9", "localhost:2", "unix:/tmp/x"))
    assert not any(is_loopback(one) for one in ("0.0.0.0:0", "[::]:1", "example.com:2", "10.0.0.1:3"))


def test_secrets_are_their_owners_only_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "dsn"
    path.write_text("host=db password=hunter2")
    for mode in (0o644, 0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600") as caught:
            read_secret(path, "ledger.dsn_file")
        assert "hunter2" not in str(caught.value)
    path.chmod(0o600)
    assert read_secret(path, "ledger.dsn_file") == b"host=db password=hunter2"
    path.write_text("  \n")
    with pytest.raises(ConfigError, match="empty"):
        read_secret(path, "ledger.dsn_file")
    token = Token(digest=token_digest("secret"))
    assert "secret" not in repr(token) and token.digest not in repr(token)
    caller = Caller(name="a", roles=frozenset({Role.ADTECH}), tokens=(token,))
    assert token.digest not in repr(caller)


@pytest.mark.parametrize("secret", ["server.key", "dsn", "keys.json", "signing.key"])
def test_a_service_does_not_start_with_a_secret_that_others_can_read(secret: str, tmp_path: Path) -> None:
    """Each is refused where a starting service reads it, whether or not its configuration was checked before."""
    certificate, key, _ = Authority().write_server(tmp_path)
    config = ServiceConfig(state=tmp_path, listen="127.0.0.1:0", tls=TlsFiles(certificate=certificate, private_key=key))
    config = replace(config, limits=replace(config.limits, processes=0))
    with embedded(config):
        pass
    (tmp_path / "dsn").touch(mode=0o600)
    (tmp_path / "dsn").write_text("host=/nowhere password=hunter2")
    if secret == "dsn":
        config = replace(config, ledger="postgres", ledger_dsn_file=tmp_path / "dsn")
    (tmp_path / secret).chmod(0o640)
    with pytest.raises((ConfigError, KeySetError, BudgetError), match="others can read") as caught, embedded(config):
        pass
    assert "hunter2" not in str(caught.value)


def test_a_caller_owns_the_origins_of_a_site_and_no_name_that_ends_or_begins_like_it() -> None:
    of_site = Caller(name="a", roles=frozenset({Role.ADTECH}), sites=frozenset({"https://adtech.example"}))
    of_origin = Caller(name="b", roles=frozenset({Role.ADTECH}), origins=frozenset({"https://adtech.example"}))
    below = ("https://adtech.example:8443", "https://a.adtech.example", "https://a.b.adtech.example")
    assert of_site.owns("https://adtech.example") and of_origin.owns("https://adtech.example")
    assert all(of_site.owns(one) and not of_origin.owns(one) for one in below)
    others = ("https://evil-adtech.example", "https://eviladtech.example", "https://adtech.example.evil.example")
    for one in (*others, "http://adtech.example", "https://example", ""):
        assert not of_site.owns(one) and not of_origin.owns(one), one


def test_two_callers_never_share_a_name_a_token_or_a_certificate() -> None:
    clock = ManualClock(0)
    token = Token(digest=token_digest("t"))

    def caller(name: str, **more: object) -> Caller:
        return Caller(name=name, roles=frozenset({Role.ADTECH}), **more)  # type: ignore[arg-type]

    for pair, word in (
        ((caller("a"), caller("a")), "name"),
        ((caller("a", tokens=(token,)), caller("b", tokens=(token,))), "token"),
        ((caller("a", certificates=frozenset({"c"})), caller("b", certificates=frozenset({"c"}))), "certificate"),
    ):
        with pytest.raises(ConfigError, match=word):
            Register(pair, clock)


def test_a_token_is_good_until_it_expires() -> None:
    clock = ManualClock(1000)
    token = Token(digest=token_digest("t"), expires_ms=2000)
    register = Register([Caller(name="a", roles=frozenset({Role.ADTECH}), tokens=(token,))], clock)
    found = register.find(authorization="Bearer t", certificate_names=())
    assert found is not None and found.name == "a"
    assert register.find(authorization=None, certificate_names=()) is None
    for wrong in ("Basic t", "Bearer", "Bearer ", "t", "Bearer T"):
        with pytest.raises(UnauthenticatedError):
            register.find(authorization=wrong, certificate_names=())
    clock.advance_to(2000)
    with pytest.raises(UnauthenticatedError, match="expired"):
        register.find(authorization="Bearer t", certificate_names=())


def test_a_service_that_would_be_exposed_does_not_start(tmp_path: Path) -> None:
    path = tmp_path / "service.toml"
    path.write_text('state = "s"\nlisten = "0.0.0.0:50051"\n')
    from aggservice.commands import app as program

    result = CliRunner().invoke(program, ["serve", "--config", str(path)])
    assert result.exit_code == 2 and "[tls]" in result.output
    assert not (tmp_path / "s").exists()
    path.write_text('state = "s"\n')
    result = CliRunner().invoke(program, ["serve", "--config", str(path), "--check"])
    assert result.exit_code == 0
    result = CliRunner().invoke(program, ["serve", "--new-token"])
    token = result.output.split("copy): ")[1].split()[0]
    assert token_digest(token) in result.output


def test_what_the_service_cannot_use_is_told_by_name_when_it_starts(tmp_path: Path) -> None:
    """A port of the HTTP app that is taken, folders that are files: no traceback, no exit from under the caller."""
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        for settings, word in (
            ({"state": "new", "listen": taken}, "port is free"),
            ({"state": "new", "http_listen": taken}, "port is free"),
            ({"state": "file/below"}, "file"),
            ({"state": "s", "ledger": {"path": "nowhere/ledger.sqlite"}}, "nowhere"),
            ({"state": "s", "keys": "file/keys.json"}, "file"),
        ):
            document = {"listen": "127.0.0.1:0", "limits": {"processes": 2}, **settings}
            with pytest.raises((ConfigError, StoreError), match=word), embedded(parse_config(document, tmp_path)):
                pass
    assert not (tmp_path / "new").exists()  # a taken port is found before anything is made or started
    assert not multiprocessing.active_children()


def test_a_check_reads_the_files_that_the_configuration_names(tmp_path: Path) -> None:
    from aggservice.commands import app as program

    certificate, key, _ = Authority().write_server(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    Authority().write_server(other)
    path = tmp_path / "service.toml"

    def checked(tls: str) -> Any:
        path.write_text(f'state = "s"\n[tls]\n{tls}\n')
        return CliRunner().invoke(program, ["serve", "--config", str(path), "--check"])

    good = 'certificate = "server.pem"\nprivate_key = "server.key"'
    assert checked(good).exit_code == 0
    for tls, words in (
        ('certificate = "none.pem"\nprivate_key = "server.key"', "none.pem"),
        ('certificate = "server.pem"\nprivate_key = "other/server.key"', "fit together"),
        (f'{good}\nclient_authority = "service.toml"', "client_authority"),
    ):
        result = checked(tls)
        assert result.exit_code == 2 and words in result.output, result.output
    key.chmod(0o644)
    result = checked(good)
    assert result.exit_code == 2 and "others can read" in result.output
    assert certificate.exists() and not (tmp_path / "s").exists()


def test_a_ledger_keeps_its_privacy_unit(tmp_path: Path) -> None:
    """Under another unit every report would have its whole budget once more; the first entry names the unit."""
    maker, state = Maker(), tmp_path / "state"
    asks = JobParameters(attribution_report_to="https://adtech.example", epsilon="64")
    report = maker.report({1: 1})

    def config(unit: str) -> ServiceConfig:
        document = {"state": str(state), "privacy_unit": unit, "listen": "127.0.0.1:0", "limits": {"processes": 0}}
        return parse_config(document, tmp_path)

    with (
        embedded(config("report"), keys=maker.keys, clock=maker.clock),
        pytest.raises(LedgerMismatchError, match="second budget"),
        # A second service on the same ledger, started before anything was charged.
        embedded(config("shared_id"), keys=maker.keys, clock=maker.clock),
    ):
        pass
    with (
        embedded(config("report"), keys=maker.keys, clock=maker.clock) as service,
        Client(service.address) as client,
    ):
        client.aggregate("spends-it-all", asks, [report], domain=[1])
    with (
        pytest.raises(LedgerMismatchError, match="second budget"),
        embedded(config("shared_id"), keys=maker.keys, clock=maker.clock),
    ):
        pass
    with embedded(config("report"), keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        with pytest.raises(ClientError) as caught:
            client.aggregate("again", asks, [report], domain=[1])
        assert caught.value.return_code == "PRIVACY_BUDGET_EXHAUSTED"
