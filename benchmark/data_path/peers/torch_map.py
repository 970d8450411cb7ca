"""torch DataLoader over one mapped file: `__getitems__` fetches a batch at once (docs.pytorch.org/docs/stable/data.html, Dataset)."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmark.data_path.peers import fastest
from benchmark.data_path.side_process import Arrange, serve


def prepare(task: dict[str, Any]) -> Arrange:
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)
    num_samples, width, batch_size = task["samples"], task["record_bytes"] // 4, task["batch_size"]
    records = torch.from_file(task["file"], shared=False, size=num_samples * width, dtype=torch.float32).view(num_samples, width)

    class Mapped(Dataset[Any]):
        def __len__(self) -> int:
            return len(records)

        def __getitems__(self, indices: list[int]) -> Any:
            # torch's gather is several times as fast as NumPy's.
            gathered = records.index_select(0, torch.tensor(indices))
            return gathered[:, 2:], gathered[:, :2].contiguous().view(torch.int64)[:, 0]

    dataset = Mapped()

    def load(workers: int) -> Any:
        return DataLoader(dataset, batch_size, shuffle=True, num_workers=workers, collate_fn=_as_it_is)

    ways = {f"{workers} workers": partial(load, workers) for workers in (0, 1, 2)}
    best = ways[fastest(ways, num_batches=16)]
    return lambda _: best


def _as_it_is(batch: Any) -> Any:
    return batch


if __name__ == "__main__":
    serve(prepare)
