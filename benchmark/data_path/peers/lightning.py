"""LitData over local optimized chunks.

lightning.ai/docs/litdata: `optimize` writes chunks (64 MB is what its examples use); contiguous numbers without a header per item are stored
for the TokensLoader, the form that its documentation gives for speed; StreamingDataset with shuffle, StreamingDataLoader with workers.
A block of the loader is one record: its features, and its label as a number before them.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from benchmark.data_path.peers import fastest
from benchmark.data_path.side_process import Arrange, serve

_PIECE = 100_000


def prepare(task: dict[str, Any]) -> Arrange:
    # It reports usage to its makers unless switched off, and shows progress.
    os.environ |= {"DO_NOT_TRACK": "1", "LITDATA_DISABLE_VERSION_CHECK": "1", "NO_COLOR": "1"}
    import torch
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize

    torch.set_num_threads(1)
    batch_size, width = task["batch_size"], task["record_bytes"] // 4
    folder = str(Path(task["folder"]) / "lightning")
    block = width - 1
    optimize(
        fn=partial(_records, task["file"], width, task["samples"]),
        inputs=list(range(0, task["samples"], _PIECE)),
        output_dir=folder,
        chunk_size=_PIECE * block * 4,
        item_loader=TokensLoader(block_size=block),
        num_workers=1,
        verbose=False,
    )

    def load(workers: int) -> Any:
        dataset = StreamingDataset(folder, item_loader=TokensLoader(block_size=block), shuffle=True, drop_last=False)
        return StreamingDataLoader(dataset, batch_size=batch_size, num_workers=workers)

    ways = {f"{workers} workers": partial(load, workers) for workers in (0, 1, 2)}
    best = ways[fastest(ways, num_batches=4)]
    return lambda _: lambda: ((blocks[:, 1:], blocks[:, 0]) for blocks in best())


def _records(file: str, width: int, num_samples: int, first: int) -> Any:
    """Samples from `first` on as one tensor of numbers: label, features, label, features, …"""
    import numpy as np
    import torch

    part = np.memmap(file, np.float32, mode="r").reshape(-1, width)[first : min(first + _PIECE, num_samples)]
    blocks = np.array(part[:, 1:])
    blocks[:, 0] = np.ascontiguousarray(part[:, :2]).view(np.int64)[:, 0]
    return torch.from_numpy(blocks.reshape(-1))


if __name__ == "__main__":
    serve(prepare)
