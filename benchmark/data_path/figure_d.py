"""Small JPEG files, shuffled, with two workers, compared with a plain torch Dataset and with DALI on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from benchmark.data_path.figure import Case, Figure, Missing, Setting, Side
from benchmark.data_path.images import BATCH_SIZE, PIL, PIL_BATCH, SIMPLEJPEG, SIMPLEJPEG_BATCH, images_dataset, write_images
from benchmark.data_path.installation import installation
from benchmark.data_path.peers import PYTHON, missing
from benchmark.data_path.side_process import SideProcesses
from benchmark.data_path.training_side import TrainingProcess

_WORKERS = 2


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    folder = write_images(setting.folder / "images", setting.samples)
    task = {"folder": str(folder), "batch_size": BATCH_SIZE, "threads": _WORKERS}
    with installation(setting.folder) as services, SideProcesses() as processes:
        services.ingest(images_dataset("images", folder), setting.samples)
        trigger_set = services.trigger_set("images", "images", setting.samples)
        training = TrainingProcess(processes, services)

        def ours(parser: str, source: str, workers: int) -> Side:
            data = {"dataset_id": "images", parser: source}
            return training.side(trigger_set, data, workers, batch_size=BATCH_SIZE, shuffle=True)

        plain = processes.open("benchmark.data_path.plain_files", task).side("plain torch", setting.samples, workers=_WORKERS)
        dali: Side | Missing = missing("nvidia.dali") or processes.open("benchmark.data_path.peers.dali", task, PYTHON).side(
            "DALI", setting.samples
        )
        if find_spec("simplejpeg") is None:
            dali = Missing("simplejpeg, the fastest decoder, is not installed: pip install 'modyn[images]'")
        data = [folder]
        yield [
            Case(
                "PIL, 2 threads, against plain torch Dataset",
                1.0,
                ours("batch_parser_function", PIL_BATCH, _WORKERS),
                plain,
                data,
            ),
            Case(
                "PIL, 2 processes, against plain torch Dataset", None, ours("bytes_parser_function", PIL, _WORKERS), plain, data
            ),
            # Users choose one of the two ways, a parser of batches or of samples; the faster one has the target, the other is reported.
            Case(
                "simplejpeg, 2 threads, against DALI on the CPU",
                0.8,
                ours("batch_parser_function", SIMPLEJPEG_BATCH, _WORKERS),
                dali,
                data,
            ),
            Case(
                "simplejpeg, 2 processes, against DALI on the CPU",
                None,
                ours("bytes_parser_function", SIMPLEJPEG, _WORKERS),
                dali,
                data,
            ),
        ]


FIGURE = Figure(
    "d",
    "JPEG files of 5 to 30 KB, 160 x 160, batches of 128, shuffled, two workers",
    "images/s",
    samples=20_000,
    smoke_samples=300,
    prepare=prepare,
)
