"""A sample that cannot be decoded ends the reading with an error that names its place, or is skipped, within a limit."""

from __future__ import annotations

import struct
import zlib
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from modyn.dataset.batch import Batch
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetClients, PayloadReader
from modyn.dataset.key_loader import load_keys
from modyn.dataset.loader import BatchLoader
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.errors import DataError, UserCodeError
from modyn.records import Int64Array
from tests.support.fake_dataset import FakeTriggerSet, int64_payload

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

PARSER = """
def bytes_parser_function(data):
    key = int.from_bytes(data, "little")
    if key in (3, 17):
        raise ValueError("broken")
    return torch.tensor(key)
"""
LAYOUT = {"record_layout": {"dtype": "int64"}}


def config(**fields: Any) -> DataConfig:
    return DataConfig.model_validate(
        {"dataset_id": "fake", **({} if "record_layout" in fields else {"bytes_parser_function": PARSER}), **fields}
    )


def payload(key: int) -> bytes:
    """Too short for int64 where the parser fails."""
    return int64_payload(key)[: 4 if key in (3, 17) else 8]


def batches(data: DataConfig, short_cut: bool, keys: Int64Array | None = None, num_threads: int = 1) -> list[Batch]:
    fake = FakeTriggerSet(np.arange(20), 20, payload=payload if data.record_layout else None, short_cut=short_cut)
    asked = np.arange(20) if keys is None else keys
    return list(load_keys(asked, data, 8, num_threads=num_threads, payloads=fake().payloads))


@pytest.mark.parametrize("fields", [{}, LAYOUT])
def test_a_bad_sample_ends_the_reading_and_names_its_file(fields: dict[str, Any]) -> None:
    with pytest.raises((UserCodeError, DataError)) as caught:
        batches(config(**fields), short_cut=True)
    message = caught.value.message
    assert "sample 3 of dataset 'fake'" in message
    assert (
        "in /fake/file at 3: correct the file and index it again with `modyn data reindex fake FILE`, delete the sample"
        in message
    )
    assert message.endswith("with `modyn data delete fake --key 3`, or set data.on_bad_sample: skip")


def test_code_that_exits_is_a_bad_sample_too() -> None:
    source = "def bytes_parser_function(data):\n    raise SystemExit(3)"
    data = DataConfig(dataset_id="fake", bytes_parser_function=source)
    with pytest.raises(UserCodeError, match=r"failed for sample 0 .*: SystemExit: 3 at line 2"):
        batches(data, short_cut=True)


def test_over_flight_the_command_that_names_its_file_is_named() -> None:
    with pytest.raises(UserCodeError, match="named by `modyn data locate fake 3`"):
        batches(config(), short_cut=False)


@pytest.mark.parametrize("short_cut", [True, False])
@pytest.mark.parametrize("fields", [{}, LAYOUT, {"transformations": ["lambda x: x + 0 * torch.rand(1).long()"]}])
def test_bad_samples_are_left_out_with_their_labels(fields: dict[str, Any], short_cut: bool) -> None:
    found = batches(config(on_bad_sample="skip", **fields), short_cut)
    assert [batch.keys.tolist() for batch in found] == [[0, 1, 2, 4, 5, 6, 7], [*range(8, 16)], [16, 18, 19]]
    for batch in found:
        assert batch.data.reshape(-1).tolist() == batch.keys.tolist()  # type: ignore[union-attr]
        assert batch.labels.tolist() == (batch.keys % 10).tolist()
    assert [batch.num_skipped for batch in found] == [1, 0, 1]
    assert [[sample.key for sample in batch.bad] for batch in found] == [[3], [], [17]]


def png(size: int) -> bytes:
    """Return an image of black pixels that is truncated after the first line."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(min(size, 8) * (size + 1)))),
        (b"IEND", b""),
    ]
    chunks = (struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


IMAGES = "def bytes_parser_function(data):\n    return torch.from_numpy(np.array(Image.open(io.BytesIO(data))))"


def test_an_image_that_unpacks_to_gigabytes_is_a_bad_sample() -> None:
    def payload(key: int) -> bytes:
        return png(60_000 if key in (3, 17) else 8)

    found = dict[str, list[Batch]]()
    for on_bad_sample in ("fail", "skip"):
        data = DataConfig(dataset_id="fake", bytes_parser_function=IMAGES, on_bad_sample=on_bad_sample)
        fake = FakeTriggerSet(np.arange(20), 20, payload=payload, short_cut=True)
        with pytest.raises(UserCodeError) if on_bad_sample == "fail" else nullcontext() as caught:
            found[on_bad_sample] = list(load_keys(np.arange(20), data, 8, num_threads=1, payloads=fake().payloads))
        if caught is not None:
            assert "sample 3 of dataset 'fake'" in str(caught.value)
            assert "DecompressionBombError: Image size (3600000000 pixels) exceeds limit" in str(caught.value)
            assert "in /fake/file at 3: correct the file" in str(caught.value)
    assert [[sample.key for sample in batch.bad] for batch in found["skip"]] == [[3], [], [17]]


CSV = {"format": "csv", "names": ["n", "c"]}


@pytest.mark.parametrize(
    ("section", "bad"),
    [
        ({"format": "json"}, b"null"),
        ({"format": "json"}, b'{"n":1}{"n":2}'),
        ({"format": "json"}, b'{"c":"\\ud83d"}'),
        ({"format": "json"}, b'{"c":7,"x":' + b"[" * 2000 + b"]" * 2000 + b"}"),
        (CSV, b'1,"open'),
        (CSV, b"1,x\n2,y"),
        (CSV, b""),
    ],
)
def test_a_row_that_is_none_is_left_out_and_the_others_keep_their_labels(section: dict[str, Any], bad: bytes) -> None:
    def payload(key: int) -> bytes:
        good = b'%d,"s%d"' % (key, key) if section is CSV else b'{"n":%d,"c":"s%d"}' % (key, key)
        return bad if key in (8, 17) else good

    columns = {"columns": {"n": "number", "c": "category"}, **section}
    data = DataConfig(dataset_id="fake", preprocessing=columns, on_bad_sample="skip")
    fake = FakeTriggerSet(np.arange(20), 20, payload=payload, short_cut=True)
    found = list(load_keys(np.arange(20), data, 8, num_threads=1, payloads=fake().payloads))
    assert [[sample.key for sample in batch.bad] for batch in found] == [[], [8], [17]]
    for batch in found:
        assert batch.columns is not None
        assert batch.columns["n"].to_pylist() == batch.keys.tolist()
        assert batch.columns["c"].to_pylist() == [f"s{key}" for key in batch.keys.tolist()]
        assert batch.labels.tolist() == (batch.keys % 10).tolist()


def test_the_bound_counts_each_sample_once_and_the_error_lists_them() -> None:
    often = np.array([3, 1, 3, 2, 3, 4] * 5)
    assert sum(map(len, batches(config(on_bad_sample="skip", max_bad_samples=1), short_cut=True, keys=often))) == 15
    with pytest.raises(DataError, match=r"2 samples .* are bad, more than data.max_bad_samples \(1\): 3 \(in .*\); 17 \(in"):
        batches(config(on_bad_sample="skip", max_bad_samples=1), short_cut=True)


@dataclass(frozen=True)
class Connect:
    """Connects to twenty samples, and is a source of payloads. It can be sent to other processes."""

    def __call__(self) -> DatasetClients:
        return FakeTriggerSet(np.arange(20), 20, short_cut=True)()

    def open_payloads(self) -> PayloadReader:
        return self().payloads


def loader(workers: int, **fields: Any) -> BatchLoader:
    info = FakeTriggerSet(np.arange(20), 20).info
    data = config(on_bad_sample="skip", **fields)
    return BatchLoader(TriggerSetDataset(info, data, Connect(), LoadOptions(10, drop_last=False, epochs=2)), workers)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_loader_lists_the_bad_samples_of_all_its_workers_once(workers: int) -> None:
    with loader(workers) as batches:
        assert sum(map(len, batches)) == 2 * 18
        found = {sample.key: sample for sample in batches.bad_samples}
    assert sorted(found) == [3, 17]
    assert found[3].place == "in /fake/file at 3"
    assert "ValueError: broken" in found[3].reason


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_bound_holds_for_all_processes_of_a_loader_together(workers: int) -> None:
    """Each of two processes reads one bad sample per epoch."""
    with (
        loader(workers, max_bad_samples=1) as batches,
        pytest.raises(DataError, match=r"2 samples .* more than data.max_bad_samples \(1\)"),
    ):
        list(batches)


def test_the_bound_holds_for_all_processes_that_load_keys() -> None:
    data = config(on_bad_sample="skip", max_bad_samples=1)
    with (
        Connect().open_payloads() as payloads,
        pytest.raises(DataError, match=r"2 samples .* more than data.max_bad_samples \(1\)"),
    ):
        list(load_keys(np.arange(20), data, 10, num_threads=2, payloads=payloads, source=Connect()))


def test_what_a_database_refuses_is_escaped() -> None:
    bad = "raise ValueError('a\\0b\\ud800' + 'x' * 5000)"
    source = f"def bytes_parser_function(data):\n    if data[0] == 5:\n        {bad}\n    return torch.tensor(data[0])"
    data = DataConfig(dataset_id="fake", bytes_parser_function=source, on_bad_sample="skip")
    (sample,) = (sample for batch in batches(data, short_cut=True, keys=np.array([4, 5])) for sample in batch.bad)
    assert "a\\0b\\ud800xx" in sample.reason
    assert len(sample.reason) == 1000
