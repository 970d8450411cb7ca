"""The process that workers are forked from: started on demand, ended when it is idle, started again."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from modyn.testing.waiting import PATIENCE_S

HERE = Path(__file__).parent

# In a process of its own: the fork server of this one serves the other tests.
SERVICE = """
    import sys
    sys.path.insert(0, {here!r})
    from pathlib import Path
    from modyn.testing.waiting import eventually
    from modyn.workers import JobSpec, SessionRules, WorkerPool

    def children():
        pids = {{pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}}
        servers = (b"forkserver", b"resource_tracker")
        return [pid for pid in pids if any(name in Path("/proc", pid, "cmdline").read_bytes() for name in servers)]

    if __name__ == "__main__":
        pool = WorkerPool(1, rules=SessionRules(idle_s=60), preload=(), server_idle_s=0.0)

        def fork_server(name, session=None):
            job = pool.submit(JobSpec("worker_tasks:process_state", None, name, Path({log!r}) / name, session))
            return str(job.result(60)["fork_server"])

        print("before the first job:", children() == [])
        first = fork_server("first")
        eventually(lambda: children() == [])
        print("ended without workers: True")
        second = fork_server("second", "a session")
        print("started again:", second in children() and second != first)
        print("kept while a session waits:", fork_server("third", "a session") == second)
        pool.warm_up()
        print("same for all:", second in children() and len(children()) == 2)
        pool.close()
        eventually(lambda: children() == [])
        print("ended with its last session: True")
"""


def test_the_fork_server_is_there_on_demand_and_ends_without_workers(tmp_path: Path) -> None:
    path = tmp_path / "service.py"
    path.write_text(textwrap.dedent(SERVICE).format(here=str(HERE), log=str(tmp_path)))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.splitlines() == [
        "before the first job: True",
        "ended without workers: True",
        "started again: True",
        "kept while a session waits: True",
        "same for all: True",
        "ended with its last session: True",
    ], done.stderr


def test_a_fork_server_that_hangs_is_ended_too(tmp_path: Path) -> None:
    """One that imports a module which does not come to its end sees no request to stop."""
    # The alarm ends it in any case.
    (tmp_path / "hanging.py").write_text("import signal\nsignal.alarm(60)\nsignal.pause()\n")
    program = """
        import psutil
        from modyn.testing.waiting import eventually
        from modyn.workers import fork_server

        def is_server(process):
            try:
                return any(name in " ".join(process.cmdline()) for name in ("forkserver", "resource_tracker"))
            except psutil.NoSuchProcess:  # it has just ended
                return False

        def children():
            return [child for child in psutil.Process().children() if is_server(child)]

        if __name__ == "__main__":
            fork_server.warm_up(["hanging"], 0.0)
            eventually(lambda: children() == [], timeout_s=20)
    """
    path = tmp_path / "service.py"
    path.write_text(textwrap.dedent(program))
    search = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": search}
    done = subprocess.run(
        [sys.executable, str(path)], env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_module_in_the_folder_of_the_service_stands_for_no_other(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "colorsys.py").write_text("open('taken', 'w').close()\n")
    program = """
        import sys
        sys.path.insert(0, {here!r})
        from pathlib import Path
        from modyn.workers import JobSpec, SessionRules, WorkerPool

        if __name__ == "__main__":
            pool = WorkerPool(1, rules=SessionRules(), preload=("colorsys",), server_idle_s=0.0)
            job = pool.submit(JobSpec("worker_tasks:environment", None, "a", Path({log!r}), None))
            print("PYTHONSAFEPATH" in job.result(60))
            pool.close()
    """
    path = tmp_path / "service.py"
    path.write_text(textwrap.dedent(program).format(here=str(HERE), log=str(tmp_path / "log")))
    command = [sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True, cwd=tmp_path / "here")
    assert done.stdout == "False\n", "scripts that user code starts find what lies beside them"
    assert [found.name for found in (tmp_path / "here").iterdir()] == ["colorsys.py"]


def test_its_end_is_the_death_of_its_workers(tmp_path: Path) -> None:
    """And the next worker is forked from another one."""
    program = """
        import os, signal, sys
        sys.path.insert(0, {here!r})
        from pathlib import Path
        from modyn.errors import WorkerDiedError
        from modyn.testing.waiting import eventually
        from modyn.workers import JobSpec, SessionRules, WorkerPool

        def submit(task, request=None, **callbacks):
            return pool.submit(JobSpec("worker_tasks:" + task, request, task, Path({log!r}), None), **callbacks)

        if __name__ == "__main__":
            pool = WorkerPool(1, rules=SessionRules(), preload=())
            told = []
            job = submit("until_stopped", on_message=told.append)
            eventually(lambda: told)
            os.kill(int(Path("/proc", str(told[0]), "stat").read_text().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)
            try:
                job.result(60)
            except WorkerDiedError as error:
                print("ended by the end of the process that it was forked from" in str(error))
            print(submit("count", 3).result(60))
            pool.close()
    """
    path = tmp_path / "service.py"
    path.write_text(textwrap.dedent(program).format(here=str(HERE), log=str(tmp_path / "log")))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "True\n3\n", done.stderr


def test_processes_that_are_not_workers_keep_it(tmp_path: Path) -> None:
    program = """
        import time
        from multiprocessing import get_context
        from modyn.testing.waiting import eventually
        from modyn.workers import fork_server

        def running():
            return fork_server.forkserver._forkserver._forkserver_pid

        if __name__ == "__main__":
            with fork_server.kept_running():
                child = get_context("forkserver").Process(target=time.sleep, args=(1.0,))
                child.start()
                server = running()
                fork_server.warm_up([], 0.05)
                child.join()
                print(child.exitcode, server == running())
            eventually(lambda: running() is None)
    """
    path = tmp_path / "service.py"
    path.write_text(textwrap.dedent(program))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout == "0 True\n", done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_processes_of_batches_keep_it(tmp_path: Path) -> None:
    """Those of a training or a measurement, in a process that had workers before."""
    program = """
        import time
        from torch.utils.data import Dataset
        from modyn.dataset.processes import batches_of_processes
        from modyn.testing.waiting import eventually
        from modyn.workers import fork_server

        class Numbers(Dataset):
            def __getitem__(self, index):
                time.sleep(0.3)
                return index

        if __name__ == "__main__":
            batches = batches_of_processes(lambda limits: Numbers(), 2, False, range(8))
            first = next(batches)
            fork_server.warm_up([], 0.1)
            print([first, *batches])
            eventually(lambda: fork_server.forkserver._forkserver._forkserver_pid is None)
    """
    path = tmp_path / "service.py"
    path.write_text(textwrap.dedent(program))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout == "[0, 1, 2, 3, 4, 5, 6, 7]\n", done.stderr
    assert done.returncode == 0, done.stderr


def test_variables_of_workers_are_none_of_the_service(tmp_path: Path) -> None:
    """What else the service starts, a command or a profiler, is not set up as a worker."""
    program = """
        import os
        from modyn.workers import fork_server

        if __name__ == "__main__":
            before = dict(os.environ)
            fork_server.warm_up(["colorsys"], 0.0)
            print(set(os.environ.items()) ^ set(before.items()))
    """
    path = tmp_path / "service.py"
    path.write_text(textwrap.dedent(program))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "set()\n"
