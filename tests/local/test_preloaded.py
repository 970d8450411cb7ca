"""A fork is like a process of its own: exit code, signals, files, command line, random numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from modyn.local.service_process import is_alive
from modyn.testing.waiting import PATIENCE_S, eventually


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "child.log"


def parent(log: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run `program` in a process without other threads, which may fork. Its modules and files are next to the folder of `log`."""
    imports = (
        "import fcntl, os, signal, subprocess, sys, time; from pathlib import Path\n"
        "from modyn.local.preloaded import fork_program, preload, set_command_line\n"
        "from modyn.local.service_process import fork, runs_with\n"
        f"log = Path({str(log)!r})\n"
    )
    return subprocess.run(
        [sys.executable, "-c", imports + program],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=log.parent.parent,
    )  # fmt: skip


def lines(log: Path, program: str) -> list[str]:
    """Return the output of `program`."""
    done = parent(log, program)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("run", "code"), [("lambda: None", 0), ("lambda: sys.exit(3)", 3), ("sys.exit", 0), ("lambda: 1 / 0", 1)]
)
def test_a_fork_ends_as_what_it_runs(log: Path, run: str, code: int) -> None:
    """It never continues in the code of its parent."""
    assert lines(log, f"print(fork({run}, log, {{}}).wait())") == [str(code)]
    assert ("ZeroDivisionError" in log.read_text()) == (code == 1)


@pytest.mark.parametrize("run", ["lambda: 1 / 0", "lambda: sys.exit('text')", "lambda: print('text')"])
def test_a_fork_that_cannot_write_its_log_ends_all_the_same(log: Path, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not continue in the code of its parent."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    program = f"try: child = fork({run}, Path('/dev/full'), {{}})\nfinally: os.write(1, b'parent\\n')\nprint(child.wait())"
    assert lines(log, program) == ["parent", str(int("print" not in run))]


def test_what_a_fork_says_at_its_end_is_in_its_log(log: Path) -> None:
    """Once, and nothing of its parent."""
    run = "def run(): print('printed'); sys.exit('the reason')\n"
    assert lines(log, f"{run}print('parent')\nprint(fork(run, log, {{}}).wait())") == ["parent", "1"]
    assert sorted(log.read_text().splitlines()) == ["printed", "the reason"]


def test_where_no_process_can_be_made_signals_still_arrive(log: Path) -> None:
    program = (
        "import resource; from modyn.errors import UnavailableError\n"
        "if os.getuid() == 0: os.setuid(65534)\n"  # the limit does not hold for root
        "resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))\n"
        "try: fork(lambda: None, Path('/dev/null'), {})\n"
        "except UnavailableError as error: print(error.message)\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    )
    message, blocked = lines(log, program)
    assert "no process can be started: " in message
    assert blocked == "set()"


def test_the_end_of_a_fork_is_waited_for_with_patience(log: Path) -> None:
    program = (
        "child = fork(lambda: time.sleep(600), log, {})\n"
        "try: child.wait(0.01)\n"
        "except subprocess.TimeoutExpired: print(child.poll())\n"
        "child.kill(); print(child.wait(), child.poll())\n"
        "child.kill()"  # of one that has ended: no signal, and no error
    )
    assert lines(log, program) == ["None", "-9 -9"]


def test_a_fork_has_neither_files_nor_signal_handlers_of_its_parent(log: Path) -> None:
    """A lock that the parent gives up is free, and a signal ends the fork from its first moment on."""
    program = (
        "held = open('lock', 'w'); fcntl.flock(held, fcntl.LOCK_EX)\n"
        "signal.set_wakeup_fd(os.pipe2(os.O_NONBLOCK)[1]); signal.signal(signal.SIGTERM, lambda *_: print('handled'))\n"
        "def run(): print(sorted(os.listdir('/proc/self/fd')), os.getsid(0) == os.getpid(), os.environ['NAME']); time.sleep(600)\n"
        "child = fork(run, log, {'NAME': 'value'})\n"
        "while not log.read_text(): time.sleep(0.01)\n"
        "held.close(); fcntl.flock(open('lock'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "child.send_signal(signal.SIGTERM); print(child.wait())\n"
        "child = fork(run, log, {'NAME': 'value'}); child.send_signal(signal.SIGTERM); print(child.wait())"
    )
    assert lines(log, "sys.stdout.reconfigure(line_buffering=True)\n" + program) == ["-15", "-15"]
    assert log.read_text().splitlines()[0] == "['0', '1', '2', '3'] True value"  # 3 is the folder that is listed


def test_a_fork_ends_with_its_parent(log: Path) -> None:
    program = "child = fork(lambda: time.sleep(600), log, {})\nprint(child.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    pid = int(parent(log, program).stdout)
    eventually(lambda: not is_alive(pid))


def test_what_is_preloaded_can_be_forked(log: Path) -> None:
    """The import starts no thread, hides rich, and registers only the metrics that every server has."""
    program = (
        "preload()\n"
        "import threading; from prometheus_client import REGISTRY\n"
        "print(threading.active_count(), sys.modules['rich'], *[m for m in ('pyarrow', 'alembic') if m in sys.modules])\n"
        "print(*sorted(metric.name for metric in REGISTRY.collect() if metric.name.startswith('modyn')))"
    )
    assert lines(log, program) == ["1 None", "modyn_call_seconds modyn_log_lines_dropped"]


def test_a_forked_program_runs_as_by_an_interpreter_of_its_own(log: Path) -> None:
    """`__main__` is its module, as multiprocessing expects, and no two draw the same random numbers."""
    log.parent.parent.joinpath("program.py").write_text(
        "import random, sys, numpy\n"
        "print(__name__, sys.modules['__main__'].__spec__.name, sys.argv[1:], random.random(), numpy.random.random(), sep='|')"
    )
    program = "preload()\nfor _ in range(2): print(fork_program(['program', '--number', '1'], log, {}).wait())"
    assert lines(log, program) == ["0", "0"]
    first, second = (line.split("|") for line in log.read_text().splitlines())
    assert first[:3] == second[:3] == ["__main__", "program", "['--number', '1']"]
    assert first[3] != second[3]
    assert first[4] != second[4]


@pytest.mark.parametrize("length", [1, 1000])
def test_the_command_line_is_that_of_the_program(log: Path, length: int) -> None:
    """The command line is truncated if it is longer than its parent's."""
    program = (
        "environment = Path('/proc/self/environ').read_bytes()\n"
        f"set_command_line(['modyn.rpc', 'storage', '--config', {length} * 'x'])\n"
        "print(*Path('/proc/self/cmdline').read_text().rstrip('\\0').split('\\0'))\n"
        "print(runs_with(os.getpid(), 'modyn.rpc', 'storage'), Path('/proc/self/environ').read_bytes() == environment)"
    )
    shown, rest = lines(log, program)
    assert shown.startswith("modyn.rpc storage --config x")
    assert rest == "True True"
