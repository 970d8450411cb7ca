"""Steps of a GPU that the data path feeds, compared with the same steps on data that are on the GPU already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from benchmark.data_path.figure import Case, Figure, Measured, Missing, Setting, Side
from benchmark.data_path.images import SIMPLEJPEG_BATCH, images_dataset, write_images
from benchmark.data_path.installation import installation
from benchmark.data_path.records import LAYOUT, records_dataset, write_records
from benchmark.data_path.side_process import SideProcesses
from modyn.workers.devices import missing_device
from modyn.workers.fork_server import ENVIRONMENT

_SAMPLES_OF_AN_IMAGE = 1_000
"""A ResNet50 trains on fewer images a second than a small model on records."""
_RECORD_WORKERS, _IMAGE_WORKERS = 4, 12
_PREFETCHING: dict[str, Any] = {"shuffle": True, "num_prefetched_partitions": 4, "parallel_prefetch_requests": 4}


@contextmanager
def prepare(setting: Setting, device: str = "cuda:0") -> Iterator[list[Case]]:
    missing = missing_device(device)
    if missing is not None:
        nothing = Side("modyn", _not_run)
        yield [Case(name, target, nothing, Missing(missing), cold=False) for name, target in _TARGETS.items()]
        return
    images = max(512, setting.samples // _SAMPLES_OF_AN_IMAGE)
    records = write_records(setting.folder / "records", setting.samples)
    files = write_images(setting.folder / "images", images, side=224)
    with installation(setting.folder) as services, SideProcesses() as processes:
        services.ingest(records_dataset("records", records), setting.samples)
        services.ingest(images_dataset("images", files), images)
        partition = min(setting.samples, 1_000_000)
        record_set = services.trigger_set("records", "records", partition)
        image_set = services.trigger_set("images", "images", images)
        task = {"config_file": str(services.config_file), "device": device}
        process = processes.open("benchmark.data_path.gpu_side", task, environment=ENVIRONMENT)

        def case(name: str, trigger_set: Any, data: dict[str, Any], workers: int) -> Case:
            model, size = name.split(", batches of ")
            batch_size = min(int(size.replace(",", "")), trigger_set.num_keys)
            options = {"batch_size": batch_size, **_PREFETCHING}
            run = {"run_id": trigger_set.run_id, "data": data, "workers": workers, "options": options, "model": model}
            samples = trigger_set.num_keys // batch_size * batch_size
            ours, theirs = (
                _steady(process.side(side, samples, check=False, fed=side == "modyn", **run))
                for side in ("modyn", "data on the GPU")
            )
            # Not cold: the figure is about what the path costs the GPU, not about a disk.
            return Case(name, _TARGETS[name], ours, theirs, cold=False)

        record_data = {"dataset_id": "records", "record_layout": LAYOUT}
        image_data = {"dataset_id": "images", "batch_parser_function": SIMPLEJPEG_BATCH.replace("160", "224")}
        cases = [case(name, record_set, record_data, _RECORD_WORKERS) for name in _TARGETS if "ResNet" not in name]
        resnet = next(name for name in _TARGETS if "ResNet" in name)
        not_installed = [package for package in ("torchvision", "simplejpeg") if find_spec(package) is None]
        if not_installed:
            reason = Missing(f"not installed: {', '.join(not_installed)}")
            cases.append(Case(resnet, _TARGETS[resnet], Side("modyn", _not_run), reason, cold=False))
        else:
            cases.append(case(resnet, image_set, image_data, _IMAGE_WORKERS))
        yield cases


# The steps of a small model on fewer samples take the time in which a processor starts them. Each microsecond of Python then counts, so these cases
# have no target.
_TARGETS: dict[str, float | None] = {
    "DLRM, batches of 65,536": 0.98,
    "tabular, batches of 65,536": 0.95,
    "tabular, batches of 16,384": None,
    "tabular, batches of 2,048": None,
    "ResNet50, batches of 256": 0.99,
}


def _steady(side: Side) -> Side:
    """Return the side with the rate after its first batch as the value: the start of an epoch is a number of its own."""

    def run(ready: Callable[[], None]) -> Measured:
        details = dict(side.run(ready).details)
        return Measured(details.pop("samples/s after the first batch"), details)

    return Side(side.name, run)


def _not_run(ready: Any) -> Any:
    raise AssertionError("a case without its other side is not measured")


FIGURE = Figure(
    "gpu",
    "steps of a GPU that the data path feeds, against steps on data that are on the GPU already",
    "samples/s",
    samples=12_000_000,
    smoke_samples=140_000,
    prepare=prepare,
    pairs=3,
)
