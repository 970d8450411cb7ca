"""The supervisor over a real socket: everything that the client returns is what the service knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from modyn.config.system import SystemConfig
from modyn.errors import ConfigError, NotFoundError, UnavailableError
from modyn.proto import supervisor_pb2
from modyn.records import JobState, ServingLoad, VersionRole, VersionUse
from modyn.supervisor.client import RunEvent, RunMode, RunOptions, ServedVersion, ServingStatus, StateChange, SupervisorClient
from modyn.supervisor.journal.run_events import Step
from modyn.supervisor.journal.states import RunState, TriggerState
from modyn.supervisor.service import SupervisorService
from modyn.testing.services import InMemoryServices, pipeline_yaml
from modyn.testing.waiting import eventually
from modyn.trainer_server.client import TrainingRequest
from tests.support.running_supervisor import serve_supervisor

STRATEGY = {"type": "SlicingEvalStrategy", "eval_every": "10s", "eval_start_from": 0, "eval_end_at": 20}
EVALUATION = {
    "datasets": [{"dataset_id": "train", "metrics": [{"name": "Accuracy"}]}],
    "handlers": [{"name": "h", "execution_time": "after_training", "datasets": ["train"], "strategy": STRATEGY}],
}


@pytest.fixture
def client(system_config: SystemConfig, tmp_path: Path) -> Iterator[SupervisorClient]:
    services = InMemoryServices(tmp_path)
    services.storage.add_dataset("train")
    services.storage.add_samples("train", timestamps=range(25))
    with serve_supervisor(services, system_config) as client:
        yield client


def test_a_run_over_the_wire(client: SupervisorClient) -> None:
    assert client.validate(pipeline_yaml(), "p.yaml") == []
    options = RunOptions(RunMode.EXPERIMENT, from_timestamp=-5, max_triggers=2, final_trigger=True, tags=["a", "b"])
    submitted = client.submit(pipeline_yaml(evaluation=EVALUATION), "p.yaml", options)
    events = list(client.watch(submitted.run_id))
    run = client.run(submitted.run_id)
    assert run == client.runs(with_pipelines=True)[0]
    assert run.final_trigger
    assert run.tags == ("a", "b")
    assert client.checks(run.run_id) == []
    assert (run.state, run.mode, run.from_timestamp, run.to_timestamp, run.max_triggers) == (
        RunState.FINISHED,
        RunMode.EXPERIMENT,
        -5,
        None,
        2,
    )
    assert run.pipeline["training"]["seed"] == 7
    assert run.finished_at is not None
    kept = [event for event in events if event.seq]
    assert [event.seq for event in kept] == list(range(1, len(kept) + 1))
    assert kept[-1].detail == StateChange(RunState.FINISHED)
    assert [event.trigger_id for event in kept if event.kind == "trigger_fired"] == [0, 1]
    assert {event.detail.step for event in kept if isinstance(event.detail, Step)} == {"select", "train", "evaluate"}
    assert next(event.seq for event in client.watch(run.run_id, after_seq=3)) == 4
    triggers = client.triggers(run.run_id)
    assert [(t.trigger_id, t.position, t.model_id, t.parent_model_id, t.num_keys) for t in triggers] == [
        (0, 10, 1, None, 10),
        (1, 20, 2, 1, 10),
    ]
    assert triggers[0].state is TriggerState.TRAINED
    assert triggers[0].training_result.counts.num_samples == 10
    assert triggers[0].seconds["total"] > 0
    request = client.evaluate(run.run_id, ["h"])
    told = [event.kind for event in client.watch(run.run_id, request.after_seq, request.number) if event.seq]
    assert told == [*["step"] * (len(told) - 1), "message"]
    assert client.evaluation(run.run_id, request.number).state is JobState.FINISHED
    assert client.run(run.run_id).state is RunState.FINISHED
    assert client.finish(run.run_id).state is RunState.FINISHED


def test_what_is_served_is_seen_by_watchers_and_kept(client: SupervisorClient) -> None:
    run_id = client.submit(pipeline_yaml(), "p.yaml", RunOptions(RunMode.PRODUCTION)).run_id
    assert (client.serving(run_id).num_servers, client.served(run_id)) == (0, [])
    began, use = time.time(), VersionUse(17, VersionRole.SERVING, 100.0, {8184: 3})
    seen = list[RunEvent]()

    def watch() -> None:
        seen.extend(event for event in client.watch(run_id) if event.kind == "serving")

    def report() -> bool:
        client.report_load(run_id, "one", ServingLoad(10.0, 0.1, 0.5), [use, VersionUse(18, VersionRole.SHADOW, 0.0, {})])
        client.report_load(run_id, "two", ServingLoad(5.0, 0.1, 0.25), [VersionUse(16, VersionRole.PINNED, None, {8000: 1})])
        return bool(seen)

    watching = threading.Thread(target=watch)
    watching.start()
    eventually(report)  # the first ones may come before the watcher does
    client.stop(run_id)
    watching.join()
    status = client.serving(run_id)
    assert (status.rate, status.p99_s, status.num_servers) == (15.0, 0.5, 2)
    assert [(version.model_id, version.role) for version in status.versions] == [(17, "serving"), (18, "shadow")]
    assert began - 100 <= status.versions[0].since <= time.time() - 100
    assert isinstance(status.versions[0], ServedVersion)
    assert isinstance(seen[0].detail, ServingStatus)
    found = client.served(run_id)
    requests = {role: sum(served.num_requests for served in found if served.role == role) for role in VersionRole}
    reports = requests[VersionRole.PINNED]
    assert requests == {"serving": 3 * reports, "canary": 0, "shadow": 0, "pinned": reports}
    assert {(served.model_id, served.role) for served in found} == {(17, "serving"), (18, "shadow"), (16, "pinned")}
    assert found[0].latencies.keys() == {8000}
    with pytest.raises(NotFoundError, match="there is no run 'never-0001'"):
        client.serving("never-0001")


def test_no_answer_passes_the_message_limit(system_config: SystemConfig, tmp_path: Path) -> None:
    services = InMemoryServices(tmp_path)
    services.storage.add_dataset("train")
    services.storage.add_samples("train", timestamps=range(50))
    train = services.trainer_server.train

    def with_losses(request: TrainingRequest) -> tuple[int, str, Mapping[str, Any]]:
        model_id, digest, result = train(request)
        return model_id, digest, {**result, "losses": [[1, 0.125]] * 2000, "epoch_losses": [0.125] * 500}

    services.trainer_server.train = with_losses
    small = system_config.supervisor.model_copy(update={"max_message_bytes": 2**16})
    with serve_supervisor(services, system_config.model_copy(update={"supervisor": small})) as client:
        long = pipeline_yaml() + "\n# " + 20_000 * "x"
        for _ in range(4):
            run = client.submit(long, "p.yaml", RunOptions(RunMode.EXPERIMENT))
        list(client.watch(run.run_id))
        assert len(client.runs()) == 4
        assert [run.yaml for run in client.runs(with_pipelines=True)] == 4 * [long]
        assert {run.yaml for run in client.runs()} == {""}
        triggers = client.triggers(run.run_id)
        assert [len(t.training_result.losses.batch_losses) for t in triggers] == 5 * [2000]
        assert client.triggers(run.run_id, 3) == triggers[3:]
        losses = client.triggers(run.run_id, with_losses=False)[0].training_result.losses
        assert (losses.batch_losses, losses.epoch_losses) == ((), ())


def test_stop_and_resume_over_the_wire(client: SupervisorClient) -> None:
    run = client.submit(pipeline_yaml(), "p.yaml", RunOptions(RunMode.PRODUCTION))
    events = client.watch(run.run_id)
    while next(events).detail != StateChange(RunState.WAITING_FOR_DATA):
        pass
    client.stop(run.run_id)
    assert [event.detail.state for event in events if isinstance(event.detail, StateChange)] == ["stopping", "stopped"]
    assert client.resume(run.run_id).state is RunState.SUBMITTED
    client.stop(run.run_id)
    list(client.watch(run.run_id))
    assert client.run(run.run_id).state is RunState.STOPPED


class LosesAnswer(SupervisorService):
    """The answer to the first submission gets lost."""

    lost = False

    def Submit(self, request: supervisor_pb2.SubmitRequest, context: grpc.ServicerContext) -> supervisor_pb2.Run:
        run = super().Submit(request, context)
        if not self.lost:
            self.lost = True
            raise UnavailableError("the connection broke")
        return run


def test_a_submission_whose_answer_gets_lost_starts_one_run(system_config: SystemConfig, tmp_path: Path) -> None:
    services = InMemoryServices(tmp_path)
    services.storage.add_dataset("train")
    services.storage.add_samples("train", timestamps=range(25))
    with serve_supervisor(services, system_config, LosesAnswer) as client:
        submitted = [client.submit(pipeline_yaml(), "p.yaml", RunOptions(RunMode.EXPERIMENT)).run_id for _ in range(2)]
        assert [run.run_id for run in client.runs()] == submitted, "and each further call makes another one"


def test_errors_keep_their_class(client: SupervisorClient) -> None:
    calls: list[Callable[[str], object]] = [
        client.run,
        client.stop,
        client.resume,
        client.evaluate,
        client.triggers,
        client.checks,
        lambda run_id: list(client.watch(run_id)),
    ]
    for call in calls:
        with pytest.raises(NotFoundError, match="there is no run 'nope'"):
            call("nope")
    with pytest.raises(ConfigError, match="p.yaml:"):
        client.submit("pipeline: {name: x}", "p.yaml", RunOptions(RunMode.EXPERIMENT))
    assert {"DataAmountTrigger", "TimeTrigger", "SlicingEvalStrategy"} <= {plugin.id for plugin in client.plugins()}
