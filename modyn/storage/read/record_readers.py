"""Record readers, which read the bytes of samples: one reader for each open dataset."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from modyn._core import Gatherer, PathTable
from modyn.config.dataset import DatasetConfig
from modyn.config.system import ROW_GROUP_CACHE_BYTES
from modyn.config.system_sections.buckets import RECORD_LOG
from modyn.records import Int64Array
from modyn.registry import load_object
from modyn.rpc.logs import get_logger
from modyn.storage.files.file_system import UNPACKED, FileSystem, Roots
from modyn.storage.files.local import LocalFiles, open_filesystem
from modyn.storage.formats import build_format
from modyn.storage.formats.base import FileFormat, RowGroups
from modyn.storage.formats.record_file import RecordLogFormat
from modyn.storage.model.samples import RecordReader, UInt8Array, UInt32Array
from modyn.storage.model.schema import DatasetSchema
from modyn.storage.read.row_order import OrderedRowReader

_OPEN_FILES = 512
"""Largest number of data files that one gatherer keeps open."""


class LocalRecordReader:
    """Reads byte ranges of files on this machine."""

    def __init__(self, gatherer: Gatherer, paths: PathTable) -> None:
        """Args: paths: full path of each file id."""
        self._gatherer = gatherer
        self._paths = paths

    def gather(self, file_ids: UInt32Array, offsets: Int64Array, lengths: Int64Array | int) -> tuple[UInt8Array, Int64Array]:
        """See `RecordReader.gather`. The C++ core reads the bytes, with several threads for large requests."""
        return self._gatherer.gather(self._paths, file_ids, offsets, lengths)


class RecordReaders:
    """Opens the record readers of datasets. All readers share the same threads and open files.

    Args: num_threads: number of threads for one request. row_group_cache_bytes: size of the cache of row groups, for each dataset with row groups.
    roots: folders and buckets in which files may be opened.
    """

    def __init__(
        self,
        num_threads: int,
        row_group_cache_bytes: int = ROW_GROUP_CACHE_BYTES,
        roots: Roots = Roots(),  # noqa: B008  (frozen)
    ) -> None:
        self.roots = roots
        self._gatherer = Gatherer(_OPEN_FILES, num_threads, roots.folders)
        # Records are in a folder of storage, which is not one of the roots of users' files.
        self._record_gatherer = Gatherer(_OPEN_FILES, num_threads, ()) if roots.folders or roots.buckets else self._gatherer
        self._row_group_cache_bytes = row_group_cache_bytes
        self._forgetting = threading.Lock()
        """Held by the thread that searches for removed files, so that at most one such thread runs, even if the disk is slow."""

    def open(
        self, dataset: DatasetConfig, index: Path, schema: DatasetSchema | None = None, paths: PathTable | None = None
    ) -> tuple[PathTable, RecordReader]:
        """Return a table of the paths of a dataset's files, and a reader for the file system, format and schema of these files.

        Args: dataset: configuration of the dataset, as `located` returns it. index: folder of its index. schema: None: files are read as they are.
        paths: the table to use; None: a new empty table.
        """
        folder = open_filesystem(dataset.base_path, Roots() if dataset.file_wrapper == RECORD_LOG else self.roots)
        file_format = build_format(dataset.file_wrapper, dataset.file_wrapper_config, dataset.timestamp_source)
        file_format.schema = schema
        if paths is None:
            paths = PathTable(folder.base, file_format.can_grow, index.absolute() / UNPACKED if file_format.packed else "")
        reader = self.open_format(file_format, folder, paths)
        ordered = schema is None or not schema.mixed_order
        return paths, reader if ordered else OrderedRowReader(reader, file_format, folder, paths)

    def open_format(self, file_format: FileFormat, folder: FileSystem, paths: PathTable) -> RecordReader:
        """Return the reader of files of `file_format` in `folder`. Args: paths: full paths of the files by id."""
        declared = file_format.payload_reader()
        if isinstance(declared, RowGroups):
            from modyn.storage.read.row_groups import RowGroupReader  # Loads pyarrow.parquet, which other formats do not need.

            return RowGroupReader(paths, folder, declared.columns, self._row_group_cache_bytes, declared.types)
        if declared is not None:
            own: Any = load_object(declared.name)
            reader: RecordReader = own(paths, folder, self._row_group_cache_bytes)
            return reader
        if isinstance(folder, LocalFiles):
            return LocalRecordReader(self._record_gatherer if isinstance(file_format, RecordLogFormat) else self._gatherer, paths)
        from modyn.storage.files.bucket import BucketFiles
        from modyn.storage.read.bucket_ranges import BucketRangeReader, PackedObjectReader

        assert isinstance(folder, BucketFiles), "files are on this machine or in a bucket"
        objects = BucketRangeReader(folder, paths)
        return PackedObjectReader(objects, LocalRecordReader(self._gatherer, paths), paths) if file_format.packed else objects

    def forget_removed(self) -> None:
        """Close open files that were removed, to free their disk space. A separate thread checks each open file, because a file may be on a mount
        that does not respond any more.
        """
        if (self._gatherer.num_open_files or self._record_gatherer.num_open_files) and not self._forgetting.locked():
            try:
                threading.Thread(target=self._forget_removed, name="forget-removed", daemon=True).start()
            except RuntimeError as error:  # no thread can be started; the next call tries again
                get_logger("storage").warning("removed_files_stay_open", error=str(error))

    def _forget_removed(self) -> None:
        # The new thread acquires the lock, and not the caller: if the thread could not be started, the lock would never be released.
        if self._forgetting.acquire(blocking=False):
            try:
                for gatherer in {self._gatherer, self._record_gatherer}:
                    gatherer.forget_removed()
            finally:
                self._forgetting.release()

    def close(self) -> None:
        """Close all open files. Readers that are used later open their files again."""
        for gatherer in {self._gatherer, self._record_gatherer}:
            gatherer.close_files()
