"""How much longer a prediction takes while proactive training goes on, on the same machine.

    python -m benchmark.online latency [--stream clicks] [--samples 4000000] [--seconds 20] [--rate 50] [--rounds 3] [--report]

One embedded stack. In each round a run begins, and `modyn serve` follows its newest version (so swaps are part of it). Once steps of proactive
training are taken, predictions of one sample are asked for at a fixed rate, on four connections, whether the server keeps up or not; a latency counts
from the time at which its request was due. Then the run is stopped, and the same is measured while nothing trains. Goal: the median of p99 with
training at most 1.2 of that without. The client shares the machine, and takes the short time slices that `modyn serve` takes: how long it would
itself wait for a training is no latency of the server.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Final

from benchmark.evidence.proactive_streams import STREAMS, OnlineStream
from benchmark.online.http_load import Answers, Load, ask
from benchmark.online.measured_run import ONLINE, input_of, installed, request_of, serving, show
from modyn.client import Client
from modyn.serving.short_slices import take_short_slices
from modyn.supervisor.client import RunState
from modyn.testing.waiting import eventually

CONNECTIONS = 4
TARGET: Final = 1.2
ENDED: Final = (RunState.FINISHED, RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.online latency", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stream", choices=sorted(STREAMS), default="clicks")
    parser.add_argument("--samples", type=int, default=4_000_000, help="of the stream; a round must not come to its end")
    parser.add_argument("--initial", type=int, default=20_000, help="samples of the initial model")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--rate", type=float, default=50.0, help="predictions a second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="modyn-latency-") as folder:
        rounds = measure(STREAMS[options.stream], Path(folder), options)
    lines = ["| round | with training: p50, p99, ms | without | steps taken meanwhile |", "|---|---|---|---|"]
    lines += [f"| {i} | {_quantiles(on)} | {_quantiles(off)} | {steps:,} |" for i, (on, off, steps) in enumerate(rounds, 1)]
    with_training, without = (
        statistics.median(answers.quantile(0.99) for answers in side)
        for side in ([one[0] for one in rounds], [one[1] for one in rounds])
    )
    last = f"latency: {with_training / without:.2f} (target {TARGET})"
    measured = f"Stream {options.stream}, {options.rate:g} predictions/s for {options.seconds:g} s."
    show("latency", measured, lines, last, f"--stream {options.stream} --rounds {options.rounds}" if options.report else None)


def measure(stream: OnlineStream, folder: Path, options: argparse.Namespace) -> list[tuple[Answers, Answers, int]]:
    """Answers with training and without, and the steps that were taken meanwhile, of each round."""
    found = []
    sections = {"trigger": {"id": "InitialTrigger", "num_samples": options.initial}, "online": ONLINE}
    with installed(stream, options.samples, sections, folder) as (client, path):
        take_short_slices()  # after the stack has started: its services keep slices of the usual length
        for _ in range(options.rounds):
            run_id = client.run(path).run_id
            with serving(client, run_id, input_of(stream), "newest") as address:
                eventually(lambda run_id=run_id: num_steps(client, run_id) > 0, timeout_s=300)  # type: ignore[misc]
                load = Load(address, "/v2/models/m/infer", request_of(stream), CONNECTIONS, options.seconds, 2.0, options.rate)
                before = num_steps(client, run_id)
                on = _checked(ask(load))
                steps = num_steps(client, run_id) - before
                if (run := client.show(run_id)).state in ENDED:
                    raise SystemExit(f"{run_id} is {run.state} while it is measured: give --samples a higher number. {run.error}")
                client.stop(run_id)
                client.wait(run_id)
                found.append((on, _checked(ask(load)), steps))
    return found


def num_steps(client: Client, run_id: str) -> int:
    """Steps of proactive training whose versions are stored."""
    versions = [record for record in client.supervisor.triggers(run_id) if record.online]
    return sum(int(record.training_result.get("num_steps", 0)) for record in versions)


def _checked(answers: Answers) -> Answers:
    if answers.failed:
        raise SystemExit(f"{answers.failed} predictions failed, the last answer: {answers.last[:300]!r}")
    return answers


def _quantiles(answers: Answers) -> str:
    return f"{answers.quantile(0.5):.2f}, {answers.quantile(0.99):.2f}"
