"""An in-memory dataset of the fake storage."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from modyn.config.dataset import DatasetConfig
from modyn.errors import InvalidArgumentError, NotFoundError
from modyn.records import Int64Array, LabelArray, SampleBatch, why_no_label
from modyn.storage.client import AppendedRecord, DatasetSchema, FileProblem, NewRecord


@dataclass
class HeldDataset:
    """The samples of a dataset, by key. `appended` has the records, with the keys of their samples, by idempotency key."""

    config: DatasetConfig
    float_labels: bool
    identity: str = field(default_factory=lambda: uuid.uuid4().hex)
    timestamps: list[int] = field(default_factory=list)
    labels: list[float] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)
    columns: dict[str, dict[int, object]] = field(default_factory=dict)
    appended: dict[str, tuple[int, NewRecord]] = field(default_factory=dict)
    problems: list[FileProblem] = field(default_factory=list)
    schema: DatasetSchema | None = None
    """Schema of the files."""
    late: dict[int, float] = field(default_factory=dict)
    """Labels that arrived after their samples, by key, in the order of arrival."""

    def batch(self, keys: Int64Array, end_label: int | None = None) -> SampleBatch:
        """Return labels and times of `keys`, int64 (n,). Args: end_label: use only the first `end_label` late labels; None: use all."""
        late = dict(islice(self.late.items(), end_label))
        chosen = [late.get(int(key), self.labels[key]) for key in keys]
        labels: LabelArray = np.asarray(chosen, np.float64) if self.float_labels else np.asarray(chosen, np.int64)
        return SampleBatch(keys, np.asarray([self.timestamps[key] for key in keys], np.int64), labels)

    @property
    def time_range(self) -> tuple[int, int] | None:
        """Return the earliest and the latest timestamp; None: there are no samples."""
        return (min(self.timestamps), max(self.timestamps)) if self.timestamps else None

    def has(self, key: int) -> bool:
        """Return whether a sample with this key exists and is not deleted."""
        return 0 <= key < len(self.timestamps) and key not in self.deleted

    def set_labels(self, labels: Mapping[str, float]) -> list[AppendedRecord]:
        """See `StorageClient.set_labels`. Raises: NotFoundError: the record does not exist. InvalidArgumentError: a label is invalid."""
        for key, label in labels.items():
            if reason := why_no_label(label, self.float_labels):
                raise InvalidArgumentError(
                    f"record '{key}' of dataset '{self.config.name}': its {reason}. None of this call was set"
                )
        if unknown := [key for key in labels if key not in self.appended]:
            raise NotFoundError(f"dataset '{self.config.name}' has no record with the key '{unknown[0]}'")
        answers = []
        for key, label in labels.items():
            sample, record = self.appended[key]
            before = self.late.get(sample) if record.label is None else record.label
            if before is None:
                self.late[sample] = label
            answers.append(AppendedRecord(sample, before is not None, before not in (None, label)))
        return answers

    def judge(self, records: Sequence[NewRecord]) -> tuple[list[AppendedRecord], list[NewRecord]]:
        """Return the answer to each record, and the new records, which become the next samples.

        Raises: InvalidArgumentError: the dataset does not accept records.
        """
        if not self.config.holds_records:
            raise InvalidArgumentError(
                f"dataset '{self.config.name}' takes no records; make it with FakeStorage.add_dataset(records=True)"
            )
        answers, new, next_key = list[AppendedRecord](), list[NewRecord](), len(self.timestamps)
        for record in records:
            is_duplicate = record.key in self.appended
            key, first = self.appended.setdefault(record.key, (next_key + len(new), record))
            answers.append(AppendedRecord(key, is_duplicate, first != record))
            if not is_duplicate:
                new.append(record)
        return answers, new
