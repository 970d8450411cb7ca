"""Hugging Face datasets: samples are decoded by `map`, which writes them to an Arrow file, and read from there in each epoch.

huggingface.co/docs/datasets/process (map, several processes) and use_with_pytorch (a map-style dataset in a DataLoader with workers, which asks
for a batch at once). Ways are two forms of a decoded sample, each tried on a part before the first round: an array of fixed shape, read in format
numpy, and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from benchmark.cache.peers import augment, decode, whole_trainings
from benchmark.data_path.peers import fastest
from benchmark.data_path.side_process import Arrange, serve

_TRIED = 200


def prepare(task: dict[str, Any]) -> Arrange:
    import torch
    from datasets import disable_progress_bars

    torch.set_num_threads(1)
    disable_progress_bars()
    files = [str(path) for path in sorted(Path(task["files"]).glob("*.jpg"))]
    trial = Path(task["folder"])

    def tried(way: str) -> Iterable[Any]:
        trial.mkdir(parents=True, exist_ok=True)
        epoch = _begin(trial / way, task=task, files=files[:_TRIED], way=way)
        for _ in range(2):
            yield from epoch()

    best = fastest({way: partial(tried, way) for way in ("array", "bytes")}, num_batches=None)
    return whole_trainings(task, partial(_begin, task=task, files=files, way=best))


def _begin(folder: Path, task: dict[str, Any], files: list[str], way: str) -> Callable[[], Iterable[Any]]:
    from datasets import Array3D, Dataset, Features, Value
    from torch.utils.data import DataLoader

    size, workers = task["resized"], task["workers"]
    image = Value("binary") if way == "bytes" else Array3D((3, size, size), "uint8")
    samples = Dataset.from_dict({"path": files, "label": [number % 10 for number in range(len(files))]})
    folder.mkdir(parents=True, exist_ok=True)
    decoded = samples.map(
        partial(_decoded, size=size, way=way),
        remove_columns=["path"],
        features=Features({"label": Value("int64"), "image": image}),
        num_proc=workers if workers > 1 else None,
        load_from_cache_file=False,
        cache_file_name=str(folder / "decoded.arrow"),
    )
    loader = DataLoader(
        decoded if way == "bytes" else decoded.with_format("numpy"),
        task["batch_size"],
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=partial(_batch, size=size, cropped=task["cropped"]),
    )
    return lambda: loader


def _decoded(sample: dict[str, Any], size: int, way: str) -> dict[str, Any]:
    image = decode(sample["path"], size).numpy()
    return {"label": sample["label"], "image": image.tobytes() if way == "bytes" else image}


def _batch(samples: list[dict[str, Any]], size: int, cropped: int) -> Any:
    import numpy as np
    import torch

    images = []
    for sample in samples:
        image = sample["image"]
        array = np.frombuffer(image, np.uint8).reshape(3, size, size) if isinstance(image, bytes) else image
        images.append(augment(torch.from_numpy(np.array(array)), cropped))
    return torch.stack(images), torch.tensor([int(sample["label"]) for sample in samples])


if __name__ == "__main__":
    serve(prepare)
