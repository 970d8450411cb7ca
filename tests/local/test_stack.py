"""The embedded stack as real processes: it starts, restarts dead parts, refuses, and leaves no processes and files."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
import yaml

from modyn.client import Client
from modyn.config.system import SERVICES, SystemConfig
from modyn.errors import ConfigError, UnavailableError
from modyn.local.control import StackStatus, start_stack
from modyn.local.service_process import ChildProcess, is_alive
from modyn.local.stack import Part, ServiceProcess
from modyn.state_folders import hold_lock, shared_folder
from modyn.testing.stack import RunningStack, clean_environment, stack_on
from modyn.testing.waiting import PATIENCE_S, eventually

PARTS = ("postgres", "redis", "storage", "replica-1", *SERVICES[1:])


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    """A stack for this module, whose tests kill its parts."""
    with (
        tempfile.TemporaryDirectory(prefix="modyn-", ignore_cleanup_errors=True) as folder,
        stack_on(
            Path(folder),
            storage={"replicas": 1},
            logs={"max_bytes": 5000, "keep": 2},
            trainer_server={"fork_server_idle_s": 1},
            evaluator={"fork_server_idle_s": 1},
        ) as running,
    ):
        running.tiny_dataset("kept", num_samples=10)
        yield running


def processes_of(config: SystemConfig) -> list[psutil.Process]:
    """Everything that was started for this state folder."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("MODYN_STATE_DIR") == str(config.state_dir)
            if process.pid != os.getpid() and (mine or any(str(config.state_dir) in part for part in process.cmdline())):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def zombies_below(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children(recursive=True) if child.status() == psutil.STATUS_ZOMBIE]


def keep_in_shared_memory(config: SystemConfig) -> Path:
    """A file as of a sample, in the memory of the installation's cache."""
    file = shared_folder(config.state_dir) / "decoded" / "sample"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"sample")
    return file


def is_whole(stack: RunningStack) -> bool:
    with stack.client() as client:
        status = client.status()
    return status.state == "ready" and len(status.parts) == len(PARTS) and all(part.healthy and part.pid for part in status.parts)


def require_data(stack: RunningStack) -> None:
    with stack.client() as client:
        assert client.dataset("kept").num_samples == 10


def test_every_part_is_told_with_its_process(stack: RunningStack) -> None:
    with stack.client() as client:
        status = client.status()
    assert status.state == "ready"
    assert [part.name for part in status.parts] == list(PARTS)
    assert all(part.healthy and part.pid and is_alive(part.pid) for part in status.parts)
    assert len({part.pid for part in status.parts}) == len(PARTS)


def test_a_stack_without_work_does_not_keep_pytorch_in_memory(stack: RunningStack) -> None:
    eventually(lambda: not [p for p in processes_of(stack.config) if "multiprocessing.forkserver" in " ".join(p.cmdline())])


def test_services_are_forks_that_share_memory_and_show_what_they_run(stack: RunningStack) -> None:
    with stack.client() as client:
        pids = {part.name: part.pid for part in client.status().parts}
    for name in SERVICES:
        process = psutil.Process(pids[name])
        assert process.cmdline()[:2] == ["modyn.rpc", name]
        stack_command = process.parent().cmdline()
        assert stack_command[1:4] == ["-P", "-m", "modyn.local.stack"], "no module where it was started stands for another"
        # Anonymous memory that was written to, here before the fork.
        fields = dict(line.split(":") for line in Path(f"/proc/{pids[name]}/smaps_rollup").read_text().splitlines()[1:])
        assert int(fields["Shared_Dirty"].split()[0]) > 10 << 10, name


def test_a_stack_is_ready_as_soon_as_its_services_are(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from modyn.config.system import SystemConfig\n"
        "from modyn.local.service_process import ChildProcess; from modyn.local.stack import Part, Stack\n"
        "class Server(ChildProcess):\n"
        "    pid = 1\n"
        "    def start(self): pass\n"
        "class Ready(Stack):\n"
        "    def _wait(self): sys.exit('it waits')\n"
        f"stack = Ready(SystemConfig(state_dir=Path({str(tmp_path)!r})), None)\n"
        "stack._databases, stack._services = [], [Part('storage', Server())]\n"
        "stack._start()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_up_again_leaves_a_stack_that_runs_alone(stack: RunningStack) -> None:
    with stack.client() as client:
        before = client.status()
        shown: list[StackStatus] = []
        assert client.up(shown.append).pid == before.pid
    assert shown[-1] == before


@pytest.mark.parametrize(
    "name",
    [
        "postgres",
        "storage",
        "replica-1",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("redis", "trainer_server", "supervisor")),
    ],
)
def test_a_part_that_is_killed_is_started_again(stack: RunningStack, name: str) -> None:
    with stack.client() as client:
        (part,) = (part for part in client.status().parts if part.name == name)
        assert part.pid
        os.kill(part.pid, signal.SIGKILL)

        def is_back() -> bool:
            (now,) = (now for now in client.status().parts if now.name == name)
            return now.healthy and now.pid != part.pid and now.restarts == part.restarts + 1

        eventually(is_back, f"the restart of {name}")
        eventually(lambda: is_whole(stack), "health of all")
        require_data(stack)
        pid = client.status().pid
    assert pid is not None
    eventually(lambda: not zombies_below(pid), "the burial of zombies")


@pytest.mark.parametrize(("healthy", "pauses"), [(True, 5 * [0.2]), (False, [0.2, 1.0, 3.0, 10.0, 10.0])])
def test_runs_do_not_wait_long_for_a_part_that_was_healthy(healthy: bool, pauses: list[float]) -> None:
    part, now, waited = Part("selector", ChildProcess()), 1000.0, []
    for _ in pauses:
        part.healthy, part.started_at, part.restart_at = healthy, now, None
        waited.append(round(part.plan_restart(now) - now, 3))
        assert part.plan_restart(now + 0.1) == part.restart_at
    assert waited == pauses


@pytest.mark.parametrize("name", ["postgres", *(pytest.param(name, marks=pytest.mark.slow) for name in ("storage", "stack"))])
def test_logs_are_rotated(stack: RunningStack, name: str) -> None:
    """Later output is in the new file."""
    log = stack.config.log_file(name)

    def content(path: Path = log) -> str:
        """Return the content of a log; empty during a rotation, and until the first line after it."""
        try:
            return path.read_text()
        except FileNotFoundError:
            return ""

    for number in range(3):
        with log.open("a") as file:
            file.write(f"filler {number}\n" * 1000)
        older = log.with_name(f"{log.name}.1")
        eventually(lambda older=older, number=number: f"filler {number}\n" in content(older))  # type: ignore[misc]
    assert not log.with_name(f"{log.name}.3").exists()
    if name == "storage":
        with stack.client() as client:
            pid = next(part.pid for part in client.status().parts if part.name == name)
            assert pid is not None
            os.kill(pid, signal.SIGTERM)
            eventually(lambda: '"event": "stopped"' in content())
            eventually(lambda: is_whole(stack))
    assert "filler" not in content()


def test_after_a_kill_of_the_stack_itself_up_heals_everything(stack: RunningStack) -> None:
    with stack.client() as client:
        before = client.status()
        assert before.pid
        kept = keep_in_shared_memory(stack.config)
        os.kill(before.pid, signal.SIGKILL)
        eventually(lambda: not is_alive(before.pid or 0), "the end of the stack")
        assert client.status().state == "stopped"
        assert kept.exists()
        after = client.up()
        assert not kept.exists()
        assert is_whole(stack)
        assert after.pid != before.pid
    require_data(stack)
    assert not any(is_alive(part.pid) for part in before.parts if part.pid)

    def is_alone() -> bool:
        return all(p.pid == after.pid or after.pid in {parent.pid for parent in p.parents()} for p in processes_of(stack.config))

    eventually(is_alone, "the end of what the killed stack left")


def test_two_who_start_at_once_share_one_stack(stack: RunningStack) -> None:
    with stack.client() as client:
        client.down()
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: start_stack(stack.config, stack.config_file), range(2))
    assert first.pid == second.pid
    assert is_whole(stack)


def test_a_second_stack_on_the_folder_is_refused(stack: RunningStack) -> None:
    done = subprocess.run(
        [*stack.command()[:1], "-m", "modyn.local.stack", "--config", str(stack.config_file)],
        capture_output=True, text=True, timeout=PATIENCE_S, env=clean_environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"another stack runs on {stack.config.state_dir}; `modyn down` stops it" in done.stderr
    assert is_whole(stack)


def test_down_ends_every_process(stack: RunningStack) -> None:
    assert processes_of(stack.config)
    kept = keep_in_shared_memory(stack.config)
    with stack.client() as client:
        assert client.down() is True
        assert client.status().state == "stopped"
        assert not kept.exists()
        keep_in_shared_memory(stack.config)  # as a stack that was killed leaves it
        with hold_lock(stack.config.service_dir("trainer_server") / "lock", "no"):
            assert client.down() is False
        assert kept.exists()
        assert client.down() is False
        assert not kept.exists()
    assert processes_of(stack.config) == []
    with stack.client() as client:
        client.up()
    require_data(stack)


@pytest.mark.slow
def test_a_port_that_is_taken_fails_the_start_and_is_named() -> None:
    with socket.socket() as taken, tempfile.TemporaryDirectory(prefix="modyn-") as folder:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with stack_on(Path(folder), start=False, selector={"address": address}) as stack, stack.client() as client:
            with pytest.raises(
                UnavailableError, match=rf"selector did not start: .*cannot listen on {address}.*selector\.address"
            ):
                client.up()
            assert client.status().state == "failed"
            assert "cannot listen on" in client.status().error
            eventually(lambda: not processes_of(stack.config), "the end of the stack")
            log = stack.config.log_file("selector")
            assert "cannot listen on" in log.read_text()


def test_a_service_that_cannot_listen_never_counts_as_serving(tmp_path: Path) -> None:
    """Else `modyn up` may report that all is ready just before the service ends."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = SystemConfig(state_dir=tmp_path, trainer_server={"address": f"127.0.0.1:{taken.getsockname()[1]}"})
        (tmp_path / "system.yaml").write_text(
            yaml.safe_dump(config.model_dump(mode="json", include={"state_dir", "trainer_server"}))
        )
        command = [sys.executable, "-m", "modyn.rpc", "trainer_server", "--config", str(tmp_path / "system.yaml")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=clean_environment(), check=False)
    assert done.returncode == 1, done.stderr
    assert "cannot listen on" in done.stderr
    assert not ServiceProcess("trainer_server", config, None).is_serving


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with (
        Client(SystemConfig(state_dir=tmp_path / "file" / "state")) as client,
        pytest.raises(UnavailableError, match=rf"{tmp_path}/file/state cannot be written: .*set state_dir or MODYN_STATE_DIR"),
    ):
        client.up()


def test_a_service_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    config = SystemConfig(state_dir=tmp_path)
    (tmp_path / "selector").write_text("a file where a folder should be")
    program = (  # services are forked, and this process has threads
        "import time; from pathlib import Path; from modyn.config.system import SystemConfig; from modyn.local.stack import ServiceProcess\n"
        f"service = ServiceProcess('selector', SystemConfig(state_dir=Path({str(tmp_path)!r})), None); service.start()\n"
        "while service.pid is not None: time.sleep(0.02)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
    assert re.search(
        rf"modyn selector: {tmp_path}/selector\S*: .+; make it writable or change state_dir",
        config.log_file("selector").read_text(),
    )


def test_a_service_of_another_command_line_that_holds_the_folder_is_named(tmp_path: Path) -> None:
    """A process of another version, for example, is not ended."""
    config = SystemConfig(state_dir=tmp_path)
    config.service_dir("storage").mkdir()
    service = ServiceProcess("storage", config, None)
    service.stop_patience_s = 0.05
    with (
        hold_lock(config.service_dir("storage") / "lock", "no"),
        pytest.raises(UnavailableError, match=rf"an old storage service \(process {os.getpid()}\) still works on {tmp_path}"),
    ):
        service.start()


def test_a_mistake_in_the_system_file_is_told_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "modyn.yaml"
    file.write_text("storage: {num_thread: 3}\n")
    done = subprocess.run(
        [*RunningStack(tmp_path, file, SystemConfig()).command("up")],
        capture_output=True, text=True, timeout=PATIENCE_S, env=clean_environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 1
    expected = f"error: {file}:1: storage.num_thread: there is no such key, did you mean 'num_threads'? Allowed: address, "
    assert done.stderr.startswith(expected)
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_of_another_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """These are names in folders of versions without a mark."""
    state = tmp_path / "state"
    for name in OLD_STATE:
        path = state / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    before = snapshot(state)
    with stack_on(tmp_path, start=False) as stack, stack.client() as client:
        with pytest.raises(ConfigError, match=rf"{state}/postgres was written by another version of Modyn.*Nothing was changed"):
            client.up()
        done = stack.modyn("up")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"error: {state}/postgres was written by another version of Modyn" in done.stderr
        done = subprocess.run(
            [*stack.command()[:1], "-m", "modyn.rpc", "storage", "--config", str(stack.config_file)],
            capture_output=True, text=True, timeout=PATIENCE_S, env=clean_environment(), check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert (
            f"{state}/storage was written by another version of Modyn: it has no file state_version and holds datasets"
            in done.stderr
        )
    assert snapshot(state) == before


OLD_STATE = (
    "stack.json", "stack.lock", "logs/stack.log", "postgres/data/PG_VERSION", "postgres/log", "postgres/url", "redis/log", "redis/url",
    "storage/lock", "storage/metrics_url", "storage/names/d", "storage/datasets/ce6343/nonce", "storage/datasets/ce6343/index.json",
    "storage/datasets/ce6343/00000000000000000000-e48da6f33f8c.segment", "selector/runs/tiny-0001.1/triggers/000000.set",
    "selector/runs/tiny-0001.1/samples", "model_storage/store_id", "model_storage/models/f452.model", "evaluator/outputs/lock",
    "trainer_server/lock", "supervisor/lock",
)  # fmt: skip


def snapshot(folder: Path) -> dict[str, tuple[int, str]]:
    return {str(path): (path.stat().st_mtime_ns, "" if path.is_dir() else path.read_text()) for path in folder.rglob("*")}
