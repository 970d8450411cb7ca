"""Versions are published and promoted one after the other while clients ask, and model storage and the server are killed at random moments.

No version is torn: each answer, and each stored file, is of the one version whose number it has. No prediction fails: what was under way at a
server that was killed breaks with its connection, and all else is answered. The audit trail is one chain.
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from modyn.errors import ModynError
from modyn.model_storage.client import ModelHeader, ModelStorageClient
from modyn.models.weights import build_model, save_weights
from modyn.records import RunId
from modyn.testing.stack import RunningStack
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.killed_stack import KilledStack
from tests.support.serving_process import Serving, connect

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

HIDDEN, WIDTH, CLASSES = 256, 4, 3
CONFIG = {"input_size": WIDTH, "hidden_sizes": [HIDDEN, HIDDEN], "num_classes": CLASSES}
BODY = json.dumps({"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, WIDTH], "data": [0.0] * WIDTH}]})
FIRST = 1000
"""Number of the first trigger whose version is published, after those of the run itself."""


def weight(trigger_id: int) -> float:
    """The value of all weights of a version."""
    return (trigger_id - FIRST + 1) / 1000


def expected(trigger_id: int) -> float:
    """Return the output of a version for zeros, in each class."""
    value = weight(trigger_id)
    return value + HIDDEN * value * (value + HIDDEN * value * value)


@dataclass
class Published:
    """A run whose versions are published by one thread. Read by others once it has ended, but for `num_done`."""

    client: ModelStorageClient
    run_id: RunId
    folder: Path
    num_versions: int
    num_done: int = 0
    triggers: dict[int, int] = field(default_factory=dict)
    """Trigger of each model."""
    errors: list[str] = field(default_factory=list)

    def publish_all(self) -> None:
        """Publish each version until it is promoted, and go back by one after every tenth."""
        network = build_model("MLP", CONFIG)
        for trigger_id in range(FIRST, FIRST + self.num_versions):
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter.fill_(weight(trigger_id))
            save_weights(network, self.folder / "put.safetensors")
            while not self._is_published(trigger_id):
                time.sleep(0.05)
            self.num_done += 1
            if self.num_done % 10 == 0:
                self._roll_back()

    def _is_published(self, trigger_id: int) -> bool:
        try:
            header = ModelHeader(self.run_id, trigger_id, "MLP", CONFIG)
            model_id = self.client.put(header, self.folder / "put.safetensors").model_id
            self.triggers[model_id] = trigger_id
            self.client.promote(model_id, "next")
        except ModynError as error:  # model storage was away for longer than the client waits: try again
            self.errors.append(error.message)
            return False
        return True

    def _roll_back(self) -> None:
        try:
            self.client.rollback(self.run_id, "back")
        except ModynError as error:  # whether it was made is not known, and either is right
            self.errors.append(error.message)


class Asking:
    """A client that asks all the time, until `end`."""

    def __init__(self, address: str, killed: threading.Event) -> None:
        self._address, self._killed = address, killed
        self.answers: dict[str, set[float]] = {}
        self.failures: list[str] = []
        self.num_broken = self.num_answers = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask_all)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_S)

    def _ask_all(self) -> None:
        connection = connect(self._address)
        while not self._ended.is_set():
            try:
                connection.request("POST", "/v2/models/tiny/infer", BODY)
                answer = connection.getresponse()
                found = json.loads(answer.read())
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if self._killed.is_set():
                    self.num_broken += 1
                    time.sleep(0.02)
                else:
                    self.failures.append(repr(error))
                continue
            if answer.status == 200:
                self.num_answers += 1
                self.answers.setdefault(found["model_version"], set()).update(found["outputs"][0]["data"])
            elif not (self._killed.is_set() and answer.status == 503):  # it has just started, and loads its version
                self.failures.append(f"{answer.status}: {found}")
        connection.close()


@pytest.fixture
def run_id(running_stack: RunningStack) -> RunId:
    running_stack.tiny_dataset("published")
    run = running_stack.run(running_stack.pipeline_file("published"), max_triggers=1)
    return RunId(run.run_id)


@pytest.mark.parametrize(
    ("num_publishes", "num_kills"),
    [
        pytest.param(60, 6, marks=[pytest.mark.slow, pytest.mark.timeout(400)]),
        pytest.param(1000, 100, marks=[pytest.mark.exhaustive, pytest.mark.timeout(3000)]),
    ],
)
def test_no_version_is_torn_and_no_prediction_fails(
    running_stack: RunningStack, run_id: RunId, tmp_path: Path, num_publishes: int, num_kills: int
) -> None:
    generator, killed = random.Random(num_kills), threading.Event()
    ports = ["--http-port", "0", "--grpc-port", "0"]
    server = Serving(running_stack, run_id, "--name", "tiny", "--input", str(WIDTH), *ports)
    ports = ["--http-port", server.address.rsplit(":", 1)[1], "--grpc-port", server.field("grpc").rsplit(":", 1)[1]]
    asking = [Asking(server.address, killed) for _ in range(2)]
    with running_stack.client() as client, ModelStorageClient(client.config.endpoint("model_storage")) as models:
        stack, published = KilledStack(running_stack, client), Published(models, run_id, tmp_path, num_publishes)
        publisher = threading.Thread(target=published.publish_all)
        publisher.start()
        try:
            for number in range(num_kills):
                due = generator.uniform(number, number + 1) * num_publishes / num_kills
                eventually(lambda due=due: published.num_done >= int(due) or not publisher.is_alive())  # type: ignore[misc]
                time.sleep(generator.uniform(0, 0.1))  # so that it falls at any moment of a publish
                if number % 10 != 5:
                    stack.kill("model_storage")
                    continue
                killed.set()
                server.end(signal.SIGKILL)
                server = Serving(running_stack, run_id, "--name", "tiny", "--input", str(WIDTH), *ports)
                reached = sum(each.num_answers for each in asking)
                eventually(lambda reached=reached: sum(each.num_answers for each in asking) > reached + 10)  # type: ignore[misc]
                killed.clear()
            publisher.join(PATIENCE_S + num_publishes)
            assert not publisher.is_alive(), published.num_done
            promoted = str(models.current(run_id).promoted_id)
            eventually(lambda: any(promoted in each.answers for each in asking), "the last promoted version never answered")
        finally:
            for each in asking:
                each.end()
            server.end(signal.SIGTERM)
        assert [failure for each in asking for failure in each.failures] == []
        assert published.num_done == num_publishes
        check_answers(asking, published)
        check_files(models, published, tmp_path / "got.safetensors")
        check_trail(models, run_id)


def check_answers(asking: list[Asking], published: Published) -> None:
    """Each answer is that of the version that it names; of neighbours they differ by 0.1 % and more, and rounding by less."""
    for each in asking:
        assert each.num_answers > 0
        for version, values in each.answers.items():
            if (trigger_id := published.triggers.get(int(version))) is not None:  # else one of the run itself
                assert all(value == pytest.approx(expected(trigger_id), rel=1e-4) for value in values), version


def check_files(models: ModelStorageClient, published: Published, path: Path) -> None:
    """Each published version is stored once, whole."""
    stored = {info.version.model_id: info.version.trigger_id for info in models.list(published.run_id)}
    assert {model_id: trigger_id for model_id, trigger_id in stored.items() if trigger_id >= FIRST} == published.triggers
    assert len(published.triggers) == published.num_versions
    for model_id, trigger_id in published.triggers.items():
        models.get(model_id, path)
        for tensor in load_file(path).values():
            assert torch.all(tensor == torch.tensor(weight(trigger_id))), model_id


def check_trail(models: ModelStorageClient, run_id: RunId) -> None:
    """Each entry refers to the one before, and the last one is in force."""
    trail = models.promotions(run_id)
    assert [entry.before_id for entry in trail] == [None, *(entry.model_id for entry in trail[:-1])]
    assert models.current(run_id).promoted_id == trail[-1].model_id
