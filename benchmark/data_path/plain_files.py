"""Plain torch Dataset over image files: paths and labels in lists, shuffled, decoded by the same function as on our side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmark.data_path.side_process import Arrange, serve


def prepare(task: dict[str, Any]) -> Arrange:
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    from benchmark.data_path.images import BATCH_SIZE, PIL, label_of

    torch.set_num_threads(1)
    scope: dict[str, Any] = {"torch": torch, "np": np}
    exec(PIL, scope)
    paths = [str(path) for path in sorted(Path(task["folder"]).glob("*.jpg"))]

    class Images(Dataset[Any]):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> Any:
            with open(paths[index], "rb", buffering=0) as file:
                return scope["bytes_parser_function"](file.read()), label_of(index)

    return lambda run: lambda: DataLoader(Images(), BATCH_SIZE, shuffle=True, num_workers=run["workers"])


if __name__ == "__main__":
    serve(prepare)
