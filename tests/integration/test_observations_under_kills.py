"""Observations reach a run in production by `modyn serve` while serving and all that learns from them are killed with `kill -9`.

Each observation is one sample, and counts once in the updates and in the statistics of preprocessing; the errors are those of a run that
replays the samples and is left alone.
"""

from __future__ import annotations

import http.client
import random
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
import yaml

from modyn.client import Client
from modyn.config.dataset import DatasetConfig
from modyn.config.system_sections.buckets import RECORDS
from modyn.preprocessing import Preprocessing
from modyn.storage.client import NewRecord
from modyn.supervisor.client import RunMode, RunState
from modyn.testing.stack import RunningStack, tiny_pipeline, tiny_training
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.column_samples import SPARSE, SPARSE_MODEL, columns_of, json_row, label_of, tensors
from tests.support.comparison import differences, outcome
from tests.support.killed_stack import WORKERS, KilledStack, trigger_set_keys
from tests.support.serving_process import Serving, call, connect

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

INITIAL, PER_TRIGGER, STEP, DRAWN, BATCH = 60, 20, 10, 6, 10
AHEAD = 10
"""Number of observations between a prediction and its label."""
SERVING = "serving"
SERVICES_IN_THE_GATE = (SERVING, "storage", "supervisor", WORKERS)
"""The trainer server, whose process that workers are forked from takes many seconds to start again, ends its workers with it."""
PATH = "/v2/models/clicks/infer"


def pipeline(dataset: str) -> dict[str, Any]:
    online = {
        "trigger": {"id": "DataAmountTrigger", "num_samples": PER_TRIGGER},
        "step_samples": STEP,
        "history_samples": DRAWN,
    }
    sections: dict[str, Any] = {
        "model": SPARSE_MODEL,
        "data": {"dataset_id": dataset},
        "preprocessing": SPARSE,
        "trigger": {"id": "InitialTrigger", "num_samples": INITIAL},
        "training": tiny_training(use_previous_model=False, batch_size=BATCH),
        "online": online,
    }
    found: dict[str, Any] = yaml.safe_load(tiny_pipeline(dataset, **sections))
    return found


class Observer:
    """A client that sends one observation after the other, about a third of them twice, until `end`.

    The even ones are labels of predictions, which were asked for some time before; the others come with their features. A request whose connection
    breaks, or that is answered with 503, is sent again.
    """

    def __init__(self, address: str, seed: int) -> None:
        self._connection = connect(address)
        self._chance, self._is_over, self._error = random.Random(seed), threading.Event(), list[BaseException]()
        self.num_sent = self.num_repeated = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        """End once all triggers are complete. Raises the error of the thread."""
        self._is_over.set()
        self._thread.join()
        self._connection.close()
        if self._error:
            raise self._error[0]

    def _run(self) -> None:
        try:
            for number in range(INITIAL, INITIAL + AHEAD):
                self._predict(number)
            while not self._is_over.is_set() or self.num_sent % PER_TRIGGER:
                self._predict(INITIAL + self.num_sent + AHEAD)
                self._observe(INITIAL + self.num_sent)
                self.num_sent += 1
                time.sleep(self._chance.uniform(0, 0.05))
        except BaseException as error:  # noqa: BLE001 - raised by `end`
            self._error.append(error)

    def _predict(self, number: int) -> None:
        if number % 2 == 0:
            self._insist(PATH, {"id": f"key {number}", "inputs": tensors([number])})

    def _observe(self, number: int) -> None:
        features = {"key": f"key {number}", "inputs": tensors([number])} if number % 2 else {"request_id": f"key {number}"}
        observation = {**features, "label": label_of(number)}
        for _ in range(self._chance.choice([1, 1, 2])):
            answer = self._insist("/observations", {"observations": [observation]})
            self.num_repeated += answer["repeated"]

    def _insist(self, path: str, body: object) -> dict[str, Any]:
        give_up = time.monotonic() + PATIENCE_S
        while True:
            try:
                status, found = call(self._connection, "POST", path, body)
                if status == 200:
                    return dict(found)
                assert status == 503, found
            except (OSError, http.client.HTTPException):
                self._connection.close()
            assert time.monotonic() < give_up, f"{path} took nothing for {PATIENCE_S:g} s"
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("num_kills", "killed_services"),
    [
        pytest.param(4, SERVICES_IN_THE_GATE, id="each once"),
        pytest.param(
            40, (*SERVICES_IN_THE_GATE, "trainer_server"), id="many", marks=[pytest.mark.slow, pytest.mark.timeout(900)]
        ),
    ],
)
def test_each_observation_is_one_sample_and_counts_once(
    running_stack: RunningStack, num_kills: int, killed_services: tuple[str, ...]
) -> None:
    chance, dataset = random.Random(num_kills), f"observed-{num_kills}"
    path = running_stack.pipeline_file(dataset, **pipeline(dataset))
    with running_stack.client() as client:
        client.register_dataset(DatasetConfig.model_validate({"name": dataset, "base_path": RECORDS}))
        client.append_records(dataset, [NewRecord(f"key {key}", json_row(key), label_of(key), key) for key in range(INITIAL)])
        run_id = client.run(path, RunMode.PRODUCTION).run_id
        eventually(lambda: any(trigger.model_id is not None for trigger in client.supervisor.triggers(run_id)))

        options = (run_id, "--name", "clicks", "--observations", dataset, "--grpc-port", "0", "--http-port")
        server = Serving(running_stack, *options, "0")
        address = server.address
        killed, observer = KilledStack(running_stack, client), Observer(address, num_kills)
        try:
            names = [*killed_services]
            for number in range(num_kills):
                if number % len(names) == 0:
                    chance.shuffle(names)
                time.sleep(chance.uniform(0, 0.5))
                if (name := names[number % len(names)]) == SERVING:
                    server.end(signal.SIGKILL)
                    server = Serving(running_stack, *options, address.rsplit(":", 1)[1])
                else:
                    killed.kill(name)
                if client.show(run_id).state is RunState.INTERRUPTED:
                    client.resume(run_id)
        finally:
            observer.end()
            server.end(signal.SIGTERM)
        num_samples = INITIAL + observer.num_sent
        assert observer.num_repeated > 0
        finish(client, run_id, num_samples)

        check_counts(client, run_id, observation_of_samples(client, dataset, num_samples))
        replayed = client.wait(client.run(path).run_id)
        assert differences(outcome(client, replayed.run_id), outcome(client, run_id)) == []
        errors = [client.prequential(each).to_dict("list") for each in (replayed.run_id, run_id)]
        np.testing.assert_equal(errors[1], errors[0])
        assert errors[0]["tested"][-1] == observer.num_sent


def finish(client: Client, run_id: str, num_samples: int) -> None:
    """End a run in production once it has learned from all samples."""

    def is_learned() -> bool:
        newest = client.supervisor.triggers(run_id)[-1]
        return newest.position == num_samples and newest.model_id is not None

    eventually(is_learned, lambda: client.show(run_id))
    client.finish(run_id)
    run = client.wait(run_id)
    assert (run.state, run.num_samples) == (RunState.FINISHED, num_samples), run.error


def observation_of_samples(client: Client, dataset: str, num_samples: int) -> list[int]:
    """The number of the observation that each sample is, by the key of the sample. There is one sample for each observation."""
    assert client.dataset(dataset).num_samples == num_samples
    sent = [NewRecord(f"key {number}", json_row(number), label_of(number), 0) for number in range(num_samples)]
    appended = client.append_records(dataset, sent)
    assert all(each.is_duplicate for each in appended)
    order = {each.sample_key: number for number, each in enumerate(appended)}
    assert sorted(order) == list(range(num_samples))
    return [order[key] for key in range(num_samples)]


def check_counts(client: Client, run_id: str, order: list[int]) -> None:
    """Check that each sample is new in one step, and that the statistics count each sample once, with the values that were sent."""
    triggers = client.supervisor.triggers(run_id)
    sets = [trigger_set_keys(client, run_id, trigger.trigger_id) for trigger in triggers]
    steps = [keys[at : at + STEP + DRAWN][:STEP] for keys in sets[1:] for at in range(0, len(keys), STEP + DRAWN)]
    assert [key for keys in steps for key in keys] == list(range(INITIAL, len(order)))
    by_hand = Preprocessing(SPARSE)
    for keys in [sets[0][at : at + BATCH] for at in range(0, INITIAL, BATCH)] + steps:
        by_hand.update(columns_of([order[key] for key in keys]))
    statistics = client.preprocessing(triggers[-1].model_id or 0)
    assert statistics is not None
    assert statistics.num_rows == len(order)
    np.testing.assert_equal(statistics.state(), by_hand.state())
