"""Simulations over services in memory and a real supervisor: they decide as its runs do, and go on where they were cut off."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from modyn.analysis.results import read_results, scores
from modyn.analysis.simulation import simulate
from modyn.config.system import SystemConfig
from modyn.errors import ConflictError, InvalidArgumentError, NotFoundError
from modyn.evaluator.client import AtPositions, EvaluatorClient, Measured, MeasureRequest, OutputKind, Rows
from modyn.model_storage.client import ModelStorageClient
from modyn.records import Interval, RunId
from modyn.rpc.retry import Retrier, RetryPolicy
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient
from modyn.supervisor.client import Run, RunMode, RunOptions, RunState, SupervisorClient
from modyn.supervisor.run.stream import StreamSource
from modyn.supervisor.simulation.dataset_evidence import SimulatedDataset
from modyn.supervisor.simulation.run_simulation import (
    Simulation,
    SimulationOptions,
    SimulationProgress,
    TrainingSeconds,
    next_piece,
    run_simulation,
)
from modyn.supervisor.triggers import TRIGGERS
from modyn.supervisor.triggers.measures.questions import OutcomeQuestion, ScoreQuestion
from modyn.testing.fake_evidence import FakeEvidence
from modyn.testing.services import InMemoryServices, pipeline_yaml
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.running_supervisor import serve_supervisor
from tests.support.trigger_sections import SECTIONS

HOUR, DAY = 3600, 86_400
NUM_SAMPLES = 240
POLICIES: dict[str, dict[str, Any]] = {
    "amount": {"id": "DataAmountTrigger", "num_samples": 30},
    "time": {"id": "TimeTrigger", "every": "1d"},
}
SLICES = {"type": "SlicingEvalStrategy", "eval_every": "10d", "eval_start_from": 0, "eval_end_at": "1970-02-20"}
EVALUATION = {
    "datasets": [{"dataset_id": "train", "metrics": [{"name": "Accuracy"}]}],
    "handlers": [{"name": "matrix", "execution_time": "after_training", "strategy": SLICES, "datasets": ["train"]}],
}


@dataclass
class Clients:
    storage: StorageClient
    selector: SelectorClient
    supervisor: SupervisorClient
    evaluator: EvaluatorClient
    model_storage: ModelStorageClient


@pytest.fixture
def services(tmp_path: Path) -> InMemoryServices:
    """Some samples, three hours apart, a few of them with the same time, in an order that is not that of their times."""
    services = InMemoryServices(tmp_path)
    services.storage.add_dataset("train")
    rng = np.random.default_rng(5)
    times = rng.permutation(np.repeat(np.arange(NUM_SAMPLES // 2), 2)) * 3 * HOUR
    services.storage.add_samples("train", timestamps=times, labels=rng.integers(0, 3, NUM_SAMPLES))
    of_intervals = services.evaluator.measured

    def measured(request: MeasureRequest) -> Measured:
        """Models err at a part of the samples that depends on their time."""
        if not isinstance(request.source, AtPositions):
            return of_intervals(request)
        stream = services.selector.runs[request.source.run_id].samples
        evidence = FakeEvidence(
            stream, is_error=lambda model, found: (found.keys * 7 + model) % (2 + found.timestamps // DAY % 4) == 0
        )
        asked = (request.model_id, request.source.windows, request.dataset, request.device)
        if request.kind is OutputKind.SCORES:
            return Measured(evidence.ask(ScoreQuestion(*asked)))
        rows = evidence.ask(OutcomeQuestion(*asked))
        return Measured(rows=None if rows is None else Rows.concatenate([rows]))

    services.evaluator.measured = measured
    return services


@pytest.fixture
def clients(services: InMemoryServices, make_config: Callable[..., SystemConfig]) -> Iterator[Clients]:
    config = make_config(supervisor={"stream_batch_size": 64, "patience_s": PATIENCE_S})
    with serve_supervisor(services, config) as supervisor:
        of_run = services.clients()
        yield Clients(of_run.storage, of_run.selector, supervisor, of_run.evaluator, of_run.model_storage)


def finished(clients: Clients, trigger: Mapping[str, Any], **sections: object) -> Run:
    """A run of a pipeline with this trigger, to its end."""
    text = pipeline_yaml(trigger=dict(trigger), **sections)
    run = clients.supervisor.submit(text, "pipeline.yaml", RunOptions(RunMode.EXPERIMENT))
    eventually(lambda: clients.supervisor.run(run.run_id).is_terminal)
    run = clients.supervisor.run(run.run_id)
    assert run.state is RunState.FINISHED, run.error
    return run


def positions(simulation: Simulation) -> dict[str, list[int]]:
    return {name: [trigger.position for trigger in policy.triggers] for name, policy in simulation.policies.items()}


def test_every_policy_has_a_section_to_be_simulated_with() -> None:
    """Add one to tests/support/trigger_sections.py."""
    assert set(TRIGGERS.builtin) <= {section["id"] for section in SECTIONS.values()}


FIRST_OF_EACH = {section["id"]: name for name, section in reversed(SECTIONS.items())}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FIRST_OF_EACH.values() else pytest.mark.slow) for name in SECTIONS]
)
def test_a_simulation_on_a_run_decides_as_the_run_did(clients: Clients, name: str) -> None:
    run = finished(clients, SECTIONS[name])
    fired = clients.supervisor.triggers(run.run_id)
    assert len(fired) > 1 or name == "InitialTrigger", "the section fires too rarely to say anything"
    simulation = run_simulation(clients, {"same": SECTIONS[name], **POLICIES}, SimulationOptions(run_id=run.run_id))
    assert positions(simulation)["same"] == [trigger.position for trigger in fired]
    same = simulation.policies["same"].triggers
    assert [trigger.fired_at for trigger in same] == [trigger.fired_at_timestamp for trigger in fired]
    assert [trigger.num_keys for trigger in same] == [trigger.num_keys for trigger in fired]
    assert [trigger.num_trained for trigger in same] == [trigger.num_trained for trigger in fired]
    assert [trigger.total_s for trigger in same] == [trigger.seconds["total"] for trigger in fired]
    checks = clients.supervisor.checks(run.run_id)
    assert simulation.policies["same"].num_checks == len(checks)


def test_the_samples_of_a_dataset_come_as_in_a_replay(clients: Clients) -> None:
    runs = {name: finished(clients, section) for name, section in POLICIES.items()}
    simulation = run_simulation(clients, POLICIES, SimulationOptions(dataset="train"))
    assert positions(simulation) == {
        name: [trigger.position for trigger in clients.supervisor.triggers(run.run_id)] for name, run in runs.items()
    }
    assert simulation.position == NUM_SAMPLES
    part = run_simulation(clients, POLICIES, SimulationOptions(dataset="train", from_timestamp=24 * HOUR, to_timestamp=48 * HOUR))
    assert part.position == 16


def test_a_given_model_is_that_of_all_triggers(clients: Clients, services: InMemoryServices) -> None:
    section = SECTIONS["DataDriftTrigger"]
    run = finished(clients, section)
    first = len(services.evaluator.drift_requests)
    run_simulation(clients, {"a": section}, SimulationOptions(run_id=run.run_id, model_id=77))
    asked = services.evaluator.drift_requests[first:]
    assert {request.question.model_id for request in asked} == {77}
    assert {request.run_id for request in asked} == {run.run_id}


def test_policies_evaluate_with_the_preprocessing_of_the_run(clients: Clients, services: InMemoryServices) -> None:
    columns = {"format": "csv", "names": ["x"], "columns": {"x": "number"}}
    run = finished(clients, POLICIES["time"], preprocessing={**columns, "components": []})
    answer, requests = services.evaluator.measured, list[MeasureRequest]()

    def measured(request: MeasureRequest) -> Measured:
        requests.append(request)
        return answer(request)

    services.evaluator.measured = measured
    run_simulation(clients, {"a": SECTIONS["PerformanceTrigger"]}, SimulationOptions(run_id=run.run_id))
    assert requests
    assert all(request.dataset["preprocessing"] == columns for request in requests)


def test_policies_that_ask_the_same_are_answered_once(clients: Clients, services: InMemoryServices) -> None:
    section = SECTIONS["DataDriftTrigger"]
    run = finished(clients, section)
    of_run = len(services.evaluator.drift_requests)
    run_simulation(clients, {f"{number}": section for number in range(20)}, SimulationOptions(run_id=run.run_id))
    assert len(services.evaluator.drift_requests) == 2 * of_run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SimulationOptions(), "one of a dataset and a run"),
        (SimulationOptions(dataset="train", run_id="x"), "one of a dataset and a run"),
        (SimulationOptions(run_id="x", from_timestamp=1), "times go with a dataset"),
        (SimulationOptions(dataset="train", data={"dataset_id": "other"}), "`data` is of dataset 'other'"),
    ],
)
def test_options_that_contradict_each_other_are_refused(clients: Clients, options: SimulationOptions, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        run_simulation(clients, POLICIES, options)


def test_what_does_not_exist_and_what_needs_a_run_is_said(clients: Clients) -> None:
    with pytest.raises(NotFoundError, match="no dataset 'other'"):
        run_simulation(clients, POLICIES, SimulationOptions(dataset="other"))
    with pytest.raises(NotFoundError, match="no dataset 'trian', did you mean 'train'"):
        run_simulation(clients, POLICIES, SimulationOptions(dataset="trian"))
    with pytest.raises(NotFoundError, match="other-0001"):
        run_simulation(clients, POLICIES, SimulationOptions(run_id="other-0001"))
    with pytest.raises(NotFoundError, match="no model 99"):
        run_simulation(clients, POLICIES, SimulationOptions(dataset="train", model_id=99))
    payload = {**SECTIONS["DataDriftTrigger"], "on": "payload"}
    for section, missing in (
        (SECTIONS["DataDriftTrigger"], "--model ID, or .* --run RUN"),
        (SECTIONS["PerformanceTrigger"], "--model ID, or .* --run RUN"),
        (SECTIONS["StreamDetectorTrigger"], "--model ID, or .* --run RUN"),
        (payload, "section `data`, .* --model ID"),
    ):
        found = run_simulation(clients, {"a": section, **POLICIES}, SimulationOptions(dataset="train")).policies
        assert re.search(f"it looks at .*{missing}", found["a"].failed)
        assert not found["amount"].failed


LAYOUT = {"record_layout": {"dtype": "uint8"}}


def without_model(name: str, on: str) -> dict[str, Any]:
    """A section whose distances need no model."""
    section: dict[str, Any] = copy.deepcopy(SECTIONS[name])
    for part in (section, section.get("distance"), section.get("subtriggers", {}).get("drift")):
        if part is not None and "windowing_strategy" in part:
            part["on"] = on
    return section


@pytest.mark.parametrize(
    ("name", "on"),
    [
        ("DataDriftTrigger with two metrics", "payload"),
        ("AutoDrift", "labels"),
        ("StreamDetectorTrigger on distance", "labels"),
        pytest.param("DataDriftTrigger", "labels", marks=pytest.mark.slow),
        pytest.param("DataDriftTrigger", "payload", marks=pytest.mark.slow),
        pytest.param("DataDriftTrigger with two metrics", "labels", marks=pytest.mark.slow),
        pytest.param("AutoDrift", "payload", marks=pytest.mark.slow),
        pytest.param("EnsembleTrigger", "labels", marks=pytest.mark.slow),
        pytest.param("EnsembleTrigger", "payload", marks=pytest.mark.slow),
        pytest.param("StreamDetectorTrigger on distance", "payload", marks=pytest.mark.slow),
    ],
)
def test_on_a_dataset_drift_without_a_model_is_decided_as_in_a_run(
    clients: Clients, services: InMemoryServices, name: str, on: str
) -> None:
    section = without_model(name, on)
    fired = [trigger.position for trigger in clients.supervisor.triggers(finished(clients, section).run_id)]
    first, known = len(services.evaluator.drift_requests), set(services.selector.runs)
    data = LAYOUT if on == "payload" else None
    simulation = run_simulation(clients, {"same": section}, SimulationOptions(dataset="train", data=data))
    assert positions(simulation)["same"] == fired
    assert len(fired) > 1
    asked = services.evaluator.drift_requests[first:]
    assert {request.dataset["dataset_id"] for request in asked} == {"train"}
    assert all(request.dataset["record_layout"] == LAYOUT["record_layout"] for request in asked)
    (run_id,) = {request.run_id for request in asked}
    assert run_id.startswith("simulation.")
    assert set(services.selector.runs) == known, "the temporary run is removed"


def test_on_a_dataset_policies_look_by_a_given_model(clients: Clients, services: InMemoryServices) -> None:
    """Its verdicts equal those on the run of the model, whose pipeline describes how samples are decoded."""
    reference = finished(clients, {"id": "DataAmountTrigger", "num_samples": 200}, data={"dataset_id": "train", **LAYOUT})
    model_id = clients.supervisor.triggers(reference.run_id)[0].model_id
    by_seconds = ("Cost", "DynamicSchedule")
    policies = {name: section for name, section in SECTIONS.items() if not any(word in section["id"] for word in by_seconds)}
    on_run = run_simulation(clients, policies, SimulationOptions(run_id=reference.run_id, model_id=model_id))
    known, first = set(services.selector.runs), len(services.evaluator.drift_requests)
    on_dataset = run_simulation(clients, policies, SimulationOptions(dataset="train", model_id=model_id))
    assert positions(on_dataset) == positions(on_run)
    assert {len(found) > 0 for found in positions(on_dataset).values()} == {True}
    request = services.evaluator.drift_requests[first]
    assert request.dataset == {"dataset_id": "train", **LAYOUT, "batch_size": 1}
    assert request.question.seed == 7
    assert set(services.selector.runs) == known
    run_simulation(
        clients, policies, SimulationOptions(dataset="train", model_id=model_id, data={"record_layout": {"dtype": "int16"}})
    )
    assert services.evaluator.drift_requests[-1].dataset["record_layout"] == {"dtype": "int16"}


def test_policies_that_decide_by_samples_alone_leave_the_selector_alone(clients: Clients) -> None:
    services_without = replace(clients, selector=cast("SelectorClient", None), evaluator=cast("EvaluatorClient", None))
    assert run_simulation(services_without, POLICIES, SimulationOptions(dataset="train")).position == NUM_SAMPLES


def test_the_temporary_run_is_removed_where_a_simulation_is_interrupted(clients: Clients, services: InMemoryServices) -> None:
    known = set(services.selector.runs)

    def interrupt(progress: SimulationProgress) -> None:
        if progress.num_asks > 1:
            assert set(services.selector.runs) > known
            raise KeyboardInterrupt

    policies = {"drift": without_model("DataDriftTrigger", "labels")}
    with pytest.raises(KeyboardInterrupt):
        run_simulation(clients, policies, SimulationOptions(dataset="train"), interrupt)
    assert set(services.selector.runs) == known


def test_questions_are_refused_where_samples_before_the_newest_batch_were_deleted(services: InMemoryServices) -> None:
    """Positions in the stream of the temporary run would differ from those of the simulation."""
    clients = services.clients()
    info = clients.storage.dataset("train")
    source = StreamSource("train", RunMode.EXPERIMENT, Interval(), 64, info.next_key, info.identity)
    retrier = Retrier(RetryPolicy(1.0))
    stream = SimulatedDataset(RunId("simulation.test"), source, clients.storage, clients.selector, retrier)
    batches = stream.batches()
    first, _ = next(batches), next(batches)
    clients.storage.delete_samples("train", first.keys[:1])
    for _ in range(2):
        with pytest.raises(ConflictError, match="samples of dataset 'train' were deleted since"):
            stream.hold()
    stream.close()
    assert not services.selector.runs


def test_pieces_grow_while_they_are_fast_and_shrink_while_they_are_slow() -> None:
    assert [next_piece(8, seconds) for seconds in (0.01, 0.5, 3.0)] == [16, 8, 4]
    assert (next_piece(1, 10.0), next_piece(2**20, 0.0)) == (1, 2**20)


def test_the_table_says_what_each_policy_would_have_cost_and_brought(clients: Clients) -> None:
    run = finished(clients, {"id": "DataAmountTrigger", "num_samples": 40}, evaluation=EVALUATION)
    table = simulate(
        clients, {"same": {"id": "DataAmountTrigger", "num_samples": 40}, **POLICIES}, SimulationOptions(run_id=run.run_id)
    )
    same = table.iloc[0]
    triggers = clients.supervisor.triggers(run.run_id)
    assert (same["triggers"], same["checks"], same["samples_trained"], same["left_samples"]) == (
        NUM_SAMPLES // 40,
        0,
        NUM_SAMPLES,
        0,
    )
    assert same["training_s"] == pytest.approx(sum(trigger.seconds["total"] for trigger in triggers))
    assert same["positions"] == [trigger.position for trigger in triggers]
    results = read_results(clients.supervisor, clients.evaluator, run.run_id)
    (score,) = scores(results.triggers, results.evaluations, results.handlers).to_dict("records")
    (alone,) = simulate(clients, {"same": POLICIES["amount"] | {"num_samples": 40}}, SimulationOptions(run_id=run.run_id))[
        "estimated Accuracy"
    ]
    assert alone == pytest.approx(score["active"]), "of the run's own policy it is the run's score"
    assert same["scored Accuracy"] == score["scored_intervals"] / score["intervals"]
    assert table["pareto"].any()


def test_a_table_without_a_run_has_no_estimates_and_seconds_only_if_they_are_given(clients: Clients) -> None:
    options = SimulationOptions(dataset="train")
    table = simulate(clients, POLICIES, options)
    assert table["training_s"].isna().all()
    assert not [column for column in map(str, table.columns) if "Accuracy" in column or column == "pareto"]
    table = simulate(clients, POLICIES, replace(options, seconds=TrainingSeconds(2.0, 0.1)))
    assert table["training_s"].tolist() == pytest.approx((2 * table["triggers"] + 0.1 * table["samples_trained"]).tolist())
