"""A side in a process of its own: its own memory and imports, perhaps another Python environment.

The process reads its task as one line of JSON, prepares, and then answers each line `go` with what it measured, one line of JSON. Its first
run counts in no figure (see `rounds`). Peers import this module in their own environment: nothing but the standard library at the top.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, Self

from benchmark.data_path.figure import Measured, Side

ROOT = Path(__file__).parents[2]


class SideProcesses:
    """The processes of a figure's sides. Each starts when it first runs, prepares once, and serves one run a round until `close`."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def side(self, name: str, module: str, task: Mapping[str, Any], python: Path | str = sys.executable) -> Side:
        """A side that is `python -m module`, whose main is `serve(prepare)`. The value is samples a second."""
        started: list[subprocess.Popen[str]] = []

        def run(ready: Callable[[], None]) -> Measured:
            if not started:
                started.append(self._start([str(python), "-m", module], task))
                _answer(name, started[0], "prepared")
            ready()
            _tell(started[0], "go")
            answer = json.loads(_answer(name, started[0], "done"))
            return Measured(answer["samples"] / answer["seconds"], answer["details"])

        return Side(name, run)

    def _start(self, command: list[str], task: Mapping[str, Any]) -> subprocess.Popen[str]:
        # Parsers make tensors over read-only bytes, which nobody writes to.
        quiet = "ignore:The given buffer is not writable,ignore:The given NumPy array is not writable"
        environment = {**os.environ, "PYTHONWARNINGS": quiet}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
        self._running.append(process)
        _tell(process, json.dumps(task))
        return process


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _answer(name: str, process: subprocess.Popen[str], what: str) -> str:
    assert process.stdout is not None
    # Libraries write to the standard output as well; our own lines are marked.
    for line in process.stdout:
        if line.startswith(f"@{what}"):
            return line.removeprefix(f"@{what}")
    raise RuntimeError(f"the side '{name}' ended before it was {what}; what went wrong stands above")


def serve(prepare: Callable[[dict[str, Any]], Callable[[], Iterable[Any]]]) -> None:
    """In the process: `prepare(task)` imports and opens what may be open beforehand, and returns what starts an iteration over batches.

    The clock runs from the start of the iteration, worker processes included, to the end.
    """
    task = json.loads(sys.stdin.readline())
    start = prepare(task)
    print("@prepared", flush=True)
    for _ in sys.stdin:
        print("@done" + json.dumps(consume(start, int(task["samples"]))), flush=True)


def consume(start: Callable[[], Iterable[Any]], expected: int) -> dict[str, Any]:
    """The loop of both sides: one element of each tensor is touched, samples are counted. Raises if it is not `expected` of them."""
    began = perf_counter()
    first_at, first, samples, checksum = 0.0, 0, 0, 0.0
    for batch in start():
        tensors = _tensors(batch)
        for tensor in tensors:
            checksum += float(tensor[(-1, *([0] * (tensor.ndim - 1)))])
        samples += len(tensors[0])
        if not first:
            first, first_at = samples, perf_counter() - began
    seconds = perf_counter() - began
    if samples != expected:
        raise RuntimeError(f"{samples:,} samples arrived, {expected:,} were expected")
    details = {"first batch, s": first_at}
    if samples > first:
        details["samples/s after the first batch"] = (samples - first) / (seconds - first_at)
    return {"samples": samples, "seconds": seconds, "details": details, "checksum": checksum}


def _tensors(batch: Any) -> list[Any]:
    """All tensors of a batch: one, several by position or name, or a Batch of ours."""
    if hasattr(batch, "ndim"):
        return [batch]
    if isinstance(batch, dict):
        return [tensor for part in batch.values() for tensor in _tensors(part)]
    if isinstance(batch, list | tuple):
        return [tensor for part in batch for tensor in _tensors(part)]
    return [*_tensors(batch.data), batch.labels]
