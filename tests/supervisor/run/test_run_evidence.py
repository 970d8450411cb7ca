"""If the evaluator does not answer a drift check, the run asks again, waits, or ends with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from modyn.config.system import SystemConfig
from modyn.errors import DataError, ModynError, UnavailableError, WorkerDiedError
from modyn.evaluator.client import AtPositions, DriftRequest, Measured, MeasuredDrift, MeasureRequest, OfKeys, Rows
from modyn.supervisor.client import Run
from modyn.supervisor.journal.records import RunMode, RunOptions
from modyn.supervisor.journal.states import RunState
from modyn.testing.fake_evaluator import drift_by_windows
from modyn.testing.services import InMemoryServices, pipeline_yaml
from modyn.testing.waiting import eventually

NEVER = {"id": "ThresholdDecisionCriterion", "threshold": 9}
TRIGGER: dict[str, Any] = {
    "id": "DataDriftTrigger",
    "evaluation_interval_data_points": 10,
    "metrics": {"far": {"id": "MMDDriftMetric", "decision_criterion": NEVER}},
}
FULL = UnavailableError("8 passes are running or waiting at the evaluator; try again later")


class Failing:
    """Raises the errors one after the other, and answers then."""

    def __init__(self, *errors: ModynError) -> None:
        self.errors = list(errors)

    def __call__(self, request: DriftRequest) -> MeasuredDrift:
        if self.errors:
            raise self.errors.pop(0)
        return drift_by_windows(request)


Make = Callable[..., SystemConfig]


def run_with(make_config: Make, folder: Path, drift: Failing, patience_s: float = 60) -> tuple[Run, Run, int]:
    """The run as it ended, as it ended when it was resumed once the evaluator answers (if it had not finished), and its number of checks."""
    folder.mkdir(exist_ok=True)
    services = InMemoryServices(folder)
    services.storage.add_dataset("train")
    services.storage.add_samples("train", range(40))
    services.evaluator.drift = drift
    config = make_config(supervisor={"patience_s": patience_s})
    with services.supervise(config) as runs:
        run_id = runs.submit(pipeline_yaml(trigger=TRIGGER), "pipeline.yaml", RunOptions(RunMode.EXPERIMENT)).run_id
        eventually(lambda: runs.journal.run(run_id).is_terminal)
        ended = runs.journal.run(run_id)
        if ended.state is not RunState.FINISHED:
            drift.errors.clear()
            runs.resume(run_id)
            eventually(lambda: runs.journal.run(run_id).is_terminal)
        return ended, runs.journal.run(run_id), len(services.evaluator.drift_requests)


def test_a_check_is_asked_again_while_the_evaluator_is_full_or_away_and_when_its_worker_was_killed(
    make_config: Make, tmp_path: Path
) -> None:
    undisturbed, _, asked = run_with(make_config, tmp_path / "quiet", Failing())
    errors = (FULL, UnavailableError("evaluator cannot be reached"), WorkerDiedError("the process ended by SIGKILL"))
    disturbed, _, asked_too = run_with(make_config, tmp_path / "disturbed", Failing(*errors))
    assert (undisturbed.error, disturbed.error) == ("", "")
    assert (asked, asked_too) == (3, 6), "one check each after 20, 30 and 40 samples"
    assert disturbed.num_triggers == undisturbed.num_triggers


def test_a_check_that_kills_every_worker_fails_the_run(make_config: Make, tmp_path: Path) -> None:
    killed = WorkerDiedError("drift of embeddings: the process ended by SIGKILL (log: x)")
    ended, resumed, _ = run_with(make_config, tmp_path, Failing(*[killed] * 9))
    assert ended.state is RunState.FAILED
    assert "it was the last of 3 workers, which all ended like this: give them more memory" in ended.error
    assert (resumed.state, resumed.num_triggers) == (RunState.FINISHED, ended.num_triggers)


def test_an_evaluator_that_stays_away_interrupts_the_run_which_continues_later(make_config: Make, tmp_path: Path) -> None:
    away = UnavailableError("evaluator cannot be reached")
    ended, resumed, _ = run_with(make_config, tmp_path, Failing(*[away] * 10_000), patience_s=0.2)
    assert ended.state is RunState.INTERRUPTED
    assert "gave up after 0 s: evaluator cannot be reached; start the service again" in ended.error
    assert resumed.state is RunState.FINISHED, resumed.error


def test_what_asking_again_would_not_mend_fails_the_run_at_once(make_config: Make, tmp_path: Path) -> None:
    ended, resumed, asked = run_with(make_config, tmp_path, Failing(DataError("model 1 has diverged")))
    assert (ended.state, ended.error) == (RunState.FAILED, "model 1 has diverged")
    assert resumed.state is RunState.FINISHED
    assert asked == 4


def test_samples_that_were_held_out_are_of_the_run_s_registration_of_its_dataset(make_config: Make, tmp_path: Path) -> None:
    """The samples are requested by key, and keys are valid only in one registration."""
    services, asked = InMemoryServices(tmp_path), list[MeasureRequest]()
    services.storage.add_dataset("train")
    services.storage.add_samples("train", range(40))

    def measured(request: MeasureRequest) -> Measured:
        asked.append(request)
        match request.source:
            case OfKeys(keys):
                pass
            case AtPositions(_, windows):
                keys = np.concatenate([np.arange(window.start, window.stop) for window in windows])
            case _:
                raise AssertionError(request.source)
        return Measured(
            rows=Rows(keys, keys, np.zeros(len(keys), np.int64), np.tile(np.array([0, 0.1, 0.9], np.float32), (len(keys), 1)))
        )

    services.evaluator.measured = measured
    data = {"dataset_id": "train", "batch_size": 4, "bytes_parser_function": "def bytes_parser_function(data): return data"}
    criterion = {
        "id": "StaticPerformanceThresholdCriterion",
        "metric": "EstimatedAccuracyATC",
        "metric_threshold": 0.1,
    }
    trigger = {
        "id": "PerformanceTrigger",
        "evaluation_interval_data_points": 10,
        "evaluation": {"dataset": data},
        "decision_criteria": {"sure": criterion},
    }
    training = {
        "use_previous_model": True,
        "seed": 7,
        "batch_size": 1,
        "validation": {"activated": True, "ratio": 50},
    }
    with services.supervise(make_config()) as runs:
        text = pipeline_yaml(trigger=trigger, training=training, data=data)
        run_id = runs.submit(text, "pipeline.yaml", RunOptions(RunMode.EXPERIMENT)).run_id
        eventually(lambda: runs.journal.run(run_id).is_terminal)
        assert runs.journal.run(run_id).error == ""
    identity = services.storage.datasets["train"].identity
    assert {request.dataset_identity for request in asked if isinstance(request.source, OfKeys)} == {identity}
