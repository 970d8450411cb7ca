"""Parquet, against pyarrow's own reading of the whole table; encrypted files are named as such before Arrow reads what would end the process."""

from __future__ import annotations

import base64
import datetime
import os
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn._core import FileChangedError, PathTable
from modyn.config.system import SystemConfig
from modyn.dataset.connections import DatasetSource
from modyn.errors import ConfigError, DataError
from modyn.storage.files.local import LocalFiles
from modyn.storage.formats import build_format
from modyn.storage.formats.base import FileFormat
from modyn.storage.formats.parquet import ParquetFormat, readable
from modyn.storage.payloads import LocalPayloads, open_local_payloads
from modyn.storage.read.row_groups import RowGroupReader
from modyn.testing.format_checks import read_file
from tests.support.running_storage import RunningStorage, files_dataset, start_storage


def parquet(timestamp_source: str = "", **config: object) -> FileFormat:
    return build_format("ParquetFileWrapper", {"payload_columns": ["x"], "label_column": "y", **config}, timestamp_source)


def write(path: Path, row_group_size: int = 1000, **columns: Any) -> None:
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)


def path_table(*paths: Path) -> PathTable:
    table = PathTable(str(paths[0].parent))
    names = [np.frombuffer(path.name.encode(), np.uint8) for path in paths]
    table.append_packed(np.concatenate(names), np.cumsum([len(name) for name in names]))
    return table


def source_of(*paths: Path, columns: tuple[str, ...] = ("x",), cache_bytes: int = 1 << 20) -> RowGroupReader:
    return RowGroupReader(path_table(*paths), LocalFiles(str(paths[0].parent)), columns, cache_bytes)


BYTES_TYPES = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]


@given(
    values=st.lists(st.text(max_size=20), min_size=1, max_size=40),
    kind=st.sampled_from(BYTES_TYPES),
    row_group_size=st.integers(1, 50),
    label_kind=st.sampled_from([pa.int64(), pa.int8(), pa.uint16()]),
)
def test_values_of_one_column_are_the_payloads(
    tmp_path_factory: pytest.TempPathFactory, values: list[str], kind: pa.DataType, row_group_size: int, label_kind: pa.DataType
) -> None:
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    labels = [i % 100 for i in range(len(values))]
    raw = [value.encode() for value in values]
    column = pa.array(raw if kind in (pa.binary(), pa.large_binary()) else values).cast(kind)
    write(path, row_group_size, x=column, y=pa.array(labels, label_kind))
    assert read_file(parquet(), path).samples == list(zip(raw, labels, strict=True))


NUMBERS = [np.int8, np.uint16, np.int32, np.uint64, np.float16, np.float32, np.float64]


@given(
    kinds=st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=5),
    num_rows=st.integers(1, 30),
    row_group_size=st.integers(1, 40),
    statistics=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_numbers_are_packed_as_a_record_of_numpy(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[type], num_rows: int, row_group_size: int, statistics: bool, seed: int
) -> None:
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    rng = np.random.default_rng(seed)
    record = np.dtype([(f"c{i}", np.dtype(kind).newbyteorder("<")) for i, kind in enumerate(kinds)])
    table = np.zeros(num_rows, record)
    for name in record.names or ():
        table[name] = rng.integers(0, 100, num_rows)
    columns = {name: pa.array(table[name]) for name in record.names or ()}
    pq.write_table(
        pa.table({"y": np.arange(num_rows), **columns}), path, row_group_size=row_group_size, write_statistics=statistics
    )
    names = list(record.names or ())[::-1]
    found = read_file(parquet(payload_columns=names), path)
    assert [payload for payload, _ in found.samples] == [b"".join(row[name].tobytes() for name in names) for row in table]
    (chunk,) = parquet(payload_columns=names).index(str(path))
    assert chunk.lengths == record.itemsize


@given(data=st.data(), cache_bytes=st.sampled_from([0, 40, 1 << 20]), fixed=st.booleans())
def test_rows_are_gathered_in_the_order_asked(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, cache_bytes: int, fixed: bool
) -> None:
    folder = tmp_path_factory.mktemp("parquet")
    paths = [folder / f"{i}.parquet" for i in range(3)]
    contents: list[list[bytes]] = []
    for i, path in enumerate(paths):
        payloads = [b"%d-%d" % (i, row) + b"." * (0 if fixed else row) for row in range(10 * i, 20 * i + 2)]
        payloads = [payload.ljust(5) for payload in payloads] if fixed else payloads
        contents.append(payloads)
        write(path, data.draw(st.integers(1, 12)), x=pa.array(payloads, pa.binary(5) if fixed else pa.binary()))
    source = source_of(*paths, cache_bytes=cache_bytes)
    places = st.integers(0, 2).flatmap(lambda file: st.tuples(st.just(file), st.integers(0, len(contents[file]) - 1)))
    for _ in range(3):
        asked = data.draw(st.lists(places, max_size=30))
        expected = [contents[file][row] for file, row in asked]
        file_ids, rows = np.array([f for f, _ in asked], np.uint32), np.array([r for _, r in asked], np.int64)
        lengths = 5 if fixed else np.array([len(payload) for payload in expected], np.int64)
        found, bounds = source.gather(file_ids, rows, lengths)
        assert (bounds.dtype.name, bounds[0], bounds[-1], found.dtype.name) == ("int64", 0, len(found), "uint8")
        assert [found[a:b].tobytes() for a, b in pairwise(bounds.tolist())] == expected


class CountingFiles(LocalFiles):
    """Counts how often files are opened."""

    opened = 0

    def open(self, path: str, *args: Any) -> pa.NativeFile:
        self.opened += 1
        return super().open(path, *args)


def test_a_row_group_is_read_once_for_a_batch_and_kept_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path, 100, x=pa.array([bytes(100)] * 1000, pa.binary(100)))
    files = CountingFiles(str(tmp_path))
    rows = np.random.default_rng(0).permutation(1000)
    ids = np.zeros(1000, np.uint32)
    source = RowGroupReader(path_table(path), files, ["x"], cache_bytes=1 << 20)
    source.gather(ids, rows, 100)
    assert files.opened == 1 + 10  # the footer, and each group
    source.gather(ids, rows, 100)
    assert files.opened == 11
    files.opened = 0
    small = RowGroupReader(path_table(path), files, ["x"], cache_bytes=35_000)  # three groups
    small.gather(ids, rows, 100)
    small.gather(ids[:300], np.arange(700, 1000), 100)
    assert files.opened == 11
    small.gather(ids, rows, 100)
    assert files.opened > 15


def test_what_is_kept_of_row_groups_is_a_setting_of_the_service_and_of_the_short_cut(
    make_config: Callable[..., SystemConfig], quick_config: SystemConfig, stack: ExitStack, tmp_path: Path
) -> None:
    config = make_config(state_dir=quick_config.state_dir, storage={"row_group_cache_bytes": 4321})
    storage = start_storage(config, stack)
    write(tmp_path / "a.parquet", x=pa.array([b"a", b"bb"]), label=pa.array([1, 2]))
    options = {"payload_columns": ["x"], "label_column": "label"}
    storage.client.register_dataset(files_dataset(tmp_path, options, "ParquetFileWrapper", name="rows"))
    local = stack.enter_context(DatasetSource(storage.config, "rows").open_payloads())
    assert isinstance(local, LocalPayloads)
    for view in (storage.store.snapshot("rows"), local.snapshot()):
        assert isinstance(view.reader, RowGroupReader)
        assert view.reader.cache_bytes == 4321


def test_a_file_that_was_rewritten_removed_or_cut_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path, x=pa.array([b"a", b"bb"]))
    source = source_of(path)
    one, second = np.zeros(1, np.uint32), np.ones(1, np.int64)
    assert source.gather(one, second, 2)[0].tobytes() == b"bb"
    write(path, x=pa.array([b"a", b"ccc", b"d"]))
    with pytest.raises(DataError, match="row 1: the payload has another length.* `modyn data reindex NAME FILE`"):
        source.gather(one, second, 2)
    write(path, x=pa.array([b"a"]))
    with pytest.raises(
        DataError, match="a.parquet was cut: row 1 of it is indexed, it has 1 now.* `modyn data reindex NAME FILE`"
    ):
        source.gather(one, second, 2)
    write(path, z=pa.array([b"a", b"bb"]))
    with pytest.raises(DataError, match="cannot read .*a.parquet as Parquet"):
        source.gather(one, second, 2)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match="cannot read .*a.parquet as Parquet"):
        source.gather(one, second, 2)
    path.unlink()
    with pytest.raises(DataError, match="cannot read .*a.parquet as Parquet"):
        source.gather(one, second, 2)


def test_rows_of_a_file_that_has_another_time_than_it_was_indexed_with_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path, x=pa.array([b"a", b"bb"]))
    table = PathTable(str(tmp_path))
    status = path.stat()
    table.append(["a.parquet"])
    table.restamp(np.array([0]), np.array([status.st_size]), np.array([status.st_mtime_ns]))
    source = RowGroupReader(table, LocalFiles(str(tmp_path)), ["x"], 1 << 20)
    one, second = np.zeros(1, np.uint32), np.ones(1, np.int64)
    assert source.gather(one, second, 2)[0].tobytes() == b"bb"
    os.utime(path, (1000, 1000))
    with pytest.raises(FileChangedError, match=r"a\.parquet \(row 1 wanted\) is not as it was"):
        source.gather(one, second, 2)
    table.restamp(np.array([0]), np.array([status.st_size]), np.array([1000 * 10**9]))
    assert source.gather(one, second, 2)[0].tobytes() == b"bb"


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([5, -5]), [5, -5]),
        (pa.array([5, 0], pa.uint8()), [5, 0]),
        (pa.array([1500, -1], pa.timestamp("ms")), [1, -1]),
        (pa.array([1, -1], pa.timestamp("ns", "Europe/Zurich")), [0, -1]),
        (pa.array([7, -7], pa.timestamp("s", "UTC")), [7, -7]),
        (pa.array([datetime.date(1970, 1, 2), datetime.date(1969, 12, 31)]), [86400, -86400]),
        (pa.array(["1970-01-02", "1969-12-31T23:59:59.5Z"]), [86400, -1]),
    ],
)
def test_times_in_a_column(tmp_path: Path, column: pa.Array, expected: list[int]) -> None:
    path = tmp_path / "a.parquet"
    write(path, x=pa.array([b"a", b"b"]), y=pa.array([1, 2]), t=column)
    assert read_file(parquet("column:t"), path).timestamps == expected


X, Y = pa.array([b"a", b"b"]), pa.array([1, 2])


@pytest.mark.parametrize(
    ("columns", "config", "source", "message"),
    [
        ({"x": pa.array([b"a", None]), "y": Y}, {}, "", "row 1: column 'x' is null"),
        ({"x": pa.array([1, None]), "y": Y}, {}, "", "row 1: column 'x' is null"),
        ({"x": X, "y": pa.array([None, 1])}, {}, "", "row 0: column 'y' is null"),
        ({"x": X, "y": Y, "t": pa.array([1, None])}, {}, "column:t", "row 1: column 't' is null"),
        ({"x": X, "y": Y}, {}, "column:t", "has no columns 't'; its columns are 'x', 'y'"),
        ({"x": pa.array([[1], [2]]), "y": Y}, {}, "", "column 'x' is of type list<.*> and cannot be the payload"),
        ({"x": pa.array([{"a": 1}] * 2), "y": Y}, {}, "", "column 'x' is of type struct<.*> and cannot be the payload"),
        ({"x": X, "y": Y}, {"payload_columns": ["y", "x"]}, "", "column 'x' is of type binary and cannot be packed"),
        ({"x": pa.array([True, False]), "y": Y}, {}, "", "column 'x' is of type bool"),
        ({"x": X, "y": pa.array([0.5, 1])}, {}, "", "labels are whole numbers, but column 'y' is of type double"),
        (
            {"x": X, "y": pa.array(["a", "b"])},
            {"label_type": "float"},
            "",
            "labels are numbers, but column 'y' is of type string",
        ),
        (
            {"x": X, "y": pa.array([1, 2**64 - 1], pa.uint64())},
            {},
            "",
            "row 1: the label in column 'y' '18446744073709551615' is out of the range of int64",
        ),
        (
            {"x": X, "y": Y, "t": pa.array(["1970-01-01", "soon"])},
            {},
            "column:t",
            "row 1: the time in column 't' 'soon' is neither a time in seconds since 1970 nor ISO 8601",
        ),
        (
            {"x": X, "y": Y, "t": pa.array([0.5, 1], pa.float32())},
            {},
            "column:t",
            "column 't' is of type float, which holds no times",
        ),
    ],
)
def test_errors_name_file_row_and_column(
    tmp_path: Path, columns: dict[str, Any], config: dict[str, object], source: str, message: str
) -> None:
    path = tmp_path / "bad file.parquet"
    write(path, **columns)
    with pytest.raises(DataError, match=message) as caught:
        read_file(parquet(source, **config), path)
    assert str(path) in caught.value.message


def test_rows_are_served_by_the_service_and_by_the_short_cut(tmp_path: Path, storage: RunningStorage) -> None:
    for i in range(3):
        write(
            tmp_path / f"{i}.parquet",
            7,
            a=pa.array(np.arange(20, dtype=np.float32) + 100 * i),
            y=pa.array(np.arange(20) + 100 * i),
        )
    options = {"payload_columns": ["a"], "label_column": "y"}
    config = files_dataset(tmp_path, options, "ParquetFileWrapper", name="rows")
    assert storage.index(config).samples_indexed == 60
    keys = np.random.default_rng(0).permutation(60)
    expected = storage.store.dataset("rows").snapshot().samples_by_key(keys).labels.astype(np.float32)
    with open_local_payloads(storage.config.endpoint("storage"), "rows") as local:
        for batches in (storage.payloads.fetch("rows", keys), [local.locate("rows", keys).take(slice(None))]):
            data = b"".join(bytes(batch.data) for batch in batches)
            assert np.array_equal(np.frombuffer(data, np.float32), expected)
    write(tmp_path / "1.parquet", a=pa.array([1.0]), y=pa.array([1]))
    with pytest.raises(DataError, match="1.parquet"):
        list(storage.payloads.fetch("rows", keys))


def test_rows_are_counted_over_chunks_and_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path, 10, x=pa.array([str(i) for i in range(30)]), y=pa.array(np.arange(30) / 2))
    built = parquet(label_type="float")
    built.chunk_rows = 7
    found = read_file(built, path)
    assert found.samples == [(str(i).encode(), i / 2) for i in range(30)]
    assert found.end == os.path.getsize(path)
    write(path, 10, x=pa.array([*map(str, range(24)), None]), y=pa.array(np.arange(25)))
    with pytest.raises(DataError, match="row 24: column 'x' is null"):
        built.chunk_rows = 7
        list(built.index(str(path)))


@pytest.mark.parametrize(
    ("config", "source"),
    [({"payload_columns": []}, ""), ({"payload_columns": ["x", "x"]}, ""), ({}, "column:3"), ({}, "field:t")],
)
def test_wrong_options_are_refused(config: dict[str, object], source: str) -> None:
    with pytest.raises(ConfigError):
        parquet(source, **config)


def test_wide_rows_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    """A row group comes in several chunks."""
    path = tmp_path / "a.parquet"
    rng = np.random.default_rng(0)
    images = pa.table(
        {"data": [rng.bytes(10_000) for _ in range(50)], "label": range(50), "note": [rng.bytes(50_000) for _ in range(50)]}
    )
    pq.write_table(images, path, row_group_size=20)
    images_format = build_format("ParquetFileWrapper", {"payload_columns": ["data"], "label_column": "label"})
    assert [len(chunk) for chunk in images_format.index(str(path))] == [20, 20, 10]
    assert isinstance(images_format, ParquetFormat)
    images_format.batch_bytes = 100_000
    sizes = [len(chunk) for chunk in images_format.index(str(path))]
    assert sum(sizes) == 50
    assert max(sizes) == 9


def write_repeated(path: Path, value: bytes, times: int, kind: pa.DataType | None = None) -> None:
    """A file of a few kilobytes whose payloads are `value`, `times` times."""
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(times, np.int32)), pa.array([value], kind or pa.binary()))
    table = pa.table({"x": column, "y": np.arange(times)})
    with pq.ParquetWriter(path, table.schema, store_schema=False, compression="zstd") as writer:
        writer.write_table(table)
    assert path.stat().st_size < 100_000


@pytest.mark.parametrize("kind", [pa.binary(), pa.binary(1 << 20)])
def test_values_that_repeat_take_no_memory_while_they_are_indexed(tmp_path: Path, kind: pa.DataType) -> None:
    write_repeated(tmp_path / "a.parquet", bytes(1 << 20), 500, kind)
    before = pa.default_memory_pool().max_memory()
    chunks = list(parquet().index(str(tmp_path / "a.parquet")))
    assert sum(map(len, chunks)) == 500
    assert all(np.all(np.asarray(chunk.lengths) == 1 << 20) for chunk in chunks)
    assert pa.default_memory_pool().max_memory() - before < 300 << 20


@pytest.mark.parametrize("kind", [pa.binary(), pytest.param(pa.binary(1 << 20), marks=pytest.mark.slow)])
def test_a_row_group_that_no_reader_can_hold_is_refused(tmp_path: Path, kind: pa.DataType) -> None:
    write_repeated(tmp_path / "a.parquet", bytes(1 << 20), 3000, kind)
    with pytest.raises(DataError, match=r"row group 0 holds \d{10} bytes of payloads once it is unpacked.*at most 2147483647"):
        list(parquet().index(str(tmp_path / "a.parquet")))


def test_values_that_repeat_without_a_dictionary_are_unpacked_a_few_at_a_time(tmp_path: Path) -> None:
    """DELTA_BYTE_ARRAY: what a value shares with the one before it is not in the file."""
    path = tmp_path / "a.parquet"
    table = pa.table({"x": [b"v" * (1 << 20)] * 100, "y": np.arange(100)})
    pq.write_table(table, path, use_dictionary=False, column_encoding={"x": "DELTA_BYTE_ARRAY"}, compression="zstd")
    assert path.stat().st_size < 10_000
    repeated = parquet()
    assert isinstance(repeated, ParquetFormat)
    repeated.batch_bytes = 4 << 20
    chunks = list(repeated.index(str(path)))
    assert max(map(len, chunks)) <= 4
    assert [size for chunk in chunks for size in np.asarray(chunk.lengths).tolist()] == [1 << 20] * 100


def test_a_long_text_is_not_a_time(tmp_path: Path) -> None:
    texts = pa.array(["2020-01-01T00:00:00Z", "1" * 1_000_000, "2020-01-02"])
    write(tmp_path / "a.parquet", x=pa.array([b"a", b"b", b"c"]), y=[1, 2, 3], t=texts)
    with pytest.raises(DataError, match=r"row 1: the time in column 't' has more than 100 bytes"):
        list(parquet("column:t").index(str(tmp_path / "a.parquet")))


def test_a_lack_of_memory_is_not_the_fault_of_the_file(tmp_path: Path) -> None:
    """The file is tried again, and not excluded permanently."""
    write(tmp_path / "a.parquet", x=pa.array([b"a"]), y=[1])
    with pytest.raises(MemoryError), readable(str(tmp_path / "a.parquet")):
        raise pa.ArrowMemoryError("malloc of size 26000000000 failed")


class Keys(pe.KmsClient):  # type: ignore[misc]
    """A service of keys that keeps nothing secret."""

    def wrap_key(self, key: bytes, master: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, master: str) -> bytes:
        return base64.b64decode(key)


def write_encrypted(path: Path, columns: list[str], *, plaintext_footer: bool) -> None:
    table = pa.table({"x": [1.5, 2.5], "y": [1, 2], "z": [3, 4]})
    how = pe.EncryptionConfiguration(footer_key="k", column_keys={"c": columns}, plaintext_footer=plaintext_footer)
    keys = pe.CryptoFactory(lambda _: Keys()).file_encryption_properties(pe.KmsConnectionConfig(), how)
    with pq.ParquetWriter(path, table.schema, encryption_properties=keys) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("columns", [["x"], ["y"], ["z"], ["x", "y", "z"]])
@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_an_encrypted_file_is_named_as_such(tmp_path: Path, columns: list[str], plaintext_footer: bool) -> None:
    path = tmp_path / "a.parquet"
    write_encrypted(path, columns, plaintext_footer=plaintext_footer)
    with pytest.raises(DataError, match=r"a\.parquet is encrypted Parquet, wholly or in some columns, and Modyn has no keys"):
        list(parquet().index(str(path)))


@pytest.mark.parametrize("num_columns", [1, 2000])
def test_a_footer_of_any_length_is_none_of_an_encrypted_file(tmp_path: Path, num_columns: int) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"y": [1], **{f"x{i}": [2.0] for i in range(num_columns)}}), path)
    built = parquet(payload_columns=["x0"])
    assert [label for _, label in read_file(built, path).samples] == [1]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1\xff\xff\xff\x7fPAR1", b"PAR1" + b"\0" * 50 + b"\x10\0\0\0PAR1"])
def test_a_file_without_footer_is_not_parquet(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        list(parquet().index(str(path)))
