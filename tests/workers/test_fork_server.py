"""The process that workers are forked from: started on demand, ended when it is idle, started again."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from modyn.testing.waiting import PATIENCE_S

HERE = Path(__file__).parent


def run(folder: Path, program: str, **options: Any) -> str:
    """Run a program as a service, in a process of its own, and return its output. It may use the names `{here}` and `{log}` of folders."""
    path = folder / "service.py"
    path.write_text(textwrap.dedent(program).replace("{here!r}", repr(str(HERE))).replace("{log!r}", repr(str(folder / "log"))))
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=PATIENCE_S, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# In a process of its own: the fork server of this one serves the other tests.
SERVICE = """
    import sys
    sys.path.insert(0, {here!r})
    from pathlib import Path
    from fork_servers import children
    from modyn.testing.waiting import eventually
    from modyn.workers import JobSpec, SessionRules, WorkerPool

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
    (tmp_path / "log").mkdir()
    assert run(tmp_path, SERVICE).splitlines() == [
        "before the first job: True",
        "ended without workers: True",
        "started again: True",
        "kept while a session waits: True",
        "same for all: True",
        "ended with its last session: True",
    ]


def test_a_fork_server_that_hangs_is_ended_too(tmp_path: Path) -> None:
    """A fork server that imports a module which never finishes does not see a request to stop."""
    # The alarm ends it in any case.
    (tmp_path / "hanging.py").write_text("import signal\nsignal.alarm(60)\nsignal.pause()\n")
    program = """
        import sys
        sys.path.insert(0, {here!r})
        from fork_servers import children
        from modyn.testing.waiting import eventually
        from modyn.workers import fork_server

        if __name__ == "__main__":
            fork_server.warm_up(["hanging"], 0.0)
            eventually(lambda: children() == [], timeout_s=20)
    """
    search = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    run(tmp_path, program, env={**os.environ, "PYTHONPATH": search})


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
    output = run(tmp_path, program, cwd=tmp_path / "here")
    assert output == "False\n", "scripts that user code starts find the modules of their own folder"
    assert [found.name for found in (tmp_path / "here").iterdir()] == ["colorsys.py"]


def test_its_end_is_the_death_of_its_workers(tmp_path: Path) -> None:
    """The next worker is forked from another server."""
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
    assert run(tmp_path, program) == "True\n3\n"


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
    assert run(tmp_path, program) == "0 True\n"


@pytest.mark.slow
def test_processes_of_batches_keep_it(tmp_path: Path) -> None:
    """These are processes of a training or a measurement, in a process that had workers before."""
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
    assert run(tmp_path, program) == "[0, 1, 2, 3, 4, 5, 6, 7]\n"


def test_variables_of_workers_are_none_of_the_service(tmp_path: Path) -> None:
    """Other child processes of the service, such as a profiler, do not get the environment of workers."""
    program = """
        import os
        from modyn.workers import fork_server

        if __name__ == "__main__":
            before = dict(os.environ)
            fork_server.warm_up(["colorsys"], 0.0)
            print(set(os.environ.items()) ^ set(before.items()))
    """
    assert run(tmp_path, program) == "set()\n"


def test_no_collection_searches_objects_of_the_fork_server(tmp_path: Path) -> None:
    """A search takes 0.1 s and copies the memory pages of PyTorch's objects. The collector still frees what a process makes itself."""
    program = """
        import gc
        from modyn.dataset.processes import batches_of_processes
        from torch.utils.data import Dataset

        class Objects(Dataset):
            def __getitem__(self, _):
                return gc.isenabled(), gc.get_freeze_count() > 100_000 and len(gc.get_objects()) < 10_000

        if __name__ == "__main__":
            print(list(batches_of_processes(lambda limits: Objects(), 1, False, range(1))))
    """
    assert run(tmp_path, program) == "[(True, True)]\n"
