"""Mistakes in the sections `serving` and `online` are found when the pipeline is checked."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import yaml

from modyn.config.base import Severity
from modyn.config.online import OnlineConfig
from modyn.selector.history import check_history
from modyn.supervisor.pipeline_checks.sections import check_online
from modyn.supervisor.pipeline_checks.validation import check_pipeline, check_references
from modyn.supervisor.triggers import check_trigger_section
from modyn.testing.fake_storage import FakeStorage
from modyn.testing.fakes import FakeModelStorage
from modyn.testing.services import pipeline_yaml

if TYPE_CHECKING:
    from modyn.model_storage.client import ModelStorageClient

AMOUNT = {"id": "DataAmountTrigger", "num_samples": 4}
ROWS = {
    "data": {"dataset_id": "seen"},
    "preprocessing": {"format": "csv", "names": ["age"], "columns": {"age": {"type": "number"}}},
}


def check(serving: dict[str, Any], **sections: Any) -> list[tuple[str, str]]:
    storage = FakeStorage()
    for name in ("train", "test"):
        storage.add_dataset(name)
    storage.add_dataset("seen", records=True)
    references = partial(check_references, storage=storage.client(), model_storage=cast("ModelStorageClient", FakeModelStorage()))
    found = check_pipeline(pipeline_yaml(serving=serving, **sections), "p.yaml", [], references)
    return [(problem.path, problem.message) for problem in found]


@pytest.mark.parametrize(
    ("serving", "sections", "path", "message"),
    [
        ({"inputs": ["4", "1,a"]}, {}, "serving.inputs.1", "'1,a' is not an input of a model"),
        ({"inputs": ["4"]}, ROWS, "serving.inputs", "the inputs are the columns of the section `preprocessing`: remove it"),
        ({"observations": "sene"}, {}, "serving.observations", "there is no dataset 'sene', did you mean 'seen'?"),
        ({"observations": "test"}, {}, "serving.observations", "dataset 'test' is made of files, and takes no observations"),
        ({"observations": "seen"}, ROWS, "serving.observations", "the run reads dataset 'seen' as CSV"),
        ({"promote_if": ["Loss on tset < 1"]}, {}, "serving.promote_if.0", "there is no dataset 'tset', did you mean 'test'?"),
        ({"pinned": [77]}, {}, "serving.pinned.0", "there is no model 77"),
        ({"promote_if": ["Accuracy"]}, {}, "serving.promote_if", "'Accuracy' is not a condition of a promotion"),
    ],
)
def test_what_the_section_names_must_be_there_and_fit(
    serving: dict[str, Any], sections: dict[str, Any], path: str, message: str
) -> None:
    ((found, text),) = check(serving, **sections)
    assert (found, message in text) == (path, True)


def test_a_section_that_fits() -> None:
    assert check({"observations": "seen", "promote_if": ["Accuracy on test >= 0.9"], "inputs": ["1,28,28", "n=4:int64"]}) == []
    assert check({"observations": "seen"}, preprocessing=ROWS["preprocessing"]) == []  # the run reads another dataset


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"trigger": AMOUNT}, "online.step_samples: is required"),
        ({"step_samples": 1}, "online.trigger: is required"),
        ({"trigger": {"id": "TimeTrigger"}, "step_samples": 1}, "online.trigger.every: is required"),
        ({"trigger": {"id": "DataAmountTriger"}, "step_samples": 1}, "did you mean 'DataAmountTrigger'"),
        ({"trigger": AMOUNT, "step_samples": 1, "histroy": {}}, "did you mean 'history'"),
        ({"trigger": AMOUNT, "step_samples": 1, "learning_rate": {"rule": "inverse"}}, "online.learning_rate.rule"),
        (
            {"trigger": AMOUNT, "step_samples": 4, "update_samples": 2},
            "online.update_samples: is given for steps that draw samples",
        ),
        (
            {"trigger": AMOUNT, "step_samples": 4, "update_samples": 5, "history_samples": 1},
            "online.update_samples: an update is made before each step, and a step is made every step_samples: write at most 4",
        ),
        (
            {"trigger": AMOUNT, "step_samples": 4, "max_samples": 3},
            "online.max_samples: is less than the samples of one step: write at least",
        ),
        ({"trigger": AMOUNT, "step_samples": 4, "max_share": 0}, "online.max_share: 0 is wrong"),
        ([], "online: "),
    ],
)
def test_mistakes_in_online_are_found(section: Any, said: str) -> None:
    assert any(said in str(problem) for problem in check_online({"online": section}))


def test_unbounded_steps_after_a_pause_for_predictions_are_warned_of() -> None:
    limited = {"id": "DynamicScheduleTrigger", "evaluation_interval_data_points": 10, "latency_limit_ms": 20}
    (found,) = check_online({"online": {"trigger": limited, "step_samples": 2}})
    assert (found.path, found.severity) == ("online.max_samples", Severity.WARNING)
    assert check_online({"online": {"trigger": limited, "step_samples": 2, "max_samples": 20}}) == []


def test_the_examples_of_the_page_on_online_learning_are_right() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/online.md").read_text()
    blocks = [yaml.safe_load(block.partition("```")[0]) for block in page.split("```yaml\n")[1:]]
    section = blocks[0]
    assert check_online(section) == check_history(section) == check_trigger_section(section["trigger"]) == []
    assert [list(block["online"]) for block in blocks[-2:]] == [["convergence"], ["rollback"]]
    for block in blocks[-2:]:
        # As it says, with the defaults.
        found = OnlineConfig(trigger={}, step_samples=1, **block["online"])
        (name,) = block["online"]
        assert getattr(found, name) == type(getattr(found, name))()
