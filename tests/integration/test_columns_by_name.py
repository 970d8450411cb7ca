"""Files whose columns stand in different orders: statistics, models and scores are those of columns by name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from modyn.config.dataset import DatasetConfig
from modyn.supervisor.client import RunState
from modyn.testing.stack import RunningStack, tiny_pipeline, tiny_training

ORDERS = (("label", "time", "a", "b"), ("b", "label", "a", "time"))
ROWS = 60


def write_files(folder: Path, orders: tuple[tuple[str, ...], ...], seed: int) -> dict[str, np.ndarray]:
    """Write a file for each order; return all values by column. Column b decides the label, a only hides it where it is taken for b."""
    folder.mkdir()
    rng, whole = np.random.default_rng(seed), dict[str, list[np.ndarray]]()
    for number, order in enumerate(orders):
        b = rng.normal(0, 1, ROWS).round(3)
        columns = {
            "a": rng.normal(1000, 10, ROWS).round(3),
            "b": b,
            "label": (b > 0).astype(int),
            "time": number * ROWS + np.arange(ROWS),
        }
        lines = [",".join(order), *(",".join(str(columns[name][row]) for name in order) for row in range(ROWS))]
        (folder / f"{number}.csv").write_text("\n".join(lines) + "\n")
        for name, values in columns.items():
            whole.setdefault(name, []).append(values)
    return {name: np.concatenate(parts) for name, parts in whole.items()}


@pytest.mark.timeout(300)
def test_features_are_those_of_the_names_in_every_file(running_stack: RunningStack, tmp_path: Path) -> None:
    trained = write_files(tmp_path / "ordered", ORDERS, 0)
    write_files(tmp_path / "ordered-test", ORDERS[1:], 1)
    preprocessing = {
        "format": "csv",
        "columns": {"a": "number", "b": "number"},
        "components": [{"id": "StandardScaler"}],
        "statistics": "before_training",
    }
    evaluation = {
        "datasets": [{"dataset_id": "ordered-test", "batch_size": 64, "metrics": [{"name": "Accuracy"}]}],
        "handlers": [
            {
                "name": "all", "execution_time": "after_training", "models": "matrix", "datasets": ["ordered-test"],
                "strategy": {"type": "SlicingEvalStrategy", "eval_every": "1d", "eval_start_from": 0, "eval_end_at": 86_400},
            }
        ],
    }  # fmt: skip
    optimizer = {"name": "default", "algorithm": "Adam", "param_groups": [{"module": "model", "config": {"lr": 0.05}}]}
    text = tiny_pipeline(
        "ordered",
        model={"id": "MLP", "config": {"input_size": 2, "hidden_sizes": [8], "num_classes": 2}},
        data={"dataset_id": "ordered"},
        preprocessing=preprocessing,
        trigger={"id": "DataAmountTrigger", "num_samples": len(ORDERS) * ROWS},
        training=tiny_training(optimizers=[optimizer], batch_size=20, epochs_per_trigger=20, shuffle=True),
        evaluation=evaluation,
    )
    options = {"label_column": "label"}
    with running_stack.client() as client:
        for name in ("ordered", "ordered-test"):
            fields = {
                "name": name,
                "base_path": tmp_path / name,
                "file_wrapper": "CsvFileWrapper",
                "file_wrapper_config": options,
            }
            client.register_dataset(DatasetConfig.model_validate({**fields, "timestamp_source": "column:time"}))
            client.ingest(name)
    shown = running_stack.modyn("data", "show", "ordered").stdout
    assert re.search(r"columns +label, time, a, b\ndecided by +0.csv\norder of columns +may differ between files", shown)
    run = running_stack.run(text)
    assert run.state is RunState.FINISHED, run.error
    with running_stack.client() as client:
        (trigger,) = client.supervisor.triggers(run.run_id)
        statistics = client.preprocessing(trigger.model_id or 0)
        assert statistics is not None
        (scaler,) = statistics.summary()["components"].values()
        for name in ("a", "b"):
            assert scaler[name]["mean"] == pytest.approx(trained[name].mean(), rel=1e-6)
        assert client.evaluations(run.run_id)["value"].tolist()[0] > 0.9
