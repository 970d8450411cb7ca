"""Cost of a step of proactive training, compared with the bare step of PyTorch on data in memory.

    python -m benchmark.online step [--stream clicks] [--samples 200000] [--rounds 3] [--report]

Ours: a run on an embedded stack, from the initial model on, in versions of 100 steps; the first version does not count. The ratio is of the whole:
all that selection and trainer spend on a version, by its steps. The table has the parts of it in milliseconds a step:

history    drawing samples and writing the trigger set (what the selector takes)
payloads   waiting for batches: payloads by key and their decoding, where they do not come while the step before is made
transform  statistics of preprocessing, and features
passes     forward, backward and optimizer
tests      the test before each step, and other hooks
version    start of the training, fetching the parent, storing weights, optimizers and result

"Without a version" leaves the last part out, which is the same for 10 steps and 1,000. Streams: `clicks` (262,000 sparse weights), `taxi` (a small
MLP), and `columns`: rows of text with 13 numbers and 26 categories, which a section `preprocessing` parses, fills, scales and hashes to 262,000
sparse weights. Bare: the same model, optimizer, loss and numbers of samples in one process with one thread, batches cut from tensors that lie in
memory; of `columns` they are transformed already; the mean of as many steps as a version has. Both sides take turns, at equal priority (trainings
of steps give way to other processes otherwise). Goal: at most 1.3.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.evidence import proactive_streams
from benchmark.evidence.proactive_streams import OnlineStream
from benchmark.online.click_columns import CLICK_COLUMNS, ClickColumns
from benchmark.online.measured_run import DRAWN, NEW, ONLINE, STEPS, installed, show
from modyn.models.calls import forward
from modyn.models.weights import build_model
from modyn.supervisor.client import RunState
from modyn.supervisor.journal.records import TriggerRecord

TARGET: Final = 1.3
STREAMS: Final = {**proactive_streams.STREAMS, CLICK_COLUMNS.name: CLICK_COLUMNS}
PARTS: Final = ("history", "payloads", "transform", "passes", "tests", "version")
_STAGES: Final = {"load": "payloads", "transform": "transform", "hooks": "tests"} | dict.fromkeys(
    ("forward", "backward", "step"), "passes"
)
"""Part of each stage of the trainer; other stages are of the version."""
Parts = Mapping[str, float]
"""Seconds of a step, by part."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.online step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stream", action="append", choices=sorted(STREAMS), help="default: all")
    parser.add_argument("--samples", type=int, default=200_000, help="samples of the stream")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds of both sides in turn")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    names, worst = options.stream or sorted(STREAMS), 0.0
    lines = ["| stream | ours, ms a step | bare, ms a step | ratio | without a version | " + " | ".join(PARTS) + " |"]
    lines.append("|---" * (5 + len(PARTS)) + "|")
    for name in names:
        with tempfile.TemporaryDirectory(prefix="modyn-step-") as folder:
            row, ratio = summary(name, *measure(STREAMS[name], Path(folder), options.samples, options.rounds))
        lines.append(row)
        worst = max(worst, ratio)
    measured = f"Steps on {NEW} new and {DRAWN} drawn samples, {STEPS} a version, {options.samples:,} samples; medians of {options.rounds} rounds."
    chosen = "".join(f"--stream {name} " for name in options.stream or ())
    command = f"{chosen}--samples {options.samples} --rounds {options.rounds}"
    show("step", measured, lines, f"step: {worst:.2f} (target {TARGET})", command if options.report else None)


def summary(name: str, ours: Sequence[Parts], bare: Sequence[float]) -> tuple[str, float]:
    """Return the row of a stream, and its ratio. Args: ours, bare: of each round."""
    whole, alone = ([sum(parts[part] for part in chosen) for parts in ours] for chosen in (PARTS, PARTS[:-1]))
    step = statistics.median(bare)
    ratio, without = statistics.median(whole) / step, statistics.median(alone) / step
    parts = " | ".join(f"{1000 * statistics.median(parts[part] for parts in ours):.2f}" for part in PARTS)
    return (
        f"| {name} | {1000 * statistics.median(whole):.2f} | {1000 * step:.2f} | {ratio:.2f} | {without:.2f} | {parts} |",
        ratio,
    )


def measure(stream: OnlineStream, folder: Path, num_samples: int, rounds: int) -> tuple[list[Parts], list[float]]:
    """Return the seconds of our step by part, and of the bare loop, for each round."""
    ours, bare = list[Parts](), list[float]()
    sections = {"trigger": {"id": "InitialTrigger", "num_samples": num_samples // 10}, "online": ONLINE}
    with installed(stream, num_samples, sections, folder, trainer_server={"online_niceness": 0}) as (client, path):
        batches = in_memory(stream, folder / "data", num_samples)
        for _ in range(rounds):
            run = client.wait(client.run(path).run_id)
            if run.state is not RunState.FINISHED:
                raise SystemExit(f"{run.run_id} is {run.state}: {run.error}")
            versions = [record for record in client.supervisor.triggers(run.run_id) if record.online][1:]
            if not versions:
                raise SystemExit(
                    f"{num_samples:,} samples are less than two versions of {STEPS} steps: give --samples a higher number"
                )
            ours.append(parts_of(versions))
            bare.append(bare_step(stream, batches))
    return ours, bare


def parts_of(versions: Sequence[TriggerRecord]) -> Parts:
    """Return the seconds of each part of a step, as medians over versions."""
    found = list[dict[str, float]]()
    for record in versions:
        parts = dict.fromkeys(PARTS, 0.0)
        for stage, seconds in record.training_result.seconds.items():
            if stage in _STAGES:
                parts[_STAGES[stage]] += seconds
        parts["version"] = record.seconds["train"] - sum(parts.values())
        parts["history"] = record.seconds["select"]
        found.append({name: seconds / record.training_result.counts.num_steps for name, seconds in parts.items()})
    return {name: statistics.median(parts[name] for parts in found) for name in PARTS}


def in_memory(stream: OnlineStream, folder: Path, num_samples: int) -> list[tuple[Any, Tensor]]:
    """Return batches of the size of steps as tensors in memory, ready for the model, with their labels."""
    size = NEW + DRAWN
    count = min(3 * STEPS, num_samples // size)
    if isinstance(stream, ClickColumns):
        return list(stream.transformed(count, size))
    rows = np.concatenate([np.fromfile(file, stream.record) for file in sorted(folder.glob("*/*"))])
    samples, labels = torch.from_numpy(rows["sample"].copy()), torch.from_numpy(rows["label"].copy())
    if labels.is_floating_point():
        labels = labels.float()[:, None]
    return [(samples[start : start + size], labels[start : start + size]) for start in range(0, count * size, size)]


def bare_step(stream: OnlineStream, batches: Sequence[tuple[Any, Tensor]]) -> float:
    """Return the seconds of a step of PyTorch alone: the median of three means over STEPS steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model: Any = build_model(stream.model["id"], stream.model["config"])
        optimizer = torch.optim.Adagrad(model.parameters(), lr=stream.learning_rate)
        criterion = getattr(nn, stream.criterion)()
        seconds, endless = [], cycle(batches)
        for _ in range(4):
            began = time.perf_counter()
            for samples, labels in islice(endless, STEPS):
                optimizer.zero_grad()
                criterion(forward(model, samples), labels).backward()
                optimizer.step()
            seconds.append((time.perf_counter() - began) / STEPS)
        return statistics.median(seconds[1:])
    finally:
        torch.set_num_threads(threads)
