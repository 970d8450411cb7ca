"""The command itself: its subcommands and exit codes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import modyn
from modyn.cli import main as main_module
from modyn.cli.data import _option
from modyn.cli.main import app, main
from modyn.errors import NotFoundError
from modyn.storage.formats import FILE_FORMATS, build_format
from modyn.testing.stack import clean_environment

COMMANDS = (
    "up", "down", "status", "logs", "run", "ps", "watch", "show", "stop", "resume", "finish", "rm", "evaluate", "report", "check", "schema",
    "explain", "plugins", "data", "models", "cache", "simulate", "serve",
)  # fmt: skip
READ_ONLY = (
    ("status",), ("logs",), ("ps",), ("show",), ("check",), ("plugins",), ("data", "ls"), ("data", "show"), ("data", "problems"),
    ("data", "scrub"), ("models", "ls"), ("models", "show"), ("models", "promotions"), ("simulate",), ("cache", "profile"), ("cache", "plan"),
)  # fmt: skip


def invoke(*arguments: str) -> str:
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_the_examples_in_the_help_are_options_of_all_formats() -> None:
    lines = map(str.strip, invoke("data", "register", "--help").splitlines())
    examples = [shlex.split(line) for line in lines if re.match(r"(\w+FileWrapper|image_folder) +-o ", line)]
    assert [example[0] for example in examples] == list(FILE_FORMATS)
    for name, *options in examples:
        build_format(name, dict(map(_option, options[1::2])))


def test_help_names_every_command() -> None:
    text = invoke("--help")
    assert all(f" {command} " in text for command in COMMANDS)
    assert {command.name or command.callback.__name__ for command in app.registered_commands if command.callback} | {
        group.name for group in app.registered_groups
    } == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    text = invoke(command, "--help")
    assert "Usage: " in text
    assert len(text.splitlines()) > 4


@pytest.mark.parametrize("command", READ_ONLY, ids="-".join)
def test_commands_that_only_read_answer_in_json(command: tuple[str, ...]) -> None:
    assert "--json" in invoke(*command, "--help")


def test_help_loses_no_text_in_brackets() -> None:
    """Rich would interpret text in brackets as a style if it looks like a style name."""
    command, found = get_command(app), list[str]()
    commands = [command, *command.commands.values()]  # type: ignore[attr-defined]
    for each in [*commands, *(sub for group in commands[1:] for sub in getattr(group, "commands", {}).values())]:
        found += [text for text in (each.help, *(getattr(param, "help", None) for param in each.params)) if text]
    assert [text for text in found if re.search(r"(?<!\\)\[/?[a-z]", text)] == []


def test_the_help_of_a_group_names_its_commands() -> None:
    for group in app.registered_groups:
        assert group.typer_instance is not None
        names = {
            command.name or command.callback.__name__ for command in group.typer_instance.registered_commands if command.callback
        }
        assert set(re.findall(r"\w+", str(group.help).split(":")[1])) == names


def test_the_version() -> None:
    assert invoke("--version") == f"{modyn.__version__}\n"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (NotFoundError("there is no such thing; look elsewhere"), 1, "error: there is no such thing; look elsewhere\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (PermissionError(13, "Permission denied", "/some/file"), 1, "error: /some/file: Permission denied\n"),
    ],
)
def test_errors_end_in_a_word_and_a_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, words: str
) -> None:
    def raise_it() -> None:
        raise error

    monkeypatch.setattr(main_module, "command_line", lambda: raise_it)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == code
    assert capsys.readouterr().err == words


def test_options_before_the_command_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODYN_STATE_DIR", "elsewhere")
    monkeypatch.setenv("MODYN_CONFIG", "none.yaml")
    file = tmp_path / "modyn.yaml"
    file.write_text("storage: {num_threads: 3}\n")
    result = CliRunner().invoke(app, ["--config", str(file), "--state-dir", str(tmp_path / "state"), "ps"])
    assert result.exit_code == 1
    assert str(tmp_path / "state") in str(result.exception)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODYN_STATE_DIR")
    result = CliRunner().invoke(app, ["--config", str(file), "--state-dir", "", "ps"])
    assert f"{tmp_path}/.modyn" in str(result.exception), "an empty text is as none, and not the current folder"
    file.write_text("storage: {num_treads: 3}\n")
    result = CliRunner().invoke(app, ["--config", str(file), "ps"])
    assert f"{file}:1: storage.num_treads" in str(result.exception)


def test_the_installed_script_is_this_program() -> None:
    script = Path(sys.executable).with_name("modyn")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True, env=clean_environment(), timeout=30)
    assert done.stdout == f"{modyn.__version__}\n"


def test_explain_without_a_field_lists_the_sections() -> None:
    assert "    training " in invoke("explain")
