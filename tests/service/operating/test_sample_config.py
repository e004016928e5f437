"""The sample configuration in examples/ loads, names every setting there is, and shows the true defaults."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from pathlib import Path

from aggservice.engine.opening.coverage import BOUNDED_APIS
from aggservice.service import Role, ServiceConfig, load_config

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "examples" / "service.toml"
SECRETS = ("server.pem", "server.key", "clients-ca.pem", "ledger.dsn", "keys.json")


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
    """A setting is what a class declares, or a table that is read by name; some stand in comments."""
    import aggservice.service.config.settings as module

    declared = [kind for kind in vars(module).values() if isinstance(kind, type) and is_dataclass(kind)]
    known = {one.metadata["setting"].key or one.name for kind in declared for one in fields(kind) if one.metadata}
    source = Path(module.__file__).read_text(encoding="utf-8")
    known |= set(re.findall(r'\.(?:choice|section|sections)\("(\w+)"', source))
    known |= {api.value for api in BOUNDED_APIS}
    assert len(known) > 50
    text = SAMPLE.read_text(encoding="utf-8")
    shown = set(re.findall(r"^#? ?([a-z0-9_]+) = ", text, re.MULTILINE))
    shown |= {part for name in re.findall(r"^#? ?\[+([\w.-]+)\]+", text, re.MULTILINE) for part in name.split(".")}
    assert known - shown == set()


def test_the_defaults_it_shows_are_the_defaults(tmp_path: Path) -> None:
    sample = load(tmp_path)
    (tmp_path / "least.toml").write_text('state = "state"\n')
    least = load_config(tmp_path / "least.toml")
    for name in ("state", "listen", "ledger", "filter", "unit", "limits", "reflection", "shuffle"):
        assert getattr(sample, name) == getattr(least, name), name
    assert sample.terms == least.terms
    assert sample.callers[1].folder == "auditor"
