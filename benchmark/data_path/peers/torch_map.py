"""torch DataLoader over one mapped file: `__getitems__` fetches a batch at once (docs.pytorch.org/docs/stable/data.html).

Three ways to say which: `shuffle`, whose indices come as a list of Python numbers; a `batch_sampler` whose batches are parts of one permutation,
as tensors; and the same as `sampler` with automatic batching off ("Disable automatic batching"). Each with worker processes and without; without
them torch may gather with as many threads as there are cores.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmark.data_path.peers import fastest
from benchmark.data_path.side_process import Arrange, serve


def prepare(task: dict[str, Any]) -> Arrange:
    import torch
    from torch.utils.data import DataLoader, Dataset

    num_samples, width, batch_size = int(task["samples"]), task["record_bytes"] // 4, int(task["batch_size"])

    class Mapped(Dataset[Any]):
        def __init__(self) -> None:
            file = torch.from_file(task["file"], shared=False, size=num_samples * width, dtype=torch.float32)
            self.records = file.view(num_samples, width)

        def __len__(self) -> int:
            return num_samples

        def __getitems__(self, indices: Any) -> Any:
            # torch's gather is several times as fast as NumPy's.
            gathered = self.records.index_select(0, torch.as_tensor(indices))
            return gathered[:, 2:], gathered[:, :2].contiguous().view(torch.int64)[:, 0]

        __getitem__ = __getitems__

    class Parts:
        """A permutation in batches, another one each time."""

        def __len__(self) -> int:
            return math.ceil(num_samples / batch_size)

        def __iter__(self) -> Iterator[Any]:
            return iter(torch.split(torch.randperm(num_samples), batch_size))

    sampling: dict[str, dict[str, Any]] = {
        "shuffle": {"batch_size": batch_size, "shuffle": True},
        "batch_sampler": {"batch_sampler": Parts()},
        "sampler": {"batch_size": None, "sampler": Parts()},
    }

    def load(dataset: Any, way: str, workers: int, threads: int) -> Any:
        torch.set_num_threads(threads)
        return DataLoader(dataset, num_workers=workers, collate_fn=_as_it_is, **sampling[way])

    counts = [(0, 1), (0, os.cpu_count() or 1), (1, 1), (2, 1)]
    ways = {
        f"{way}, {workers} workers, {threads} threads": partial(load, way=way, workers=workers, threads=threads)
        for way in sampling
        for workers, threads in dict.fromkeys(counts)
    }
    best = ways[fastest({name: partial(way, Mapped()) for name, way in ways.items()}, num_batches=None)]
    # Mapped again for each run: mapped pages cannot be dropped from the page cache.
    return lambda _: partial(best, Mapped())


def _as_it_is(batch: Any) -> Any:
    return batch


if __name__ == "__main__":
    serve(prepare)
