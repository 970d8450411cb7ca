"""Removing runs and models: nothing is left in any service, a removal that was cut off continues, and what is needed is refused."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import func, select

from modyn.config.system import SystemConfig
from modyn.errors import ConflictError, NotFoundError, UnavailableError
from modyn.evaluator.client import EvaluationRequest
from modyn.records import VersionRole, VersionUse
from modyn.serving.observations.waiting_log import WaitingLog
from modyn.state_folders import serving_dir
from modyn.supervisor.evaluation.on_request import EvaluationOrder
from modyn.supervisor.journal.records import Run, RunMode, RunOptions
from modyn.supervisor.journal.states import RunState
from modyn.supervisor.journal.tables import METADATA
from modyn.supervisor.queue.queue import RunQueue
from modyn.supervisor.queue.removal import RunRemoval
from modyn.supervisor.served.history import ServedHistory
from modyn.supervisor.served.loads import ServedLoads
from modyn.supervisor.services.run_clients import RunClients, open_clients
from modyn.testing.fakes import FakeModelStorage
from modyn.testing.services import InMemoryServices, pipeline_yaml, wait_until_terminal
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.runs import live_run, stop

STRATEGY = {"type": "SlicingEvalStrategy", "eval_every": "10s", "eval_start_from": 0, "eval_end_at": 20}
EVALUATION = {
    "datasets": [{"dataset_id": "train", "metrics": [{"name": "Accuracy"}]}],
    "handlers": [{"name": "h", "execution_time": "after_training", "datasets": ["train"], "strategy": STRATEGY}],
}


class Reluctant:
    """A client in front of another one; its call `name` fails until `failures` are used up."""

    def __init__(self, client: object, name: str) -> None:
        self._client, self._name, self.failures = client, name, 1

    def __getattr__(self, name: str) -> object:
        if name == self._name and self.failures:
            self.failures -= 1
            raise UnavailableError(f"{name} cannot be reached")
        return getattr(self._client, name)


class Counting:
    """Passes calls on to an object and counts them."""

    def __init__(self, counted: object) -> None:
        self._counted, self.calls = counted, Counter[str]()

    def __getattr__(self, name: str) -> object:
        self.calls[name] += 1
        return getattr(self._counted, name)


class PromotedMeanwhile(FakeModelStorage):
    """Each version is promoted just before it is deleted."""

    def delete(self, model_id: int, *, even_promoted: bool = False) -> None:
        self.promote(model_id)
        super().delete(model_id, even_promoted=even_promoted)


def submit(runs: RunQueue, mode: RunMode = RunMode.EXPERIMENT, **training: object) -> Run:
    sections = {"training": {"use_previous_model": True, "seed": 7, "batch_size": 4, **training}} if training else {}
    return runs.submit(pipeline_yaml(evaluation=EVALUATION, **sections), "p.yaml", RunOptions(mode))


def finished(runs: RunQueue) -> Run:
    return wait_until_terminal(runs, submit(runs).run_id)


def rows_of(runs: RunQueue, run_id: str) -> int:
    with runs.journal.database.session() as session:
        tables = [table for table in METADATA.tables.values() if "run_id" in table.c]
        return sum(session.scalar(select(func.count()).select_from(t).where(t.c.run_id == run_id)) or 0 for t in tables)


def left(runs: RunQueue, services: InMemoryServices, run: Run) -> list[object]:
    """Return the data of a run that the services still have."""
    found: list[object] = [*services.model_storage.list(run.run_id), *services.evaluator.results(run.run_id)]
    return [*found, *([run.run_id] if run.run_id in services.selector.runs else []), *range(rows_of(runs, run.run_id))]


def test_nothing_of_a_run_is_left_and_its_name_is_not_given_again(runs: RunQueue, services: InMemoryServices) -> None:
    other, run = finished(runs), finished(runs)
    history = ServedHistory(runs.journal)
    for served in (other, run):
        history.add(served.run_id, [VersionUse(1, VersionRole.SERVING, 1.0, {8184: 1})])
    history.flush()
    untouched = len(left(runs, services, other))
    runs.remove(run.run_id)
    assert left(runs, services, run) == []
    assert len(left(runs, services, other)) == untouched
    history.add(run.run_id, [VersionUse(1, VersionRole.SERVING, 1.0, {8184: 1})])  # A server that continues.
    history.flush()
    assert left(runs, services, run) == []
    with pytest.raises(NotFoundError):
        runs.remove(run.run_id)
    assert finished(runs).run_id == "test-0003"


def test_what_waits_for_labels_goes_with_its_run_once_its_server_has_ended(
    runs: RunQueue, services: InMemoryServices, system_config: SystemConfig
) -> None:
    run = finished(runs)
    with closing(open_clients(system_config, ServedLoads())) as opened:
        folder = opened.serving_dir
    assert folder is not None
    removal = RunRemoval(runs.journal, replace(services.clients(), serving_dir=folder))
    of_run, of_another = (WaitingLog(serving_dir(system_config.state_dir) / name / "a1") for name in (run.run_id, "another-0001"))
    of_another.close()
    with pytest.raises(ConflictError, match=f"stop `modyn serve {run.run_id}`"):
        removal.remove_run(run.run_id)
    assert services.model_storage.list(run.run_id)
    of_run.close()
    removal.remove_run(run.run_id)
    assert [path.name for path in folder.iterdir()] == ["another-0001"]


@pytest.mark.parametrize(
    ("client", "call"),
    [("trainer_server", "delete_run"), ("evaluator", "delete_run"), ("selector", "delete_run"), ("model_storage", "delete")],
)
def test_a_removal_that_was_cut_off_continues(runs: RunQueue, services: InMemoryServices, client: str, call: str) -> None:
    run = finished(runs)
    clients: RunClients = services.clients()
    reluctant: dict[str, Any] = {client: Reluctant(getattr(clients, client), call)}
    removal = RunRemoval(runs.journal, replace(clients, **reluctant))
    with pytest.raises(UnavailableError):
        removal.remove_run(run.run_id)
    assert f"modyn rm {run.run_id}" in runs.journal.run(run.run_id).message
    for verb in (runs.resume, lambda run_id: runs.evaluate(run_id, EvaluationOrder(["h"]))):
        with pytest.raises(ConflictError):
            verb(run.run_id)
    removal.remove_run(run.run_id)
    assert left(runs, services, run) == []


def test_an_active_run_is_not_removed_and_a_stopped_one_is(runs: RunQueue, services: InMemoryServices) -> None:
    run = submit(runs, RunMode.PRODUCTION)
    eventually(lambda: runs.journal.run(run.run_id).state is RunState.WAITING_FOR_DATA)
    with pytest.raises(ConflictError, match=f"modyn stop {run.run_id}"):
        runs.remove(run.run_id)
    newest = services.model_storage.list(run.run_id)[-1].version.model_id
    with pytest.raises(ConflictError, match=f"model {newest} is needed by run {run.run_id}, which is waiting_for_data"):
        runs.remove_model(newest)
    stop(runs, run)
    with pytest.raises(ConflictError, match="is needed by"):
        runs.remove_model(newest)
    runs.remove(run.run_id)
    assert left(runs, services, run) == []


def test_a_model_that_another_run_begins_with_stays(runs: RunQueue, services: InMemoryServices) -> None:
    run = finished(runs)
    model = services.model_storage.list(run.run_id)[0].version.model_id
    later = submit(runs, RunMode.PRODUCTION, use_previous_model=False, initial_model="pretrained", initial_model_id=model)
    with pytest.raises(ConflictError, match=later.run_id):
        runs.remove(run.run_id)
    with pytest.raises(ConflictError, match=later.run_id):
        runs.remove_model(model)
    stop(runs, later)
    runs.remove(later.run_id)
    runs.remove(run.run_id)
    assert left(runs, services, run) == []


def test_a_model_stays_until_its_run_has_evaluated_it(runs: RunQueue, services: InMemoryServices) -> None:
    back = threading.Event()

    def wait_for_data(_: EvaluationRequest) -> str | None:
        return None if back.wait(PATIENCE_S) else "the test has ended"

    services.evaluator.fail = wait_for_data
    run = submit(runs, RunMode.PRODUCTION)
    try:
        eventually(lambda: runs.journal.run(run.run_id).state is RunState.WAITING_FOR_DATA)
        with pytest.raises(ConflictError, match=f"model 1 is still to be evaluated by run {run.run_id} .handler 'h'"):
            runs.remove_model(1)
    finally:
        back.set()
    eventually(lambda: len(runs.journal.evaluated(run.run_id)) == 3)
    runs.remove_model(1)
    assert [info.version.model_id for info in services.model_storage.list(run.run_id)] == [2, 3]


def test_a_refused_model_names_the_first_evaluation_that_is_open(runs: RunQueue, services: InMemoryServices) -> None:
    services.evaluator.fail = lambda _: "the test has no scores"
    handlers = [{"name": name, "execution_time": "after_training", "strategy": STRATEGY, "datasets": ["train"]} for name in "hi"]
    yaml = pipeline_yaml(evaluation={**EVALUATION, "handlers": handlers})
    live_run(runs, yaml)
    with pytest.raises(ConflictError, match="by run .* .handler 'h'"):
        runs.remove_model(1)


def test_the_evaluations_of_a_run_are_planned_once_for_all_of_its_models(runs: RunQueue, services: InMemoryServices) -> None:
    run = submit(runs, RunMode.PRODUCTION)
    eventually(lambda: len(runs.journal.evaluated(run.run_id)) == 3)
    eventually(lambda: runs.journal.run(run.run_id).state is RunState.WAITING_FOR_DATA)
    journal: Any = Counting(runs.journal)
    removal = RunRemoval(journal, services.clients())
    for model in (1, 2):
        removal.remove_model(model)
    assert journal.calls["each_trigger"] == 1
    services.storage.add_samples("train", timestamps=range(35, 45))
    eventually(lambda: len(runs.journal.evaluated(run.run_id)) == 4)
    removal.remove_model(3)
    assert journal.calls["each_trigger"] == 2, "again, once the run has continued"
    assert [info.version.model_id for info in services.model_storage.list(run.run_id)] == [4]


def test_a_model_stays_while_evaluations_of_its_run_are_requested(runs: RunQueue, services: InMemoryServices) -> None:
    run = finished(runs)
    request = runs.journal.request_evaluation(run.run_id, ["h"], None)
    with pytest.raises(ConflictError, match=f"evaluations of run {run.run_id} are under way"):
        runs.remove_model(1)
    runs.journal.end_evaluation(request, [])
    runs.remove_model(1)
    assert [info.version.model_id for info in services.model_storage.list(run.run_id)] == [2, 3]


def test_a_model_that_is_promoted_during_its_removal_stays(runs: RunQueue, services: InMemoryServices) -> None:
    services.model_storage = PromotedMeanwhile()
    run, removal = finished(runs), RunRemoval(runs.journal, services.clients())
    with pytest.raises(ConflictError, match="model 1 is promoted"):
        removal.remove_model(1)
    removal.remove_model(1, even_promoted=True)
    assert [info.version.model_id for info in services.model_storage.list(run.run_id)] == [2, 3]
