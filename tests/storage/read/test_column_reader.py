"""The values of a column, by key: in each format that has columns, over gRPC, and what is refused."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.errors import ConfigError, DataError, NotFoundError, UnavailableError
from modyn.storage.client import ColumnValues, StorageClient
from modyn.storage.formats import build_format
from modyn.storage.formats.base import RowColumn
from modyn.storage.read.column_values import MOST_VALUE_BYTES, ValueEncoder, value_text
from modyn.storage.wire import column_from_proto, column_to_proto
from modyn.supervisor.pipeline_checks.validation import check_references
from modyn.testing.fake_storage import FakeStorage
from modyn.testing.fakes import FakeModelStorage
from tests.support.column_files import FORMATS, column_dataset, write_sites
from tests.support.running_storage import RunningStorage, start_storage

if TYPE_CHECKING:
    from modyn.model_storage.client import ModelStorageClient

SITES = ["oslo", "rome, italy", None, "rome, italy", "bergen", "oslo", "paris", "ü", None, "oslo"]


def texts(client: StorageClient, keys: Any, column: str, name: str = "sites") -> list[str | None]:
    """The values of samples, put together."""
    return [text for part in client.column_values(name, np.asarray(keys, np.int64), column) for text in part.texts()]


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "numbered"])
def test_values_come_in_the_order_asked_and_deleted_samples_have_none(storage: RunningStorage, tmp_path: Path, kind: str) -> None:
    folder, column, client = tmp_path / kind, FORMATS[kind][2], storage.client
    client.register_dataset(column_dataset(folder, kind))
    client.check_column("sites", column)  # there is no sample yet
    write_sites(folder, kind, SITES)
    write_sites(folder, kind, list(reversed(SITES)), 1, first=10)
    storage.ingest("sites")
    every = SITES + SITES[::-1]
    client.check_column("sites", column)
    assert texts(client, range(20), column) == every
    asked = np.random.default_rng(1).integers(0, 20, 50)
    assert texts(client, asked, column) == [every[key] for key in asked]
    assert texts(client, [], column) == []
    client.delete_samples("sites", np.array([0, 19]))
    assert texts(client, [19, 1, 0], column) == [None, "rome, italy", None]
    with pytest.raises(NotFoundError, match="never had samples with the keys 20"):
        texts(client, [0, 20], column)


@pytest.mark.parametrize("kind", FORMATS)
def test_an_unknown_column_names_the_nearest(storage: RunningStorage, tmp_path: Path, kind: str) -> None:
    folder, column, client = tmp_path / kind, FORMATS[kind][2], storage.client
    client.register_dataset(column_dataset(folder, kind))
    write_sites(folder, kind, ["a", "b", "c"])
    storage.ingest("sites")
    client.check_column("sites", column)
    wrong = "11" if kind == "numbered" else column.replace("site", "sites")
    with pytest.raises(
        ConfigError,
        match=f"dataset 'sites' has no column '{wrong}' in its first and last samples, did you mean '{column}'\\?.* Correct",
    ):
        client.check_column("sites", wrong)
    assert texts(client, [0, 1], wrong) == [None, None]
    with pytest.raises(NotFoundError, match="another was registered"):
        client.check_column("sites", column, "other")


def test_a_column_that_only_the_newest_samples_have_is_one(storage: RunningStorage, tmp_path: Path) -> None:
    folder, client = tmp_path / "late", storage.client
    client.register_dataset(DatasetConfig.model_validate({**dict(column_dataset(folder, "json")), "name": "sites"}))
    for number, row in enumerate(({"y": 0}, {"y": 1, "meta": None}, {"y": 2, "meta": {"site": 5}})):
        (folder / f"{number}.jsonl").write_text((json.dumps(row) + "\n") * 1500)
    storage.ingest("sites")
    client.check_column("sites", "meta.site")
    assert texts(client, [0, 1600, 4000], "meta.site") == [None, None, "5"]
    with pytest.raises(ConfigError, match="the column 'meta' holds objects, not a single value; choose a column of categories"):
        client.check_column("sites", "meta")
    with pytest.raises(ConfigError, match="a column is a field: 'meta..site' is not a name"):
        client.check_column("sites", "meta..site")


def test_a_column_that_is_named_twice_is_read_by_its_number(storage: RunningStorage, tmp_path: Path) -> None:
    folder, client = tmp_path / "csv", storage.client
    client.register_dataset(column_dataset(folder, "csv"))
    (folder / "0.csv").write_text("y,site,site\n5,d,e\n")
    storage.ingest("sites")
    with pytest.raises(ConfigError, match="dataset 'sites': the first line names the column 'site' twice; give it by number"):
        texts(client, [0], "site")
    assert texts(client, [0], "2") == ["e"]


def test_columns_are_listed_by_their_names_or_by_the_numbers_of_fields(storage: RunningStorage, tmp_path: Path) -> None:
    client = storage.client
    client.register_dataset(column_dataset(tmp_path, "csv"))
    assert client.column_names("sites") == []
    (tmp_path / "0.csv").write_text("y,site,area\n5,d,e\n6,f,\n")
    storage.ingest("sites")
    assert client.column_names("sites") == ["0", "1", "2"]


def test_a_format_without_columns_is_refused(numbers: RunningStorage) -> None:
    for call in (lambda: numbers.client.check_column("numbers", "site"), lambda: texts(numbers.client, [0], "site", "numbers")):
        with pytest.raises(
            ConfigError,
            match="dataset 'numbers' is of the format BinaryFileWrapper, whose samples have no columns, so 'site' cannot be read; "
            ".*LabelBalanced.*CsvFileWrapper, JsonLinesFileWrapper, ParquetFileWrapper",
        ):
            call()


def test_rows_whose_first_line_is_a_sample_have_columns_by_number_only(storage: RunningStorage, tmp_path: Path) -> None:
    storage.client.register_dataset(column_dataset(tmp_path / "n", "numbered"))
    with pytest.raises(ConfigError, match="'site' is named, but the first lines of the files name no columns; give it by number"):
        storage.client.check_column("sites", "site")


def test_parquet_columns_of_any_single_values(storage: RunningStorage, tmp_path: Path) -> None:
    folder, client = tmp_path / "p", storage.client
    client.register_dataset(column_dataset(folder, "parquet"))
    moment = dt.datetime(2024, 5, 1, 12, 30)
    columns: dict[str, tuple[pa.Array, list[str | None]]] = {
        "int": (pa.array([7, None, 7], pa.uint8()), ["7", None, "7"]),
        "float": (pa.array([0.0, -0.0, float("nan")]), ["0", "0", "nan"]),
        "bool": (pa.array([True, False, None]), ["true", "false", None]),
        "decimal": (pa.array([Decimal("1.50"), Decimal("2.00"), None], pa.decimal128(10, 2)), ["1.5", "2", None]),
        "date": (pa.array([moment.date(), None, moment.date()]), ["2024-05-01", None, "2024-05-01"]),
        "time": (pa.array([moment, moment, None], pa.timestamp("s")), ["2024-05-01 12:30:00"] * 2 + [None]),
        "moment": (
            pa.array([1_500_000_000, 0, None], pa.timestamp("ns", "UTC")),
            ["1970-01-01 00:00:01.5Z", "1970-01-01 00:00:00Z", None],
        ),
        "text": (pa.array(["", "a", None]), ["", "a", None]),
        "dictionary": (pa.array(["a", None, "b"]).dictionary_encode(), ["a", None, "b"]),
        "bytes": (pa.array([b"a", b"\xff", None]), ["a", "\\xff", None]),
        "null": (pa.nulls(3), [None, None, None]),
        "list": (pa.array([[1], [2], [3]]), []),
        "long": (pa.array(["x" * (MOST_VALUE_BYTES + 1)] * 3), []),
    }
    table = pa.table({"y": [0, 1, 2], "x": [b"a", b"b", b"c"]} | {name: array for name, (array, _) in columns.items()})
    pq.write_table(table, folder / "a.parquet")
    delta = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}
    pq.write_table(table.select(["y", "x", "text"]), folder / "b.parquet", row_group_size=1, **delta)
    storage.ingest("sites")
    for name, (_, expected) in columns.items():
        if expected:
            assert texts(client, [2, 1, 0], name) == expected[::-1], name
            client.check_column("sites", name)
    assert texts(client, [3, 2, 5, 4], "text") == ["", None, None, "a"]
    assert texts(client, [3, 2], "int") == [None, "7"]
    with pytest.raises(
        ConfigError, match=r"dataset 'sites': the column 'list' of .*a.parquet has the type list<.*not a single value"
    ):
        client.check_column("sites", "list")
    with pytest.raises(
        ConfigError, match="'long' holds a text of 1,025 bytes, and a value has at most 1,024; choose a column of"
    ):
        client.check_column("sites", "long")


def test_files_that_changed_or_are_gone_are_named(storage: RunningStorage, tmp_path: Path) -> None:
    for kind, (_, _, column) in FORMATS.items():
        folder, name = tmp_path / kind, f"sites-{kind}"
        storage.client.register_dataset(column_dataset(folder, kind, name))
        path = write_sites(folder, kind, ["a", "b"])
        storage.ingest(name)
        path.write_bytes(path.read_bytes() + b"0,b\n" * 2000)
        path.write_bytes(b"1" * 30)
        with pytest.raises((DataError, UnavailableError), match=str(path)):
            texts(storage.client, [0, 1], column, name)
        path.unlink()
        with pytest.raises(DataError, match=str(path)):
            texts(storage.client, [0, 1], column, name)


def test_many_samples_come_in_messages_that_are_not_too_large(
    quick_config: SystemConfig, tmp_path: Path, stack: ExitStack
) -> None:
    """A message has at most 1 MiB, and a value nearly as much as it may have."""
    small = quick_config.storage.model_copy(update={"max_message_bytes": 2**20})
    storage = start_storage(quick_config.model_copy(update={"storage": small}), stack)
    client, folder = storage.client, tmp_path / "many"
    sites = [f"{i % 2000} {'long' * 250}" if i % 3 else None for i in range(6000)]
    client.register_dataset(column_dataset(folder, "json"))
    write_sites(folder, "json", sites)
    storage.ingest("sites")
    order = np.random.default_rng(3).permutation(len(sites))
    assert texts(client, order, "meta.site") == [sites[key] for key in order]


def test_the_fake_answers_the_same(storage: RunningStorage, tmp_path: Path) -> None:
    fake = FakeStorage()
    fake.add_dataset("sites")
    fake.add_samples("sites", range(10), columns={"meta.site": SITES})
    folder = tmp_path / "json"
    storage.client.register_dataset(column_dataset(folder, "json"))
    write_sites(folder, "json", SITES)
    storage.ingest("sites")
    for client in (storage.client, fake.client()):
        client.delete_samples("sites", np.array([3]))
        assert texts(client, [3, 1, 1, 2], "meta.site") == [None, "rome, italy", "rome, italy", None]
        client.check_column("sites", "meta.site")
        with pytest.raises(ConfigError, match="did you mean 'meta.site'"):
            client.check_column("sites", "meta.sites")
        with pytest.raises(NotFoundError):
            texts(client, [10], "meta.site")


FIELDS = st.lists(st.text(st.sampled_from("ab ,\";\r\n'é"), max_size=6), min_size=3, max_size=6)


@given(rows=st.lists(FIELDS, min_size=1, max_size=8), position=st.integers(0, 6))
def test_fields_of_csv_rows_are_those_of_python(rows: list[list[str]], position: int) -> None:
    column = build_format("CsvFileWrapper", {"label_index": 0}).column(str(position))
    assert isinstance(column, RowColumn)
    written = []
    for row in rows:
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="").writerow(row)
        written.append(buffer.getvalue().encode())
    expected = [row[position] or None if position < len(row) else None for row in rows]
    assert list(column.values(written, ())) == expected
    assert [len(list(column.names(row))) for row in written] == list(map(len, rows))


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)


@given(values=st.lists(VALUES, max_size=12), inner=st.booleans())
def test_fields_of_json_lines_are_those_of_python_in_any_object(values: list[Any], inner: bool) -> None:
    """A text, or a whole number, has the same text whether all are of that kind or not."""
    column = build_format("JsonLinesFileWrapper", {"label_field": "y"}).column("m.v" if inner else "v")
    assert isinstance(column, RowColumn)
    rows = [
        json.dumps({"y": 1, "m": {"v": v}} if inner else {"y": 1, "v": v}, ensure_ascii=i % 2 > 0) for i, v in enumerate(values)
    ]
    together = ValueEncoder("v")
    numbers = together.numbers(column.values([row.encode("utf-8", "surrogatepass") for row in rows], ()))
    assert ColumnValues(together.values, numbers).texts() == [value_text(value) for value in values]


@given(values=st.lists(st.none() | st.sampled_from("abcd")), start=st.integers(0, 20), size=st.integers(0, 20))
def test_values_are_sliced_and_sent(values: list[str | None], start: int, size: int) -> None:
    encoder = ValueEncoder("v")
    found = ColumnValues([], encoder.numbers(values))
    found = ColumnValues(encoder.values, found.numbers)
    part = column_from_proto(column_to_proto(found.slice(start, start + size)))
    assert part.texts() == values[start : start + size]
    assert sorted(part.values) == sorted({value for value in values[start : start + size] if value is not None})


def test_deleted_samples_are_never_read(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "csv"
    storage.client.register_dataset(column_dataset(folder, "csv"))
    path = write_sites(folder, "csv", ["a", "b"])
    storage.ingest("sites")
    storage.client.delete_samples("sites", np.array([0, 1]))
    path.unlink()
    assert texts(storage.client, [0, 1], "site") == [None, None]
    storage.client.check_column("sites", "anything")


@pytest.mark.parametrize("num_names", [2, 3, 4])
def test_the_number_of_names_is_compared_with_the_fields_of_rows_without_a_header(
    storage: RunningStorage, tmp_path: Path, num_names: int
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text(f"0,{'long ' * 1000},1\n" * 3)  # A value that is no value of a column.
    fields = {"name": "rows", "base_path": tmp_path / "data", "file_wrapper": "CsvFileWrapper"}
    storage.index(DatasetConfig.model_validate({**fields, "file_wrapper_config": {"label_index": 0}}))
    section = {"format": "csv", "columns": {"a": "number"}, "names": ["y", "a", "b", "c"][:num_names]}
    models = cast("ModelStorageClient", FakeModelStorage())
    found = check_references({"data": {"dataset_id": "rows"}, "preprocessing": section}, storage.client, models)
    said = f"preprocessing.names: has {num_names} names, and rows of dataset 'rows' have 3 fields"
    assert [said in str(problem) for problem in found] == [True] * (num_names != 3)
