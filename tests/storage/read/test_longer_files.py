"""A file that became longer: appended to, or replaced by another one, which is refused at the next read, without a look at the folder."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from modyn.config.dataset import DatasetConfig
from modyn.errors import DataError
from tests.support.running_storage import RunningStorage, binary_dataset

N = 3000


def rows(wrapper: str, labels: range) -> bytes:
    if wrapper == "BinaryFileWrapper":
        return b"".join(label.to_bytes(8, "little") + (7 * label).to_bytes(8, "little") for label in labels)
    text = "{0},{0}\n" if wrapper == "CsvFileWrapper" else '{{"label": {0}}}\n'
    return "".join(text.format(label) for label in labels).encode()


@pytest.mark.parametrize("wrapper", ["BinaryFileWrapper", "CsvFileWrapper", "JsonLinesFileWrapper"])
@pytest.mark.parametrize("by", ["short cut", "Flight"])
def test_a_longer_file_is_the_same_one_or_refused(
    storage: RunningStorage, stack: ExitStack, tmp_path: Path, wrapper: str, by: str
) -> None:
    config = binary_dataset(tmp_path / "d")
    if wrapper != "BinaryFileWrapper":
        options = {"label_index": 0} if wrapper == "CsvFileWrapper" else {"label_field": "label"}
        config = config.model_copy(update={"file_wrapper": wrapper, "file_wrapper_config": options})
    path = tmp_path / "d" / {"BinaryFileWrapper": "a.bin", "CsvFileWrapper": "a.csv", "JsonLinesFileWrapper": "a.jsonl"}[wrapper]
    path.write_bytes(rows(wrapper, range(N)))
    storage.index(DatasetConfig.model_validate(config.model_dump()))
    keys = np.array([5, N - 1])
    local = stack.enter_context(storage.short_cut())

    def fetch() -> list[bytes]:
        batches = (
            [local.locate("numbers", keys).take(slice(0, 2))] if by == "short cut" else storage.payloads.fetch("numbers", keys)
        )
        return [bytes(batch.payload(i)) for batch in batches for i in range(len(batch))]

    before = fetch()
    with path.open("ab") as file:
        file.write(rows(wrapper, range(N, N + 50)))
    assert fetch() == before
    storage.ingest()
    assert fetch() == before
    path.write_bytes(rows(wrapper, range(1, 2 * N)))
    with pytest.raises(DataError, match="is not as it was when it was indexed"):
        fetch()
    path.write_bytes(rows(wrapper, range(N + 50)))
    storage.ingest()
    assert fetch() == before
