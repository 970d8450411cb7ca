"""The state of a worker process around its commands: put back after each, so that no command finds what another one changed."""

from __future__ import annotations

import gc
import locale
import logging
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import numpy as np

Restore = Callable[[], object]

_TORCH_SETTINGS: Final = (
    ("get_num_threads", "set_num_threads"),
    ("get_default_dtype", "set_default_dtype"),
    ("get_deterministic_debug_mode", "set_deterministic_debug_mode"),
    ("is_grad_enabled", "_C._set_grad_enabled"),
    ("get_float32_matmul_precision", "set_float32_matmul_precision"),
    ("is_anomaly_enabled", "_C.set_anomaly_enabled"),
    ("is_autocast_cache_enabled", "set_autocast_cache_enabled"),
)
"""Names in torch of functions that read a setting and that write it."""

_TORCH_FLAGS: Final = (
    ("backends.cudnn", ("enabled", "benchmark", "deterministic", "allow_tf32")),
    ("backends.cuda.matmul", ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")),
    ("backends.mkldnn", ("enabled", "deterministic")),
    ("utils.deterministic", ("fill_uninitialized_memory",)),
)
"""Modules in torch, and attributes of theirs."""


_CLOCK_STEP_NS: Final = 20_000_000
"""Times of files are behind the clock by up to so much."""
_WRITTEN_SINCE: Final = (-1, -1)
"""In place of the time and size of a file that may not be what was imported."""


class Surroundings:
    """The settings of this process when it is made: random generators, threads, default types, warnings, folder, environment, signals.

    Not covered: what a command changes in modules, and threads that it leaves behind. So a process works for one run only.
    """

    def __init__(self) -> None:
        self._restores: list[Restore] = [*_of_the_system(), *_of_python(), *_of_numpy()]
        torch = sys.modules.get("torch")
        if torch is not None:
            self._restores += _of_torch(torch)

    def restore(self) -> None:
        """Put everything back. Whatever it raises leaves the process in a state that no command should find."""
        for restore in self._restores:
            restore()


class ImportedFiles:
    """The files of modules that this process imports from now on, as they are when they are imported.

    Not of packages that it has imported already: those change with the service, and PyTorch's compiler writes modules of its own.
    """

    def __init__(self) -> None:
        self._before = frozenset(sys.modules)
        self._looked_at = time.time_ns() - _CLOCK_STEP_NS
        self._seen: dict[str, tuple[int, int] | None] = {}

    def remember(self) -> None:
        """Look at the files of modules that have been imported since the look before. One that was written since then may differ from what
        was imported, and counts as changed."""
        for name in sys.modules.keys() - self._before:
            file = getattr(sys.modules.get(name), "__file__", None)
            if file and file not in self._seen and name.partition(".")[0] not in self._before:
                version = _version_of(file)
                self._seen[file] = version if version is None or version[0] < self._looked_at else _WRITTEN_SINCE
        self._looked_at = time.time_ns() - _CLOCK_STEP_NS

    def have_changed(self) -> bool:
        """Whether any of them was altered or removed since."""
        return any(_version_of(file) != version for file, version in self._seen.items())


def _version_of(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _of_the_system() -> list[Restore]:
    folder, environment, umask = os.getcwd(), dict(os.environ), os.umask(0)
    os.umask(umask)
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def put_environment_back() -> None:
        if os.environ != environment:
            os.environ.clear()
            os.environ.update(environment)

    def put_handlers_back() -> None:
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)

    return [lambda: os.chdir(folder), put_environment_back, lambda: os.umask(umask), put_handlers_back]


def _of_python() -> list[Restore]:
    path, streams, hook = list(sys.path), (sys.stdout, sys.stderr), sys.excepthook
    filters, show = list(warnings.filters), warnings.showwarning
    random_state, recursion, switch = random.getstate(), sys.getrecursionlimit(), sys.getswitchinterval()
    collecting, thresholds = gc.isenabled(), gc.get_threshold()
    language, trace = locale.setlocale(locale.LC_ALL), threading.excepthook
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def put_python_back() -> None:
        sys.path[:] = path
        sys.stdout, sys.stderr = streams
        sys.excepthook, threading.excepthook = hook, trace
        sys.setrecursionlimit(recursion)
        sys.setswitchinterval(switch)
        random.setstate(random_state)
        locale.setlocale(locale.LC_ALL, language)
        (gc.enable if collecting else gc.disable)()
        gc.set_threshold(*thresholds)

    def put_messages_back() -> None:
        warnings.resetwarnings()  # which also forgets what was shown once
        warnings.filters[:] = filters  # type: ignore[index]
        warnings.showwarning = show
        root.handlers[:] = handlers
        root.setLevel(level)

    return [put_python_back, put_messages_back]


def _of_numpy() -> list[Restore]:
    state, errors, options = np.random.get_state(), np.geterr(), np.get_printoptions()

    def put_numpy_back() -> None:
        np.random.set_state(state)
        np.seterr(**errors)
        np.set_printoptions(**options)

    return [put_numpy_back]


def _of_torch(torch: ModuleType) -> list[Restore]:
    settings = [(_attribute(torch, getter), _attribute(torch, setter)) for getter, setter in _TORCH_SETTINGS]
    values = [(getter, setter, getter()) for getter, setter in settings]
    flags = [(_attribute(torch, module), name) for module, names in _TORCH_FLAGS for name in names]
    found = [(module, name, getattr(module, name)) for module, name in flags]
    random_state, seed = torch.get_rng_state(), torch.initial_seed()

    def put_torch_back() -> None:
        torch.set_default_device(None)
        torch.set_flush_denormal(False)
        # Only what was changed: some of these start threads or cost time.
        for getter, setter, value in values:
            if getter() != value:
                setter(value)
        for module, name, value in found:
            if getattr(module, name) != value:
                setattr(module, name, value)
        torch.set_rng_state(random_state)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)
            torch.cuda.set_stream(torch.cuda.default_stream())

    return [put_torch_back]


def _attribute(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = getattr(root, name)
    return root
