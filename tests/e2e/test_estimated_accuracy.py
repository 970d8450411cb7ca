"""For trained models on data without drift, the accuracy that is estimated without labels is near the true accuracy."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from modyn.config.dataset import DatasetConfig
from modyn.supervisor.client import RunState
from modyn.testing.stack import DAY, TINY_PARSER, RunningStack, tiny_pipeline, tiny_training

RECORD = np.dtype([("label", "<i8"), ("features", "<f4", (64,))])
EVERY, WARM_UP = 150, 3


def digits(stack: RunningStack, name: str) -> None:
    """Register and index scikit-learn's handwritten digits, 1,797 of 64 features, in random order: one distribution from first to last."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    folder = stack.folder / "data" / name
    folder.mkdir(parents=True)
    for day, share in enumerate(np.array_split(order, 12)):
        records = np.zeros(len(share), RECORD)
        records["label"], records["features"] = found.target[share], found.data[share] / 16
        path = folder / f"day-{day:02d}.bin"
        path.write_bytes(records.tobytes())
        os.utime(path, (day * DAY + DAY // 2,) * 2)
    layout: dict[str, Any] = {"record_size": RECORD.itemsize, "label_size": 8, "byteorder": "little"}
    with stack.client() as client:
        dataset = DatasetConfig(
            name=name, base_path=folder, file_wrapper="BinaryFileWrapper", file_wrapper_config=layout, watch=False
        )
        client.register_dataset(dataset)
        client.ingest(name)


def overfitted(name: str, trigger: dict[str, Any], **training: Any) -> str:
    """A pipeline whose models memorise their samples."""
    adam = {"name": "default", "algorithm": "Adam", "param_groups": [{"module": "model", "config": {"lr": 0.01}}]}
    options = {"batch_size": 50, "epochs_per_trigger": 60, "optimizers": [adam], "use_previous_model": False, **training}
    model = {"id": "MLP", "config": {"input_size": 64, "num_classes": 10, "hidden_sizes": [64]}}
    return tiny_pipeline(name, trigger=trigger, model=model, training=tiny_training(**options))


@pytest.mark.parametrize(
    "validation", [{"ratio": 30}, pytest.param(None, marks=pytest.mark.slow)], ids=["held out", "after the trigger"]
)
def test_without_drift_the_estimates_lie_near_the_true_accuracy(
    running_stack: RunningStack, validation: dict[str, int] | None
) -> None:
    name = "digits-held-out" if validation else "digits-all-trained"
    digits(running_stack, name)
    dataset = {"dataset_id": name, "bytes_parser_function": TINY_PARSER, "batch_size": 256, "metrics": [{"name": "Accuracy"}]}
    metrics = ("Accuracy", "EstimatedAccuracyATC", "EstimatedAccuracyDoC")
    low = {"id": "StaticPerformanceThresholdCriterion", "metric_threshold": 0.85}
    section: dict[str, Any] = {
        "id": "PerformanceTrigger",
        "evaluation_interval_data_points": EVERY,
        "evaluation": {"dataset": dataset},
        "decision_criteria": {metric[-3:]: {**low, "metric": metric} for metric in metrics},
        "warmup_intervals": WARM_UP,
        "warmup_policy": {"id": "DataAmountTrigger", "num_samples": EVERY * WARM_UP},
    }
    run = running_stack.run(overfitted(name, section, validation=validation))
    assert run.state is RunState.FINISHED, run.error
    with running_stack.client() as client:
        table = client.checks(run.run_id)
        fired = [trigger.position for trigger in client.supervisor.triggers(run.run_id)]
        simulated = client.simulate({"same": section}, run_id=run.run_id)
    measured = table[table["position"] > EVERY * WARM_UP]
    assert fired == [EVERY * WARM_UP], "nothing drifts"
    assert len(measured) == 1797 // EVERY - WARM_UP
    assert (measured["calibration.accuracy"] < 1).all(), "on the samples that it was trained on it makes no error"
    true = measured["Accuracy"].mean()
    assert 0.9 < true < 1
    for metric in metrics[1:]:
        assert measured[metric].mean() == pytest.approx(true, abs=0.035), metric
    assert simulated["positions"][0] == fired
    assert simulated["checks"][0] == len(table)
