"""State of a worker process, restored after each command, so that a command does not see changes that another command made."""

from __future__ import annotations

import gc
import locale
import logging
import os
import random
import signal
import sys
import threading
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
"""Functions of torch that read and write a setting."""

_TORCH_FLAGS: Final = (
    ("backends.cudnn", ("enabled", "benchmark", "deterministic", "allow_tf32")),
    ("backends.cuda.matmul", ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")),
    ("backends.mkldnn", ("enabled", "deterministic")),
    ("utils.deterministic", ("fill_uninitialized_memory",)),
)
"""Modules of torch, and the names of their attributes that are restored."""


class ProcessState:
    """Settings of this process at the time of construction: random generators, threads, default types, warnings, folder, environment, signals.

    The state includes neither changes in modules nor threads that a command leaves. Therefore a process works for one run only.
    """

    def __init__(self) -> None:
        self._restores: list[Restore] = [*_save_os(), *_save_python(), *_save_numpy()]
        torch = sys.modules.get("torch")
        if torch is not None:
            self._restores += _save_torch(torch)

    def restore(self) -> None:
        """Restore all settings. If this method raises an error, the process must not run another command."""
        for restore in self._restores:
            restore()


def _save_os() -> list[Restore]:
    folder, environment, umask = os.getcwd(), dict(os.environ), os.umask(0)
    os.umask(umask)
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def restore_environment() -> None:
        if os.environ != environment:
            os.environ.clear()
            os.environ.update(environment)

    def restore_handlers() -> None:
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)

    return [lambda: os.chdir(folder), restore_environment, lambda: os.umask(umask), restore_handlers]


def _save_python() -> list[Restore]:
    path, streams, hook = list(sys.path), (sys.stdout, sys.stderr), sys.excepthook
    filters, show = list(warnings.filters), warnings.showwarning
    random_state, recursion, switch = random.getstate(), sys.getrecursionlimit(), sys.getswitchinterval()
    collecting, thresholds = gc.isenabled(), gc.get_threshold()
    language, trace = locale.setlocale(locale.LC_ALL), threading.excepthook
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def restore_python() -> None:
        sys.path[:] = path
        sys.stdout, sys.stderr = streams
        sys.excepthook, threading.excepthook = hook, trace
        sys.setrecursionlimit(recursion)
        sys.setswitchinterval(switch)
        random.setstate(random_state)
        locale.setlocale(locale.LC_ALL, language)
        (gc.enable if collecting else gc.disable)()
        gc.set_threshold(*thresholds)

    def restore_messages() -> None:
        warnings.resetwarnings()  # this call also forgets which warnings were shown
        warnings.filters[:] = filters  # type: ignore[index]
        warnings.showwarning = show
        root.handlers[:] = handlers
        root.setLevel(level)

    return [restore_python, restore_messages]


def _save_numpy() -> list[Restore]:
    state, errors, options = np.random.get_state(), np.geterr(), np.get_printoptions()

    def restore_numpy() -> None:
        np.random.set_state(state)
        np.seterr(**errors)
        np.set_printoptions(**options)

    return [restore_numpy]


def _save_torch(torch: ModuleType) -> list[Restore]:
    settings = [(_attribute(torch, getter), _attribute(torch, setter)) for getter, setter in _TORCH_SETTINGS]
    values = [(getter, setter, getter()) for getter, setter in settings]
    flags = [(_attribute(torch, module), name) for module, names in _TORCH_FLAGS for name in names]
    found = [(module, name, getattr(module, name)) for module, name in flags]
    random_state, seed = torch.get_rng_state(), torch.initial_seed()

    def restore_torch() -> None:
        torch.set_default_device(None)
        torch.set_flush_denormal(False)
        # Only changed settings are restored, because some setters start threads or take time.
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

    return [restore_torch]


def _attribute(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = getattr(root, name)
    return root
