"""Measure what the performance model of the cache needs, on this machine: what trainings do with samples, each step by itself.

    storage → payloads by key, in random order → sizes → decode and augment → augment → what could hold a cache → training steps

By the code of trainings: their reader, their workers, their loop. The order of this file is the order in which it runs. Imports torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch

from modyn.cache.measuring import Budget, Clock, MeasuredPart, measure_together
from modyn.cache.profile import CacheProfile
from modyn.cache.tier import StoreName
from modyn.dataset.bad_samples import BadSamples
from modyn.dataset.batch import Batch
from modyn.dataset.chunks import concatenate_payloads, select_payloads
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import PayloadReader, PayloadSource
from modyn.dataset.decode import BatchPipeline, as_tensor
from modyn.dataset.pipeline_cache import machine_memory_bytes
from modyn.dataset.preparation_clock import ReadClock
from modyn.dataset.processes import start_fork_server
from modyn.errors import DataError, InvalidArgumentError, UserCodeError
from modyn.records import Int64Array
from modyn.storage.client import DatasetInfo
from modyn.storage.payloads import PayloadClient, Payloads
from modyn.trainer_server.preparation_rate import decode_samples, preparation_rate
from modyn.trainer_server.profile_notes import describe_machine, profile_notes, too_little
from modyn.trainer_server.profiled_pipeline import ProfiledPipeline
from modyn.trainer_server.store_rates import FormSizes, ReadingWorkers, most_stored_bytes, store_rates
from modyn.trainer_server.train import configure_torch
from modyn.trainer_server.training_rate import pytorch_threads, training_rate

SECONDS: Final = 60.0
"""About how long measuring takes: longer where samples take long to decode."""
SHARES: Final = {"storage": 2.0, "sizes": 2.0, "decoding": 4.0, "augmenting": 2.0, "stores": 2.0, "training": 3.0}
"""How those are divided, but for what starting processes takes before them."""
MOST_KEYS: Final = 1_000_000
"""Samples that are read at most."""
KEPT_BYTES: Final = 16 << 20
KEPT_SAMPLES: Final = 8192
"""Of the payloads that were read, so many are decoded; each process gets a copy of them."""
FIRST_PIECE: Final = 1
"""Samples that are read, and decoded, first, to see how long one takes."""
PIECE_S: Final = 0.25
"""Samples are decoded in pieces that take about so long, and are no larger than a batch."""
DECODED_PIECES: Final = 4
"""Pieces that are kept decoded, which may be much larger than as stored, for augmenting them again and again."""


def measure_profile(
    source: PayloadSource,
    pipeline: ProfiledPipeline,
    info: DatasetInfo,
    *,
    seconds: float = SECONDS,
    num_workers: int | None = None,
    torch_threads: int = 1,
    stores: Mapping[StoreName, str] | None = None,
    clock: Clock = perf_counter,
    progress: Callable[[MeasuredPart], object] = lambda _: None,
) -> CacheProfile:
    """Measure all parameters for a dataset. The user's functions run in this process, and in those that it starts.

    Args: source: of the dataset's payloads. info: the dataset as storage knows it. seconds: in all. num_workers: that read and decode; None: as
    the pipeline says. torch_threads: of PyTorch, as trainings have. stores: what could hold a cache, by `known_stores`; None: nothing.
    progress: is told when a part begins.
    Raises: ConfigError: the device is missing, or something of the pipeline cannot be made. InvalidArgumentError: the dataset has no samples.
    DataError, UserCodeError, TrainingError: samples cannot be read, decoded or trained on. UnavailableError: storage cannot be reached.
    """
    data, training = pipeline.data, pipeline.training
    if not info.num_samples:
        raise InvalidArgumentError(
            f"dataset '{info.name}' has no samples, so there is nothing to measure; `modyn data ingest {info.name}` indexes its files"
        )
    configure_torch(training, deterministic=False)
    num_workers = num_workers or training.dataloader_workers
    workers = ReadingWorkers(num_workers, num_workers > 1 and data.runs_per_sample)
    budget = Budget(seconds, SHARES, clock, progress)
    if workers.are_processes:
        start_fork_server()
    with pytorch_threads(torch_threads):
        with closing(source.open_payloads()) as payloads:
            read = read_storage(payloads, info, training.batch_size, num_workers, budget.begin("storage"), clock)
            bad_samples = BadSamples(data, payloads)
            prepared = prepare(pipeline, read.kept, bad_samples, budget.begin("sizes"), clock)
        pieces = prepared.pieces
        decoding, times = preparation_rate(data, pieces, workers, budget.begin("decoding"), clock)
        augmenting, _ = preparation_rate(
            data, pieces[-DECODED_PIECES:], workers, budget.begin("augmenting"), clock, from_decoded=True
        )
        seconds_left = budget.begin("stores")
        values = stored_values(data, prepared, seconds_left / 4, clock)
        rates, left_out = store_rates(stores or {}, values, training.batch_size, workers, seconds_left * 3 / 4, clock)
        trained = training_rate(pipeline, prepared.batch, budget.begin("training"), clock)
    notes = [*profile_notes(pipeline, read.whole_dataset, payloads, trained.batch_size), *prepared.notes(), *left_out]
    if augmenting < decoding:
        notes.append(
            f"Augmenting was measured at {augmenting:,.0f} samples/s, slower than with decoding, of which it is a part: other work disturbed the "
            "measurement, and it counts as equally fast."
        )
    return CacheProfile(
        dataset=info.name,
        dataset_identity=info.identity,
        data_digest=pipeline.data_digest,
        measured_at=time.time(),
        seconds=budget.seconds_used,
        machine=describe_machine(training.device),
        memory_bytes=machine_memory_bytes(),
        training=pipeline.trained,
        num_workers=num_workers,
        num_samples=info.num_samples,
        num_measured=prepared.num_samples,
        too_little=tuple(too_little(pipeline, prepared.num_samples, max(map(len, pieces)), times, trained)),
        encoded_bytes=read.mean_bytes,
        decoded_bytes=prepared.decoded.mean_bytes,
        augmented_bytes=prepared.augmented.mean_bytes,
        storage_bytes_per_s=read.bytes_per_s,
        decode_and_augment_samples_per_s=decoding,
        augment_samples_per_s=max(augmenting, decoding),
        worker_read_bytes_per_s=read.worker_bytes_per_s,
        decode_s=times.decode_s / max(1, times.num_decoded),
        augment_s=times.augment_s / max(1, times.num_augmented),
        accelerator_samples_per_s=trained.samples_per_s,
        stores=rates,
        notes=tuple(notes),
    )


@dataclass(frozen=True, slots=True)
class StorageRead:
    """What came of reading payloads."""

    bytes_per_s: float
    mean_bytes: float
    kept: Payloads
    """The first of them."""
    whole_dataset: bool
    """Time was left when all samples had been read."""
    worker_bytes_per_s: float
    """Of one worker while it reads files, as `ReadClock` has it; 0: it reads none."""


def read_storage(
    payloads: PayloadReader, info: DatasetInfo, batch_size: int, num_threads: int, seconds: float, clock: Clock
) -> StorageRead:
    """Read samples by key in random order, each once: a second time the operating system would have them in memory.

    Raises: NotFoundError: the dataset was registered anew meanwhile. DataError, UnavailableError: samples cannot be read.
    """
    most = min(info.next_key, MOST_KEYS)
    keys = np.random.default_rng().choice(info.next_key, most, replace=False).astype(np.int64)
    waiting = iter(list(_growing(keys, batch_size)))
    counted: list[tuple[int, int, float]] = []
    kept: list[Payloads] = []
    room_bytes, room_samples = KEPT_BYTES, KEPT_SAMPLES

    def reads() -> Iterator[float]:
        nonlocal room_bytes, room_samples  # Threads that change them at once keep a batch too many.
        for asked in waiting:  # An iterator of a list is shared by threads: the interpreter takes from it in one operation.
            found, read_s = read_payloads(payloads, info, asked)
            num_bytes = int(found.offsets[-1])
            counted.append((len(found), num_bytes, read_s))
            if len(found) and (not kept or (num_bytes <= room_bytes and len(found) <= room_samples)):
                kept.append(found)
                room_bytes, room_samples = room_bytes - num_bytes, room_samples - len(found)
            yield float(num_bytes)

    rate = measure_together([reads() for _ in range(num_threads)], seconds, clock)
    num_samples, num_bytes, read_s = (sum(column) for column in zip(*counted, strict=True))
    if not kept:
        raise DataError(f"all {most:,} samples of dataset '{info.name}' that were asked for were deleted; measure again")
    whole_dataset, worker_rate = next(waiting, None) is None, num_bytes / read_s if read_s else 0.0
    return StorageRead(rate, num_bytes / num_samples, concatenate_payloads(kept), whole_dataset, worker_rate)


def _growing(keys: Int64Array, batch_size: int) -> Iterator[Int64Array]:
    """The keys in batches, the first ones smaller: by them it is known how long a whole one would take."""
    first, size = 0, min(FIRST_PIECE, batch_size)
    while first < len(keys):
        yield keys[first : first + size]
        first, size = first + size, min(2 * size, batch_size)


def read_payloads(payloads: PayloadReader, info: DatasetInfo, keys: Int64Array) -> tuple[Payloads, float]:
    """Those of `keys` that are not deleted, in one buffer, whose offsets begin with 0, and the seconds of reading files; 0: they came over Flight."""
    if isinstance(payloads, PayloadClient):
        answers = payloads.fetch(info.name, keys, "skip", identity=info.identity)
        return concatenate_payloads([select_payloads(found, slice(0, len(found))) for found in answers]), 0.0
    located = payloads.locate(info.name, keys, "skip", info.identity)
    clock, read = ReadClock(), located.take(slice(None))
    return read, clock.times(len(read), int(read.offsets[-1])).read_s


@dataclass(frozen=True, slots=True)
class PreparedSamples:
    """Samples that were decoded and augmented once, without bad ones."""

    pieces: Sequence[Payloads]
    """Their payloads, in pieces that take about equally long: those that were made to see how long a sample takes are left out."""
    num_samples: int
    """Samples that were decoded, in all pieces."""
    batch: Batch
    """The largest piece, made to a batch."""
    decoded: FormSizes
    augmented: FormSizes

    def notes(self) -> Iterator[str]:
        """Which forms no tier can keep."""
        forms = {"decoded": self.decoded, "augmented": self.augmented}
        refused = {name: sizes.refusal for name, sizes in forms.items() if sizes.refusal is not None}
        rest = "only encoded ones" if len(refused) == len(forms) else "others"
        for name, reason in refused.items():
            yield f"No tier can keep {name} samples, {rest} can be kept: {reason}."


def prepare(
    pipeline: ProfiledPipeline, payloads: Payloads, bad_samples: BadSamples, seconds: float, clock: Clock
) -> PreparedSamples:
    """Decode and augment samples in this process, until the time is over: at least one piece.

    Raises: DataError, UserCodeError: samples are bad, and `on_bad_sample` says that they end a training, or none is left.
    """
    functions = BatchPipeline(pipeline.data, training=True)
    end, first, size = clock() + seconds, 0, FIRST_PIECE
    pieces: list[Payloads] = []
    nothing = torch.empty(0, dtype=torch.int64)
    largest = Batch(nothing, nothing, nothing, nothing)
    decoded_sizes, augmented_sizes = FormSizes(), FormSizes()
    while first < len(payloads) and not (pieces and clock() >= end):
        started = clock()
        piece = select_payloads(payloads, slice(first, first + size))
        first += len(piece)
        piece, batch = _without_bad(functions, piece, bad_samples)
        if len(piece):
            pieces.append(piece)
            largest = max(largest, batch, key=len)
            decoded = decode_samples(functions, pipeline.data, piece)
            decoded_sizes.add(decoded)
            augmented_sizes.add(functions.augment(decoded, piece.keys))
            seconds_a_sample = (clock() - started) / len(piece)
            size = max(1, min(pipeline.training.batch_size, int(PIECE_S / max(seconds_a_sample, 1e-9))))
    if not pieces:
        raise DataError(
            f"none of {first} samples of dataset '{pipeline.data.dataset_id}' could be decoded; correct the parser or the data"
        )
    whole = [piece for piece in pieces if 2 * len(piece) >= len(largest)]
    return PreparedSamples(whole, sum(map(len, pieces)), largest, decoded_sizes, augmented_sizes)


def _without_bad(functions: BatchPipeline, payloads: Payloads, bad_samples: BadSamples) -> tuple[Payloads, Batch]:
    """The samples that can be decoded, and their batch."""
    while True:
        try:
            data, labels = functions.run(payloads)
            return payloads, Batch(as_tensor(payloads.keys), data, labels, torch.ones(len(payloads)))
        except (DataError, UserCodeError) as error:
            payloads, _ = payloads.without(bad_samples.leave_out(error).key)


def stored_values(data: DataConfig, prepared: PreparedSamples, seconds: float, clock: Clock) -> list[Any]:
    """Values to measure stores with: decoded samples, or where these cannot be kept, encoded ones. So many as there is room and time for."""
    functions, end = BatchPipeline(data, training=True), clock() + seconds
    values: list[Any] = []
    left = float(most_stored_bytes())
    for piece in reversed(prepared.pieces):
        if values and (left <= 0 or clock() >= end):
            break
        if prepared.decoded.mean_bytes is None:
            values += [np.frombuffer(piece.payload(row), np.uint8) for row in range(len(piece))]
            left -= float(piece.offsets[-1] - piece.offsets[0])
        else:
            values += decode_samples(functions, data, piece)
            left -= prepared.decoded.mean_bytes * len(piece)
    return values
