"""The libraries that figure `single` compares with, which keep decoded samples on disk. Each runs in the environment of `make peers`.

All decode, resize, crop and mirror as our side does, and write down when each epoch began and ended: the first from when the run began.
Nothing but the standard library at the top: that environment has no more in common with ours.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmark.data_path.side_process import Arrange

Epochs = Callable[[Path], Callable[[], Iterable[Any]]]
"""Begins a training with its cache in an empty folder, and fills it as far as that is done beforehand. What it returns starts an epoch of batches."""


def whole_trainings(task: dict[str, Any], begin: Epochs) -> Arrange:
    """Runs of several epochs, each with an empty cache. Args: task: with `folder`, for the cache. A run has `epochs`, and `ends`, a file for the
    seconds at which each epoch ended."""
    folder = Path(task["folder"])

    def arrange(run: dict[str, Any]) -> Callable[[], Iterator[Any]]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

        def batches() -> Iterator[Any]:
            began, ends = perf_counter(), list[float]()
            start = begin(folder)
            for _ in range(run["epochs"]):
                yield from start()
                ends.append(perf_counter() - began)
            Path(run["ends"]).write_text(json.dumps(ends))

        return batches

    return arrange


def decode(source: Any, size: int) -> Any:
    """Decode an image into the form that a cache may keep: uint8 (3, size, size). Args: source: a path or an open file."""
    import numpy as np
    import torch
    from PIL import Image

    image = Image.open(source).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def augment(image: Any, size: int) -> Any:
    """Crop to (3, size, size) and mirror, at random."""
    import torch

    x, y = torch.randint(0, image.shape[-1] - size, (2,)).tolist()
    cropped = image[:, y : y + size, x : x + size]
    return cropped.flip(-1) if torch.rand(()) < 0.5 else cropped
