"""Steps of a model on a GPU: fed by the data path, or with data that are on the GPU already."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmark.data_path.gpu_models import MODELS
from benchmark.data_path.side_process import Arrange, Start, serve
from modyn.config.system import load_system_config
from modyn.dataset import OnlineDataset
from modyn.dataset.batch import Batch, on_device
from modyn.dataset.loader import BatchLoader

_RESIDENT_BYTES = 2**32
"""The other side repeats the batches that fit into this memory, far more than the GPU's own caches hold."""
_WARM_STEPS = 10


def prepare(task: dict[str, Any]) -> Arrange:
    device = torch.device(task["device"])
    torch.set_float32_matmul_precision("high")
    config = load_system_config(Path(task["config_file"]))
    steps: dict[tuple[str, int], Callable[[Batch], Tensor]] = {}
    resident: dict[tuple[str, int], list[Batch]] = {}

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def batches_of(run: dict[str, Any]) -> Generator[Batch, None, None]:
        dataset = OnlineDataset(run["run_id"], 0, run["data"], system=config, seed=0, drop_last=True, **run["options"])
        with BatchLoader(dataset, run["workers"], pin_memory=device.type == "cuda") as loader:
            yield from loader

    def kept_on_device(run: dict[str, Any]) -> list[Batch]:
        kept: list[Batch] = []
        with closing(batches_of(run)) as batches:
            for batch in on_device(batches, device):
                assert isinstance(batch.data, Tensor)
                kept.append(batch)
                if len(kept) * batch.data.nbytes >= _RESIDENT_BYTES:
                    break
        return kept

    def arrange(run: dict[str, Any]) -> Start:
        batch_size = run["options"]["batch_size"]
        case = run["model"], batch_size
        if case not in steps:
            steps[case], resident[case] = training_step(MODELS[run["model"]], device), kept_on_device(run)
        step = steps[case]
        for batch in islice(cycle(resident[case]), _WARM_STEPS):
            step(batch)
        synchronize()

        def start() -> Iterator[Tensor]:
            batches = (
                on_device(batches_of(run), device) if run["fed"] else islice(cycle(resident[case]), run["samples"] // batch_size)
            )
            for batch in batches:
                step(batch)
                yield batch.keys  # on the CPU: reading an element does not wait for the GPU
            synchronize()

        return start

    return arrange


def training_step(make: Callable[[], nn.Module], device: torch.device) -> Callable[[Batch], Tensor]:
    """Return a function that makes one step of a new model on a batch, and returns the loss on the device."""
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    mixed = torch.autocast(device.type, torch.bfloat16) if getattr(model, "mixed", False) else nullcontext()

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with mixed:
            output = model(batch.data)
        loss = nn.functional.cross_entropy(output.float(), batch.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    return step


if __name__ == "__main__":
    serve(prepare)
