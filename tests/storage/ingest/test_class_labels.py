"""Labels that are names of classes, in CSV, JSON Lines and Parquet: numbers are appended with each file and never change."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modyn.config.system import SystemConfig
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.storage.formats import build_format
from tests.support.running_storage import RunningStorage, files_dataset, running_storage

Labels = Sequence[str | int]
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "csv": ("CsvFileWrapper", {"label_column": "kind"}),
    "plain.csv": ("CsvFileWrapper", {"label_index": 1}),
    "jsonl": ("JsonLinesFileWrapper", {"label_field": "kind"}),
    "parquet": ("ParquetFileWrapper", {"label_column": "kind", "payload_columns": ["x"]}),
}


@pytest.fixture
def storage(module_storage: RunningStorage) -> RunningStorage:
    return module_storage


def write(folder: Path, ending: str, number: int, labels: Labels) -> None:
    """Write a file that is the older, the smaller its number is."""
    path = folder / f"{number}.{ending}"
    match ending:
        case "parquet":
            pq.write_table(pa.table({"x": list(range(len(labels))), "kind": pa.array(labels)}), path, row_group_size=3)
        case "jsonl":
            path.write_text("".join(json.dumps({"x": x, "kind": label}) + "\n" for x, label in enumerate(labels)))
        case _:
            header = "x,kind\n" if ending == "csv" else ""
            path.write_text(header + "".join(f'{x},"{label}"\n' for x, label in enumerate(labels)))
    os.utime(path, (1_000_000 + number,) * 2)


def register(storage: RunningStorage, folder: Path, ending: str, **options: Any) -> str:
    wrapper, needed = FORMATS[ending]
    config = files_dataset(folder, {**needed, "label_type": "class", **options}, wrapper)
    return storage.client.register_dataset(config).name


def names_of(storage: RunningStorage, dataset: str) -> list[str]:
    """The class of each sample, by key."""
    info = storage.client.dataset(dataset)
    labels = storage.client.samples_by_key(dataset, np.arange(info.next_key)).labels
    return [info.classes[label] for label in labels.tolist()]


@pytest.mark.parametrize("ending", FORMATS)
def test_texts_become_numbers_of_classes(ending: str, storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / f"texts-{ending}"
    name = register(storage, folder, ending)
    write(folder, ending, 0, ["dog", "cat", "émü", "dog"])
    write(folder, ending, 1, ["eel", "cat", "bee"])
    assert storage.ingest(name).samples_indexed == 7
    assert storage.client.dataset(name).classes == ("cat", "dog", "émü", "bee", "eel")
    assert names_of(storage, name) == ["dog", "cat", "émü", "dog", "eel", "cat", "bee"]
    schema = storage.client.dataset(name).schema
    assert schema is not None
    assert [column.name for column in schema.columns] == {"csv": ["x", "kind"], "jsonl": ["x", "kind"], "parquet": ["x"]}.get(
        ending, []
    )
    with pytest.raises(InvalidArgumentError, match="label_type of dataset .* is 'class', not 'int'"):
        register_again = FORMATS[ending]
        storage.client.change_dataset(files_dataset(folder, register_again[1], register_again[0]))


@pytest.mark.parametrize("ending", FORMATS)
def test_sparse_numbers_become_classes_too(ending: str, storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / f"sparse-{ending}"
    name = register(storage, folder, ending)
    write(folder, ending, 0, [-5, 70_000, 2**62, -5])
    storage.ingest(name)
    assert storage.client.dataset(name).classes == ("-5", str(2**62), "70000")
    assert names_of(storage, name) == ["-5", "70000", str(2**62), "-5"]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_appended_rows_and_bad_rows(ending: str, storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / f"bad-{ending}"
    name = register(storage, folder, ending, max_bad_rows=5)
    write(folder, ending, 0, ["b", "", "a"])
    storage.ingest(name)
    assert "is empty" in storage.reasons(name)[f"0.{ending}"]
    with (folder / f"0.{ending}").open("a") as file:
        file.write(
            '3,"A, with ""quotes"""\n4,b\n'
            if ending == "csv"
            else '{"x": 3, "kind": "A"}\n{"x": 4, "kind": 1.5}\n{"x": 4, "kind": "b"}\n'
        )
    storage.ingest(name)
    assert names_of(storage, name) == ["b", "a", 'A, with "quotes"' if ending == "csv" else "A", "b"]
    assert storage.client.dataset(name).num_skipped == (1 if ending == "csv" else 2)


def test_a_parquet_file_with_an_empty_or_fractional_label_is_set_aside(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "empty-parquet"
    name = register(storage, folder, "parquet")
    write(folder, "parquet", 0, ["a", "b", "c", "d", ""])
    write(folder, "parquet", 1, [1.5])  # type: ignore[list-item]
    write(folder, "parquet", 2, ["z"])
    storage.ingest(name)
    reasons = storage.reasons(name)
    assert "row 4: the label in column 'kind' is empty" in reasons["0.parquet"]
    assert "labels are texts or whole numbers, but column 'kind' is of type double" in reasons["1.parquet"]
    assert storage.client.dataset(name).classes == ("z",), "files that are set aside have no classes"


def test_a_large_file_that_is_damaged_at_its_end_leaves_no_classes(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "large"
    name = register(storage, folder, "csv")
    dataset = storage.store.dataset(name)
    dataset.limits, dataset.format.chunk_rows = replace(dataset.limits, held_samples=4), 2
    write(folder, "csv", 0, [*"fedcba", ""])
    write(folder, "csv", 1, [*"zyxzyx"])
    storage.ingest(name)
    assert storage.client.dataset(name).classes == ("x", "y", "z")
    assert names_of(storage, name) == [*"zyxzyx"]


STEPS = st.lists(st.lists(st.text("abcd", min_size=1, max_size=2), min_size=1, max_size=6), min_size=1, max_size=4)


@given(files=STEPS, together=st.booleans())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_numbers_depend_on_the_order_of_files_alone(files: list[list[str]], together: bool, storage: RunningStorage) -> None:
    expected: list[str] = []
    for labels in files:
        expected += sorted(set(labels).difference(expected))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / Path(place).name
        name = register(storage, folder, "plain.csv")
        for number, labels in enumerate(files):
            write(folder, "plain.csv", number, labels)
            if not together:
                storage.ingest(name)
        storage.ingest(name)
        assert storage.client.dataset(name).classes == tuple(expected)
        assert names_of(storage, name) == [label for labels in files for label in labels]
        storage.client.delete_dataset(name)


def test_classes_outlive_a_restart_and_another_choice_of_fields(quick_config: SystemConfig, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    with running_storage(quick_config) as storage:
        name = register(storage, folder, "jsonl", required_fields=["x"])
        write(folder, "jsonl", 0, ["b", "a"])
        storage.ingest(name)
        known = storage.client.dataset(name).config
        options = {**known.file_wrapper_config, "required_fields": None}
        storage.client.change_dataset(known.model_copy(update={"file_wrapper_config": options}))
        assert storage.client.dataset(name).classes == ("a", "b")
    with running_storage(quick_config) as storage:
        write(folder, "jsonl", 1, ["0", "b"])
        storage.ingest(name)
        assert storage.client.dataset(name).classes == ("a", "b", "0")
        assert names_of(storage, name) == ["b", "a", "0", "b"]


def test_an_option_names_the_first_classes(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "option"
    name = register(storage, folder, "parquet", label_classes=["z", "b"])
    write(folder, "parquet", 0, ["b", "b"])
    storage.ingest(name)
    assert storage.client.dataset(name).classes == ("z", "b")
    write(folder, "parquet", 1, ["a", "z"])
    storage.ingest(name)
    assert storage.client.dataset(name).classes == ("z", "b", "a")
    assert names_of(storage, name) == ["b", "b", "a", "z"]
    with pytest.raises(InvalidArgumentError, match="label_classes of dataset 'option' is"):
        known = storage.client.dataset(name).config
        options = {**known.file_wrapper_config, "label_classes": ["b", "z"]}
        storage.client.change_dataset(known.model_copy(update={"file_wrapper_config": options}))
    for options, message in (
        ({"label_classes": ["a", "a"]}, "write each class once"),
        ({"label_type": "int"}, "label_classes is for"),
    ):
        with pytest.raises(ConfigError, match=message):
            build_format("CsvFileWrapper", {"label_index": 0, "label_type": "class", "label_classes": ["a"], **options})
    assert build_format("image_folder", {"label_classes": ["dogs", "cats"]}).names_classes


@pytest.mark.parametrize("id_", ["SingleSampleFileWrapper", "BinaryFileWrapper", "TarFileWrapper"])
def test_formats_without_texts_refuse_classes(id_: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "SingleSampleFileWrapper": {"file_extension": ".png", "label_file_extension": ".label"},
        "BinaryFileWrapper": {"record_size": 2, "label_size": 1},
        "TarFileWrapper": {"payload_extension": "jpg"},
    }
    with pytest.raises(ConfigError, match="label_type class is for CSV, JSON Lines and Parquet"):
        build_format(id_, {**options[id_], "label_type": "class"})
