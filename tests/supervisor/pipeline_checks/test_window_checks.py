"""Windows that a dataset cannot fill are warned of before a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from modyn.config.base import Severity
from modyn.config.dataset import DatasetConfig
from modyn.supervisor.pipeline_checks.validation import check_references
from modyn.testing.fake_storage import FakeStorage
from modyn.testing.fakes import FakeModelStorage
from modyn.testing.held_dataset import HeldDataset
from tests.supervisor.triggers.test_drift import drift, seasons

if TYPE_CHECKING:
    from modyn.model_storage.client import ModelStorageClient

DAY = 86_400


def warned(trigger: dict[str, Any], *, days: int = 10, where: str = "trigger") -> list[tuple[str, str]]:
    """Path and message of each warning for a pipeline on a dataset with one sample a day, from its first second to the last of the last day."""
    storage = FakeStorage()
    fields = {"name": "d", "base_path": "/fake/d", "file_wrapper": "CsvFileWrapper", "file_wrapper_config": {"label_index": 0}}
    storage.datasets["d"] = HeldDataset(DatasetConfig.model_validate(fields), False)
    if days:
        storage.add_samples("d", np.array([*range(0, days * DAY, DAY), days * DAY - 1]))
    pipeline: dict[str, Any] = {"data": {"dataset_id": "d"}}
    pipeline |= {"online": {"trigger": trigger}} if where == "online.trigger" else {"trigger": trigger}
    found = check_references(pipeline, storage.client(), cast("ModelStorageClient", FakeModelStorage()))
    assert all(problem.severity is Severity.WARNING for problem in found)
    return [(problem.path, problem.message) for problem in found]


SAME = seasons(limit_cur="3d", season="1w", reference="same_phase")


@pytest.mark.parametrize(
    ("windows", "days"),
    [
        (SAME, 10),
        (seasons(limit_ref="2w", limit_cur="1w", season="1w"), 14),
        (seasons(limit_ref="1w", limit_cur="2w", season="1w"), 14),
    ],
)
def test_a_dataset_shorter_than_the_seasons_that_are_compared(windows: dict[str, Any], days: int) -> None:
    assert warned(drift(windowing_strategy=windows), days=days) == []
    for held in (days - 1, 0):
        ((path, message),) = warned(drift(windowing_strategy=windows), days=held)
        assert path == "trigger.windowing_strategy.season"
        assert f"{days}d, and the dataset 'd' holds {held * DAY:,} s: a replay of it compares nothing" in message.replace(
            "2w", "14d"
        )


def test_windows_without_a_season_and_mistakes_are_left_to_others() -> None:
    for windows in (seasons(limit_ref="30d", limit_cur="1d"), seasons(season="30d"), {"id": "AmountWindowingStrategy"}, "what"):
        assert warned(drift(windowing_strategy=windows)) == []
    for section in ({"id": "DataAmountTrigger", "num_samples": 3}, {"id": "AutoDrift"}, {}):
        assert warned(section) == []


def test_windows_of_other_policies_are_found_at_their_place() -> None:
    distance = {"on": "embeddings", "metric": {"id": "KSDriftMetric"}, "windowing_strategy": SAME}
    detector = {
        "id": "StreamDetectorTrigger",
        "on": "distance",
        "evaluation_interval": "1d",
        "detector": {"id": "ADWIN"},
        "distance": distance,
    }
    ensemble = {"id": "EnsembleTrigger", "subtriggers": {"a": detector, "b": drift(windowing_strategy=SAME)}}
    found = [path for path, _ in warned(ensemble, days=3, where="online.trigger")]
    of_children = "online.trigger.subtriggers"
    assert found == [f"{of_children}.a.distance.windowing_strategy.season", f"{of_children}.b.windowing_strategy.season"]
