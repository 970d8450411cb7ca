"""`modyn simulate` on real services: the same decisions as the run, and the complete output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import yaml

from modyn.errors import ConfigError
from modyn.supervisor.client import RunState
from modyn.testing.stack import TINY_PARSER, RunningStack, tiny_evaluation, tiny_pipeline

DRIFT: dict[str, Any] = {
    "id": "DataDriftTrigger",
    "evaluation_interval_data_points": 20,
    "windowing_strategy": {"id": "AmountWindowingStrategy", "amount_ref": 40, "amount_cur": 20},
    "metrics": {
        "mmd": {
            "id": "MMDDriftMetric",
            "decision_criterion": {"id": "DynamicQuantileThresholdCriterion", "window_size": 5, "quantile": 0.4},
        }
    },
}


@pytest.mark.slow
def test_a_drift_policy_decides_as_in_its_run_together_with_others(running_stack: RunningStack, tmp_path: Path) -> None:
    running_stack.tiny_dataset("simulated", num_samples=600, num_files=6)
    run = running_stack.run(tiny_pipeline("simulated", trigger=DRIFT, evaluation=tiny_evaluation("simulated", days=6)))
    assert run.state is RunState.FINISHED, run.error
    file = tmp_path / "policies.yaml"
    amounts = {"id": "DataAmountTrigger", "num_samples": [100, 300]}
    file.write_text(
        yaml.safe_dump({"policies": {"same": DRIFT, "amount": amounts, "daily": {"id": "TimeTrigger", "every": "1d"}}})
    )
    with running_stack.client() as client:
        fired = [trigger.position for trigger in client.supervisor.triggers(run.run_id)]
        assert len(fired) > 2
        table = client.simulate(file, run_id=run.run_id).set_index("policy")
        assert table.loc["same", "positions"] == fired
        assert table.loc["same", "checks"] == len(client.checks(run.run_id))
        (alone,) = client.simulate({"same": DRIFT}, run_id=run.run_id)["estimated Accuracy"]
        assert alone == pytest.approx(client.scores(run.run_id)["active"][0])
        with pytest.raises(ConfigError, match=r"policies\.same: it looks at .*--run RUN"):
            client.simulate(file, dataset="simulated")
        wrong = {**DRIFT, "metrics": {"mmd": {**DRIFT["metrics"]["mmd"], "id": "MMDDriftMetrik"}}}
        with pytest.raises(ConfigError, match=r"policies\.a\.metrics\.mmd\.id: .*did you mean 'MMDDriftMetric'"):
            client.simulate({"a": wrong}, run_id=run.run_id)
        newest = client.supervisor.triggers(run.run_id)[-1].model_id
        by_model = [client.simulate(file, model_id=newest, **on) for on in ({"run_id": run.run_id}, {"dataset": "simulated"})]
        assert by_model[0]["positions"].tolist() == by_model[1]["positions"].tolist()
        assert len(by_model[1]["positions"][0]) > 2
    out = tmp_path / "out"
    done = running_stack.modyn("simulate", file, "--run", run.run_id, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    found = {row["policy"]: row for row in json.loads(done.stdout)}
    assert found["same"]["positions"] == fired
    assert found["amount[num_samples=300]"]["positions"] == [300, 600]
    assert len(found["daily"]["positions"]) == 5
    assert sorted(path.name for path in out.iterdir()) == ["policies.csv", "simulation.html", "triggers.csv"]
    done = running_stack.modyn("simulate", file, "--run", run.run_id, "--csv")
    assert done.stdout.splitlines()[0].startswith("policy,id,triggers,checks,samples_trained,training_s")
    assert "600 of 600 samples through 4 policies" in done.stderr


@pytest.mark.slow
def test_a_performance_policy_decides_as_in_its_run(running_stack: RunningStack) -> None:
    running_stack.tiny_dataset("scored", num_samples=600, num_files=6)
    dataset = {"dataset_id": "scored", "bytes_parser_function": TINY_PARSER, "batch_size": 50, "metrics": [{"name": "Accuracy"}]}
    # The samples are told apart easily: accuracy hardly changes, what is estimated from confidence does.
    section: dict[str, Any] = {
        "id": "PerformanceTrigger",
        "evaluation_interval_data_points": 20,
        "evaluation": {"dataset": dataset},
        "decision_criteria": {
            "estimated": {
                "id": "DynamicQuantilePerformanceThresholdCriterion",
                "metric": "EstimatedAccuracyDoC",
                "window_size": 4,
                "quantile": 0.5,
            }
        },
    }
    run = running_stack.run(tiny_pipeline("scored", trigger=section))
    assert run.state is RunState.FINISHED, run.error
    with running_stack.client() as client:
        fired = [trigger.position for trigger in client.supervisor.triggers(run.run_id)]
        assert len(fired) > 2
        table = client.simulate({"same": section}, run_id=run.run_id)
        assert table["positions"][0] == fired
        assert table["checks"][0] == len(client.checks(run.run_id))


@pytest.mark.parametrize("on", [pytest.param("labels", marks=pytest.mark.slow), "payload"])
def test_on_a_dataset_drift_is_decided_as_in_a_run_and_nothing_is_left(
    running_stack: RunningStack, tmp_path: Path, on: str
) -> None:
    name = f"watched-{on}"
    running_stack.tiny_dataset(name, num_samples=600, num_files=6)
    section = {**DRIFT, "on": on}
    run = running_stack.run(tiny_pipeline(name, trigger=section))
    assert run.state is RunState.FINISHED, run.error
    file = tmp_path / "policies.yaml"
    data = {"data": {"bytes_parser_function": TINY_PARSER}} if on == "payload" else {}
    file.write_text(yaml.safe_dump({"policies": {"same": section}, **data}))
    with running_stack.client() as client:
        done = running_stack.modyn("simulate", file, "--dataset", name, "--json")
        assert done.returncode == 0, done.stderr
        (found,) = json.loads(done.stdout)
        fired = [trigger.position for trigger in client.supervisor.triggers(run.run_id)]
        assert len(fired) > 2
        assert (found["positions"], found["checks"]) == (fired, len(client.checks(run.run_id)))
        connection = psycopg2.connect(client.config.resolved_database_url())
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM selector.runs WHERE run_id LIKE 'simulation.%'")
                assert cursor.fetchone() == (0,), "the temporary run is removed"
        finally:
            connection.close()
