"""What a step of proactive training costs, against the bare step of PyTorch on data in memory.

    python -m benchmark.online step [--stream clicks] [--samples 200000] [--rounds 3] [--report]

Ours: a run on an embedded stack, from the initial model on, in versions of 100 steps: drawing history, trigger sets, payloads by key, decoding, the
test before each step. A step's seconds are those in which the trainer makes and trains on batches (`batches_s`), by the steps of a version; the
first version does not count, nor do the first as many steps of the bare loop. Bare: the same model, optimizer, loss and numbers of samples in one
process with one thread, batches cut from tensors that lie in memory, as the mean of as many steps as a version has. Both sides take turns, at equal
priority (trainings of steps give way to other processes otherwise). Goal: at most 1.3. What a version costs beside its steps (journal, selection,
start, storing) is the last column.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmark.evidence.proactive_streams import STREAMS, OnlineStream
from benchmark.machine import busy_cores, write_report
from benchmark.online.measured_run import DRAWN, NEW, ONLINE, STEPS, installed
from modyn.models.weights import build_model
from modyn.supervisor.client import RunState

TARGET = 1.3


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.online step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stream", action="append", choices=sorted(STREAMS), help="default: all")
    parser.add_argument("--samples", type=int, default=200_000, help="of the stream")
    parser.add_argument("--rounds", type=int, default=3, help="of both sides in turn")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    lines = ["| stream | ours, ms a step | bare, ms a step | ratio | beside the steps, s a version |", "|---|---|---|---|---|"]
    for name in options.stream or sorted(STREAMS):
        with tempfile.TemporaryDirectory(prefix="modyn-step-") as folder:
            ours, bare, beside = measure(STREAMS[name], Path(folder), options.samples, options.rounds)
        ratio = statistics.median(ours) / statistics.median(bare)
        lines.append(
            f"| {name} | {1000 * statistics.median(ours):.2f} | {1000 * statistics.median(bare):.2f} | {ratio:.2f} | "
            f"{statistics.median(beside):.2f} |"
        )
    body = (
        f"Steps on {NEW} new and {DRAWN} drawn samples, {STEPS} a version, {options.samples:,} samples; medians of {options.rounds} rounds. Goal: "
        f"at most {TARGET}. Busy cores: {busy_cores():.1f}.\n\n" + "\n".join(lines)
    )
    print(body)
    if options.report:
        command = f"python -m benchmark.online step --samples {options.samples} --rounds {options.rounds}"
        print(f"report: {write_report('online-step', command, body)}")


def measure(stream: OnlineStream, folder: Path, num_samples: int, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds a step of ours and of the bare loop, and seconds beside the steps of a version, of each round."""
    ours, bare, beside = [], [], []
    sections = {"trigger": {"id": "InitialTrigger", "num_samples": num_samples // 10}, "online": ONLINE}
    with installed(stream, num_samples, sections, folder, trainer_server={"online_niceness": 0}) as (client, path):
        rows = np.concatenate([np.fromfile(file, stream.record) for file in sorted((folder / "data").glob("*/*"))])
        for _ in range(rounds):
            run = client.wait(client.run(path).run_id)
            if run.state is not RunState.FINISHED:
                raise SystemExit(f"{run.run_id} is {run.state}: {run.error}")
            versions = [record for record in client.supervisor.triggers(run.run_id) if record.online][1:]
            ours.append(statistics.median((one.batches_s or 0.0) / one.training_result["num_steps"] for one in versions))
            beside.append(statistics.median(one.seconds["total"] - (one.batches_s or 0.0) for one in versions))
            bare.append(bare_step(stream, rows))
    return ours, bare, beside


def bare_step(stream: OnlineStream, rows: Any) -> float:
    """Seconds of a step of PyTorch alone: the mean over STEPS in a row, of which the median of three times."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        samples, labels = torch.from_numpy(rows["sample"].copy()), torch.from_numpy(rows["label"].copy())
        if labels.is_floating_point():
            labels = labels.float()[:, None]
        model: Any = build_model(stream.model["id"], stream.model["config"])
        optimizer = torch.optim.Adagrad(model.parameters(), lr=stream.learning_rate)
        criterion = getattr(nn, stream.criterion)()
        seconds, size = [], NEW + DRAWN
        for turn in range(4):
            began = time.perf_counter()
            for step in range(turn * STEPS, (turn + 1) * STEPS):
                start = step * size % (len(samples) - size)
                optimizer.zero_grad()
                criterion(model(samples[start : start + size]), labels[start : start + size]).backward()
                optimizer.step()
            seconds.append((time.perf_counter() - began) / STEPS)
        return statistics.median(seconds[1:])
    finally:
        torch.set_num_threads(threads)
