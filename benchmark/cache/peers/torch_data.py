"""torchdata: `on_disk_cache` keeps a file for each decoded sample, while the first epoch reads.

docs.pytorch.org/data/0.9 (end_caching), the last version with DataPipes: shuffled and shared by DataLoader workers, whose number it takes from
`shuffle` and `sharding_filter`. A file has the bytes of the tensor. As it is, `on_disk_cache` fails where a worker has more than 1,000 samples that
are kept already, for what splits these from the others holds back no more; that limit is lifted here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from benchmark.cache.peers import augment, decode, whole_trainings
from benchmark.data_path.side_process import Arrange, serve


def prepare(task: dict[str, Any]) -> Arrange:
    import torch

    torch.set_num_threads(1)
    files = [str(path) for path in sorted(Path(task["files"]).glob("*.jpg"))]
    return whole_trainings(task, partial(_begin, task=task, files=files))


def _begin(folder: Path, task: dict[str, Any], files: list[str]) -> Callable[[], Iterable[Any]]:
    from torch.utils.data import DataLoader
    from torch.utils.data.graph import traverse_dps
    from torchdata.datapipes.iter import IterableWrapper

    size, cropped = task["resized"], task["cropped"]
    shuffled = IterableWrapper(files).shuffle(buffer_size=len(files)).sharding_filter()
    decoded = shuffled.on_disk_cache(filepath_fn=partial(_kept, folder=str(folder)))
    kept = decoded.map(partial(_decoded, folder=str(folder), size=size)).end_caching(mode="wb")
    batches = kept.map(partial(_read, size=size, cropped=cropped)).batch(task["batch_size"]).map(_batch)
    for pipe in _all_of(traverse_dps(batches)):
        if hasattr(pipe, "buffer_size") and type(pipe).__name__.startswith("_Demultiplexer"):
            pipe.buffer_size = -1
    workers = task["workers"]
    loader = DataLoader(batches, None, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    return lambda: loader


def _all_of(graph: dict[int, Any]) -> Iterable[Any]:
    for pipe, below in graph.values():
        yield pipe
        yield from _all_of(below)


def _kept(path: str, folder: str) -> str:
    return f"{folder}/{Path(path).stem}"


def _decoded(path: str, folder: str, size: int) -> tuple[str, list[bytes]]:
    return _kept(path, folder), [decode(path, size).numpy().tobytes()]


def _read(path: str, size: int, cropped: int) -> tuple[Any, int]:
    import torch

    image = torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8).view(3, size, size)
    return augment(image, cropped), int(Path(path).name) % 10


def _batch(samples: list[tuple[Any, int]]) -> Any:
    import torch

    images, labels = zip(*samples, strict=True)
    return torch.stack(images), torch.tensor(labels)


if __name__ == "__main__":
    serve(prepare)
