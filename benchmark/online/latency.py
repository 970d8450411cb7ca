"""Increase of the latency of predictions during proactive training on the same machine.

    python -m benchmark.online latency [--schedule both] [--stream clicks] [--seconds 20] [--rate 50] [--rounds 3] [--report]

One embedded stack. In each round a run begins, and `modyn serve` follows its newest version (so swaps are part of it). Once steps of proactive
training are taken, predictions of one sample are asked for at a fixed rate, on four connections, whether the server keeps up or not; a latency counts
from the time at which its request was due. Then the run is stopped, and the same is measured while nothing trains. Two ways of training:

always     the worst case: an experiment replays the stream at full speed, so that the trainer computes without end
dynamic    as a user runs it: in production mode, over records that come from a process of their own (`--arrivals` a second, also while nothing
           trains), with DynamicScheduleTrigger, which takes steps when predictions leave time: at most `--max-share` of it, and none while p99 is
           above `--latency-limit-ms`

Goal: p99 with training, over the answers of all rounds, at most 1.2 of that without.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmark.evidence.proactive_streams import STREAMS
from benchmark.online import record_flow
from benchmark.online.http_load import Answers, Load, ask
from benchmark.online.measured_run import NEW, ONLINE, input_of, pipeline_file, request_of, serving, show, stack
from modyn.client import Client
from modyn.supervisor.client import RunMode, RunState
from modyn.testing.waiting import eventually

CONNECTIONS = 4
TARGET: Final = 1.2
ENDED: Final = (RunState.FINISHED, RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.online latency", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedule", choices=["always", "dynamic", "both"], default="both")
    parser.add_argument("--stream", choices=sorted(STREAMS), default="clicks")
    parser.add_argument(
        "--samples", type=int, default=4_000_000, help="samples of the stream (with `always`); a round must not reach its end"
    )
    parser.add_argument("--initial", type=int, default=20_000, help="samples of the initial model")
    parser.add_argument("--arrivals", type=int, default=2000, help="samples that arrive each second (with `dynamic`)")
    parser.add_argument("--max-share", type=float, default=0.25, help="largest share of the time for steps (with `dynamic`)")
    parser.add_argument("--latency-limit-ms", type=float, default=20.0, help="p99 above which steps pause (with `dynamic`)")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of each measurement")
    parser.add_argument("--rate", type=float, default=50.0, help="predictions a second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    schedules = [name for name in RUNS if options.schedule in (name, "both")]
    found = dict[str, list[Round]]()
    with tempfile.TemporaryDirectory(prefix="modyn-latency-") as folder, stack(Path(folder)) as client:
        for name in schedules:
            found[name] = [_measured(client, run, options) for run in RUNS[name](client, Path(folder), options)]
    lines = ["| training | round | with training: p50, p99, ms | without | steps taken meanwhile |", "|---|---|---|---|---|"]
    lines += [
        f"| {name} | {number} | {_quantiles(one.on)} | {_quantiles(one.off)} | {one.steps:,} |"
        for name, rounds in found.items()
        for number, one in enumerate(rounds, 1)
    ]
    measured = f"Stream {options.stream}, {options.rate:g} predictions/s for {options.seconds:g} s."
    if "dynamic" in found:
        measured += (
            f" Dynamic: {options.arrivals:,} samples/s come as records, max_share {options.max_share:g}, latency_limit_ms "
            f"{options.latency_limit_ms:g}."
        )
    last = "\n".join(f"latency, {name}: {ratio(rounds):.2f} (target {TARGET})" for name, rounds in found.items())
    command = f"--schedule {options.schedule} --stream {options.stream} --seconds {options.seconds:g} --rounds {options.rounds}"
    show("latency", measured, lines, last, command if options.report else None)


@dataclass(frozen=True)
class Round:
    """Answers with and without training, and the number of steps during the training."""

    on: Answers
    off: Answers
    steps: int


def ratio(rounds: Sequence[Round]) -> float:
    """Ratio of the p99 with training to that without, over the answers of all rounds: only some answers of a round are slower."""
    return _p99(one.on for one in rounds) / _p99(one.off for one in rounds)


def _p99(answers: Iterable[Answers]) -> float:
    return float(np.quantile(np.concatenate([one.latencies_ms for one in answers]), 0.99))


def always(client: Client, folder: Path, options: argparse.Namespace) -> Iterator[str]:
    """Start a run for each round, over a stream of files at full speed. Yields its id."""
    stream = STREAMS[options.stream]
    sections = {"trigger": {"id": "InitialTrigger", "num_samples": options.initial}, "online": ONLINE}
    path = pipeline_file(folder, stream, stream.register(client, folder / "data", 0, options.samples), sections)
    for _ in range(options.rounds):
        yield client.run(path).run_id


def dynamic(client: Client, folder: Path, options: argparse.Namespace) -> Iterator[str]:
    """Start a production run for each round, over a dataset of its own, to which records are appended. Yields its id."""
    trigger = {
        "id": "DynamicScheduleTrigger",
        "evaluation_interval_data_points": NEW,
        "slack": 2,
        "max_share": options.max_share,
        "latency_limit_ms": options.latency_limit_ms,
    }
    online = {**ONLINE, "trigger": trigger, "max_samples": 40 * NEW}
    sections = {"trigger": {"id": "InitialTrigger", "num_samples": options.initial}, "online": online}
    for number in range(options.rounds):
        name = f"{options.stream}-records-{number}"
        record_flow.register(client, name, options.stream, options.initial)
        path = pipeline_file(folder, STREAMS[options.stream], name, sections)
        with record_flow.flowing(client.config, name, options.stream, options.initial, options.arrivals):
            yield client.run(path, RunMode.PRODUCTION).run_id


RUNS: Final[Mapping[str, Callable[[Client, Path, argparse.Namespace], Iterator[str]]]] = {"always": always, "dynamic": dynamic}


def _measured(client: Client, run_id: str, options: argparse.Namespace) -> Round:
    """Measure during a run, stop it, and measure again."""
    stream = STREAMS[options.stream]
    with serving(client, run_id, input_of(stream), "newest") as address:
        eventually(lambda: num_steps(client, run_id) > 0, timeout_s=300)
        load = Load(address, "/v2/models/m/infer", request_of(stream), CONNECTIONS, options.seconds, 2.0, options.rate)
        before = num_steps(client, run_id)
        on = _asked(load)
        steps = num_steps(client, run_id) - before
        if (run := client.show(run_id)).state in ENDED:
            raise SystemExit(f"{run_id} is {run.state} while it is measured: give --samples a higher number. {run.error}")
        client.stop(run_id)
        client.wait(run_id)
        return Round(on, _asked(load), steps)


def num_steps(client: Client, run_id: str) -> int:
    """Return the number of steps of proactive training whose versions are stored."""
    versions = [record for record in client.supervisor.triggers(run_id) if record.online]
    return sum(record.training_result.counts.num_steps for record in versions)


def _asked(load: Load) -> Answers:
    """Send requests. Raises SystemExit: an answer failed."""
    answers = ask(load)
    if answers.failed:
        raise SystemExit(f"{answers.failed} predictions failed, the last answer: {answers.last[:300]!r}")
    return answers


def _quantiles(answers: Answers) -> str:
    return f"{answers.quantile(0.5):.2f}, {answers.quantile(0.99):.2f}"
