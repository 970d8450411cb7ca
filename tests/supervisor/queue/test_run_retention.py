"""Retention: what has outlived its limits goes, what is needed stays, and by default nothing goes."""

from __future__ import annotations

import time

import pytest

from modyn.config.system_sections.retention import RetentionConfig
from modyn.errors import CorruptStateError
from modyn.records import VersionRole, VersionUse
from modyn.supervisor.queue.queue import RunQueue
from modyn.supervisor.queue.removal import RunRemoval
from modyn.supervisor.queue.run_retention import Retention
from modyn.supervisor.served.history import ServedHistory
from modyn.testing.fakes import FakeModelStorage
from modyn.testing.services import InMemoryServices, pipeline_yaml, wait_until_terminal
from tests.support.runs import finish, live_run


class Stuck(FakeModelStorage):
    """Model 1 cannot be deleted."""

    def delete(self, model_id: int, *, even_promoted: bool = False) -> None:
        if model_id == 1:
            raise CorruptStateError("the file of model 1 cannot be removed")
        super().delete(model_id, even_promoted=even_promoted)


def sweep(runs: RunQueue, services: InMemoryServices, **limits: object) -> None:
    clients = services.clients()
    config = RetentionConfig.model_validate(limits)
    Retention(runs.journal, RunRemoval(runs.journal, clients), clients.model_storage, config).sweep()


def names(runs: RunQueue) -> list[str]:
    return [run.run_id for run in runs.journal.runs()]


def models(services: InMemoryServices) -> list[int]:
    return [info.version.model_id for info in services.model_storage.list()]


def test_runs_and_models_go_by_number_and_age_but_not_those_that_are_needed(runs: RunQueue, services: InMemoryServices) -> None:
    for _ in range(3):
        finish(runs)
    live = live_run(runs).run_id
    sweep(runs, services)
    assert (names(runs), models(services)) == (["test-0001", "test-0002", "test-0003", live], list(range(1, 13)))
    sweep(runs, services, runs_max_number=2)
    assert (names(runs), models(services)) == (["test-0002", "test-0003", live], list(range(4, 13)))
    sweep(runs, services, models_max_number=2)
    assert models(services) == [5, 6, 8, 9, 11, 12], "of each run; an active one needs no more, since it evaluates none"
    sweep(runs, services, runs_max_age_d=1e-9)
    assert (names(runs), models(services)) == ([live], [11, 12])
    runs.finish(live)
    wait_until_terminal(runs, live)
    sweep(runs, services, models_max_bytes=services.model_storage.describe(12).version.num_bytes)
    assert models(services) == [12]


DAY = 86_400.0


def finished(runs: RunQueue, **sections: object) -> str:
    return finish(runs, pipeline_yaml(**sections)).run_id


def test_models_that_a_pipeline_pins_or_that_serve_next_stay(runs: RunQueue, services: InMemoryServices) -> None:
    finished(runs)
    services.model_storage.promote(2, "test-0001")
    finished(runs, serving={"pinned": [1]})
    sweep(runs, services, models_max_age_d=1e-9)
    assert models(services) == [1, 2, 6], "pinned, promoted, and the newest one of a run that is served"
    sweep(runs, services, models_max_bytes=0)
    assert models(services) == [1, 2, 6]
    sweep(runs, services, runs_max_number=0)
    assert (names(runs), models(services)) == (["test-0001"], [1, 2]), "the run that pinned is gone, and its model with it"
    sweep(runs, services, models_max_age_d=1e-9)
    assert models(services) == [2], "nothing pins model 1 any more"


def test_a_run_stays_for_a_model_that_another_one_pins(runs: RunQueue, services: InMemoryServices) -> None:
    finished(runs)
    pins = finished(runs, serving={"pinned": [1]})
    sweep(runs, services, runs_max_number=1)
    assert (names(runs), models(services)) == (["test-0001", pins], [1, 2, 3, 4, 5, 6])
    sweep(runs, services, runs_max_number=0)
    sweep(runs, services, runs_max_number=0)
    assert (names(runs), models(services)) == ([], [])


def test_models_that_servers_reported_last_stay(runs: RunQueue, services: InMemoryServices) -> None:
    run_id, now = finished(runs), time.time()

    def report(age_s: float, **models: int) -> None:
        history = ServedHistory(runs.journal, lambda: now - age_s)
        history.add(run_id, [VersionUse(model_id, VersionRole(role), None, {}) for role, model_id in models.items()])
        history.flush()

    report(3600, canary=3)
    report(90, serving=2)
    report(10, serving=3, pinned=1)
    sweep(runs, services, models_max_age_d=1e-9, runs_max_number=0)
    assert (names(runs), models(services)) == ([run_id], [1, 3]), "2 serves no more"


def test_a_server_that_has_reported_nothing_for_a_week_keeps_nothing(runs: RunQueue, services: InMemoryServices) -> None:
    history = ServedHistory(runs.journal, lambda: time.time() - 8 * DAY)
    history.add(finished(runs), [VersionUse(1, VersionRole.SERVING, None, {})])
    history.flush()
    sweep(runs, services, models_max_age_d=1e-9)
    assert models(services) == []


def test_models_that_are_to_be_evaluated_stay_until_they_are(runs: RunQueue, services: InMemoryServices) -> None:
    strategy = {"type": "SlicingEvalStrategy", "eval_every": "10s", "eval_start_from": 0, "eval_end_at": 20}
    handler = {"name": "h", "execution_time": "after_pipeline", "datasets": ["train"], "strategy": strategy}
    evaluation = {"datasets": [{"dataset_id": "train", "metrics": [{"name": "Accuracy"}]}], "handlers": [handler]}
    run = live_run(runs, pipeline_yaml(evaluation=evaluation))
    sweep(runs, services, models_max_number=1)
    assert models(services) == [1, 2, 3]
    runs.finish(run.run_id)
    assert wait_until_terminal(runs, run.run_id).failed_evaluations == 0
    assert {result.model_id for result in services.evaluator.results(run.run_id)} == {1, 2, 3}
    sweep(runs, services, models_max_number=1)
    assert models(services) == [3]


def test_a_sweep_continues_with_a_removal_that_was_cut_off(runs: RunQueue, services: InMemoryServices) -> None:
    run = finish(runs)
    with runs.journal.write(run.run_id) as write:
        write.changes["removing"] = True
    sweep(runs, services)
    assert (names(runs), models(services)) == ([], [])


def test_a_removal_that_fails_holds_up_no_other(runs: RunQueue, services: InMemoryServices) -> None:
    services.model_storage = Stuck()
    for _ in range(3):
        finish(runs)
    with pytest.raises(CorruptStateError, match="model 1"):
        sweep(runs, services, runs_max_number=1, models_max_number=1)
    assert (names(runs), models(services)) == (["test-0001", "test-0003"], [1, 9])
