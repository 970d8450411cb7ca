"""A run is deleted and registered again under its name while a reader reads its keys: the reader gets an error, not the new keys."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from modyn.config.system import SystemConfig
from modyn.dataset.order.batch_plan import Plan
from modyn.dataset.trigger_set import keys_of_partition
from modyn.errors import ConflictError
from modyn.records import RunId, RunRegistration, SampleBatch, TriggerSetInfo
from modyn.selector.client import SelectorClient
from tests.support.selecting import serving

RUN = RunId("run-1")


@pytest.fixture
def client(system_config: SystemConfig) -> Iterator[SelectorClient]:
    with serving(system_config) as opened:
        yield opened


def begin(client: SelectorClient, first_key: int) -> TriggerSetInfo:
    """Register the run again, with as many samples but other keys."""
    keys = np.arange(first_key, first_key + 20)
    client.delete_run(RUN)
    client.register_run(RunRegistration(RUN, "d", {"name": "NewDataStrategy", "maximum_keys_in_memory": 10}, 1))
    client.inform(RUN, 0, SampleBatch(keys, keys, keys))
    return client.trigger(RUN, 0, 20)


def plan_of(info: TriggerSetInfo) -> Plan:
    return Plan(info.num_keys, info.partition_size, batch_size=5, trigger_id=info.trigger_id)


def test_a_reader_of_the_run_before_is_refused(client: SelectorClient) -> None:
    first = begin(client, 0)
    plan = plan_of(first)
    reads = list(plan.reads(1))
    assert keys_of_partition(client, first, None, reads[0]).keys.tolist()[0] == 0
    second = begin(client, 100)
    assert (second.num_keys, second.partition_size) == (first.num_keys, first.partition_size)
    with pytest.raises(ConflictError, match="trigger 0 of run 'run-1' has other keys .* start its reader again"):
        keys_of_partition(client, first, None, reads[-1])
    assert keys_of_partition(client, second, None, reads[-1]).keys.tolist()[0] >= 100
    assert len(client.keys(RUN, 0, 0)) == 10
