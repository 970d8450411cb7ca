"""NumPy alone: one process, one mapped file of records, fancy indexing by a global permutation, batches as tensors.

Labels and features of a batch are views of one gathered block, so that each record is copied once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmark.data_path.side_process import Arrange, serve


def prepare(task: dict[str, Any]) -> Arrange:
    import numpy as np
    import torch

    from benchmark.data_path.records import BATCH_SIZE, LABEL_BYTES, RECORD_BYTES

    torch.set_num_threads(1)

    def batches(records: Any, seed: int = 0) -> Iterator[Any]:
        order = np.random.default_rng(seed).permutation(len(records))
        for first in range(0, len(order), BATCH_SIZE):
            gathered = records[order[first : first + BATCH_SIZE]]
            labels = gathered.view(np.int64)[:, 0]
            yield torch.from_numpy(gathered)[:, LABEL_BYTES // 4 :], torch.from_numpy(labels)

    # Mapped again for each run: mapped pages cannot be dropped from the page cache.
    return lambda _: partial(batches, np.memmap(task["file"], np.float32, mode="r").reshape(-1, RECORD_BYTES // 4))


if __name__ == "__main__":
    serve(prepare)
