"""A training of steps reads its trigger set once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from modyn.dataset.connections import DatasetClients, KeySource
from modyn.model_storage.client import StoredModelInfo
from modyn.records import KeysAndWeights, RunId
from modyn.trainer_server.client import TrainingRequest
from modyn.trainer_server.loop.inputs import HeldKeys
from modyn.trainer_server.train import TrainingSections, run_training
from tests.support.training import MemoryData, RecordedReport, TrainingRoom, context_of, small_pipeline

ONLINE = {"trigger": {"id": "DataAmountTrigger", "num_samples": 40}, "step_samples": 4, "history_samples": 2}


@dataclass
class CountedKeys:
    """The keys of another source; notes each partition that is asked for."""

    source: KeySource
    asked: list[int]

    def keys(self, run_id: RunId, trigger_id: int, partition: int, keys_checksum: str = "") -> KeysAndWeights:
        self.asked.append(partition)
        return self.source.keys(run_id, trigger_id, partition, keys_checksum)

    def close(self) -> None:
        self.source.close()


def counted(connect: Callable[[], DatasetClients], asked: list[int]) -> Callable[[], DatasetClients]:
    def connected() -> DatasetClients:
        clients = connect()
        return replace(clients, selector=CountedKeys(clients.selector, asked))

    return connected


def test_the_selector_is_asked_once_for_each_partition(tmp_path: Path) -> None:
    room, asked = TrainingRoom(tmp_path), list[int]()
    pipeline = small_pipeline(online=ONLINE)
    parent = room.train(pipeline).trained.model_id
    data = MemoryData(num_keys=40, partition_size=16, trigger_id=1)
    context = replace(context_of(room.models, data, tmp_path), connect=counted(data, asked))
    request = TrainingRequest(RunId("memory-0001"), 1, pipeline, parent_model_id=parent, online=True)
    stored = run_training(request, TrainingSections.load(request.pipeline), context, RecordedReport())
    assert asked == [0, 1, 2]
    assert isinstance(stored, StoredModelInfo)
    assert stored.training_result["num_samples"] == 40


def test_partitions_are_those_of_the_selector() -> None:
    data = MemoryData(num_keys=40, partition_size=16)
    info, selector = data.trigger_set(RunId("memory-0001"), 0), data().selector
    held = HeldKeys.read(info, data)
    for partition in range(3):
        found, expected = (source.keys(info.run_id, 0, partition, info.keys_checksum) for source in (held, selector))
        np.testing.assert_array_equal(found.keys, expected.keys)
        np.testing.assert_array_equal(found.weights, expected.weights)
