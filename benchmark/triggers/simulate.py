"""Simulated trigger policies: how fast a stream passes through 20 of them that decide by samples alone, and what 200 drift policies cost that
share a model, against one.

The stream of the first figure is made in memory, in batches as storage sends them; everything after that is what `modyn simulate` does. With
`--services` it is read from a real storage too. The second figure is measured on real services: each simulation looks by a model that none has
looked by before, so that it embeds all samples itself; one policy and 200 of them in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmark.machine import busy_cores, cpu_s, spread, write_report
from benchmark.triggers.checks import EVERY, WINDOW, pipeline, services_with_data
from modyn.client import Client
from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.records import SampleBatch
from modyn.supervisor.client import RunState
from modyn.supervisor.simulation.run_simulation import SimulationOptions, TrainingSeconds, run_simulation
from modyn.supervisor.simulation.stream import BATCH_SIZE, SimulationClients

DECADE = 10 * 365 * 86_400
SECONDS = TrainingSeconds(1.0, 1e-4)
CHECKS = 60
SAME = "200 with thresholds out of reach: all ask the same"
OTHER = "200 with other settings each: they fire at different places, and compare with other references"


def main() -> None:
    """Measure both, and print the last lines `simulate: M samples/s`, in millions, and `shared: R`, the ratios of 200 policies to one."""
    parser = argparse.ArgumentParser(prog="python -m benchmark.triggers simulate", description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000_000, help="of the first figure")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--services", action="store_true", help="also read the samples of the first figure from a real storage")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    busy = busy_cores()
    rates = [pass_samples(options.samples) for _ in range(options.rounds)]
    lines = [
        f"{len(data_only_policies())} policies that decide by samples alone, {options.samples:,} samples over ten years, "
        f"{rates[0].triggers:,} triggers in all; {busy:.1f} cores were busy with other work at the start.\n",
        "| | samples/s |",
        "|---|---|",
        f"| by CPU time of the process | {spread([rate.by_cpu for rate in rates], 'M/s')} |",
        f"| by wall time | {spread([rate.by_wall for rate in rates], 'M/s')} |",
    ]
    if options.services:
        with tempfile.TemporaryDirectory(prefix="modyn-simulate-") as name:
            lines.append(f"| by wall time, read from storage | {read_from_storage(Path(name), options.samples):.2f} M/s |")
    with tempfile.TemporaryDirectory(prefix="modyn-simulate-") as name:
        shared = measure_sharing(Path(name), options.rounds)
    lines += [
        f"\nDrift policies (MMD of embeddings of a SmallCNN, windows of {WINDOW}, a check every {EVERY} samples, {CHECKS} checks), processor "
        "seconds of a simulation, of the client, the services and their workers:\n",
        "| policies | triggers of all | seconds | against one |",
        "|---|---|---|---|",
        *(
            f"| {name} | {cost.triggers:,} | {spread(cost.seconds)} | {cost.ratio(shared['one']):.2f} |"
            for name, cost in shared.items()
        ),
    ]
    body = "\n".join(lines)
    print(body)
    if options.report:
        chosen = f" --samples {options.samples} --rounds {options.rounds}" + (" --services" if options.services else "")
        print(f"report: {write_report('simulated-triggers', f'python -m benchmark.triggers simulate{chosen}', body)}")
    print(f"simulate: {statistics.median(rate.by_cpu for rate in rates):.2f} M samples/s")
    same, other = (shared[name].ratio(shared["one"]) for name in (SAME, OTHER))
    print(f"shared: {same:.2f} where all ask the same, {other:.2f} where they fire at different places")


@dataclass(frozen=True, slots=True)
class Rate:
    """Millions of samples a second."""

    by_cpu: float
    by_wall: float
    triggers: int


def data_only_policies() -> dict[str, dict[str, Any]]:
    """Twenty policies: by amount, by time, ensembles of both, and by the latency of incorporation."""
    amounts = {f"amount {n}": {"id": "DataAmountTrigger", "num_samples": n} for n in (1000, 3000, 10_000, 30_000, 10**5, 10**6)}
    times = {f"time {every}": {"id": "TimeTrigger", "every": every} for every in ("6h", "1d", "3d", "1w", "30d", "1y")}
    both = {
        "amount": {"id": "DataAmountTrigger", "num_samples": 20_000},
        "time": {"id": "TimeTrigger", "every": "1w"},
        "large": {"id": "DataAmountTrigger", "num_samples": 70_000},
    }
    votes = ({"id": "MajorityVote"}, {"id": "AtLeastN", "n": 1}, {"id": "AtLeastN", "n": 2}, {"id": "AtLeastN", "n": 3})
    ensembles = {
        f"ensemble {at}": {"id": "EnsembleTrigger", "subtriggers": both, "ensemble_strategy": vote}
        for at, vote in enumerate(votes)
    }
    costs = {
        f"cost {delay:g}": {
            "id": "DataIncorporationLatencyCostTrigger",
            "evaluation_interval_data_points": 10_000,
            "incorporation_delay_per_training_second": delay,
        }
        for delay in (1e8, 1e9, 1e10, 1e11)
    }
    return {**amounts, **times, **ensembles, **costs}


@dataclass(frozen=True)
class GeneratedDataset:
    """Storage calls of a simulation, for a stream that is generated in memory beforehand."""

    times: np.ndarray[Any, np.dtype[np.int64]]

    def dataset(self, name: str) -> Any:
        """The dataset itself."""
        return self

    name, identity = "generated", ""

    @property
    def next_key(self) -> int:
        """Equals the number of samples."""
        return len(self.times)

    def count_samples(self, *_: object) -> int:
        """All."""
        return len(self.times)

    def samples_in_interval(self, *_: object, **__: object) -> Iterator[SampleBatch]:
        """Yield all samples in batches, like storage."""
        for start in range(0, len(self.times), BATCH_SIZE):
            times = self.times[start : start + BATCH_SIZE]
            yield SampleBatch(np.arange(start, start + len(times)), times, np.zeros(len(times), np.int64))


@dataclass(frozen=True)
class _Clients:
    storage: GeneratedDataset
    selector: None = None
    supervisor: None = None
    evaluator: None = None
    model_storage: None = None


def pass_samples(count: int) -> Rate:
    """Pass this number of samples through all policies."""
    times = np.sort(np.random.default_rng(0).integers(0, DECADE, count))
    clients = cast("SimulationClients", _Clients(GeneratedDataset(times)))
    cpu, wall = time.process_time(), time.perf_counter()
    simulation = run_simulation(clients, data_only_policies(), SimulationOptions(dataset="generated", seconds=SECONDS))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if simulation.position != count:
        raise SystemExit(f"{simulation.position} of {count} samples were passed")
    triggers = sum(len(policy.triggers) for policy in simulation.policies.values())
    return Rate(count / cpu / 1e6, count / wall / 1e6, triggers)


def read_from_storage(folder: Path, count: int, num_files: int = 2000) -> float:
    """The same, read from real services below a folder. Returns millions of samples a second of wall time."""
    (folder / "data").mkdir()
    for number, share in enumerate(np.array_split(np.arange(count), num_files)):
        path = folder / "data" / f"{number:05d}.bin"
        np.zeros((len(share), 16), np.uint8).tofile(path)
        os.utime(path, (number * (DECADE // num_files),) * 2)
    layout = {"record_size": 16, "label_size": 8, "byteorder": "little", "file_extension": ".bin"}
    options: dict[str, Any] = {"file_wrapper": "BinaryFileWrapper", "file_wrapper_config": layout, "watch": False}
    with Client(SystemConfig(state_dir=folder / "state"), start=True) as client:
        try:
            client.register_dataset(DatasetConfig(name="many", base_path=folder / "data", **options))
            client.ingest("many")
            began = time.perf_counter()
            per_trigger, per_sample = SECONDS.per_trigger, SECONDS.per_sample
            client.simulate(data_only_policies(), dataset="many", seconds_per_trigger=per_trigger, seconds_per_sample=per_sample)
            return count / (time.perf_counter() - began) / 1e6
        finally:
            client.down()


@dataclass
class SharedCost:
    """Processor seconds of a simulation of some policies, once a round."""

    seconds: list[float]
    triggers: int

    def ratio(self, one: SharedCost) -> float:
        """Median over the rounds of the ratio to another one's."""
        return statistics.median(mine / other for mine, other in zip(self.seconds, one.seconds, strict=True))


def drift_policies() -> dict[str, dict[str, dict[str, Any]]]:
    """Return by title: one policy, 200 policies with equal verdicts, and 200 policies that fire at different positions."""
    section = cast("dict[str, Any]", pipeline()["trigger"])
    metric = section["metrics"]["mmd"]

    def policy(criterion: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        return {**section, **options, "metrics": {"mmd": {**metric, "decision_criterion": dict(criterion)}}}

    dynamic = "DynamicQuantileThresholdCriterion"
    one = policy({"id": dynamic, "window_size": 15, "quantile": 0.05})
    never = {f"{at}": policy({"id": "ThresholdDecisionCriterion", "threshold": 1.9 + at / 2000}) for at in range(200)}
    settings = product(np.linspace(0.01, 0.2, 10).tolist(), (8, 10, 12, 15, 20), (1, 2), (0, 500))
    grid = {
        f"{quantile:.3f} {size} {row} {wait}": policy(
            {"id": dynamic, "window_size": size, "quantile": quantile}, consecutive_checks=row, min_samples_between_triggers=wait
        )
        for quantile, size, row, wait in settings
    }
    return {"one": {"one": one}, SAME: never, OTHER: grid}


def processor_seconds(client: Client) -> float:
    """Return the processor seconds so far of this process, the services and their workers: other work on the machine hardly changes them."""
    return cpu_s(os.getpid(), *(part.pid for part in client.status().parts if part.pid))


def measure_sharing(folder: Path, rounds: int) -> dict[str, SharedCost]:
    """Simulate each group of drift policies on a run of real services below a folder."""
    groups = drift_policies()
    samples = CHECKS * EVERY
    # A model for each simulation, and one before them that starts the session.
    section = {"id": "DataAmountTrigger", "num_samples": samples // (rounds * len(groups) + 2)}
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps({**pipeline(), "trigger": section}))  # JSON is YAML
    with services_with_data(folder, samples) as client:
        run = client.wait(client.run(path).run_id)
        if run.state is not RunState.FINISHED:
            raise SystemExit(f"{run.run_id} is {run.state}: {run.error}")
        models = iter([trigger.model_id for trigger in client.supervisor.triggers(run.run_id)])
        client.simulate(groups["one"], run_id=run.run_id, model_id=next(models))
        costs: dict[str, SharedCost] = {}
        for name, policies in list(groups.items()) * rounds:
            began = processor_seconds(client)
            table = client.simulate(policies, run_id=run.run_id, model_id=next(models))
            cost = costs.setdefault(name, SharedCost([], int(table["triggers"].sum())))
            cost.seconds.append(processor_seconds(client) - began)
        return costs


if __name__ == "__main__":
    main()
