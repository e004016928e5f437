"""The sample configuration in examples/ loads, names every setting there is, and shows the true defaults."""

from __future__ import annotations

import re
from pathlib import Path

from aggservice.engine.opening.coverage import BOUNDED_APIS
from aggservice.service import Role, ServiceConfig, load_config

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "examples" / "service.toml"
SECRETS = ("server.pem", "server.key", "clients-ca.pem", "ledger.dsn", "keys.json")
REFUSED = {"authenticated_origins", "authenticated_sites"}
"""Former keys of [shuffle]: config.py knows them only to say what to write instead."""


def load(folder: Path) -> ServiceConfig:
    text = SAMPLE.read_text(encoding="utf-8")
    (folder / "service.toml").write_text(text, encoding="utf-8")
    for name in SECRETS:
        assert f'"{name}"' in text
        (folder / name).write_text("secret")
        (folder / name).chmod(0o600)
    return load_config(folder / "service.toml")


def test_the_sample_loads(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert config.state == tmp_path / "state" and config.tls is not None
    assert config.tls.client_authority == tmp_path / "clients-ca.pem"
    assert [caller.roles for caller in config.callers] == [{Role.ADTECH}, {Role.AUDITOR}]
    assert config.callers[0].tokens[0].expires_ms == 1_798_761_600_000


def test_the_sample_names_every_setting() -> None:
    """A setting is what the parser reads by name; one that only holds in another mode stands in a comment."""
    import aggservice.service.config.settings as module

    source = Path(module.__file__).read_text(encoding="utf-8")
    readers = "text|optional_text|choice|choices|path_to|whole|flag|texts|time_ms|section|sections"
    known = set(re.findall(rf'\.(?:{readers})\("(\w+)"', source))
    known |= set(re.findall(r'_(?:origins|sites|required_path)\(\w+, "(\w+)"', source))
    known |= {api.value for api in BOUNDED_APIS}
    assert len(known) > 40
    text = SAMPLE.read_text(encoding="utf-8")
    shown = set(re.findall(r"^#? ?([a-z0-9_]+) = ", text, re.MULTILINE))
    shown |= {part for name in re.findall(r"^#? ?\[+([\w.-]+)\]+", text, re.MULTILINE) for part in name.split(".")}
    assert known - REFUSED - shown == set()


def test_the_defaults_it_shows_are_the_defaults(tmp_path: Path) -> None:
    sample = load(tmp_path)
    (tmp_path / "least.toml").write_text('state = "state"\n')
    least = load_config(tmp_path / "least.toml")
    for name in ("state", "listen", "ledger", "filter", "unit", "limits", "reflection", "shuffle"):
        assert getattr(sample, name) == getattr(least, name), name
    assert sample.terms == least.terms
    assert sample.callers[1].folder == "auditor"
