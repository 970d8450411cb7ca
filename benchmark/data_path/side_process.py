"""Sides in processes of their own, with their own memory and imports, perhaps another Python environment.

The process reads a task, prepares, and then serves one run after the other: it reads what the run is about, opens what may be open
beforehand, writes `@ready`, waits for `go`, and answers with what it measured. One line of JSON each. Its first run counts in no figure (see
`rounds`). Peers import this module in their own environment: nothing but the standard library at the top.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, Self

from benchmark.data_path.contents import Contents
from benchmark.data_path.figure import Measured, Side

_END_S = 10.0

ROOT = Path(__file__).parents[2]

Start = Callable[[], Iterable[Any]]
"""Starts an iteration over batches, worker processes included."""
Arrange = Callable[[dict[str, Any]], Start]
"""Opens what a run needs."""


class SideProcesses:
    """Processes of a figure. Each starts when it is first used; `close` ends all."""

    def __init__(self) -> None:
        self._opened: list[SideProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._opened:
            process.close()

    def open(
        self,
        module: str,
        task: Mapping[str, Any],
        python: Path | str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> SideProcess:
        """Return the process `python -m module`, whose main is `serve(prepare)`. Args: task: for prepare. environment: variables besides our own."""
        self._opened.append(SideProcess([str(python), "-m", module], task, environment or {}))
        return self._opened[-1]


class SideProcess:
    """Process that serves any number of sides, one run at a time."""

    def __init__(self, command: list[str], task: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._command = command
        self._task = task
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    def side(self, name: str, num_samples: int, *, shuffled: bool = False, check: bool = True, **run: Any) -> Side:
        """One epoch over `num_samples` samples; `run` is what `arrange` gets besides. The value is samples a second. check: its first run,
        which counts in no figure, looks whether the right samples came, shuffled if they are to be."""
        unchecked = check

        def measure(ready: Callable[[], None]) -> Measured:
            nonlocal unchecked
            self._send({**run, "samples": num_samples, "check": unchecked, "shuffled": shuffled})
            self._answer(name, "ready")
            ready()
            self._send("go")
            answer = json.loads(self._answer(name, "done"))
            unchecked = False
            return Measured(num_samples / answer["seconds"], answer["details"])

        return Side(name, measure)

    @property
    def pid(self) -> int:
        """Id of the process, once a run has begun."""
        assert self._process is not None
        return self._process.pid

    def close(self) -> None:
        """End the process: by itself, so that it frees shared memory, or else by force."""
        if self._process is None:
            return
        try:
            self._process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _send(self, what: Any) -> None:
        if self._process is None:
            # Parsers make tensors over read-only bytes, which nothing writes to.
            quiet = "ignore:The given buffer is not writable,ignore:The given NumPy array is not writable"
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env={**self._environment, **os.environ, "PYTHONWARNINGS": quiet},
            )
            self._send(dict(self._task))
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def _answer(self, name: str, what: str) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        # Libraries write to the standard output as well; our own lines are marked.
        for line in self._process.stdout:
            if line.startswith(f"@{what}"):
                return line.removeprefix(f"@{what}")
        raise RuntimeError(f"the side '{name}' ended before it was {what}; what went wrong stands above")


def serve(prepare: Callable[[dict[str, Any]], Arrange]) -> None:
    """Run the process's main. The clock of a run starts before `start()` and stops after the last batch."""
    arrange = prepare(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        run = json.loads(line)
        start = arrange(run)
        print("@ready", flush=True)
        sys.stdin.readline()
        contents = Contents() if run["check"] else None
        answer = consume(start, int(run["samples"]), contents)
        if contents is not None:
            contents.check(int(run["samples"]), shuffled=run["shuffled"])
        # Files that a run mapped are let go of: they could not be made cold for the next one.
        del start, contents
        gc.collect()
        print("@done" + json.dumps(answer), flush=True)


def consume(start: Start, expected: int | None, contents: Contents | None = None) -> dict[str, Any]:
    """Run the loop of all sides: read one element of each tensor, and count samples. Raises if they are not `expected`. contents: where
    they are kept for a check, out of what counts."""
    began = perf_counter()
    first_at, first, samples = 0.0, 0, 0
    for batch in start():
        tensors = _tensors(batch)
        for tensor in tensors:
            float(tensor[(-1, *([0] * (tensor.ndim - 1)))])
        if contents is not None:
            contents.add(tensors)
        samples += len(tensors[0])
        if not first:
            first, first_at = samples, perf_counter() - began
    seconds = perf_counter() - began
    if expected is not None and samples != expected:
        raise RuntimeError(f"{samples:,} samples arrived, {expected:,} were expected")
    details = {"first batch, s": first_at}
    if samples > first:
        details["samples/s after the first batch"] = (samples - first) / (seconds - first_at)
    return {"samples": samples, "seconds": seconds, "details": details}


def _tensors(batch: Any) -> list[Any]:
    """Return all tensors of a batch: one, several by position or name, or those of our Batch."""
    if hasattr(batch, "ndim"):
        return [batch]
    if isinstance(batch, dict):
        return [tensor for part in batch.values() for tensor in _tensors(part)]
    if isinstance(batch, list | tuple):
        return [tensor for part in batch for tensor in _tensors(part)]
    return [*_tensors(batch.data), batch.labels]
