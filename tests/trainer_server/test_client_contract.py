"""Contract of every client of the trainer server: the real client with its service, and the fake that tests of its callers use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from modyn.errors import ConfigError, DataError, InvalidArgumentError, NotFoundError
from modyn.records import JobState, RunId
from modyn.testing.fakes import FakeTrainerServer
from modyn.testing.waiting import eventually
from modyn.trainer_server.client import TrainerServerClient, TrainingRequest, TrainingResult, TrainingStatus
from tests.support.training_service import RUN, training_service

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

HERE = Path(__file__).parent
RESULT = {"num_samples": 10, "num_batches": 2, "loss": 0.25, "losses": [[1, 0.75]], "seconds": {"load": 0.1}}


@dataclass
class Site:
    """A client, and what makes trainings behave: `act` of the section `training`, as `trainer_tasks.pretend` reads it."""

    client: TrainerServerClient
    made: Callable[[], list[int]]
    """The triggers whose training began, in order."""
    stored: Callable[[int], None]
    """Make the model of a trigger known to model storage."""
    hold: Callable[[int], Mapping[str, Any]]
    """Options of a training that runs until it is stopped."""
    options: Mapping[str, Any]

    def request(self, trigger_id: int = 0, act: str = "succeed", **options: Any) -> TrainingRequest:
        training = {"act": act, **self.options, **options}
        return TrainingRequest(RUN, trigger_id, {"model": {}, "training": training, "data": {}})

    def final(self, trigger_id: int = 0) -> TrainingStatus:
        *before, last = self.client.watch(RUN, trigger_id)
        states = [status.state for status in (*before, last)]
        assert states == sorted(states, key=list(JobState).index)
        assert [state.is_final for state in states] == [False] * len(before) + [True]
        return last


def pretend(request: TrainingRequest) -> tuple[int, str, Mapping[str, Any]]:
    """Do what the task of the same name does, without a worker."""
    act = request.pipeline["training"]["act"]
    if act == "fail":
        raise DataError("record 3 is short")
    if act == "train nothing":
        return 0, "", {"num_samples": 0, "nothing_trained": "no whole batch"}
    return 100 + request.trigger_id, "0" * 64, RESULT


@pytest.fixture(params=["service", "fake"])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    if request.param == "fake":
        fake = FakeTrainerServer(pretend)

        def hold(trigger_id: int) -> Mapping[str, Any]:
            fake.held.add((RUN, trigger_id))
            return {"act": "wait"}

        client = cast("TrainerServerClient", fake)
        yield Site(client, lambda: [r.trigger_id for r in fake.requests], lambda trigger_id: None, hold, {})
        return
    monkeypatch.syspath_prepend(HERE)
    with training_service(tmp_path) as room:
        options = {"mark": str(tmp_path / "marks")}
        yield Site(
            room.client,
            room.marks,
            lambda trigger_id: room.stored.add(trigger_id, 100 + trigger_id),
            lambda _: {"act": "wait"},
            options,
        )


def test_the_fake_lacks_no_call() -> None:
    assert [name for name in vars(TrainerServerClient) if name[0] != "_" and name not in vars(FakeTrainerServer)] == []


def test_a_training_is_started_watched_and_made_once(site: Site) -> None:
    begun = site.client.start(site.request(3))
    assert (begun.run_id, begun.trigger_id, begun.error) == (RUN, 3, "")
    last = site.final(3)
    assert (last.state, last.model_id, last.weights_sha256) == (JobState.FINISHED, 103, "0" * 64)
    assert (last.samples_seen, last.samples_total, last.batches_seen, last.loss) == (10, 10, 2, 0.25)
    assert last.result == TrainingResult.from_mapping(RESULT)
    assert last.result.nothing_trained == ""
    assert site.final(3) == last
    site.stored(3)
    again = site.client.start(site.request(3))
    assert (again.state, again.model_id, again.samples_seen) == (JobState.FINISHED, 103, 10)
    assert site.made() == [3]


def test_turns_by_a_score_need_one_that_is_decided(site: Site) -> None:
    loss = {"strategy": "Loss", "ratio": 50}
    by_score = {"downsampling_list": [loss, loss], "downsampling_thresholds": {"values": [0.5]}, "warmup_triggers": 1}
    by_number = {**by_score, "downsampling_thresholds": [3]}
    plain = site.request(3)
    for selection, turn, message in (
        (
            by_score,
            None,
            "turns depend on a score, and trigger 3 has no downsampling_turn: .* set downsampling_turn, a position in downsampling_list from 0 to 1",
        ),
        (by_score, 2, "downsampling_turn 2 of trigger 3 is wrong: give a position in downsampling_list from 0 to 1"),
        (by_number, 1, "downsampling_turn 1 is given for trigger 3, but no turn depends on a score"),
    ):
        pipeline = {**plain.pipeline, "selection_strategy": selection}
        with pytest.raises(InvalidArgumentError, match=f"selection_strategy.downsampling_thresholds: {message}"):
            site.client.start(replace(plain, pipeline=pipeline, downsampling_turn=turn))
    assert site.made() == []
    pipeline = {**plain.pipeline, "selection_strategy": by_score}
    site.client.start(replace(plain, pipeline=pipeline, downsampling_turn=1))
    site.client.start(replace(plain, trigger_id=0, pipeline=pipeline))
    assert site.final(3).state is site.final(0).state is JobState.FINISHED


def test_a_training_that_makes_no_model_is_finished_and_says_why(site: Site) -> None:
    site.client.start(site.request(act="train nothing"))
    last = site.final()
    assert (last.state, last.model_id, last.weights_sha256) == (JobState.FINISHED, None, "")
    assert (last.result.nothing_trained, last.loss) == ("no whole batch", None)
    site.client.start(site.request(act="train nothing"))
    assert site.final().result.nothing_trained == "no whole batch"


def test_a_failed_training_says_why_and_can_be_tried_again(site: Site) -> None:
    site.client.start(site.request(act="fail"))
    failed = site.final()
    assert (failed.state, failed.error_reason, failed.model_id) == (JobState.FAILED, "DATA", None)
    assert "record 3 is short" in failed.error
    assert type(failed.to_error()) is DataError
    site.client.start(site.request())
    assert site.final().state is JobState.FINISHED
    assert site.made() == [0, 0]


def test_a_training_that_runs_is_not_started_again_and_stops(site: Site) -> None:
    waiting = site.request(**site.hold(0))
    assert not site.client.start(waiting).state.is_final
    assert not site.client.start(waiting).state.is_final
    site.client.stop(RUN, 0)
    stopped = site.final()
    assert (stopped.state, stopped.error_reason) == (JobState.STOPPED, "CANCELLED")
    site.client.stop(RUN, 0)
    assert site.final() == stopped
    assert len(site.made()) <= 1


def test_a_stopped_training_can_be_started_again(site: Site) -> None:
    site.client.start(site.request(**site.hold(0)))
    site.client.stop(RUN, 0)
    assert site.final().state is JobState.STOPPED
    site.client.start(site.request())
    eventually(lambda: site.final().state is JobState.FINISHED)


def test_what_was_not_started_is_not_found(site: Site) -> None:
    with pytest.raises(NotFoundError, match=r"no training of run digits-0001, trigger 5.*start it first"):
        site.final(5)
    with pytest.raises(NotFoundError, match="start it first"):
        site.client.stop(RUN, 5)


@pytest.mark.parametrize(("run_id", "trigger_id"), [("", 0), ("../x", 0), (".x", 0), ("ok", -1)])
def test_a_request_that_names_no_training_is_refused(site: Site, run_id: str, trigger_id: int) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot name a run|names no training"):
        site.client.start(TrainingRequest(RunId(run_id), trigger_id, {"model": {}, "training": {}, "data": {}}))
    assert site.made() == []


def test_a_pipeline_without_the_sections_of_a_training_is_refused(site: Site) -> None:
    with pytest.raises(ConfigError, match="no section model and no section data"):
        site.client.start(TrainingRequest(RUN, 0, {"training": {}}))
    assert site.made() == []


def test_a_run_that_is_deleted_is_forgotten(site: Site) -> None:
    site.client.start(site.request())
    site.final()
    site.client.delete_run(RUN)
    site.client.delete_run(RUN)
    with pytest.raises(NotFoundError, match="start it first"):
        site.final()
    with pytest.raises(InvalidArgumentError, match="cannot name a run"):
        site.client.delete_run("../x")
