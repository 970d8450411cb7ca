"""Binary records, against int.from_bytes and struct on every record."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import ConfigError, DataError
from modyn.storage.formats import build_format
from modyn.storage.formats.base import FileFormat
from modyn.storage.model.samples import IndexedSamples


def binary(timestamp_source: str = "", **config: object) -> FileFormat:
    return build_format("BinaryFileWrapper", config, timestamp_source)


def index(format_: FileFormat, path: Path) -> IndexedSamples:
    (chunk,) = format_.index(str(path))
    return chunk


@given(
    label_size=st.integers(1, 8),
    payload_size=st.sampled_from([0, 1, 3, 156, 4096, 5000]),
    byteorder=st.sampled_from(["little", "big"]),
    signed=st.booleans(),
    num_records=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
)
def test_labels_of_any_size_sign_and_byte_order(
    tmp_path_factory: pytest.TempPathFactory,
    label_size: int,
    payload_size: int,
    byteorder: str,
    signed: bool,
    num_records: int,
    seed: int,
) -> None:
    path = tmp_path_factory.mktemp("binary") / "data.bin"
    size = label_size + payload_size
    content = np.random.default_rng(seed).integers(0, 256, num_records * size, np.uint8)
    if label_size == 8 and not signed:  # keep within int64
        content[(0 if byteorder == "big" else 7) :: size] &= 0x7F
    path.write_bytes(content.tobytes())
    found = index(binary(record_size=size, label_size=label_size, byteorder=byteorder, label_signed=signed), path)
    raw = content.tobytes()
    order = "little" if byteorder == "little" else "big"
    expected = [
        int.from_bytes(raw[i * size : i * size + label_size], order, signed=signed)  # type: ignore[arg-type]
        for i in range(num_records)
    ]
    assert found.labels.tolist() == expected
    assert found.labels.dtype == np.int64
    assert found.offsets.tolist() == [i * size + label_size for i in range(num_records)]
    assert found.lengths == payload_size
    assert found.end == len(raw)


@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize("payload", [4, 6000])
def test_float_labels_and_times_in_the_record(tmp_path: Path, byteorder: str, payload: int) -> None:
    path = tmp_path / "data.bin"
    sign = "<" if byteorder == "little" else ">"
    records = [(0.5, -3), (-1e30, 2**34), (float("inf"), 0)]
    path.write_bytes(b"".join(struct.pack(f"{sign}fq", *record) + bytes(payload) for record in records))
    found = index(binary("field:4", record_size=12 + payload, label_size=4, byteorder=byteorder, label_type="float"), path)
    assert found.labels.tolist() == [float(np.float32(label)) for label, _ in records]
    assert np.asarray(found.timestamps).tolist() == [time for _, time in records]


def test_the_time_is_the_files_modification_time(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(8))
    os.utime(path, ns=(0, -1_500_000_000))
    assert index(binary(record_size=4, label_size=1), path).timestamps == -2


def test_a_part_of_a_record_stands_before_and_after_the_whole_ones(tmp_path: Path) -> None:
    path = tmp_path / "cut off.bin"
    path.write_bytes(bytes(25))
    first, whole, last = binary(record_size=10, label_size=4).index(str(path))
    assert first.unended == last.unended
    assert "it ends within a record: 25 bytes are 2 records of 10 bytes and 5 more, from byte 20 on" in last.unended
    assert [(len(chunk), chunk.end, bool(chunk.unended)) for chunk in (first, whole, last)] == [
        (0, 0, True),
        (2, 20, False),
        (0, 20, True),
    ]


def test_a_label_beyond_int64_is_an_error_that_names_the_record(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(struct.pack("<QQ", 2**63 - 1, 2**63))
    with pytest.raises(DataError, match="record 1 at byte 8: the label is out of the range of int64"):
        list(binary(record_size=8, label_size=8, label_signed=False).index(str(path)))


def test_files_that_are_empty_missing_or_folders(tmp_path: Path) -> None:
    format_ = binary(record_size=4, label_size=4)
    (tmp_path / "empty.bin").touch()
    assert list(format_.index(str(tmp_path / "empty.bin"))) == []
    for path in (tmp_path / "missing.bin", tmp_path):
        with pytest.raises(DataError, match="cannot read"):
            list(format_.index(str(path)))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"record_size": 4, "label_size": 5}, "label_size 5 is more than record_size 4"),
        ({"record_size": 40, "label_size": 9}, "label_size"),
        ({"record_size": 0, "label_size": 1}, "record_size"),
        ({"record_size": 40, "label_size": 2, "label_type": "float"}, "label_size of a float label"),
        ({"record_size": 40, "label_size": 4, "byteorder": "middle"}, "byteorder"),
        ({"record_size": 40, "labelsize": 4}, "did you mean 'label_size'"),
    ],
)
def test_wrong_options_are_refused(config: Mapping[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_format("BinaryFileWrapper", config)


@pytest.mark.parametrize("source", ["column:1", "field:5:8", "field:1:9", "name:(", "name:abc", "clock", "field:x"])
def test_wrong_timestamp_sources_are_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="timestamp_source"):
        binary(source, record_size=12, label_size=4)
