"""Labels and times of images by their paths within the dataset's folder."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from modyn.errors import DataError
from modyn.storage.files.file_system import Listing, UnusableNowError
from modyn.storage.files.local import LocalFiles
from modyn.storage.formats.image_folder import IMAGE_ENDINGS, ImageFolderFormat
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.ingest.schema_decision import SchemaDecision
from modyn.storage.model.samples import IndexedFiles


class ClassFolders:
    """The class folders of one dataset during one ingestion."""

    def __init__(self, dataset: OpenDataset, file_format: ImageFolderFormat, schema: SchemaDecision) -> None:
        self._files, self._format, self._schema = dataset.filesystem, file_format, schema
        self._times: Mapping[str, str] = {}

    def shown(self, listing: Listing) -> Listing:
        """Return the listing without the files that hold no images by their paths."""
        kept = [i for i, path in enumerate(listing.files.paths) if self._format.is_sample(path)]
        return (
            listing if len(kept) == len(listing.files) else replace(listing, files=listing.files.take(np.array(kept, np.int64)))
        )

    def empty(self, listing: Listing) -> list[str]:
        """Return the class folders without any file. Args: listing: complete."""
        if not isinstance(self._files, LocalFiles):
            return []
        known = {*self._schema.classes, *listing.refused, *(path.partition("/")[0] for path in listing.files.paths)}
        with os.scandir(self._files.base) as entries:
            return sorted(
                entry.name for entry in entries if not entry.name.startswith(".") and entry.name not in known and entry.is_dir()
            )

    def begin(self, paths: Iterable[str]) -> None:
        """Number new classes in the order of their names, and read the file of times. Call this before files of a scan are indexed.

        Args: paths: of all new files, so that the order does not depend on the order of indexing. Raises: DataError: the file of times is wrong.
        """
        self._schema.append_classes(map(self._format.class_of, (path for path in paths if path.lower().endswith(IMAGE_ENDINGS))))
        self._times = self._read_times() if self._format.config.times else {}

    def completed(self, paths: Sequence[str], found: IndexedFiles) -> IndexedFiles:
        """Return `found` with the labels and times that follow from the paths within the dataset's folder."""
        problems, timestamps = dict(found.problems), found.timestamps.copy()
        for i, time in enumerate(self._times_of(paths)):
            if isinstance(time, DataError):
                problems.setdefault(i, time)
            else:
                timestamps[i] = time
        names = [self._format.class_of(path) for path in paths]
        for i in (i for i, name in enumerate(names) if not name):
            why = "the name of its class folder is not UTF-8; rename it" if "/" in paths[i] else "it is in no class folder"
            advice = "" if "/" in paths[i] else f"; move it to {self._files.full_path('CLASS')}/, or out of the dataset's folder"
            problems[i] = DataError(f"cannot use {self._files.full_path(paths[i])}: {why}{advice}")
        # The content may show that a file is an image although its name does not.
        self._schema.append_classes(name for i, name in enumerate(names) if i not in problems)
        numbers = {name: number for number, name in enumerate(self._schema.classes)}
        labels = np.array([numbers.get(name, 0) for name in names], np.int64)
        return replace(found, labels=labels, timestamps=timestamps, problems=problems)

    def _times_of(self, paths: Sequence[str]) -> Sequence[int | DataError]:
        """Return the time of each file, or why it has none; empty: files have their modification times."""
        if (pattern := self._format.name_pattern) is not None:
            return pattern.times(list(map(self._files.full_path, paths)), [path.partition("/")[2] for path in paths])
        return [self._time_of(path) for path in paths] if self._format.config.times else []

    def _time_of(self, path: str) -> int | DataError:
        where = f"cannot use {self._files.full_path(path)}: its time in {self._format.config.times}"
        if (text := self._times.get(path)) is None:
            return UnusableNowError(f"{where} is missing; add a line with the path {path}")
        try:
            return self._format.times.of_text(text)
        except ValueError as error:
            return UnusableNowError(f"{where} cannot be read: {error}")

    def _read_times(self) -> Mapping[str, str]:
        """Return the times in the file of times, by path. Raises: DataError."""
        path = self._files.full_path(self._format.config.times)
        with self._files.reading(path), self._files.open(path) as file:
            content = bytes(file.read())
        found = dict[str, str]()
        try:
            rows = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
            if missing := {"path", "time"}.difference(rows.fieldnames or ()):
                raise DataError(
                    f"the first line of {path}, the option times, names no column {' and no column '.join(sorted(missing))}; write it there"
                )
            for row in rows:
                place, time = os.path.normpath(row["path"] or ""), row["time"] or ""
                if found.setdefault(place, time) != time:
                    raise DataError(f"{path}, line {rows.line_num}, gives {place} a second time; write one line for each image")
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path}, the option times, is not CSV in UTF-8: {error}; write it again") from error
        return found
