"""Measure the parameters of the cache's performance model on this machine: how fast trainings read and prepare samples. Each step is measured alone:

    storage → payloads by key, in random order → sizes → decode and augment → augment → stores of a cache → training steps

The measurement uses the reader, the workers and the loop of trainings. The functions of this file are in the order of the measurement. This module
imports torch.
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

from modyn.cache.plan.measuring import Budget, Clock, MeasuredPart, measure_together
from modyn.cache.plan.profile import CacheProfile
from modyn.cache.tiers.tier import StoreName
from modyn.dataset.bad_samples import BadSamples
from modyn.dataset.batch import Batch
from modyn.dataset.cached.pipeline_cache import machine_memory_bytes
from modyn.dataset.chunks import concatenate_payloads, select_payloads
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import PayloadReader, PayloadSource
from modyn.dataset.decode import BatchPipeline, as_tensor
from modyn.dataset.preparation_clock import ReadClock
from modyn.dataset.processes import start_fork_server
from modyn.errors import DataError, InvalidArgumentError, UserCodeError
from modyn.records import Int64Array
from modyn.storage.client import DatasetInfo
from modyn.storage.payloads import PayloadClient, Payloads
from modyn.trainer_server.cache_plan.preparation_rate import decode_samples, preparation_rate
from modyn.trainer_server.cache_plan.profile_notes import describe_machine, profile_notes, too_little
from modyn.trainer_server.cache_plan.profiled_pipeline import ProfiledPipeline
from modyn.trainer_server.cache_plan.store_rates import FormSizes, ReadingWorkers, most_stored_bytes, store_rates
from modyn.trainer_server.cache_plan.training_rate import pytorch_threads, training_rate
from modyn.trainer_server.train import configure_torch

SECONDS: Final = 60.0
"""Approximate duration of a measurement. Samples that take long to decode make the measurement longer."""
SHARES: Final = {"storage": 2.0, "sizes": 2.0, "decoding": 4.0, "augmenting": 2.0, "stores": 2.0, "training": 3.0}
"""Relative weight of each part in the time of the measurement, without the start of processes."""
MOST_KEYS: Final = 1_000_000
"""Limit on the number of samples that are read."""
KEPT_BYTES: Final = 16 << 20
"""Limit in bytes on the payloads that are kept for decoding. Each process gets a copy of these payloads."""
KEPT_SAMPLES: Final = 8192
"""Limit on the number of payloads that are kept for decoding."""
FIRST_PIECE: Final = 1
"""Size of the first piece that is read, and of the first piece that is decoded. The first piece shows how long one sample takes."""
PIECE_S: Final = 0.25
"""Approximate time to decode one piece of samples; a piece is no larger than a batch."""
DECODED_PIECES: Final = 4
"""Number of decoded pieces that are kept and augmented repeatedly. The number is small, because decoded samples may be large."""


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
    """Measure all parameters for a dataset. The user's functions run in this process, and in the processes that this process starts.

    Args: source: source of the dataset's payloads. info: description of the dataset from storage. seconds: total time. num_workers: number of workers
    that read and decode; None for the number in the pipeline. torch_threads: number of PyTorch's threads, as in trainings. stores: possible stores of
    a cache (`known_stores`); None to measure no store. progress: called at the start of each part. Raises: ConfigError: the device is missing, or a
    part of the pipeline cannot be built. InvalidArgumentError: the dataset has no samples. DataError, UserCodeError, TrainingError: samples cannot be
    read, decoded or trained on. UnavailableError: storage cannot be reached.
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
        # A quarter of the time is for preparing the values to store, and the rest is for measuring the stores with these values.
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
        # Augmentation alone cannot be slower than decoding plus augmentation.
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
    """Result of reading payloads."""

    bytes_per_s: float
    mean_bytes: float
    kept: Payloads
    """The first payloads that were read."""
    whole_dataset: bool
    """Whether all samples were read within the time limit."""
    worker_bytes_per_s: float
    """Rate at which one worker reads files, measured by `ReadClock`; 0 if workers read no files."""


def read_storage(
    payloads: PayloadReader, info: DatasetInfo, batch_size: int, num_threads: int, seconds: float, clock: Clock
) -> StorageRead:
    """Read samples by key in random order. Each sample is read at most once, because the operating system would serve a second read from memory.

    Raises: NotFoundError: the dataset was registered again meanwhile. DataError, UnavailableError: samples cannot be read.
    """
    most = min(info.next_key, MOST_KEYS)
    keys = np.random.default_rng().choice(info.next_key, most, replace=False).astype(np.int64)
    waiting = iter(list(_growing(keys, batch_size)))
    counted: list[tuple[int, int, float]] = []
    kept: list[Payloads] = []
    room_bytes, room_samples = KEPT_BYTES, KEPT_SAMPLES

    def reads() -> Iterator[float]:
        nonlocal room_bytes, room_samples  # There is no lock, because simultaneous changes only keep one batch too many.
        # Threads may share an iterator of a list, because the interpreter returns each item in one atomic operation.
        for asked in waiting:
            found, read_s = read_payloads(payloads, info, asked)
            num_bytes = int(found.offsets[-1])
            counted.append((len(found), num_bytes, read_s))
            # At least one batch is kept, even if it is too large.
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
    """Split the keys into batches. The first batches are smaller, and show how long a full batch would take."""
    first, size = 0, min(FIRST_PIECE, batch_size)
    while first < len(keys):
        yield keys[first : first + size]
        first, size = first + size, min(2 * size, batch_size)


def read_payloads(payloads: PayloadReader, info: DatasetInfo, keys: Int64Array) -> tuple[Payloads, float]:
    """Read the payloads of undeleted `keys` into one buffer, whose offsets begin with 0. Also return the seconds spent on reading files; 0 if the
    payloads arrived over Flight."""
    if isinstance(payloads, PayloadClient):
        answers = payloads.fetch(info.name, keys, "skip", identity=info.identity)
        return concatenate_payloads([select_payloads(found, slice(0, len(found))) for found in answers]), 0.0
    located = payloads.locate(info.name, keys, "skip", info.identity)
    clock, read = ReadClock(), located.take(slice(None))
    return read, clock.times(len(read), int(read.offsets[-1])).read_s


@dataclass(frozen=True, slots=True)
class PreparedSamples:
    """Samples that were decoded and augmented once, without bad samples."""

    pieces: Sequence[Payloads]
    """Payloads of the samples, in pieces that take about equally long to prepare. Pieces smaller than half of the largest piece are left out."""
    num_samples: int
    """Number of decoded samples, including the pieces that are left out."""
    batch: Batch
    """The largest piece, as a batch."""
    decoded: FormSizes
    augmented: FormSizes

    def notes(self) -> Iterator[str]:
        """Name the forms that no tier can keep."""
        forms = {"decoded": self.decoded, "augmented": self.augmented}
        refused = {name: sizes.refusal for name, sizes in forms.items() if sizes.refusal is not None}
        rest = "only encoded ones" if len(refused) == len(forms) else "others"
        for name, reason in refused.items():
            yield f"No tier can keep {name} samples, {rest} can be kept: {reason}."


def prepare(
    pipeline: ProfiledPipeline, payloads: Payloads, bad_samples: BadSamples, seconds: float, clock: Clock
) -> PreparedSamples:
    """Decode and augment at least one piece of samples in this process, and continue until `seconds` have passed.

    Raises: DataError, UserCodeError: no sample can be decoded, or samples are bad and `on_bad_sample` makes this an error.
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
            # The next piece takes about PIECE_S seconds, so that the time limit is met. 1e-9 s avoids a division by 0 if the clock is coarse.
            size = max(1, min(pipeline.training.batch_size, int(PIECE_S / max(seconds_a_sample, 1e-9))))
    if not pieces:
        raise DataError(
            f"none of {first} samples of dataset '{pipeline.data.dataset_id}' could be decoded; correct the parser or the data"
        )
    # Small pieces would lower the measured rates, because fewer samples share the fixed cost of each batch.
    whole = [piece for piece in pieces if 2 * len(piece) >= len(largest)]
    return PreparedSamples(whole, sum(map(len, pieces)), largest, decoded_sizes, augmented_sizes)


def _without_bad(functions: BatchPipeline, payloads: Payloads, bad_samples: BadSamples) -> tuple[Payloads, Batch]:
    """Return the samples that can be decoded, and their batch."""
    while True:
        try:
            data, labels = functions.run(payloads)
            return payloads, Batch(as_tensor(payloads.keys), data, labels, torch.ones(len(payloads)))
        except (DataError, UserCodeError) as error:
            payloads, _ = payloads.without(bad_samples.leave_out(error).key)


def stored_values(data: DataConfig, prepared: PreparedSamples, seconds: float, clock: Clock) -> list[Any]:
    """Return the values with which stores are measured: decoded samples, or encoded samples if decoded samples cannot be kept. Memory and time limit
    the number of values.
    """
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
