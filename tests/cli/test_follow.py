"""Looking on without services: the events come from a supervisor in memory."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import cast

import pytest

from modyn.cli import follow as follow_module
from modyn.cli.follow import ask, follow
from modyn.client import Client
from modyn.config.system import SystemConfig
from modyn.errors import ModynError, NotFoundError, UnavailableError
from modyn.supervisor.client import EventKind, RunEvent, RunMode, RunOptions, RunState, SupervisorClient
from modyn.testing.fake_supervisor import FakeSupervisor
from modyn.testing.services import pipeline_yaml


class Shaky(FakeSupervisor):
    """Goes away after every other event that it tells."""

    breaks = 6

    def watch(self, run_id: str, after_seq: int = 0) -> Iterator[RunEvent]:
        for number, event in enumerate(super().watch(run_id, after_seq)):
            if number == 2 and self.breaks:
                self.breaks -= 1
                raise UnavailableError("the supervisor has gone")
            yield event


def client_of(supervisor: FakeSupervisor, tmp_path_config: SystemConfig) -> Client:
    client = Client(tmp_path_config)
    client.__dict__["supervisor"] = cast("SupervisorClient", supervisor)
    return client


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> SystemConfig:
    return SystemConfig(state_dir=tmp_path_factory.mktemp("state"))


def submit(supervisor: FakeSupervisor) -> str:
    return supervisor.submit(pipeline_yaml(), "p.yaml", RunOptions(RunMode.EXPERIMENT)).run_id


def test_lines_until_the_end(config: SystemConfig, capsys: pytest.CaptureFixture[str]) -> None:
    supervisor = FakeSupervisor()
    assert follow(client_of(supervisor, config), submit(supervisor))
    lines = [line.split("  ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines[0] == "run submitted"
    assert lines[-1].startswith("run finished")
    assert sum("fired" in line for line in lines) == 2


def test_a_supervisor_that_goes_away_costs_a_pause_and_no_line_comes_twice(
    config: SystemConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    calm, shaky = FakeSupervisor(), Shaky()
    assert follow(client_of(calm, config), submit(calm))
    expected = [line.split("  ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert follow(client_of(shaky, config), submit(shaky))
    assert [line.split("  ", 1)[1] for line in capsys.readouterr().err.splitlines()] == expected
    assert shaky.breaks == 0


def test_a_run_that_does_not_exist_is_an_error(config: SystemConfig) -> None:
    with pytest.raises(NotFoundError):
        follow(client_of(FakeSupervisor(), config), "no-such-run")


class Newer(FakeSupervisor):
    """Tells of things that this program has not heard of."""

    def watch(self, run_id: str, after_seq: int = 0) -> Iterator[RunEvent]:
        yield from super().watch(run_id, after_seq)
        yield RunEvent(99, 0.0, EventKind("something_new"), None, {})


@pytest.mark.timeout(60)
def test_what_cannot_be_understood_ends_looking_on_with_advice(config: SystemConfig) -> None:
    supervisor = Newer()
    told = "cannot be read: ValueError: 'something_new' is .*; the run continues. .* install the same one"
    with pytest.raises(ModynError, match=told):
        follow(client_of(supervisor, config), submit(supervisor))


class Interrupts:
    """Ctrl-C as often as given, each time somebody looks at the events; then patience until the run ends."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, *_: object, wait_s: float) -> bool:
        if self.number:
            self.number -= 1
            raise KeyboardInterrupt
        time.sleep(wait_s / 10)
        return True


@pytest.mark.parametrize(
    ("answers", "stays", "state"), [(["detach"], False, "streaming"), (["continue", "stop"], True, "stopped")]
)
def test_ctrl_c(config: SystemConfig, monkeypatch: pytest.MonkeyPatch, answers: list[str], stays: bool, state: str) -> None:
    supervisor = FakeSupervisor(hold=True)
    run_id = submit(supervisor)
    monkeypatch.setattr(follow_module, "_drain", Interrupts(len(answers)))
    monkeypatch.setattr(follow_module, "ask", lambda: answers.pop(0))
    assert follow(client_of(supervisor, config), run_id) is stays
    assert supervisor.run(run_id).state == RunState(state)


class Terminal:
    """Standard input of a person who types `line`, or Ctrl-C."""

    def __init__(self, line: str | None) -> None:
        self.line = line

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        if self.line is None:
            raise KeyboardInterrupt
        return self.line


@pytest.mark.parametrize(
    ("line", "answer"),
    [("\n", "detach"), ("y\n", "detach"), ("", "detach"), ("n\n", "continue"), ("No\n", "continue"), (None, "stop")],
)
def test_the_question(monkeypatch: pytest.MonkeyPatch, line: str | None, answer: str) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(line))
    assert ask() == answer


def test_watching_leaves_no_thread_that_holds_the_program(config: SystemConfig) -> None:
    supervisor = FakeSupervisor()
    follow(client_of(supervisor, config), submit(supervisor))
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "watch")
