"""Decides the schema of a dataset while its files are indexed. The first file decides the schema. The other files are read by this schema."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from modyn.errors import DataError
from modyn.json_codec import sanitize
from modyn.storage.files.local import LocalFiles
from modyn.storage.ingest.file_indexer import FileJob
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.ingest.segment_writer import SegmentWriter
from modyn.storage.model.samples import IndexedSamples
from modyn.storage.model.schema import DatasetSchema, columns_of
from modyn.storage.read.row_order import beginning_of

_LOOKED_AT = 100
"""Largest number of files that are examined if they were indexed without a schema. The first readable file decides the schema. For JSON, the other
files are compared with the first file."""


MOST_CLASSES = 100_000
"""Largest number of classes of a dataset, because each reader holds their names."""
_NAME_CHARACTERS = 1000
"""Largest number of characters of the name of a class."""


class SchemaDecision:
    """Decides the schema of one dataset during one ingestion. A changed schema is committed together with the file that changes it."""

    def __init__(self, dataset: OpenDataset, writer: SegmentWriter) -> None:
        self._dataset, self._writer, self._format = dataset, writer, dataset.format
        self._schema = columns_of(dataset.row.schema)
        self._classes = self._first_classes()
        # An interrupted ingestion may have left a schema that was never committed.
        self._format.schema = self._schema or dataset.declared_schema
        self._has_expected = False
        if self._schema is None and self._format.decides_schema and len(dataset.files):
            self._adopt()

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the dataset, also those that are not committed yet."""
        return self._classes

    def append_classes(self, names: Iterable[str]) -> None:
        """Append the names that are not classes yet, in the order of the names. Empty names are left out. Raises: DataError: there are too many."""
        new = sorted({*filter(None, names)}.difference(self._classes))
        if longest := max(new, key=len, default="")[_NAME_CHARACTERS:]:
            raise DataError(
                f"the name of a class has {len(longest) + _NAME_CHARACTERS:,} characters; at most {_NAME_CHARACTERS:,} are allowed"
            )
        if len(self._classes) + len(new) > MOST_CLASSES:
            raise DataError(
                f"dataset '{self._dataset.name}' would have {len(self._classes) + len(new):,} classes; at most {MOST_CLASSES:,} are allowed, so "
                "check which values are the labels"
            )
        # The classes of the option label_classes are not committed yet at first.
        if new or self._classes != self._dataset.classes:
            self._classes = (*self._classes, *new)
            self._write()

    def numbered(self, chunks: Sequence[IndexedSamples]) -> list[IndexedSamples]:
        """Return chunks of one file with numbers of classes as labels, if the labels are names. New classes are appended. Raises: DataError."""
        self.append_classes(chunk.classes[code] for chunk in chunks if chunk.classes for code in np.unique(chunk.labels).tolist())
        numbers = {name: number for number, name in enumerate(self._classes)} if any(chunk.classes for chunk in chunks) else {}
        return [
            replace(chunk, labels=np.array([numbers.get(name, -1) for name in chunk.classes], np.int64)[chunk.labels], classes=())
            if chunk.classes
            else chunk
            for chunk in chunks
        ]

    def forget_classes(self) -> None:
        """Forget the classes that were appended since the last commit, because their samples were discarded."""
        self._classes = self._first_classes()

    def _first_classes(self) -> tuple[str, ...]:
        return self._dataset.classes or tuple(self._format.config.label_classes or ())

    @property
    def is_open(self) -> bool:
        """Whether the next file that is added decides the schema."""
        return self._schema is None and self._dataset.declared_schema is None and self._format.decides_schema

    @property
    def is_expected(self) -> bool:
        """Whether further files can be read before the next file is added, because their schema is known or expected."""
        return not self.is_open or self._format.schema is not None

    def expect(self, job: FileJob) -> bool:
        """Read from the beginning of a file the schema that this file will decide, and let the format read other files with this schema. Returns
        whether the schema was found. Only the first file is read in advance: if it is refused, the next files are likely to be refused too, and after
        each refusal, files that were read with the expected schema must be read again.
        """
        dataset, found = self._dataset, None
        is_plain = isinstance(dataset.filesystem, LocalFiles) and not self._format.is_packed(job.seen.path)
        if not self._has_expected and is_plain:
            found = dataset.runner.schema_in(self._format, dataset.filesystem.full_path(job.seen.path))
        self._has_expected, self._format.schema = True, None
        if found is not None:
            self._format.schema = self._decided_by(job.seen.path, found)
        return found is not None

    def note(self, job: FileJob) -> None:
        """Record the schema of a file whose samples are added."""
        found, known, path = job.schema, self._schema, sanitize(job.seen.path)
        if found is None or not job.indexed.num_samples:
            return
        if known is not None:
            # `found` replaces earlier findings about this file, because the file may have been corrected or may have grown.
            if known.lacking:
                known = replace(known, lacking=tuple(file for file in known.lacking if file.path != path))
            if found.lacking:
                found = replace(found, lacking=tuple(replace(file, path=path) for file in found.lacking))
            self._set(known.joined(found))
        elif self._format.decides_schema:
            self._set(self._decided_by(job.seen.path, found))

    def _decided_by(self, path: str, schema: DatasetSchema) -> DatasetSchema:
        return replace(schema, decided_by="" if self._dataset.declared_schema else sanitize(path))

    def _set(self, schema: DatasetSchema) -> None:
        if schema != self._schema:
            self._schema = self._format.schema = schema
            self._write()

    def _write(self) -> None:
        """Let the next commit contain the schema and the classes."""
        base = self._schema or self._dataset.declared_schema or DatasetSchema("unknown", ())
        self._writer.schema = replace(base, classes=self._classes)

    def _adopt(self) -> None:
        """Read the schema from the first file of a dataset that was indexed without a schema. Later JSON files are compared with the first file.
        Files of other formats are not compared here, because each file is checked when it is read."""
        dataset, paths, schema = self._dataset, self._dataset.snapshot().paths, self._schema
        for file_id in range(min(len(paths), _LOOKED_AT)):
            if file_id in dataset.files.altered:
                continue
            try:
                with beginning_of(dataset.filesystem, paths, file_id) as file:
                    found = self._format.schema_in(paths[file_id], file)
            except DataError:
                continue  # The file is missing or damaged; reads of its samples report the problem.
            if found is None:
                continue
            path = dataset.files.path(file_id)
            if schema is not None:
                schema = schema.compared(sanitize(path), found)
                continue
            schema = replace(self._decided_by(path, found), mixed_order=found.payloads == "csv")
            if found.payloads != "json":
                break
        if schema is not None:
            self._set(schema)
