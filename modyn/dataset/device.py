"""Batches on the device, copied while the one before is computed with."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from modyn.dataset.batch import Batch, map_tensors


def on_device(batches: Iterator[Batch], device: torch.device | str) -> Iterator[Batch]:
    """The same batches with data, labels and weights on `device`; keys stay where they are.

    For a CUDA device each batch is copied by a stream of its own, one ahead of the batch in use, and nobody waits but the stream that
    computes: if they are in page-locked memory (`Batch.pin_memory`), copies run beside the computation.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return (batch.to(device) for batch in batches)
    return _copied_ahead(batches, device)


def _copied_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    copied: tuple[Batch, torch.cuda.Event] | None = None
    for batch in batches:
        before, copied = copied, _start_copy(batch, device, copies)
        if before is not None:
            yield _arrived(*before)
    if copied is not None:
        yield _arrived(*copied)


def _start_copy(batch: Batch, device: torch.device, copies: torch.cuda.Stream) -> tuple[Batch, torch.cuda.Event]:
    # Page-locked memory is not given to others before the copies out of it are done: PyTorch's allocator sees to that.
    with torch.cuda.stream(copies):
        moved = batch.to(device, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(copies)
    return moved, done


def _arrived(batch: Batch, done: torch.cuda.Event) -> Batch:
    """The batch, for use by the current stream: it waits for the copy, and the memory is not used anew before it is done with it."""
    using = torch.cuda.current_stream(batch.labels.device)
    using.wait_event(done)

    def used(tensor: torch.Tensor) -> torch.Tensor:
        tensor.record_stream(using)
        return tensor

    map_tensors(batch.data, used)
    used(batch.labels)
    used(batch.weights)
    return batch
