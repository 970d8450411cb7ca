"""Local baseline of the paper (7.3.1): each DataLoader worker reads its share of the files from end to end and emits all samples in them.

Nothing is selected, nothing is looked up. The parsers are those of our side, compiled from the same source, in the same loop. Its ways are tried on
a run's own files before the first run, and the fastest is measured: a batch at once, or in pieces that stay in the processor's cache until they
are copied into the batch. Memory of batches is used again, as on our side, instead of being given back to the kernel, which would have to clear
it for the next one. Without workers (`workers` is 0) the training process reads by itself, and does nothing else meanwhile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

from benchmark.data_path.peers import fastest
from benchmark.data_path.side_process import Arrange, Start, serve

_READ_BYTES = 4 << 20
_PIECES = {"whole batches": 1, "pieces of 640 KB": 16}
"""Number of pieces that a batch is read in."""
_KEEP_MEMORY = {-3: 32 << 20, -1: 1 << 30}
"""Options of mallopt(3): M_MMAP_THRESHOLD, its largest value, and M_TRIM_THRESHOLD."""


def prepare(task: dict[str, Any]) -> Arrange:
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    from benchmark.data_path.records import BATCH, BATCH_SIZE, LABEL_BYTES, PER_SAMPLE, RECORD_BYTES

    torch.set_num_threads(1)
    for option, value in _KEEP_MEMORY.items():
        ctypes.CDLL(None).mallopt(option, value)
    scope: dict[str, Any] = {"torch": torch, "np": np}
    exec(PER_SAMPLE, scope)
    exec(BATCH, scope)

    class Files(IterableDataset[Any]):
        def __init__(self, files: list[str], parser: Literal["batch", "per sample"], pieces: int) -> None:
            super().__init__()
            self.files = files
            self.parser = parser
            self.pieces = pieces

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
            """Yield full batches, also across the ends of files: pieces are read, and their payloads and labels are copied into the batch."""
            piece = np.empty((BATCH_SIZE // self.pieces, RECORD_BYTES), np.uint8)
            buffer = piece.reshape(-1).data
            payloads, labels = empty()
            done = held = 0  # records of the batch, bytes of the piece
            for file in files:
                with open(file, "rb", buffering=0) as opened:
                    while got := opened.readinto(buffer[held:]):
                        held += got
                        if held == len(buffer):
                            done, held = self.take(piece, done, payloads, labels), 0
                        if done == BATCH_SIZE:
                            yield parsed(payloads, labels)
                            payloads, labels = empty()
                            done = 0
            done = self.take(piece[: held // RECORD_BYTES], done, payloads, labels)
            if done:
                yield parsed(payloads[:done], labels[:done])

        def take(self, piece: Any, done: int, payloads: Any, labels: Any) -> int:
            end = done + len(piece)
            payloads[done:end] = piece[:, LABEL_BYTES:]
            labels[done:end] = piece[:, :LABEL_BYTES].view("<i8")[:, 0]
            return end

    def empty() -> tuple[Any, Any]:
        return np.empty((BATCH_SIZE, RECORD_BYTES - LABEL_BYTES), np.uint8), np.empty(BATCH_SIZE, np.int64)

    def parsed(payloads: Any, labels: Any) -> tuple[Any, Any]:
        offsets = np.arange(len(payloads) + 1, dtype=np.int64) * payloads.shape[1]
        return scope["batch_parser_function"](payloads.reshape(-1), offsets), torch.from_numpy(labels)

    def load(files: list[str], parser: Literal["batch", "per sample"], workers: int, pieces: int) -> Any:
        size = BATCH_SIZE if parser == "per sample" else None
        return DataLoader(Files(files, parser, pieces), batch_size=size, num_workers=workers)

    chosen: dict[tuple[str, int], Start] = {}

    def arrange(run: dict[str, Any]) -> Start:
        parser, workers = run["parser"], run["workers"]
        if (parser, workers) not in chosen:
            pieces = _PIECES if parser == "batch" else {"samples": 1}
            ways = {
                f"{workers} worker processes, {name}": partial(load, run["files"], parser, workers, number)
                for name, number in pieces.items()
            }
            chosen[parser, workers] = ways[fastest(ways, num_batches=None)]
        return chosen[parser, workers]

    return arrange


if __name__ == "__main__":
    serve(prepare)
