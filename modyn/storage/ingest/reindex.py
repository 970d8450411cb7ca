"""Remove changed data files from the index on request, so that they are indexed again."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from modyn.errors import DataError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.records import DeletedSamples, Int64Array
from modyn.registry import nearest
from modyn.storage.files.file_system import SeenFile
from modyn.storage.formats.base import WholeFileFormat
from modyn.storage.formats.timestamps import TimeRange
from modyn.storage.index.segment_index import SegmentIndex
from modyn.storage.ingest.file_indexer import ChangedError, FileJob, index_whole_files, refused_samples
from modyn.storage.ingest.locks import hold_dataset
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.ingest.segment_writer import SegmentWriter
from modyn.storage.ingest.time_decision import TimeDecision
from modyn.storage.model.file_table import UNKNOWN_TAG


def forget_file(dataset: OpenDataset, path: str) -> DeletedSamples:
    """Delete the samples of a data file. The next ingestion adds the samples that the file then contains, under new keys.

    Before the deletion, the file is indexed as a trial. If the file is missing or unusable, or has no samples, nothing is deleted. An interrupted
    call can be repeated: the samples are deleted before the file may be indexed again, so that no sample exists twice.

    Args: path: path of the file, full or relative to the dataset's folder.
    Returns: the number and the first key of the samples that this call deleted.
    Raises: NotFoundError: no such file is indexed, or the file is missing. DataError: the file cannot be used. InvalidArgumentError: the dataset is
    made of records. UnavailableError: the file is being written, or cannot be read now.
    """
    if dataset.row.config.holds_records:
        raise InvalidArgumentError(
            f"dataset '{dataset.name}' is made of records, which are never rewritten; delete single ones by key"
        )
    with hold_dataset(dataset):
        dataset.refresh()
        relative = _relative(dataset, path)
        file_id = dataset.files.id_of(relative)
        if file_id is None:
            raise NotFoundError(_why_not_indexed(dataset, relative))
        row = dataset.catalogue.file(dataset.row.id, file_id)
        # The current content is checked first. If it cannot be used, no sample is deleted.
        _check_content(dataset, relative)
        snapshot = dataset.snapshot()
        keys = _keys_of(snapshot.index, file_id)
        keys = keys[~snapshot.tombstones.keys.contains(keys)]
        # The deletion is durable before the file is forgotten. After a crash between the two steps, a repeated call continues.
        dataset.delete_samples(keys)
        writer = SegmentWriter(dataset)
        writer.forget_file(
            row._replace(size=0, mtime_ns=0, indexed_end=0, num_samples=0, fingerprint="", altered=False, tail=UNKNOWN_TAG)
        )
        writer.flush()
        # The next scan is due immediately.
        dataset.scan_by = 0.0
        return DeletedSamples(dataset.name, dataset.row.identity, path, len(keys), int(keys.min()) if len(keys) else None)


def _why_not_indexed(dataset: OpenDataset, path: str) -> str:
    """Return why no sample of a file is indexed, and what to do. Args: path: relative to the dataset's folder."""
    name, full_path = dataset.name, dataset.filesystem.full_path(path)
    if path in dataset.problems:
        listed = dataset.catalogue.problems(dataset.row.id, dataset.filesystem.full_path)
        reason = next(
            (problem.reason for problem in listed if problem.path == full_path), f"`modyn data problems {name}` says why"
        )
        return f"{full_path} was set aside, so that it has no samples to delete: {reason}. Once it is corrected, `modyn data ingest {name}` takes it"
    if dataset.format.holds_samples(path) and dataset.filesystem.version(SeenFile(path, 0, 0)) is not None:
        return f"{full_path} is not indexed yet; `modyn data ingest {name}` takes it"
    known = [dataset.files.path(i) for i in range(min(len(dataset.files), 1000))]
    return (
        f"no file {path} is indexed in dataset '{name}'{nearest(path, known) or ';'} name it by its path, full or below "
        f"{dataset.row.config.base_path}"
    )


def _check_content(dataset: OpenDataset, path: str) -> None:
    """Index the current content of a file as a trial. Args: path: relative to the dataset's folder. Raises: see `forget_file`."""
    folder, full_path = dataset.filesystem, dataset.filesystem.full_path(path)
    if (now := folder.version(SeenFile(path, 0, 0))) is None:
        raise NotFoundError(
            f"{full_path} is missing, and no sample of it was deleted: restore it, or mount what it is on, and repeat; samples of a file that is "
            "gone for good are deleted by their keys, with `client.delete_samples`"
        )
    try:
        num_samples, times = _found(dataset, SeenFile(path, now.size, now.mtime_ns))
        TimeDecision(dataset).check(full_path, times)
        if not num_samples:
            raise DataError(f"{full_path} holds no sample that can be used now")
    except ChangedError as error:
        raise UnavailableError(
            f"{full_path} changed while it was read, and no sample of it was deleted; repeat once it is written"
        ) from error
    except DataError as error:
        raise DataError(
            f"no sample was deleted, since the file cannot be used as it is now; correct it and repeat: {error.message}"
        ) from error


def _found(dataset: OpenDataset, seen: SeenFile) -> tuple[int, TimeRange | None]:
    """Return the number and the times of the samples of a file. Raises: DataError: the file cannot be used. ChangedError, UnavailableError."""
    folder, file_format = dataset.filesystem, dataset.format
    if not isinstance(file_format, WholeFileFormat):
        job = FileJob(folder, file_format, seen, limits=dataset.limits, runner=dataset.runner, copies=dataset.unpacked)
        return sum(map(len, job.samples())), job.times
    found = index_whole_files(dataset.runner, folder, file_format, [folder.full_path(seen.path)], 0)
    for error in found.problems.values():
        raise error
    for reason in refused_samples(found.labels, found.timestamps).values():
        raise DataError(f"{folder.full_path(seen.path)}: {reason}")
    return 1, TimeRange.of(found.timestamps)


def _relative(dataset: OpenDataset, path: str) -> str:
    base = dataset.row.config.base_path
    return str(Path(path).relative_to(base)) if Path(path).is_relative_to(base) else path


def _keys_of(index: SegmentIndex, file_id: int) -> Int64Array:
    """Return the keys of the samples of a file, including deleted samples, int64 (n,)."""
    found = [
        segment.info.first_key + np.flatnonzero(segment.file_ids.slice(0, segment.info.num_samples) == file_id)
        for segment in index.segments
    ]
    return np.concatenate([np.empty(0, np.int64), *found])
