"""Watching runs of a real supervisor with in-memory services."""

from __future__ import annotations

import queue
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from modyn.cli import follow as follow_module
from modyn.cli.follow import ask, follow
from modyn.client import Client
from modyn.config.system import SystemConfig
from modyn.errors import ModynError, NotFoundError, UnavailableError
from modyn.supervisor.client import RunEvent, RunMessage, RunMode, RunOptions, RunState, SupervisorClient
from modyn.supervisor.journal.run_events import detail_from_json
from modyn.testing.services import InMemoryServices, pipeline_yaml
from modyn.testing.waiting import eventually
from tests.support.running_supervisor import serve_supervisor


class Shaky(SupervisorClient):
    """A client that becomes unavailable after every second event."""

    breaks = 6

    def watch(
        self, run_id: str, after_seq: int = 0, evaluation: int | None = None, newest: int | None = None
    ) -> Iterator[RunEvent]:
        for number, event in enumerate(super().watch(run_id, after_seq, evaluation, newest)):
            if number == 2 and self.breaks:
                self.breaks -= 1
                raise UnavailableError("the supervisor has gone")
            yield event


@pytest.fixture
def client(system_config: SystemConfig, tmp_path: Path) -> Iterator[Client]:
    services = InMemoryServices(tmp_path)
    services.storage.add_dataset("train")
    services.storage.add_samples("train", timestamps=range(20))
    with serve_supervisor(services, system_config), Client(system_config) as client:
        yield client


def submit(client: Client, mode: RunMode = RunMode.EXPERIMENT) -> str:
    return client.supervisor.submit(pipeline_yaml(), "p.yaml", RunOptions(mode)).run_id


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of `follow`, without their times and without the log of the supervisor, which runs in this process too."""
    return re.findall(r"^\d\d:\d\d:\d\d  (.*)$", capsys.readouterr().err, re.MULTILINE)


def test_lines_until_the_end(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert follow(client, submit(client))
    lines = told(capsys)
    assert lines[0] == "run submitted"
    assert lines[-1].startswith("run finished")
    assert sum("fired" in line for line in lines) == 2
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "watch"), "a thread holds the program"


def test_a_supervisor_that_goes_away_costs_a_pause_and_no_line_comes_twice(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = submit(client)
    client.wait(run_id)
    assert follow(client, run_id)
    expected = told(capsys)
    client.supervisor.close()
    with Shaky(client.config.endpoint("supervisor")) as shaky:
        client.__dict__["supervisor"] = shaky
        assert follow(client, run_id)
        assert told(capsys) == expected
        assert shaky.breaks == 0


def test_messages_stay_above_the_view_of_a_terminal(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    events: follow_module.Events = queue.SimpleQueue()
    for seq, text in enumerate(("p.yaml:7: warning: [a]", "\x1b[31mred"), 1):
        events.put(RunEvent(seq, 0.0, None, RunMessage(text)))
    events.put(None)
    follow_module._follow_live(follow_module.RunView("digits-0001"), events)
    lines = capsys.readouterr().err.splitlines()
    assert {"p.yaml:7: warning: [a]", r"\x1b[31mred"} <= {line.strip() for line in lines}


def test_a_run_that_does_not_exist_is_an_error(client: Client) -> None:
    with pytest.raises(NotFoundError):
        follow(client, "no-such-run")


class Newer(SupervisorClient):
    """A client that sends an event of an unknown kind, and then an event that cannot be read."""

    def watch(
        self, run_id: str, after_seq: int = 0, evaluation: int | None = None, newest: int | None = None
    ) -> Iterator[RunEvent]:
        yield from super().watch(run_id, after_seq, evaluation, newest)
        yield RunEvent(99, 0.0, None, detail_from_json("something_new", {"state": 1}))
        yield RunEvent(100, 0.0, None, detail_from_json("run_state", {"state": "something_new"}))


@pytest.mark.timeout(60)
def test_what_cannot_be_understood_ends_looking_on_with_advice(client: Client) -> None:
    problem = "CorruptStateError: a stored StateChange cannot be read: state: .*, not 'something_new'"
    advice = f"cannot be read: {problem}; the run continues. .* install the same version"
    with Newer(client.config.endpoint("supervisor")) as newer:
        client.__dict__["supervisor"] = newer
        with pytest.raises(ModynError, match=advice):
            follow(client, submit(client))


class Interrupts:
    """Press Ctrl-C the given number of times, each time the events are read; then the run continues to its end."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, *_: object, wait_s: float) -> bool:
        if self.number:
            self.number -= 1
            raise KeyboardInterrupt
        time.sleep(wait_s / 10)
        return True


@pytest.mark.parametrize(
    ("answers", "stays", "state"),
    [(["detach"], False, RunState.WAITING_FOR_DATA), (["continue", "stop"], True, RunState.STOPPED)],
)
def test_ctrl_c(client: Client, monkeypatch: pytest.MonkeyPatch, answers: list[str], stays: bool, state: RunState) -> None:
    run_id = submit(client, RunMode.PRODUCTION)
    monkeypatch.setattr(follow_module, "_drain", Interrupts(len(answers)))
    monkeypatch.setattr(follow_module, "ask", lambda: answers.pop(0))
    assert follow(client, run_id) is stays
    eventually(lambda: client.show(run_id).state is state)


def test_watching_stops_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for any number of Ctrl-C, and without a question that a second Ctrl-C could answer."""
    run_id = submit(client, RunMode.PRODUCTION)
    monkeypatch.setattr(follow_module, "_drain", Interrupts(1))
    monkeypatch.setattr(sys, "stdin", Terminal(None))
    assert follow(client, run_id, may_stop=False) is False
    at_rest = client.show(run_id).state
    assert at_rest not in (RunState.STOPPING, RunState.STOPPED)


class Terminal:
    """Standard input of a user who types `line` or presses Ctrl-C."""

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
