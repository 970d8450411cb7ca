"""A run with many drift checks of a small CNN: what a check costs, and whether the last ones cost what the first ones did."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2

from benchmark.machine import family, write_report
from modyn.client import Client
from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.supervisor.client import CheckRecord, RunState

SIDE = 16
RECORD = np.dtype([("label", "<i8"), ("image", "<f4", (1, SIDE, SIDE))])
EVERY, WINDOW = 100, 1000
HUNDRED = 100


@dataclass(frozen=True)
class Costs:
    """seconds: of each check. row_bytes: of each in the journal. embedded: samples that each passed through the model. worker_bytes: of the
    evaluator's worker process at the end of the run."""

    seconds: list[float]
    row_bytes: list[int]
    embedded: list[float]
    worker_bytes: int


def main() -> None:
    """Run it, and print the last line `checks: R`: the last hundred checks' median seconds to the first hundred's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checks", type=int, default=1000, help="checks of the run")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="modyn-checks-") as name:
        costs = measure(Path(name), options.checks)
    first, last = ends(costs.seconds)
    rows = [
        ("seconds a check, median", f"{first:.4f}", f"{last:.4f}", last / first),
        ("bytes a check in the journal, median", *(f"{value:.0f}" for value in ends(costs.row_bytes)), _ratio(costs.row_bytes)),
        ("samples embedded a check, median", *(f"{value:.0f}" for value in ends(costs.embedded)), _ratio(costs.embedded)),
    ]
    table = "\n".join(f"| {what} | {one} | {other} | {ratio:.2f} |" for what, one, other, ratio in rows)
    body = (
        f"{len(costs.seconds)} checks of MMD on embeddings of a SmallCNN ({SIDE}×{SIDE}), one every {EVERY} samples, windows of {WINDOW}; the "
        f"first check, which embeds the reference, is left out.\n\n| | first hundred | last hundred | ratio |\n|---|---|---|---|\n{table}\n\n"
        f"Median seconds of each hundred: {', '.join(f'{seconds:.3f}' for seconds in hundreds(costs.seconds))}. "
        f"The evaluator's worker holds {costs.worker_bytes / 2**20:.0f} MiB at the end."
    )
    print(body)
    if options.report:
        print(f"report: {write_report('trigger-checks', f'python -m benchmark.triggers checks --checks {options.checks}', body)}")
    print(f"checks: {last / first:.2f}")


def ends(values: Sequence[float]) -> tuple[float, float]:
    """Medians of the first and of the last hundred."""
    return statistics.median(values[:HUNDRED]), statistics.median(values[-HUNDRED:])


def hundreds(values: Sequence[float]) -> list[float]:
    """Medians of each hundred: what other programs did meanwhile shows in the middle too."""
    return [statistics.median(values[at : at + HUNDRED]) for at in range(0, len(values), HUNDRED)]


def _ratio(values: Sequence[float]) -> float:
    first, last = ends(values)
    return last / first


def measure(folder: Path, checks: int) -> Costs:
    """Run a pipeline with this number of checks on real services of its own."""
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps(pipeline()))  # JSON is YAML
    with services_with_data(folder, (checks + 1) * EVERY) as client:
        run = client.wait(client.run(path).run_id)
        if run.state is not RunState.FINISHED:
            raise SystemExit(f"{run.run_id} is {run.state}: {run.error}")
        made = [check for check in client.supervisor.checks(run.run_id) if "mmd" in check.numbers][1:]
        return Costs(
            [check.seconds for check in made],
            _row_bytes(client, run.run_id, made),
            [check.numbers["embedded_samples"] for check in made],
            _worker_bytes(client),
        )


@contextmanager
def services_with_data(folder: Path, samples: int) -> Iterator[Client]:
    """Real services of their own below a folder, with a dataset `train` of `samples` small images."""
    _make_data(folder / "data", samples)
    layout = {"record_size": RECORD.itemsize, "label_size": 8, "byteorder": "little", "file_extension": ".bin"}
    options: dict[str, Any] = {"file_wrapper": "BinaryFileWrapper", "file_wrapper_config": layout, "watch": False}
    with Client(SystemConfig(state_dir=folder / "state"), start=True) as client:
        try:
            client.register_dataset(DatasetConfig(name="train", base_path=folder / "data", **options))
            client.ingest("train")
            yield client
        finally:
            client.down()


def _row_bytes(client: Client, run_id: str, made: Sequence[CheckRecord]) -> list[int]:
    connection = psycopg2.connect(client.config.resolved_database_url())
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_column_size(c.*) FROM supervisor.checks c WHERE run_id = %s AND position >= %s ORDER BY position",
                [run_id, made[0].position],
            )
            return [size for (size,) in cursor.fetchall()]
    finally:
        connection.close()


def _worker_bytes(client: Client) -> int:
    """Private memory of the largest process below the evaluator: its worker."""
    (evaluator,) = (part.pid for part in client.status().parts if part.name == "evaluator")
    return max((_private_bytes(pid) for pid in family(evaluator or 0)[1:]), default=0)


def _private_bytes(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return 1024 * sum(int(fields[name].split()[0]) for name in ("Private_Clean", "Private_Dirty"))


def _make_data(folder: Path, count: int) -> None:
    folder.mkdir()
    random = np.random.default_rng(0)
    patterns = random.normal(size=(10, 1, SIDE, SIDE))
    for number, share in enumerate(np.array_split(np.arange(count), 50)):
        records = np.empty(len(share), RECORD)
        records["label"] = random.integers(0, 10, len(share))
        records["image"] = patterns[records["label"]] + random.normal(scale=2, size=(len(share), 1, SIDE, SIDE))
        path = folder / f"{number:03d}.bin"
        records.tofile(path)
        os.utime(path, (10**6 + number, 10**6 + number))


def pipeline() -> dict[str, Any]:
    """A pipeline on that dataset, whose policy checks every EVERY samples and fires but once."""
    criterion = {"id": "ThresholdDecisionCriterion", "threshold": 2}
    training = {
        "use_previous_model": True,
        "batch_size": 50,
        "seed": 0,
        "optimizers": [{"name": "a", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": 0.01}}]}],
        "optimization_criterion": {"name": "CrossEntropyLoss"},
    }
    return {
        "pipeline": {"name": "checks"},
        "model": {"id": "SmallCNN", "config": {"in_channels": 1, "image_size": SIDE, "num_classes": 10}},
        "data": {"dataset_id": "train", "record_layout": {"dtype": "float32", "shape": [1, SIDE, SIDE]}},
        "trigger": {
            "id": "DataDriftTrigger",
            "evaluation_interval_data_points": EVERY,
            "windowing_strategy": {"id": "AmountWindowingStrategy", "amount_ref": WINDOW, "amount_cur": WINDOW},
            "metrics": {"mmd": {"id": "MMDDriftMetric", "decision_criterion": criterion}},
        },
        "selection_strategy": {"name": "NewDataStrategy", "maximum_keys_in_memory": 100_000, "tail_triggers": 0},
        "training": training,
    }
