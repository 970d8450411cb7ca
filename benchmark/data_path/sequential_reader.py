"""The paper's local baseline (7.3.1): each DataLoader worker reads its share of the files from end to end and emits all samples in them.

Nothing is selected, nothing is looked up. The parsers are those of our side, compiled from the same source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from benchmark.data_path.side_process import Arrange, serve

_READ_BYTES = 4 << 20


def prepare(task: dict[str, Any]) -> Arrange:
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    from benchmark.data_path.records import BATCH, BATCH_SIZE, LABEL_BYTES, PER_SAMPLE, RECORD_BYTES

    torch.set_num_threads(1)
    scope: dict[str, Any] = {"torch": torch, "np": np}
    exec(PER_SAMPLE, scope)
    exec(BATCH, scope)

    class Files(IterableDataset[Any]):
        def __init__(self, files: list[str], parser: Literal["batch", "per sample"]) -> None:
            super().__init__()
            self.files = files
            self.parser = parser

        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            share = self.files if info is None else self.files[info.id :: info.num_workers]
            return self.samples(share) if self.parser == "per sample" else self.batches(share)

        def samples(self, files: list[str]) -> Iterator[Any]:
            parse, size = scope["bytes_parser_function"], RECORD_BYTES
            for file in files:
                with open(file, "rb", buffering=0) as opened:
                    while chunk := opened.read(_READ_BYTES // size * size):
                        view = memoryview(chunk)
                        for at in range(0, len(chunk), size):
                            label = int.from_bytes(view[at : at + LABEL_BYTES], "little", signed=True)
                            yield parse(view[at + LABEL_BYTES : at + size]), label

        def batches(self, files: list[str]) -> Iterator[Any]:
            """Full batches, across the ends of files."""
            held, buffer = 0, bytearray(BATCH_SIZE * RECORD_BYTES)
            records = np.frombuffer(buffer, np.uint8).reshape(BATCH_SIZE, RECORD_BYTES)
            for file in files:
                with open(file, "rb", buffering=0) as opened:
                    while got := opened.readinto(memoryview(buffer)[held:]):
                        held += got
                        if held == len(buffer):
                            yield self.parsed(records)
                            held = 0
            if held:
                yield self.parsed(records[: held // RECORD_BYTES])

        def parsed(self, records: Any) -> tuple[Any, Any]:
            payloads = np.ascontiguousarray(records[:, LABEL_BYTES:])
            offsets = np.arange(len(records) + 1, dtype=np.int64) * payloads.shape[1]
            labels = np.ascontiguousarray(records[:, :LABEL_BYTES]).view("<i8")[:, 0]
            return scope["batch_parser_function"](payloads.reshape(-1), offsets), torch.from_numpy(labels)

    def arrange(run: dict[str, Any]) -> Any:
        size = BATCH_SIZE if run["parser"] == "per sample" else None
        return lambda: DataLoader(Files(run["files"], run["parser"]), batch_size=size, num_workers=run["workers"])

    return arrange


if __name__ == "__main__":
    serve(prepare)
