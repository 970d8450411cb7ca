"""Tasks that the tests send to worker processes."""

from __future__ import annotations

import gc
import importlib
import locale
import logging
import mmap
import os
import random
import resource
import signal
import sys
import time
import warnings
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from modyn.errors import DataError
from modyn.workers import JobConnection, die_with_parent
from modyn.workers.limits import Call


def process_state(_: object, connection: JobConnection) -> dict[str, Any]:
    torch = sys.modules.get("torch")
    return {
        "torch": torch is not None,
        "threads": torch.get_num_threads() if torch else 0,
        "fork_server": os.getppid(),
        "threads_of_fork_server": len(os.listdir(f"/proc/{os.getppid()}/task")),
        "name": connection.name,
    }


def with_child(_: object, connection: JobConnection) -> None:
    """Starts a process of its own and tells (its own pid, its parent's, the child's, the child's parent's), then waits."""
    ours, theirs = get_context("forkserver").Pipe()
    child = get_context("forkserver").Process(target=_child, args=(theirs,))
    child.start()
    connection.send((os.getpid(), os.getppid(), *ours.recv()))
    while True:
        time.sleep(1)


def _child(connection: Any) -> None:
    die_with_parent()
    connection.send((os.getpid(), os.getppid()))
    time.sleep(600)


def count(up_to: int, connection: JobConnection) -> int:
    for i in range(up_to):
        connection.send(i)
    print("counted to", up_to)
    return up_to


def our_error(_: object, connection: JobConnection) -> None:
    raise DataError(f"record 7 is short ({connection.name})")


def foreign_error(_: object, connection: JobConnection) -> None:
    raise ZeroDivisionError("of all things")


def end_by_signal(number: int, connection: JobConnection) -> None:
    os.kill(os.getpid(), number)


def write_to(path: str, connection: JobConnection) -> None:
    Path(path).write_bytes(b"x")


def leave(code: int, connection: JobConnection) -> None:
    sys.exit(code)


def not_picklable(_: object, connection: JobConnection) -> object:
    return lambda: None


def until_stopped(folder: str | None, connection: JobConnection) -> None:
    """Send the process id, mark the task as running in `folder`, and check for a stop request as a training does."""
    connection.send(os.getpid())
    mark = Path(folder) / str(os.getpid()) if folder else None
    if mark:
        mark.touch()
    try:
        while True:
            time.sleep(0.01)
            connection.check()
    finally:
        if mark:
            mark.unlink()


def deaf(also_to_sigterm: bool, connection: JobConnection) -> None:
    if also_to_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection.send(os.getpid())
    while True:
        time.sleep(1)


def while_marked(request: tuple[str, str], connection: JobConnection) -> int:
    """Mark the task as running by a file in a folder, and run until a test removes the file. Return how many ran when it began."""
    folder, name = request
    mark = Path(folder) / name
    mark.touch()
    running = len(os.listdir(folder))
    while mark.exists():
        time.sleep(0.01)
    return running


def own_pid(_: object, connection: JobConnection) -> int:
    return os.getpid()


def environment(_: object, connection: JobConnection) -> dict[str, str]:
    return dict(os.environ)


def settings(_: object, connection: JobConnection) -> dict[str, Any]:
    """Return the settings that another job may have changed."""
    import numpy as np
    import torch

    return {
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.zeros(1).device),
        "threads": torch.get_num_threads(),
        "torch": torch.rand(4).tolist(),
        "numpy": np.random.standard_normal(4).tolist(),
        "random": random.getstate(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "filled": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        "benchmark": torch.backends.cudnn.benchmark,
        "precision": torch.get_float32_matmul_precision(),
        "denormal": bool(torch.tensor(1e-310, dtype=torch.float64) * 1.0 == 0),
        "anomalies": torch.is_anomaly_enabled(),
        "errors": np.geterr(),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "path": list(sys.path),
        "filters": list(warnings.filters),
        "level": logging.getLogger().level,
        "handlers": len(logging.getLogger().handlers),
        "alarm": signal.getsignal(signal.SIGALRM),
        "collecting": gc.isenabled(),
        "recursion": sys.getrecursionlimit(),
        "locale": locale.setlocale(locale.LC_ALL),
        "output": sys.stdout is sys.__stdout__,
    }


def change_everything(_: object, connection: JobConnection) -> int:
    import numpy as np
    import torch

    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(3)
    torch.manual_seed(99)
    torch.set_grad_enabled(False)
    torch.set_deterministic_debug_mode("error")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("medium")
    torch.set_flush_denormal(True)
    torch.autograd.set_detect_anomaly(True)
    np.random.seed(99)
    np.seterr(all="raise")
    random.seed(99)
    os.chdir("/")
    os.environ["CUDA_VISIBLE_DEVICES"] = "7"
    sys.path.insert(0, "/nowhere")
    warnings.simplefilter("error")
    logging.basicConfig(level=logging.DEBUG)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    gc.disable()
    sys.setrecursionlimit(5000)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    return os.getpid()


def draw(_: object, connection: JobConnection) -> tuple[float, float, float]:
    import numpy as np
    import torch

    return random.random(), float(np.random.random()), float(torch.rand(1))


def pages_taken(num_rounds: int, connection: JobConnection) -> int:
    """Return the number of new pages for rounds that allocate and free 32 MB, after a first round."""
    import torch

    def rounds(num: int) -> int:
        for _ in range(num):
            [torch.ones(1 << 19) for _ in range(16)]
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    return -rounds(1) + rounds(num_rounds)


def value_of(module: str, connection: JobConnection) -> int:
    value: int = importlib.import_module(module).VALUE
    return value


def call_for_ever(_: object, connection: JobConnection) -> None:
    with Call("f", "sample {}".format) as call:
        call.at = 1
        while True:
            time.sleep(0.01)


def reserve(num_bytes: int, connection: JobConnection) -> None:
    """Take address space for good."""
    _reserved.append(mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0))


_reserved: list[mmap.mmap] = []


def report_device(_: object, connection: JobConnection) -> None:
    connection.send(connection.device)
    while True:
        time.sleep(0.01)
        connection.check()


def use_cuda(_: object, connection: JobConnection) -> tuple[bool, float]:
    """Return whether CUDA is initialised, and the result of a sum on the GPU, or on the CPU if there is none."""
    import torch

    in_use = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return in_use, float(torch.arange(4.0, device=device).sum())


def write_for_a_while(lines: int, connection: JobConnection) -> int:
    """Print numbers over about twenty looks at the log."""
    for i in range(lines):
        print(i, flush=True)
        time.sleep(0.005)
    return lines
