"""Bytes and seconds of ten fine-tunings of ResNet18 in model storage: stored whole, whole with zstd, and as differences.

    python -m benchmark.differences [--steps 10] [--optimizer SGD Adam] [--folder /tmp] [--report]

A ResNet18 (`modyn.models`, 11 million parameters) learns a first part of scikit-learn's digits, and is then fine-tuned ten times, each time by this
number of steps on 32 samples of another part. The eleven versions are put into model storage's own store, on a PostgreSQL of its own, in each way:
`put` is a put without the transfer, `get` reads the newest version, which needs the longest chain. On a busy machine, the processor time says more
than the time. The fine-tunings are all stored as differences (`full_model_interval: 11`). The last line is, for each optimizer, the number of bytes
of the differences by the default strategy, as a ratio to the versions stored whole.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmark.machine import busy_cores, write_report
from modyn.config.system import SystemConfig
from modyn.db.engine import open_database
from modyn.local.databases import PostgresServer
from modyn.model_storage.client import ModelHeader
from modyn.model_storage.store import ModelStore
from modyn.models.weights import build_model, save_weights
from modyn.records import ModelVersion, RunId
from modyn.rpc.logs import get_logger

FINE_TUNINGS: Final = 10
FIRST_STEPS: Final = 40
OPTIMIZERS: Final = {"SGD": {"lr": 0.01, "momentum": 0.9}, "Adam": {"lr": 0.0001}}
MODEL: Final = {"num_classes": 10, "in_channels": 1}


def difference(**options: object) -> dict[str, Any]:
    strategy = {"name": "WeightsDifference", **options}
    return {"incremental_model_strategy": strategy, "full_model_interval": FINE_TUNINGS + 1}


WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "whole": {},
    "whole, zstd": {"full_model_strategy": {"zip": True, "zip_algorithm": "zstd"}},
    **{
        f"{operator}{', split_exponent' if split else ''}, zstd": difference(
            config={"operator": operator, "split_exponent": split}
        )
        for operator in ("sub", "xor")
        for split in (False, True)
    },
    "sub, ZIP_DEFLATED": difference(zip_algorithm="ZIP_DEFLATED"),
}
DEFAULT: Final = "sub, zstd"


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds, and processor seconds."""

    wall_s: float
    processor_s: float

    def __str__(self) -> str:
        return f"{self.wall_s:.2f} ({self.processor_s:.2f})"


@dataclass(frozen=True, slots=True)
class Stored:
    """What it took to store the versions in one way, without the first version. put: mean of a version. get: of the newest version."""

    num_bytes: int
    put: Cost
    get: Cost


@contextmanager
def measured(costs: list[Cost]) -> Iterator[None]:
    """Append the cost of the block to `costs`."""
    began, used = time.perf_counter(), time.process_time()
    yield
    costs.append(Cost(time.perf_counter() - began, time.process_time() - used))


def fine_tune(folder: Path, optimizer: str, steps: int) -> list[Path]:
    """Train a model, fine-tune it ten times, and write the weights after each training."""
    import torch
    from sklearn.datasets import load_digits

    torch.set_num_threads(1)  # on a busy machine, threads would wait for each other
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.nn.functional.interpolate(torch.tensor(digits.images[:, None] / 16, dtype=torch.float32), size=32)
    labels = torch.tensor(digits.target)
    parts = torch.randperm(len(labels)).tensor_split(FINE_TUNINGS + 1)
    model = build_model("ResNet18", MODEL).train()
    stepper = getattr(torch.optim, optimizer)(model.parameters(), **OPTIMIZERS[optimizer])
    paths = []
    for number, part in enumerate(parts):
        for _ in range(steps if number else FIRST_STEPS):
            batch = part[torch.randint(len(part), (32,))]
            stepper.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
            stepper.step()
        paths.append(folder / f"{optimizer}-{number}.safetensors")
        save_weights(model, paths[-1])
    return paths


def store_versions(store: ModelStore, run: str, section: Mapping[str, Any], paths: Sequence[Path]) -> Stored:
    """Put each version, and read the newest one."""
    versions, puts, gets = list[ModelVersion](), list[Cost](), list[Cost]()
    for number, path in enumerate(paths):
        with store.receive() as incoming:
            shutil.copyfile(path, incoming)
            with measured(puts):
                versions.append(store.publish(ModelHeader(RunId(run), number, "ResNet18", MODEL, section), incoming).version)
    with measured(gets), store.fetch(versions[-1].model_id):
        pass
    del puts[0], versions[0]
    mean = Cost(statistics.mean(cost.wall_s for cost in puts), statistics.mean(cost.processor_s for cost in puts))
    return Stored(sum(version.num_bytes for version in versions), mean, gets[0])


def table(optimizer: str, ways: Mapping[str, Stored]) -> list[str]:
    lines = [
        f"{FINE_TUNINGS} fine-tunings by {optimizer}, without the first version:",
        "",
        "| stored | MB | × whole | seconds of a put (processor) | seconds of a get (processor) |",
        "|---|---|---|---|---|",
    ]
    for name, found in ways.items():
        share = found.num_bytes / ways["whole"].num_bytes
        lines.append(f"| {name} | {found.num_bytes / 1e6:.1f} | {share:.3f} | {found.put} | {found.get} |")
    return [*lines, ""]


def main() -> None:
    """Measure, print, and write a report if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="steps of a fine-tuning")
    parser.add_argument("--optimizer", nargs="+", choices=list(OPTIMIZERS), default=list(OPTIMIZERS))
    parser.add_argument("--folder", type=Path, help="where the versions are written; the temporary folder by default")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    lines, ratios = [], []
    with tempfile.TemporaryDirectory(prefix="modyn-differences-", dir=options.folder) as name:
        folder = Path(name)
        server = PostgresServer(folder / "postgres")
        server.start()
        try:
            config = SystemConfig(state_dir=folder / "state", database_url=server.url)
            database = open_database(config, "model_storage", "modyn.model_storage.migrations")
            try:
                store = ModelStore(database, config.service_dir("model_storage"), get_logger("benchmark"))
                for optimizer in options.optimizer:
                    paths = fine_tune(folder, optimizer, options.steps)
                    found = {way: store_versions(store, f"{optimizer} {way}", section, paths) for way, section in WAYS.items()}
                    lines += table(optimizer, found)
                    ratios.append(found[DEFAULT].num_bytes / found["whole"].num_bytes)
                    print("\n".join(table(optimizer, found)), flush=True)
            finally:
                database.close()
        finally:
            server.stop()
    lines.append(f"Cores that other programs kept busy just after: {busy_cores():.1f}.")
    print(lines[-1])
    if options.report:
        command = f"python -m benchmark.differences --steps {options.steps} --optimizer {' '.join(options.optimizer)}"
        print(f"report: {write_report('differences', command, chr(10).join(lines))}")
    print(f"differences: {', '.join(f'{ratio:.3f}' for ratio in ratios)}")


if __name__ == "__main__":
    main()
