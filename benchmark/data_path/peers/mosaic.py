"""MosaicML Streaming over local MDS shards.

docs.mosaicml.com/projects/streaming: arrays of a fixed type and shape are encoded as `ndarray:dtype:shape`; `batch_size` is given to dataset and
DataLoader alike; shards are stored where they are read, uncompressed; more DataLoader workers if loading is the bottleneck.

Its package imports torchvision and transformers for datasets that are not used here. There is no torchvision for CPU that fits this torch, so
empty stand-ins take their place; nothing that is measured touches them.
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmark.data_path.peers import fastest
from benchmark.data_path.side_process import Arrange, serve

_BATCHES_TRIED = 4
_STAND_INS = {
    "torchvision": (),
    "torchvision.datasets": ("VisionDataset",),
    "torchvision.transforms": (),
    "torchvision.transforms.functional": ("to_tensor",),
    "transformers": (),
    "transformers.feature_extraction_utils": ("BatchFeature",),
    "transformers.tokenization_utils_base": ("BatchEncoding",),
    "transformers.models": (),
    "transformers.models.auto": (),
    "transformers.models.auto.tokenization_auto": ("AutoTokenizer",),
}


def prepare(task: dict[str, Any]) -> Arrange:
    for module, names in _STAND_INS.items():
        sys.modules[module] = ModuleType(module)
        for name in names:
            setattr(sys.modules[module], name, type(name, (), {}))
    import numpy as np
    import torch
    from streaming import MDSWriter, StreamingDataset
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    batch_size, width = task["batch_size"], task["record_bytes"] // 4
    records = np.memmap(task["file"], np.float32, mode="r").reshape(-1, width)[: task["samples"]]

    def written(name: str, part: Any) -> str:
        folder = str(Path(task["folder"]) / name)
        with MDSWriter(out=folder, columns={"features": f"ndarray:float32:{width - 2}", "label": "int"}) as writer:
            for record in part:
                writer.write({"features": record[2:], "label": int(record[:2].view(np.int64)[0])})
        return folder

    def opened(folder: str) -> Any:
        return StreamingDataset(local=folder, shuffle=True, batch_size=batch_size)

    def load(dataset: Any, workers: int) -> Any:
        return DataLoader(dataset, batch_size, num_workers=workers)

    # A dataset whose epoch is broken off, or that changes its number of workers, waits for ever: each way has its own, small one, and reads
    # it to the end. Workers come first: they are forked, and an iteration in this process starts threads.
    small = written("mosaic-small", records[: _BATCHES_TRIED * batch_size])
    ways = {}
    for workers in (2, 1, 0):
        copy = f"{small}-{workers}"
        shutil.copytree(small, copy)
        ways[workers] = partial(load, opened(copy), workers)
    best = fastest({str(workers): way for workers, way in ways.items()}, num_batches=None)
    start = partial(load, opened(written("mosaic", records)), int(best))
    return lambda _: lambda: ((batch["features"], batch["label"]) for batch in start())


if __name__ == "__main__":
    serve(prepare)
