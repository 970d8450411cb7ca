"""Notes for users on a measured profile, and a description of the measurement's machine. Imports torch."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from typing import Final

import torch

from modyn.dataset.cached.pipeline_cache import machine_memory_bytes
from modyn.dataset.connections import PayloadReader
from modyn.dataset.preparation_clock import PreparationTimes
from modyn.storage.payloads import PayloadClient
from modyn.trainer_server.cache_plan.profiled_pipeline import ProfiledPipeline
from modyn.trainer_server.cache_plan.training_rate import TrainingRate

LEAST_SAMPLES: Final = 64
"""A rate measured with fewer samples gets a note that the rate is uncertain."""
LEAST_PART: Final = 1 / 4
"""If the measured batches are below this fraction of the pipeline's batch size, the rate gets a note: few samples share the fixed cost of a batch."""


def profile_notes(pipeline: ProfiledPipeline, whole_dataset: bool, payloads: PayloadReader, batch_size: int) -> Iterator[str]:
    """Yield notes about conditions of the measurement that limit its precision."""
    way = "over Flight" if isinstance(payloads, PayloadClient) else "by the short cut, from the files themselves"
    yield f"Samples were read {way}; what the operating system had in memory came from there."
    if whole_dataset:
        yield "All samples of the dataset were read before the time for it was over: of few samples, the bandwidth is uncertain."
    if not pipeline.training.on_gpu:
        yield "The model trains on the CPU: it was measured alone, but in a training it shares the processors with decoding."
    if batch_size < pipeline.training.batch_size:
        yield (
            f"The model was trained in batches of {batch_size} in place of {pipeline.training.batch_size}: in the given time, the start of "
            "processes and the first steps left none for larger batches; give more `--seconds`."
        )
    if pipeline.training.compile:
        yield "training.compile was left out: the accelerator may be faster."


def too_little(
    pipeline: ProfiledPipeline, num_decoded: int, piece_size: int, times: PreparationTimes, trained: TrainingRate
) -> Iterator[str]:
    """Yield a note for each value that was measured with too few samples. Args: num_decoded: decoded samples. piece_size: size of the largest
    piece."""
    batch_size, least = pipeline.training.batch_size, int(LEAST_PART * pipeline.training.batch_size)
    again = "a prediction may be wrong by far: `modyn cache profile --seconds N` with a larger N, on a machine that does nothing else, measures more"
    if num_decoded < LEAST_SAMPLES:
        yield f"Only {num_decoded} samples were decoded, and {LEAST_SAMPLES} would be enough to know sizes and rates; {again}."
    elif piece_size < least:
        yield f"Samples were decoded in batches of {piece_size}, where a training takes {batch_size}; {again}."
    elif 0 < times.num_augmented < LEAST_SAMPLES:
        yield f"The rate of decoding is that of {times.num_augmented} samples, and {LEAST_SAMPLES} would be enough; {again}."
    if trained.num_samples < LEAST_SAMPLES or trained.batch_size < least:
        yield (
            f"The model was trained on {trained.num_samples} samples in batches of {trained.batch_size}, where a training takes {batch_size}; "
            f"{again}."
        )


def describe_machine(device: str) -> str:
    """Describe the processors that this process may use, the memory, the system, and the GPU if `device` is a GPU."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    processors = f"{len(os.sched_getaffinity(0))} × {names[0] if names else platform.machine()}"
    parts = [processors, f"{machine_memory_bytes() / 2**30:.0f} GiB", f"{platform.system()} {platform.release()}"]
    if device.startswith("cuda"):
        parts.append(torch.cuda.get_device_name(torch.device(device)))
    return ", ".join(parts)
