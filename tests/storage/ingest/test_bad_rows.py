"""Rows of CSV and JSON Lines files that cannot be used: all are named at once, and skipped up to a bound."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modyn.config.system import SystemConfig
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.testing.waiting import eventually
from tests.support.running_storage import FileDataset, RunningStorage, files_dataset, running_storage

FORMATS: dict[str, tuple[dict[str, object], str, str]] = {
    "CsvFileWrapper": ({"label_index": 0}, ".csv", "{},{}"),
    "JsonLinesFileWrapper": ({"label_field": "label"}, ".jsonl", '{{"label": {}, "data": {}}}'),
}


class Rows(FileDataset):
    """A dataset of one file of rows; a bad one has no number as its label."""

    def __init__(self, storage: RunningStorage, folder: Path, wrapper: str, max_bad_rows: int, **more: object) -> None:
        options, ending, self._row = FORMATS[wrapper]
        self.path = folder / f"a{ending}"
        options = {**options, "max_bad_rows": max_bad_rows, **more}
        super().__init__(storage, files_dataset(folder, options, wrapper, name="numbers"))

    def write(self, labels: Sequence[object], *, mode: str = "w", end: str = "\n") -> None:
        with self.path.open(mode) as file:
            file.write("\n".join(self._row.format(label, i) for i, label in enumerate(labels)) + end)
        os.utime(self.path, (1000 + self.path.stat().st_size, 1000 + self.path.stat().st_size))

    def labels(self) -> list[int]:
        """Ingest, and return the labels of all samples."""
        self.ingest()
        return super().labels()


@pytest.fixture(params=FORMATS)
def wrapper(request: pytest.FixtureRequest) -> str:
    return str(request.param)


BAD = '"x"'


def test_all_bad_rows_of_a_file_are_named_at_once(storage: RunningStorage, tmp_path: Path, wrapper: str) -> None:
    rows = Rows(storage, tmp_path / "d", wrapper, 2)
    rows.write([0, BAD, 2, BAD, BAD, 5])
    assert rows.labels() == []
    (reason,) = rows.reasons()
    assert "3 rows cannot be used, max_bad_rows is 2" in reason
    assert all(
        f"line {number}{f', row {number}' if wrapper == 'CsvFileWrapper' else ''} at byte " in reason for number in (2, 4, 5)
    )
    rows.write([0, 1, 2, 3, BAD, 5])
    assert rows.labels() == [0, 1, 2, 3, 5]


def test_bad_rows_within_the_bound_are_skipped_and_listed(storage: RunningStorage, tmp_path: Path, wrapper: str) -> None:
    rows = Rows(storage, tmp_path / "d", wrapper, 3)
    rows.write([BAD, 1, 2, BAD])
    for _ in range(2):  # A look at an unchanged file does not forget them.
        assert rows.labels() == [1, 2]
        assert len(rows.reasons()) == 2
        assert (storage.client.dataset("numbers").num_skipped, storage.client.dataset("numbers").num_problems) == (2, 0)
    rows.write([4, BAD, 6, BAD], mode="a")
    assert rows.labels() == [1, 2, 4, 6]
    places = [reason.removeprefix(f"{rows.path}, line ").split()[0].rstrip(",") for reason in rows.reasons()]
    assert sorted(places) == ["1", "4", "6", "8"]


def test_rows_that_storage_refuses_count_with_those_that_the_format_refuses(storage: RunningStorage, tmp_path: Path) -> None:
    rows = Rows(storage, tmp_path / "d", "CsvFileWrapper", 1, label_type="float")
    storage.store.dataset("numbers").format.chunk_rows = 2
    rows.write(["nan", 1, 2, 3, BAD, 5])
    assert rows.labels() == []
    (reason,) = rows.reasons()
    assert "2 rows cannot be used, max_bad_rows is 1" in reason
    rows.write(["nan", 1, 2, 3, 4, 5, 6])
    assert rows.labels() == [1, 2, 3, 4, 5, 6]


def test_a_skipped_row_that_is_read_again_counts_once(storage: RunningStorage, tmp_path: Path, wrapper: str) -> None:
    """A file without a sample is read from its first byte when it grows."""
    rows = Rows(storage, tmp_path / "d", wrapper, 500)
    rows.write([BAD] * 150)
    assert rows.labels() == []
    rows.write([BAD] * 150, mode="a")
    assert rows.labels() == []
    assert storage.client.dataset("numbers").num_skipped == 300


def test_a_file_of_bad_rows_alone_is_not_read_to_its_end(storage: RunningStorage, tmp_path: Path, wrapper: str) -> None:
    rows = Rows(storage, tmp_path / "d", wrapper, 3)
    rows.write([BAD] * 5000)
    assert rows.labels() == []
    (reason,) = rows.reasons()
    assert "at least 1,003 rows cannot be used" in reason
    assert len(reason) < 20_000


def test_options_are_changed_without_registering_again(storage: RunningStorage, tmp_path: Path, wrapper: str) -> None:
    rows = Rows(storage, tmp_path / "d", wrapper, 0)
    rows.write([0, BAD, 2])
    assert rows.labels() == []
    before = storage.client.dataset("numbers")
    options = before.config.file_wrapper_config
    for wrong in ({"base_path": str(tmp_path)}, {"file_wrapper_config": {**options, "label_type": "float"}}):
        with pytest.raises(
            InvalidArgumentError, match=r"registration on: it cannot be changed\. Delete the dataset, which has no"
        ):
            storage.client.change_dataset(before.config.model_copy(update=wrong))
    with pytest.raises(ConfigError):
        storage.client.change_dataset(before.config.model_copy(update={"file_wrapper_config": {**options, "max_bad_rows": -1}}))
    wanted = before.config.model_copy(update={"file_wrapper_config": {**options, "max_bad_rows": 1}, "watch": True})
    changed = storage.client.change_dataset(wanted)
    assert (changed.config, changed.identity) == (wanted, before.identity)
    eventually(lambda: storage.client.dataset("numbers").num_samples == 2)  # It is watched now, and the file is tried again.
    assert rows.labels() == [0, 2]
    storage.client.change_dataset(wanted.model_copy(update={"watch": False}))
    assert storage.client.dataset("numbers").config.watch is False


def test_other_options_outlive_a_restart(quick_config: SystemConfig, tmp_path: Path) -> None:
    with running_storage(quick_config) as storage:
        rows = Rows(storage, tmp_path / "d", "CsvFileWrapper", 0)
        config = rows.storage.client.dataset("numbers").config
        rows.storage.client.change_dataset(
            config.model_copy(update={"file_wrapper_config": {"label_index": 0, "max_bad_rows": 2}})
        )
    rows.write([BAD, 1, 2])
    with running_storage(quick_config) as rows.storage:
        assert rows.labels() == [1, 2]


PLACES: list[tuple[str, dict[str, Any], bytes, dict[str, Any], bool]] = [
    ("CsvFileWrapper", {"label_column": "l1"}, b"l1,l2\n0,1\n", {"label_column": "l2"}, True),
    ("CsvFileWrapper", {"label_index": 0}, b"0,1\n", {"label_index": 1}, True),
    ("CsvFileWrapper", {"label_index": 0}, b"0,1\n", {"separator": ";"}, True),
    ("CsvFileWrapper", {"label_index": 0}, b"0,1\n", {"quote": ""}, True),
    ("CsvFileWrapper", {"label_index": 0}, b"0,1\n", {"separator": ",", "quote": '"', "encoding": "latin-1"}, False),
    ("JsonLinesFileWrapper", {"label_field": "a"}, b'{"a":0,"b":1}\n', {"label_field": "b"}, True),
    ("BinaryFileWrapper", {"record_size": 4, "label_size": 1}, b"\0" * 4, {"label_size": 2}, True),
    ("BinaryFileWrapper", {"record_size": 4, "label_size": 1}, b"\0" * 4, {"record_size": 2}, True),
    ("BinaryFileWrapper", {"record_size": 4, "label_size": 1}, b"\0" * 4, {"byteorder": "big"}, True),
]


@pytest.mark.parametrize(("kind", "options", "content", "change", "is_fixed"), PLACES)
def test_the_place_of_labels_and_times_does_not_change_with_samples(
    module_storage: RunningStorage,
    tmp_path: Path,
    kind: str,
    options: dict[str, Any],
    content: bytes,
    change: dict[str, Any],
    is_fixed: bool,
) -> None:
    name = f"places-{PLACES.index((kind, options, content, change, is_fixed))}"
    data = FileDataset(module_storage, files_dataset(tmp_path / "d", options, kind, name=name))
    client, config = module_storage.client, module_storage.client.dataset(name).config
    changed = config.model_copy(update={"file_wrapper_config": options | change})
    client.change_dataset(changed)  # There is no sample yet.
    client.change_dataset(config)
    ending = {"CsvFileWrapper": "csv", "JsonLinesFileWrapper": "jsonl", "BinaryFileWrapper": "bin"}[kind]
    (tmp_path / "d" / f"a.{ending}").write_bytes(content)
    data.ingest()
    assert data.labels() == [0]
    if not is_fixed:
        client.change_dataset(changed)
        return
    (option,) = change
    with pytest.raises(InvalidArgumentError, match=f"{option} of dataset '{name}' is .*indexed: it cannot be changed. Register"):
        client.change_dataset(changed)
    with pytest.raises(InvalidArgumentError, match=f"timestamp_source of dataset '{name}' is '', not 'name:"):
        client.change_dataset(config.model_copy(update={"timestamp_source": r"name:(\d+)"}))
    client.delete_samples(name, np.array([0]))
    client.change_dataset(changed)
