"""Hugging Face datasets: a mapped Arrow dataset, shuffled by a sampler.

huggingface.co/docs/datasets/use_with_pytorch: retrieve batches of indices instead of single ones (a BatchSampler as sampler, so that a batch is
one query), several workers. The formats "torch" and "numpy" go through lists of rows; "arrow" gives the gathered table, whose buffer becomes the
tensor. Ways are all three, each with two workers, one and none.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from benchmark.data_path.peers import fastest
from benchmark.data_path.side_process import Arrange, serve


def prepare(task: dict[str, Any]) -> Arrange:
    import numpy as np
    import pyarrow as pa
    import torch
    from datasets import Dataset, disable_progress_bars, load_from_disk
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler

    torch.set_num_threads(1)
    disable_progress_bars()
    batch_size, width = task["batch_size"], task["record_bytes"] // 4
    records = np.fromfile(task["file"], np.float32, task["samples"] * width).reshape(-1, width)
    features = pa.FixedSizeListArray.from_arrays(pa.array(records[:, 2:].reshape(-1)), width - 2)
    labels = pa.array(np.ascontiguousarray(records[:, :2]).view(np.int64)[:, 0])
    folder = Path(task["folder"]) / "hugging-face"
    Dataset(pa.table({"features": features, "label": labels})).save_to_disk(folder)
    del records, features, labels

    def load(dataset: Any, style: str, workers: int) -> Any:
        return DataLoader(
            dataset.with_format(style),
            batch_size=None,
            sampler=BatchSampler(RandomSampler(dataset), batch_size, drop_last=False),
            num_workers=workers,
            collate_fn=_tensors,
        )

    ways = {
        f"{style}, {workers} workers": partial(load, style=style, workers=workers)
        for style in ("arrow", "torch", "numpy")
        for workers in (0, 1, 2)
    }
    best = ways[fastest({name: partial(way, load_from_disk(folder)) for name, way in ways.items()}, num_batches=4)]
    # Opened by each run, within its clock: opening looks at the head of every thousand rows, which maps two fifths of the file, and what is
    # mapped cannot be dropped from the page cache. It takes milliseconds.
    return lambda _: lambda: best(load_from_disk(folder))


def _tensors(batch: Any) -> Any:
    import pyarrow as pa
    import torch

    if not isinstance(batch, pa.Table):
        return torch.as_tensor(batch["features"]), torch.as_tensor(batch["label"])
    features, labels = batch["features"].combine_chunks(), batch["label"].combine_chunks()
    width = features.type.list_size
    return torch.tensor(features.flatten().to_numpy()).view(-1, width), torch.tensor(labels.to_numpy())


if __name__ == "__main__":
    serve(prepare)
