"""Connections that outlive the commands of a session."""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from modyn.config.system import SystemConfig
from modyn.dataset.connections import DatasetSource, PayloadReader
from modyn.dataset.session_connections import SessionConnections, SessionSource
from modyn.storage.payloads import LocalPayloads
from tests.support.running_storage import binary_dataset, start_storage, write_records


def data_of(payloads: PayloadReader, keys: list[int]) -> list[int]:
    asked = np.array(keys, np.int64)
    if isinstance(payloads, LocalPayloads):
        answers = [payloads.locate("numbers", asked, "skip").take(slice(None))]
    else:
        answers = list(payloads.fetch("numbers", asked, "skip"))
    return [number for answer in answers for number in answer.data.view(np.int64).tolist()]


@pytest.mark.parametrize("short_cut", ["on", "off"])
def test_a_dataset_is_opened_once_and_read_as_it_is_now(system_config: SystemConfig, tmp_path: Path, short_cut: str) -> None:
    config = system_config.model_copy(update={"storage": system_config.storage.model_copy(update={"short_cut": short_cut})})
    with ExitStack() as stack:
        storage = start_storage(config, stack)
        write_records(tmp_path / "data" / "a.bin", range(10, 15), 100)
        storage.client.register_dataset(binary_dataset(tmp_path / "data"))
        storage.ingest()
        memory = dict[str, object]()
        connect = SessionSource(SessionConnections.of(memory, config), DatasetSource(config, "numbers"))
        first = connect()
        assert data_of(first.payloads, [0, 4]) == [10, 14]
        first.close()

        write_records(tmp_path / "data" / "b.bin", [20], 200)
        storage.ingest()
        storage.client.delete_samples("numbers", np.array([4]))
        again = SessionSource(SessionConnections.of(memory, config), DatasetSource(config, "numbers"))()
        assert again.payloads is first.payloads
        assert again.selector is first.selector
        assert data_of(again.payloads, [0, 4, 5]) == [10, 20]
        again.payloads.close()

        elsewhere = pickle.loads(pickle.dumps(connect))()
        assert elsewhere.payloads is not first.payloads
        assert data_of(elsewhere.payloads, [1]) == [11]
        elsewhere.close()
