"""Datasets in a notebook: batches by name, with running storage and selector."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import modyn.dataset
from modyn.config.system import SystemConfig
from modyn.dataset import Batch, BatchLoader, BatchPosition, OnlineDataset, load_keys, on_device
from modyn.errors import ConfigError, ConflictError, InvalidArgumentError, NotFoundError
from modyn.records import Interval, RunId, RunRegistration
from modyn.rpc.logs import get_logger
from modyn.rpc.server import ServiceContext, start_server
from modyn.selector.client import SelectorClient
from tests.support.running_storage import binary_dataset, start_storage, write_records

NUM_SAMPLES = 60
DATA = {"dataset_id": "numbers", "record_layout": {"dtype": "int64"}}
STRATEGY = {"name": "NewDataStrategy", "maximum_keys_in_memory": 25, "storage_backend": "local", "tail_triggers": None}


@pytest.fixture(params=["auto", "off"])
def config(
    make_config: Callable[..., SystemConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[SystemConfig]:
    """Storage with a dataset, and a selector with a run `known` and one of an older release, `old`; by short cut and over Flight."""
    config = make_config()
    config = config.model_copy(update={"storage": config.storage.model_copy(update={"short_cut": request.param})})
    with ExitStack() as stack:
        running = start_storage(config, stack)
        context = ServiceContext("selector", config, get_logger("selector"))
        registrations = import_module("modyn.selector.service").build(context)
        server = start_server("selector", config.endpoint("selector"), registrations)
        stack.callback(context.shut_down)
        stack.callback(server.stop, 0.1)
        write_records(tmp_path / "data" / "a.bin", range(1000, 1000 + NUM_SAMPLES), 5)
        running.client.register_dataset(binary_dataset(tmp_path / "data"))
        running.ingest()
        selector = stack.enter_context(SelectorClient(config.endpoint("selector")))
        for run, data in (("known", DATA), ("old", None)):
            selector.register_run(RunRegistration(RunId(run), "numbers", STRATEGY, 7, data))
            for batch in running.client.samples_in_interval("numbers", Interval(), 1000):
                selector.inform(RunId(run), 0, batch)
            selector.trigger(RunId(run), 0, NUM_SAMPLES)
        monkeypatch.setattr("modyn.dataset.loader.load_system_config", lambda: config)
        monkeypatch.setattr("modyn.dataset.key_loader.load_system_config", lambda: config)
        yield config


def test_a_trigger_set_by_name(config: SystemConfig) -> None:
    found = list(OnlineDataset("known", 0, batch_size=16))
    assert [len(batch) for batch in found] == [16, 16, 16, 12]
    assert torch.cat([batch.keys for batch in found]).tolist() == list(range(NUM_SAMPLES))
    for batch in found:
        assert isinstance(batch.data, torch.Tensor)
        assert torch.equal(batch.data, batch.keys + 1000)
        assert torch.equal(batch.labels, (batch.keys + 1000) % 10)
    shuffled = OnlineDataset("known", 0, batch_size=16, shuffle=True, seed=1, workers=2, epochs=2)
    orders = [batch.keys.tolist() for batch in shuffled]
    assert [batch.keys.tolist() for batch in shuffled] == orders  # it may be iterated again
    with BatchLoader(shuffled, 3) as loader:
        assert [batch.keys.tolist() for batch in loader] == orders
    assert sorted(key for keys in orders for key in keys) == sorted(2 * list(range(NUM_SAMPLES)))


def test_resuming_and_epochs_by_name(config: SystemConfig) -> None:
    """Each time, the number of workers differs, and only the state knows the seed."""
    seen: list[Batch] = []
    state = None
    for workers, num_batches in ((1, 3), (3, 4), (2, 100)):
        dataset = OnlineDataset("known", 0, batch_size=16, shuffle=True, epochs=3, workers=workers)
        if state is not None:
            dataset.seek(state)
        assert len(dataset) == 12 - len(seen)
        with closing(iter(dataset)) as batches:  # type: ignore[type-var]  # a generator
            for batch in on_device(islice(batches, num_batches), "cpu"):
                seen.append(batch)
                state = dataset.state(batch)
    assert [(batch.epoch, batch.index) for batch in seen] == [(epoch, index) for epoch in range(3) for index in range(4)]
    orders = []
    for epoch in range(3):
        orders.append(torch.cat([batch.keys for batch in seen if batch.epoch == epoch]).tolist())
        assert sorted(orders[-1]) == list(range(NUM_SAMPLES))
    assert len({tuple(order) for order in orders}) == 3

    assert state is not None
    again = OnlineDataset("known", 0, batch_size=16, shuffle=True, seed=state["seed"])
    for epoch in range(3):
        again.seek(BatchPosition(epoch, one_epoch=True))
        assert torch.cat([batch.keys for batch in again]).tolist() == orders[epoch]
    with pytest.raises(ConflictError, match="batch_size is 17 here and 16 in the state"):
        OnlineDataset("known", 0, batch_size=17, shuffle=True).seek(state)
    with pytest.raises(InvalidArgumentError, match="no position of 0 batches in epoch 2"):
        again.seek(BatchPosition(2))


@pytest.mark.parametrize("wrong", [{"parallel_prefetch_requests": 0}, {"workers": -1}, {"batch_size": 0}])
def test_options_are_checked_the_same_whichever_way_payloads_come(config: SystemConfig, wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidArgumentError, match=f"^{name} is {wrong[name]}; it must be at least"):
        OnlineDataset("known", 0, **wrong)


def test_what_cannot_be_served_is_refused_at_once(config: SystemConfig) -> None:
    with pytest.raises(NotFoundError, match="no run 'nobody'"):
        OnlineDataset("nobody", 0)
    with pytest.raises(NotFoundError, match="no trigger 5"):
        OnlineDataset("known", 5)
    with pytest.raises(ConfigError, match="give it as the argument `data`"):
        OnlineDataset("old", 0)
    given = OnlineDataset("old", 0, DATA, batch_size=100)
    assert [len(batch) for batch in given] == [60]
    with pytest.raises(ConfigError, match="record_layout"):
        OnlineDataset("old", 0, {"dataset_id": "numbers"})


def test_any_keys(config: SystemConfig) -> None:
    keys = np.array([7, 3, 59, 3])
    (batch,) = load_keys(keys, DATA)
    assert isinstance(batch.data, torch.Tensor)
    assert batch.data.tolist() == (keys + 1000).tolist()
    with pytest.raises(InvalidArgumentError, match="^batch_size is 0; it must be at least 1"):
        list(load_keys(keys, DATA, 0))
    with pytest.raises(InvalidArgumentError, match="^num_threads is 0; it must be at least 1"):
        list(load_keys(keys, DATA, num_threads=0))
    with pytest.raises(NotFoundError, match="60"):
        list(load_keys(np.array([1, 60]), DATA, on_missing="raise"))


def test_the_package_is_cheap_to_import() -> None:
    program = "import sys, modyn.dataset; print([m for m in ('torch', 'numpy', 'pyarrow', 'grpc') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    for name in modyn.dataset.__all__:
        assert getattr(modyn.dataset, name).__name__ == name
    with pytest.warns(DeprecationWarning, match="is now load_keys"):
        assert modyn.dataset.serve_keys is load_keys
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        modyn.dataset.nothing  # noqa: B018
