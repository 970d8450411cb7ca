"""Our side of an ingestion: a client asks storage to index a dataset's folder, and is answered when every sample is committed."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from benchmark.data_path.figure import Measured, Side
from benchmark.data_path.installation import Installation
from modyn.config.dataset import DatasetConfig


def ingestion_side(services: Installation, dataset: DatasetConfig, num_samples: int, amount: float) -> Side:
    """Index a new dataset of `num_samples`. The value is `amount` (samples, files, MB) a second."""

    def run(ready: Callable[[], None]) -> Measured:
        services.client.register_dataset(dataset)
        ready()
        began = perf_counter()
        services.ingest(dataset, num_samples)
        seconds = perf_counter() - began
        services.client.storage.delete_dataset(dataset.name)
        return Measured(amount / seconds)

    return Side("modyn", run)
