"""The program as a whole: help without heavy imports, version, completion, exit codes, one error prefix."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import aggservice
import aggservice.bench
import aggservice.commands
from aggservice.commands import BENCHMARKS, COMMANDS, REFUSALS, Bench, LazyGroup, Program, app

HEAVY = ("numpy", "numba", "scipy", "grpc", "cryptography")
REPOSITORY = Path(__file__).parents[2]


def run_python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | variables,
    )


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["bench", "--help"], ["bench", "--names"]])
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys; from aggservice.commands import app\n"
        f"try: app({arguments!r})\n"
        "except SystemExit: pass\n"
        f"print('imported', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported []"


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    cited = re.search(r"^version: (\S+)$", (REPOSITORY / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert project["version"] == cited[1] == aggservice.__version__
    assert CliRunner().invoke(app, ["--version"]).stdout == f"aggservice {aggservice.__version__}\n"


@pytest.mark.parametrize(
    "group, name", [*((Program, name) for name in COMMANDS), *((Bench, name) for name in BENCHMARKS)]
)
def test_the_line_of_help_is_the_first_of_the_commands_own(group: type[LazyGroup], name: str) -> None:
    command, line = group.load(name), group.table[name][1]
    assert command.name == name
    assert (command.help or "").strip().partition("\n\n")[0] == line
    assert len(line) <= 66 and line.endswith(".")


def test_every_module_is_in_a_table() -> None:
    named = {f"aggservice.{path.partition(':')[0]}" for path, _ in COMMANDS.values()}
    found = pkgutil.walk_packages(aggservice.commands.__path__, "aggservice.commands.")
    modules = {module.name for module in found if not module.ispkg}
    assert {name.removeprefix("aggservice.commands.") for name in modules - named} == {
        "console",
        "service.connection",
        "service.report_files",
        "campaigns.compare",  # run --compare
        "campaigns.sweep",  # run --sweep
    }
    assert {module.name for module in pkgutil.iter_modules(aggservice.bench.__path__)} == set(BENCHMARKS)


def every_command(group: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name in group.commands:
        command = group.load(name) if isinstance(group, LazyGroup) else group.commands[name]
        found.append((*path, name))
        if hasattr(command, "commands"):
            found += every_command(command, (*path, name))
    return found


def test_every_command_and_every_option_has_help() -> None:
    paths = every_command(Program(name="aggservice"))
    assert len(paths) >= 56
    for path in paths:
        shown = CliRunner().invoke(app, [*path, "--help"])
        assert shown.exit_code == 0, (path, shown.output)
        assert "Usage:" in shown.stdout and "Traceback" not in shown.output
    for path in paths:
        command: Any = Program.load(path[0])
        for name in path[1:]:
            command = type(command).load(name) if isinstance(command, LazyGroup) else command.commands[name]
        for parameter in command.params:
            assert getattr(parameter, "help", None), (path, parameter.name)


def test_help_fits_80_columns_and_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are at most 80 wide, every option is named in full, and no line of a list of commands ends in dots."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    checked = 0
    for path in [(), *every_command(Program(name="aggservice"))]:
        lines = CliRunner().invoke(app, [*path, "--help"], prog_name="aggservice").stdout.splitlines()
        assert max(map(len, lines)) <= 80, path
        assert [one for one in lines if one.endswith("...") and not one.startswith("Usage:")] == [], path
        command: Any = Program(name="aggservice")
        for name in path:
            command = type(command).load(name) if isinstance(command, LazyGroup) else command.commands[name]
        words = set(re.findall(r"(?<!\S)--[\w-]+(?![\w.…])", "\n".join(lines)))
        for parameter in command.params:
            names = [one for one in (*parameter.opts, *parameter.secondary_opts) if one.startswith("--")]
            assert set(names) <= words, (path, names)
            checked += len(names)
    assert checked > 300


def test_completion_offers_commands_and_their_commands() -> None:
    shown = run_python("-m", "aggservice", "--show-completion", "bash")
    assert shown.returncode == 0, shown.stderr
    assert "_AGGSERVICE_COMPLETE=complete_bash" in shown.stdout and "aggservice" in shown.stdout

    def complete(words: str, index: int) -> list[str]:
        done = run_python(
            "-m", "aggservice", _AGGSERVICE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(index)
        )
        return done.stdout.split()

    assert complete("aggservice ", 1) == list(COMMANDS)
    assert complete("aggservice con", 1) == ["convert", "conformance"]
    assert complete("aggservice bench l", 2) == ["ldp", "ledger"]
    assert complete("aggservice ledger re", 2) == ["receipt", "recover", "restore"]
    assert "--lifetime-days" in complete("aggservice keys new --l", 3)


def test_completion_is_installed_for_a_named_shell(tmp_path: Path) -> None:
    done = run_python("-m", "aggservice", "--install-completion", "bash", HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "complete" in (tmp_path / ".bash_completions" / "aggservice.sh").read_text()


def test_refusals_are_errors_of_the_packages() -> None:
    for module, name in REFUSALS.items():
        assert issubclass(getattr(importlib.import_module(module), name), Exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "none.toml"],
        ["plan", "none.toml"],
        ["requery", "none.toml"],
        ["serve", "--config", "none.toml"],
        ["keys", "list", "none.json"],
        ["convert", "bucket", "many"],
        ["ledger", "verify", "none.db"],
        ["conformance", "ara", "none"],
        ["collect", "--listen", "nowhere"],
        ["ldp", "run", "OLOLOHA", "--dataset", "none.csv"],
        ["ldp", "track", "unknown"],
        ["aggregate", "--input_data_avro_file", "none.avro", "--output_directory", "out"],
        ["aggregate", "--input_data_avro_file", "none.avro", "--output_directory", "out", "--skip_domain"],
        ["job", "get", "a", "--token-file", "none"],
        ["job", "get", "a", "--service", "127.0.0.1:1"],
        ["run"],
        ["run", "none.toml", "--workers", "many"],
        ["run", "--nonsense"],
        ["--nonsense"],
        ["nonsense"],
        ["job", "nonsense"],
        ["ledger", "check", "none.db", "--caller", "a"],
        ["ledger", "balance", "none.db", "zz"],
        ["seal", "none.avro", "out.avro", "--keys", "none.json"],
        ["replay", "none"],
    ],
)
def test_a_refusal_has_one_prefix_and_exit_code_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stderr.startswith("aggservice: ") and result.stdout == ""


def test_a_mistyped_command_gets_a_suggestion() -> None:
    result = CliRunner().invoke(app, ["agregate"])
    assert result.exit_code == 2 and "Did you mean 'aggregate'" in result.stderr
