"""NVIDIA DALI on the CPU: files read, shuffled and decoded by its pipeline, batches as torch tensors.

docs.nvidia.com/deeplearning/dali/user-guide: reader with `shuffle_after_epoch`, which shuffles all files before each epoch (`random_shuffle` only
draws from a buffer), as many threads as cores, asynchronous execution with a queue of prefetched batches (its default), the framework's iterator
with the reader's name for epochs of exact size. Its pipeline is built before the clock starts, and makes its first batch after that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmark.data_path.peers import fastest
from benchmark.data_path.side_process import Arrange, serve


def prepare(task: dict[str, Any]) -> Arrange:
    import torch
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    torch.set_num_threads(1)
    files = [str(path) for path in sorted(Path(task["folder"]).glob("*.jpg"))]

    @pipeline_def  # type: ignore[untyped-decorator]
    def images(use_mmap: bool) -> Any:
        encoded, labels = fn.readers.file(
            files=files,
            labels=[number % 10 for number in range(len(files))],
            shuffle_after_epoch=True,
            dont_use_mmap=not use_mmap,
            name="files",
        )
        return fn.decoders.image(encoded, device="cpu", output_type=types.RGB), labels

    def built(use_mmap: bool) -> Any:
        pipeline = images(
            use_mmap, batch_size=task["batch_size"], num_threads=task["threads"], device_id=None, prefetch_queue_depth=2, seed=0
        )
        names = ["images", "labels"]
        batches = DALIGenericIterator(
            [pipeline], names, reader_name="files", last_batch_policy=LastBatchPolicy.PARTIAL, prepare_first_batch=False
        )
        return lambda: (batch[0] for batch in batches)

    modes = {"mapped": True, "read": False}
    best = modes[fastest({name: built(use_mmap) for name, use_mmap in modes.items()}, num_batches=20)]
    return lambda _: built(best)


if __name__ == "__main__":
    serve(prepare)
