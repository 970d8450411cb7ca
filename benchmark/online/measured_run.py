"""Shared parts of programs that measure a run: a stack with a stream and a pipeline, steps, `modyn serve`, a request, and the report."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmark.evidence.proactive import pipeline_of
from benchmark.evidence.proactive_streams import OnlineStream
from benchmark.machine import busy_cores, write_report
from modyn.client import Client
from modyn.config.system import SystemConfig
from modyn.serving.messages.signature import datatype_of

NEW, DRAWN, STEPS = 256, 256, 100
"""Samples of a step, and steps of a version."""
ONLINE: Final[dict[str, Any]] = {
    "trigger": {"id": "DataAmountTrigger", "num_samples": NEW * STEPS},
    "step_samples": NEW,
    "history_samples": DRAWN,
}


@contextmanager
def stack(folder: Path, **sections: Any) -> Iterator[Client]:
    """Start an embedded stack below `folder`; yield its client. Args: sections: of the system file."""
    with Client(SystemConfig.model_validate({"state_dir": folder / "state", **sections}), start=True) as client:
        try:
            yield client
        finally:
            client.down()


def pipeline_file(folder: Path, stream: OnlineStream, dataset: str, sections: dict[str, Any]) -> Path:
    """Write a pipeline with these sections over a dataset, and return its path."""
    path = folder / f"{dataset}.yaml"
    path.write_text(json.dumps(pipeline_of(stream, dataset, 0, sections)))  # JSON is YAML
    return path


@contextmanager
def installed(
    stream: OnlineStream, num_samples: int, sections: dict[str, Any], folder: Path, **system: Any
) -> Iterator[tuple[Client, Path]]:
    """Start an embedded stack below `folder`; yield its client, and the file of a pipeline with these sections over the first samples of the stream.

    Args: system: sections of the system file.
    """
    with stack(folder, **system) as client:
        yield client, pipeline_file(folder, stream, stream.register(client, folder / "data", 0, num_samples), sections)


@contextmanager
def serving(
    client: Client,
    run_id: str,
    given: str,
    follow: str,
    log: list[str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """Run `modyn serve` for a run; yield its address.

    Args: given, follow: as its options --input and --follow. log: gets the lines of its log. settings: section `serving` of its system file.
    """
    lines = list[str]() if log is None else log
    state = client.config.state_dir
    config = state.parent / "serving.yaml"
    config.write_text(json.dumps({"state_dir": str(state), "serving": {**(settings or {})}}))
    command = [sys.executable, "-m", "modyn.cli.main", "--config", str(config), "serve", run_id, "--name", "m"]
    command += ["--input", given, "--follow", follow, "--http-port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = ""
        for line in process.stderr:
            lines.append(line)
            if line.split()[:1] == ["http"]:
                address = line.split("//")[1].split("/")[0]
                break
        if not address:
            raise SystemExit(f"modyn serve ended:\n{''.join(lines)[-4000:]}")
        reader = threading.Thread(
            target=lines.extend, args=(process.stderr,), daemon=True
        )  # so that its log never fills the pipe
        reader.start()
        try:
            yield address
        finally:
            process.terminate()
            process.wait(60)
            reader.join(10)


def input_of(stream: OnlineStream) -> str:
    """Return the input of a stream's model, for `--input`."""
    sample = np.dtype(stream.record)["sample"]
    return f"{','.join(map(str, sample.shape))}:{sample.base.name}"


def request_of(stream: OnlineStream) -> bytes:
    """Return the body of a request for one sample."""
    sample = np.dtype(stream.record)["sample"]
    datatype, size = datatype_of(sample.base), int(np.prod(sample.shape))
    tensor = {"name": "input", "datatype": datatype, "shape": [1, *sample.shape], "data": [0] * size}
    return json.dumps({"inputs": [tensor]}).encode()


def show(figure: str, measured: str, table: Sequence[str], last: str, options: str | None) -> None:
    """Print the result of a figure, and write a dated report. Args: measured: a sentence about what was measured. options: of the command, for the
    report; None: none is written."""
    body = f"{measured} Busy cores: {busy_cores():.1f}.\n\n" + "\n".join(table) + f"\n\n{last}\n"
    print(body, end="")
    if options is not None:
        print(f"report: {write_report(f'online-{figure}', f'python -m benchmark.online {figure} {options}', body)}")
