"""The supervisor over a real socket: everything that the client returns is what the service knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modyn.config.system import Endpoint, SystemConfig
from modyn.db.engine import open_database
from modyn.errors import ConfigError, NotFoundError
from modyn.proto import supervisor_pb2_grpc
from modyn.rpc.server import Registration, start_server
from modyn.supervisor.client import EventKind, RunMode, RunOptions, SupervisorClient
from modyn.supervisor.events import EventHub
from modyn.supervisor.journal import Journal
from modyn.supervisor.queue import RunQueue
from modyn.supervisor.service import SupervisorService
from modyn.supervisor.states import RunState, TriggerState
from modyn.testing.fake_supervisor import FakeSupervisor
from modyn.testing.services import InMemoryServices, pipeline_yaml

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
    database = open_database(system_config, "supervisor", "modyn.supervisor.migrations")
    hub = EventHub()
    runs = RunQueue(Journal(database, hub.committed), hub, services.clients, system_config.supervisor)
    service = SupervisorService(runs, hub)
    endpoint = Endpoint(address=f"unix:{tmp_path}/s.sock")
    registration = Registration(supervisor_pb2_grpc.add_SupervisorServicer_to_server, service, "modyn.Supervisor")
    server = start_server("supervisor", endpoint, [registration])
    with SupervisorClient(endpoint) as client:
        yield client
    server.stop(0)
    runs.close()
    database.close()


def test_a_run_over_the_wire(client: SupervisorClient) -> None:
    assert client.validate(pipeline_yaml(), "p.yaml") == []
    options = RunOptions(RunMode.EXPERIMENT, from_timestamp=-5, max_triggers=2)
    submitted = client.submit(pipeline_yaml(evaluation=EVALUATION), "p.yaml", options)
    events = list(client.watch(submitted.run_id))
    run = client.run(submitted.run_id)
    assert run == client.runs()[0]
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
    assert kept[-1].detail == {"state": "finished"}
    assert [event.trigger_id for event in kept if event.kind is EventKind.TRIGGER_FIRED] == [0, 1]
    assert {event.detail["step"] for event in kept if event.kind is EventKind.STEP} == {"select", "train", "evaluate"}
    assert next(event.seq for event in client.watch(run.run_id, after_seq=3)) == 4
    triggers = client.triggers(run.run_id)
    assert [(t.trigger_id, t.position, t.model_id, t.parent_model_id, t.num_keys) for t in triggers] == [
        (0, 10, 1, None, 10),
        (1, 20, 2, 1, 10),
    ]
    assert triggers[0].state is TriggerState.TRAINED
    assert triggers[0].training_result["num_samples"] == 10
    assert triggers[0].seconds["total"] > 0
    assert client.evaluate(run.run_id, ["h"]).state is not RunState.FAILED
    list(client.watch(run.run_id, after_seq=kept[-1].seq))
    assert client.run(run.run_id).state is RunState.FINISHED


def test_stop_and_resume_over_the_wire(client: SupervisorClient) -> None:
    run = client.submit(pipeline_yaml(), "p.yaml", RunOptions(RunMode.PRODUCTION))
    events = client.watch(run.run_id)
    while next(events).detail.get("state") != "waiting_for_data":
        pass
    client.stop(run.run_id)
    assert [event.detail["state"] for event in events if event.kind is EventKind.RUN_STATE] == ["stopping", "stopped"]
    assert client.resume(run.run_id).state is RunState.SUBMITTED
    client.stop(run.run_id)
    list(client.watch(run.run_id))
    assert client.run(run.run_id).state is RunState.STOPPED


def test_errors_keep_their_class(client: SupervisorClient) -> None:
    calls: list[Callable[[str], object]] = [
        client.run,
        client.stop,
        client.resume,
        client.evaluate,
        client.triggers,
        lambda run_id: list(client.watch(run_id)),
    ]
    for call in calls:
        with pytest.raises(NotFoundError, match="there is no run 'nope'"):
            call("nope")
    with pytest.raises(ConfigError, match="p.yaml:"):
        client.submit("pipeline: {name: x}", "p.yaml", RunOptions(RunMode.EXPERIMENT))
    assert {"DataAmountTrigger", "TimeTrigger", "SlicingEvalStrategy"} <= {plugin.id for plugin in client.plugins()}


def test_the_fake_has_the_methods_of_the_client_and_tells_the_same_story(client: SupervisorClient) -> None:
    public = {name for name in dir(SupervisorClient) if not name.startswith("_")}
    assert public <= set(dir(FakeSupervisor))
    fake = FakeSupervisor()
    stories = []
    for supervisor in (client, fake):
        run = supervisor.submit(pipeline_yaml(evaluation=EVALUATION), "p.yaml", RunOptions(RunMode.EXPERIMENT))
        events = [event for event in supervisor.watch(run.run_id) if event.seq and event.detail.get("step") != "evaluate"]
        stories.append([(event.kind, event.trigger_id, event.detail.get("state"), set(event.detail)) for event in events])
        assert supervisor.run(run.run_id).state is RunState.FINISHED
    assert stories[0] == stories[1]
