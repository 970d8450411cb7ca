"""The live view at a terminal, and the effect of Ctrl-C with and without a terminal."""

from __future__ import annotations

import errno
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from modyn.testing.stack import RunningStack, clean_environment
from modyn.testing.waiting import PATIENCE_S

CTRL_C = b"\x03"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A program on a pseudo-terminal, with the screen and keyboard of a user."""

    def __init__(self, command: Sequence[str], cwd: Path) -> None:
        pid, descriptor = pty.fork()
        if pid == 0:
            os.chdir(cwd)
            os.execve(command[0], list(command), {**clean_environment(), "TERM": "xterm"})
        self.pid = pid
        self.text = ""
        self._descriptor = descriptor
        self._code: int | None = None

    def type(self, keys: bytes) -> None:
        os.write(self._descriptor, keys)

    def read_until(self, words: str, timeout_s: float = PATIENCE_S) -> None:
        """Read until `words` have appeared since the start."""
        give_up = time.monotonic() + timeout_s
        while words not in self.text:
            assert time.monotonic() < give_up, f"waited for {words!r}; the terminal shows:\n{self.text}"
            assert self._read(0.2), f"the program ended before {words!r}:\n{self.text}"

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Reads to the end. Returns the exit code."""
        give_up = time.monotonic() + timeout_s
        while self._read(0.2):
            assert time.monotonic() < give_up, f"the program did not end:\n{self.text}"
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._descriptor)
        return self._code

    def close(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def _read(self, wait_s: float) -> bool:
        """Read the available output; return False at the end."""
        if not select.select([self._descriptor], [], [], wait_s)[0]:
            return True
        try:
            data = os.read(self._descriptor, 65_536)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
        self.text += _CONTROL.sub("", data.decode(errors="replace"))
        return bool(data)


@pytest.fixture
def stack(running_stack: RunningStack) -> RunningStack:
    running_stack.tiny_dataset("terminal")
    return running_stack


@pytest.fixture
def following(stack: RunningStack) -> Iterator[tuple[Terminal, str]]:
    """A production run, which continues until it is stopped, watched at a terminal."""
    terminal = Terminal(stack.command("run", str(stack.pipeline_file("terminal")), "--production"), stack.folder)
    terminal.read_until("waiting_for_data")
    found = re.search(r"run (\S+) is submitted in production mode", terminal.text)
    assert found
    yield terminal, found[1]
    terminal.close()
    with stack.client() as client:
        client.stop(found[1])
        client.wait(found[1])


def state_of(stack: RunningStack, run_id: str) -> str:
    with stack.client() as client:
        return str(client.show(run_id).state)


def test_a_run_to_its_end_is_shown_live(stack: RunningStack) -> None:
    terminal = Terminal(stack.command("run", str(stack.pipeline_file("terminal"))), stack.folder)
    assert terminal.wait() == 0, terminal.text
    for words in ("stream", "100 / 100 samples", "trained", "Triggers", "state      finished"):
        assert words in terminal.text


def test_ctrl_c_asks_and_enter_detaches(stack: RunningStack, following: tuple[Terminal, str]) -> None:
    terminal, run_id = following
    terminal.type(CTRL_C)
    terminal.read_until("Detach and let the run continue? [Y/n]")
    terminal.type(b"\n")
    assert terminal.wait() == 0, terminal.text
    assert (
        f"detached; the run continues. `modyn watch {run_id}` follows it again, `modyn stop {run_id}` stops it" in terminal.text
    )
    assert state_of(stack, run_id) == "waiting_for_data"


def test_ctrl_c_followed_by_no_continues_to_watch(stack: RunningStack, following: tuple[Terminal, str]) -> None:
    terminal, run_id = following
    terminal.type(CTRL_C)
    terminal.read_until("[Y/n]")
    terminal.text = ""
    terminal.type(b"n\n")
    terminal.read_until("waiting_for_data")
    with stack.client() as client:
        client.stop(run_id)
    assert terminal.wait() == 3
    assert "state      stopped" in terminal.text


def test_a_second_ctrl_c_stops_the_run_cleanly(stack: RunningStack, following: tuple[Terminal, str]) -> None:
    terminal, run_id = following
    terminal.type(CTRL_C)
    terminal.read_until("[Y/n]")
    terminal.type(CTRL_C)
    assert terminal.wait() == 3, terminal.text
    assert "stopping the run; it can be resumed" in terminal.text
    assert "Traceback" not in terminal.text
    assert state_of(stack, run_id) == "stopped"
    with stack.client() as client:
        assert client.resume(run_id).state != "stopped"
        assert [t.state for t in client.supervisor.triggers(run_id)] == ["trained", "trained"]


@pytest.fixture
def watcher(stack: RunningStack) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A watching program without a terminal."""
    command = stack.command("run", str(stack.pipeline_file("terminal")), "--production")
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()
    ) as process:
        assert process.stderr is not None
        run_id = process.stderr.readline().split()[1]
        while "run waiting_for_data" not in process.stderr.readline():
            assert process.poll() is None
        yield process, run_id
        process.kill()
    with stack.client() as client:
        client.stop(run_id)
        client.wait(run_id)


def test_elsewhere_an_interrupt_detaches_after_a_moment(stack: RunningStack, watcher: tuple[subprocess.Popen[str], str]) -> None:
    process, run_id = watcher
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "Ctrl-C: detaching; again within 3 s stops the run" in err
    assert f"detached; the run continues. `modyn watch {run_id}`" in err
    assert state_of(stack, run_id) == "waiting_for_data"


@pytest.mark.slow
def test_elsewhere_a_second_interrupt_stops_the_run(stack: RunningStack, watcher: tuple[subprocess.Popen[str], str]) -> None:
    process, run_id = watcher
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    while "again within 3 s" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3, err
    assert "stopping the run; it can be resumed" in err
    assert "run stopped" in err
    assert state_of(stack, run_id) == "stopped"


def test_a_watcher_that_is_killed_does_not_touch_the_run(stack: RunningStack, watcher: tuple[subprocess.Popen[str], str]) -> None:
    process, run_id = watcher
    process.kill()
    process.wait()
    assert state_of(stack, run_id) == "waiting_for_data"
