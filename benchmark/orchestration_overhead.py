"""Overhead of the platform: a run of many short trainings compared with one hand-written PyTorch script.

    python -m benchmark.orchestration_overhead [--triggers 50] [--pairs 3] [--report]

Both sides train the same small model on the same samples, in the same number of steps, with one thread, and score every model on the same
test data. Ours goes through all services: stream, trigger, selector, storage, trainer, model storage, evaluator, journal. The script holds its
data in memory and does nothing else; its time starts after `import torch`. The last line is the median ratio of the two, pair by pair.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmark.machine import spread, write_report
from modyn.client import Client
from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.supervisor.client import RunState

SIDE, CLASSES = 16, 10
RECORD = np.dtype([("label", "<i8"), ("image", "<f4", (1, SIDE, SIDE))])
TEST_SAMPLES = 2048
BATCH_SIZE = 64
NETWORK = {"width": 16, "embedding_size": 64, "dropout": 0.0}

SCRIPT = """
import json, sys, time
from pathlib import Path
import numpy as np, torch
from torch import nn

folder, triggers, samples, epochs, batch_size = Path(sys.argv[1]), *map(int, sys.argv[2:6])
torch.set_num_threads(1)
record = np.dtype([("label", "<i8"), ("image", "<f4", (1, 16, 16))])
started = time.perf_counter()
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
)
criterion = nn.CrossEntropyLoss()

def load(path):
    data = np.fromfile(path, record)
    return torch.from_numpy(np.ascontiguousarray(data["image"])), torch.from_numpy(np.ascontiguousarray(data["label"]))

scores = []
for trigger in range(triggers):
    x, y = load(folder / "train" / f"{trigger:04d}.bin")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    for epoch in range(epochs):
        order = torch.randperm(samples)
        for start in range(0, samples, batch_size):
            chosen = order[start : start + batch_size]
            optimizer.zero_grad()
            loss = criterion(model(x[chosen]), y[chosen])
            loss.backward()
            optimizer.step()
    torch.save(model.state_dict(), folder / f"script-{trigger}.pt")
    model.eval()
    test_x, test_y = load(folder / "test" / "0000.bin")
    with torch.inference_mode():
        right = sum((model(test_x[s : s + 256]).argmax(1) == test_y[s : s + 256]).sum().item() for s in range(0, len(test_y), 256))
    scores.append(right / len(test_y))
print(json.dumps({"seconds": time.perf_counter() - started, "score": scores[-1]}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, default=50, help="trainings in a run")
    parser.add_argument("--samples", type=int, default=4096, help="samples a trigger")
    parser.add_argument("--epochs", type=int, default=0, help="epochs a trigger; 0: the number that takes about a second here")
    parser.add_argument("--pairs", type=int, default=3, help="number of runs of each side, in turn")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="modyn-overhead-") as name:
        folder = Path(name)
        make_data(folder, options.triggers, options.samples)
        epochs = options.epochs or calibrate(folder, options.samples)
        print(f"{options.triggers} triggers of {options.samples:,} samples, {epochs} epochs, batches of {BATCH_SIZE}", flush=True)
        ours, theirs = measure(folder, options.triggers, options.samples, epochs, options.pairs)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    print(f"ours:   {spread(ours)}\nscript: {spread(theirs)}")
    if options.report:
        rows = "\n".join(f"| {a:.2f} | {b:.2f} | {a / b:.3f} |" for a, b in zip(ours, theirs, strict=True))
        body = (
            f"{options.triggers} triggers of {options.samples:,} samples of {RECORD.itemsize} bytes, {epochs} epochs, batches of {BATCH_SIZE}; "
            f"the SmallCNN of the demo on {SIDE}x{SIDE} images; every model scored on {TEST_SAMPLES:,} samples. One PyTorch thread on both "
            f"sides.\n\n| Modyn, s | script, s | ratio |\n|---|---|---|\n{rows}\n\nmedian ratio: {statistics.median(ratios):.2f}"
        )
        command = (
            f"python -m benchmark.orchestration_overhead --triggers {options.triggers} --epochs {epochs} --pairs {options.pairs}"
        )
        print(f"report: {write_report('orchestration-overhead', command, body)}")
    print(f"ratio: {statistics.median(ratios):.2f}")


def make_data(folder: Path, triggers: int, samples: int) -> None:
    """Write one file a trigger, with times that keep the files in order, and one test file."""
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(CLASSES, 1, SIDE, SIDE))
    for split, files, count in (("train", triggers, samples), ("test", 1, TEST_SAMPLES)):
        (folder / split).mkdir()
        for index in range(files):
            data = np.empty(count, RECORD)
            data["label"] = rng.integers(0, CLASSES, count)
            data["image"] = patterns[data["label"]] + rng.normal(scale=2, size=(count, 1, SIDE, SIDE))
            path = folder / split / f"{index:04d}.bin"
            data.tofile(path)
            os.utime(path, (1_000_000 + index, 1_000_000 + index))


def calibrate(folder: Path, samples: int) -> int:
    """Return the number of epochs that take about a second in the script, by the fastest of three runs: other processes use this machine too."""
    return max(1, round(4 / min(run_script(folder, 1, samples, 4) for _ in range(3))))


def measure(folder: Path, triggers: int, samples: int, epochs: int, pairs: int) -> tuple[list[float], list[float]]:
    """Return the seconds of both sides, pair by pair; the side that runs first changes from pair to pair."""
    config = SystemConfig(state_dir=folder / "state")
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(json.dumps(pipeline_of(samples, epochs)))  # JSON is YAML
    ours: list[float] = []
    theirs: list[float] = []
    with Client(config, start=True) as client:
        try:
            register(client, folder)
            for pair in range(pairs):
                sides: list[Any] = [
                    lambda: ours.append(run_pipeline(client, pipeline, triggers)),
                    lambda: theirs.append(run_script(folder, triggers, samples, epochs)),
                ]
                for side in sides if pair % 2 == 0 else reversed(sides):
                    side()
                print(
                    f"pair {pair + 1}: ours {ours[-1]:.2f} s, script {theirs[-1]:.2f} s, ratio {ours[-1] / theirs[-1]:.2f}",
                    flush=True,
                )
        finally:
            client.down()
    return ours, theirs


def register(client: Client, folder: Path) -> None:
    for split in ("train", "test"):
        options = {"record_size": RECORD.itemsize, "label_size": 8, "byteorder": "little", "file_extension": ".bin"}
        client.register_dataset(
            DatasetConfig(
                name=split, base_path=folder / split, file_wrapper="BinaryFileWrapper", file_wrapper_config=options, watch=False
            )
        )
        client.ingest(split)


def run_pipeline(client: Client, pipeline: Path, triggers: int) -> float:
    """Return the seconds from submission to the end, with evaluations."""
    started = time.perf_counter()
    run = client.wait(client.run(pipeline).run_id)
    seconds = time.perf_counter() - started
    results = client.results(run.run_id)
    if run.state is not RunState.FINISHED or len(results.triggers) != triggers or len(results.evaluations) != triggers:
        raise SystemExit(
            f"{run.run_id} is {run.state} after {len(results.triggers)} triggers, {len(results.evaluations)} evaluations: {run.error}"
        )
    return seconds


def run_script(folder: Path, triggers: int, samples: int, epochs: int) -> float:
    """Return the seconds that the script measures itself, without its imports."""
    arguments = [str(folder), str(triggers), str(samples), str(epochs), str(BATCH_SIZE)]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["seconds"])


def pipeline_of(samples: int, epochs: int) -> dict[str, Any]:
    data = {"record_layout": {"dtype": "float32", "shape": [1, SIDE, SIDE]}}
    return {
        "pipeline": {"name": "overhead"},
        "model": {"id": "SmallCNN", "config": {"in_channels": 1, "image_size": SIDE, "num_classes": CLASSES, **NETWORK}},
        "model_storage": {"full_model_strategy": {"name": "SafetensorsFullModel"}},
        "data": {"dataset_id": "train", **data},
        "trigger": {"id": "DataAmountTrigger", "num_samples": samples},
        "selection_strategy": {"name": "NewDataStrategy", "maximum_keys_in_memory": samples, "tail_triggers": 0},
        "training": {
            "gpus": 1,
            "device": "cpu",
            "dataloader_workers": 1,
            "use_previous_model": True,
            "initial_model": "random",
            "batch_size": BATCH_SIZE,
            "epochs_per_trigger": epochs,
            "drop_last_batch": False,
            "shuffle": True,
            "seed": 0,
            "optimizers": [
                {
                    "name": "sgd",
                    "algorithm": "SGD",
                    "source": "PyTorch",
                    "param_groups": [{"module": "model", "config": {"lr": 0.01}}],
                }
            ],
            "optimization_criterion": {"name": "CrossEntropyLoss"},
            "checkpointing": {"activated": False},
        },
        "evaluation": {
            "device": "cpu",
            "datasets": [
                {"dataset_id": "test", **data, "batch_size": 256, "dataloader_workers": 1, "metrics": [{"name": "Accuracy"}]}
            ],
            "handlers": [
                {
                    "name": "each",
                    "execution_time": "after_training",
                    "models": "matrix",
                    "datasets": ["test"],
                    "strategy": {"type": "StaticEvalStrategy", "intervals": [[0, 2_000_000_000]]},
                }
            ],
        },
    }


if __name__ == "__main__":
    main()
