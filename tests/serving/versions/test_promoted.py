"""A run's promoted version serves, as soon as it is promoted; what cannot be loaded changes nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from modyn.config.serving import ServedRun
from modyn.errors import ConfigError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.model_storage.client import CurrentVersions, ModelHeader, ModelStorageClient
from modyn.models.weights import build_model, save_weights
from modyn.records import RunId
from modyn.serving.messages.infer import InferAnswer, InferRequest, settle
from modyn.serving.model_server import ModelServer
from modyn.serving.versions.predictor import VersionName
from modyn.serving.versions.promoted import RunFollower, ServingPlan, StoredVersionLoader, plan
from modyn.serving.versions.routing import Canary
from modyn.testing.fakes import FakeModelStorage
from modyn.testing.waiting import PATIENCE_S, eventually

RUN = RunId("run-1")
CONFIG = {"input_size": 2, "num_classes": 3}


def test_which_versions_are_in_use() -> None:
    assert plan(CurrentVersions(), ServedRun()) == ServingPlan()
    assert plan(CurrentVersions(5), ServedRun()) == ServingPlan("5")
    later = CurrentVersions(7, 5)
    assert plan(later, ServedRun()) == ServingPlan("5")
    assert plan(later, ServedRun(follow="newest")) == ServingPlan("7")
    assert plan(later, ServedRun(canary_share=0.1)) == ServingPlan("5", Canary("7", 0.1))
    assert plan(later, ServedRun(shadow=True)) == ServingPlan("5", shadow="7")
    assert plan(CurrentVersions(5, 5), ServedRun(shadow=True, name="m")) == ServingPlan("5")
    judged = CurrentVersions(7, 5, newest_in_trail=True)
    assert plan(judged, ServedRun(canary_share=0.1)) == ServingPlan("5")
    assert plan(judged, ServedRun(shadow=True)) == ServingPlan("5", shadow="7")


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValidationError, match="with follow: newest each version serves at once"):
        ServedRun(follow="newest", shadow=True)
    with pytest.raises(ValidationError, match="before promote_if has judged it"):
        ServedRun(canary_share=0.5, promote_if=("Accuracy on test >= 0.9",))
    with pytest.raises(ValidationError, match="set canary_share or shadow, not both"):
        ServedRun(canary_share=0.5, shadow=True)
    with pytest.raises(InvalidArgumentError, match="'28x28' is not an input of a model"):
        StoredVersionLoader(cast("ModelStorageClient", FakeModelStorage()), ServedRun(inputs=("28x28",)), "cpu")


def put(models: FakeModelStorage, folder: Path, trigger_id: int, value: float, config: dict[str, Any] | None = None) -> int:
    """A version all of whose weights are `value`: for inputs of zeros it returns `value` in each class."""
    network = build_model("LogisticRegression", CONFIG)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(value)
    save_weights(network, folder / "put.safetensors")
    header = ModelHeader(RUN, trigger_id, "LogisticRegression", config or CONFIG)
    return models.put(header, folder / "put.safetensors").model_id


def ask(server: ModelServer, version: str | None = None, request_id: str = "") -> InferAnswer:
    future: Future[InferAnswer] = Future()
    request = InferRequest("digits", {"input": np.zeros((1, 2), np.float32)}, version, request_id)
    server.infer(request, functools.partial(settle, future))
    return future.result(PATIENCE_S)


@pytest.fixture
def models() -> FakeModelStorage:
    return FakeModelStorage()


Follow = Callable[..., tuple[RunFollower, ModelServer]]


@pytest.fixture
def follow(models: FakeModelStorage) -> Iterator[Follow]:
    ends: list[Callable[[], object]] = []

    def make(*, every_s: float = 0.02, **settings: Any) -> tuple[RunFollower, ModelServer]:
        served = ServedRun(name="digits", **settings)
        client = cast("ModelStorageClient", models)
        server = ModelServer(StoredVersionLoader(client, served, "cpu"))
        follower = RunFollower(client, RUN, served, server, every_s)
        ends.extend((follower.close, server.close))
        return follower, server

    yield make
    for end in ends:
        end()


def test_one_look_is_enough_for_a_promotion_or_a_rollback(models: FakeModelStorage, tmp_path: Path, follow: Follow) -> None:
    """A promotion takes effect within `serving.poll_interval_s`, plus the time to load a version that has not served before."""
    first, second = put(models, tmp_path, 0, 1.0), put(models, tmp_path, 1, 2.0)
    models.promote(first)
    follower, server = follow(every_s=3600.0)
    assert follower.start() == ServingPlan(str(first))
    models.promote(second)
    follower.look()
    eventually(lambda: ask(server).version == str(second))  # loaded by then
    models.rollback(RUN)
    follower.look()
    assert ask(server).version == str(first)
    models.promote(second)
    follower.look()
    assert ask(server).version == str(second)


def test_a_run_without_versions_is_waited_for(models: FakeModelStorage, tmp_path: Path, follow: Follow) -> None:
    follower, server = follow()
    assert follower.start() == ServingPlan()
    assert not server.is_ready()
    put(models, tmp_path, 0, 1.0)
    eventually(server.is_ready)


def test_a_newer_version_as_canary_and_as_shadow(models: FakeModelStorage, tmp_path: Path, follow: Follow) -> None:
    first = put(models, tmp_path, 0, 1.0)
    models.promote(first)
    canary, with_canary = follow(canary_share=1.0)
    shadow, with_shadow = follow(shadow=True)
    canary.start()
    shadow.start()
    second = put(models, tmp_path, 1, 2.0)
    eventually(lambda: ask(with_canary).version == str(second))
    eventually(lambda: with_shadow.table().routes("digits").shadow == str(second))
    assert ask(with_shadow).version == str(first)
    models.promote(second)
    for server in (with_canary, with_shadow):
        eventually(lambda server=server: server.table().routes("digits").serving == str(second))  # type: ignore[misc]
        assert (server.table().routes("digits").canary, server.table().routes("digits").shadow) == (None, None)


def test_a_version_that_a_rollback_has_taken_back_is_not_a_canary(
    models: FakeModelStorage, tmp_path: Path, follow: Follow
) -> None:
    first, second = (put(models, tmp_path, number, float(number)) for number in range(2))
    models.promote(first)
    follower, server = follow(canary_share=1.0)
    assert follower.start().canary == Canary(str(second), 1.0)
    models.promote(second)
    models.rollback(RUN)
    eventually(lambda: ask(server).version == str(first))
    third = put(models, tmp_path, 2, 2.0)
    eventually(lambda: ask(server).version == str(third))
    models.refuse_promotion(third, "worse", [])
    eventually(lambda: ask(server).version == str(first))


def test_pinned_versions_answer_while_any_version_serves(models: FakeModelStorage, tmp_path: Path, follow: Follow) -> None:
    first, second, third, fourth = (put(models, tmp_path, number, float(number)) for number in range(4))
    follower, server = follow(pinned=(first, second))
    follower.start()
    for serving in (second, third, first, fourth):
        models.promote(serving)
        eventually(lambda serving=serving: ask(server).version == str(serving))  # type: ignore[misc]
    for version in (first, second, fourth):
        assert ask(server, str(version)).version == str(version)
    server.swap(VersionName("digits", str(third)))
    models.promote(first)
    eventually(lambda: sorted(server.table().routes("digits").versions) == [str(first), str(second), str(third)])
    with pytest.raises(NotFoundError, match=f"has no version {fourth} that is loaded.*pin it with `modyn serve --pin {fourth}`"):
        ask(server, str(fourth))
    follower, server = follow(pinned=(99, second))  # 99 was removed from model storage since
    follower.start()
    assert ask(server, str(second)).version == str(second)


def test_a_version_that_cannot_be_loaded_leaves_the_one_before(models: FakeModelStorage, tmp_path: Path, follow: Follow) -> None:
    first = put(models, tmp_path, 0, 1.0)
    follower, server = follow()
    follower.start()
    broken = put(models, tmp_path, 1, 2.0, {"input_size": 3, "num_classes": 3})  # its weights do not fit
    eventually(lambda: follower._failed[0] == ServingPlan(str(broken)))
    assert ask(server).version == str(first)
    third = put(models, tmp_path, 2, 3.0)
    eventually(lambda: ask(server).version == str(third))


def test_the_serving_version_answers_while_model_storage_is_away(
    models: FakeModelStorage, tmp_path: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put(models, tmp_path, 0, 1.0)
    follower, server = follow()
    follower.start()

    def away(_: RunId) -> CurrentVersions:
        raise UnavailableError("model storage is away")

    monkeypatch.setattr(models, "current", away)
    eventually(lambda: follower._away)
    assert ask(server).version == str(first)
    monkeypatch.undo()
    second = put(models, tmp_path, 1, 2.0)
    eventually(lambda: ask(server).version == str(second))


def test_a_model_that_does_not_say_its_inputs_needs_them_in_the_settings(
    models: FakeModelStorage, tmp_path: Path, follow: Follow
) -> None:
    put(models, tmp_path, 0, 1.0)
    follower, _ = follow(inputs=("3",))
    with pytest.raises(ConfigError, match="correct serving.inputs, or --input"):
        follower.start()
