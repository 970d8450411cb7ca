"""What is wrong in the section `serving` is found when the pipeline is checked, not when it is served."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from modyn.supervisor.validation import check_pipeline, check_references
from modyn.testing.fake_storage import FakeStorage
from modyn.testing.fakes import FakeModelStorage
from modyn.testing.services import pipeline_yaml

if TYPE_CHECKING:
    from modyn.model_storage.client import ModelStorageClient

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
        ({"inputs": ["4", "1,a"]}, {}, "serving.inputs.1", "'1,a' is no input of a model"),
        ({"inputs": ["4"]}, ROWS, "serving.inputs", "the inputs are the columns of the section `preprocessing`: remove it"),
        ({"observations": "sene"}, {}, "serving.observations", "there is no dataset 'sene', did you mean 'seen'?"),
        ({"observations": "test"}, {}, "serving.observations", "dataset 'test' is made of files, and takes no observations"),
        ({"observations": "seen"}, ROWS, "serving.observations", "the run reads dataset 'seen' as CSV"),
        ({"promote_if": ["Loss on tset < 1"]}, {}, "serving.promote_if.0", "there is no dataset 'tset', did you mean 'test'?"),
        ({"pinned": [77]}, {}, "serving.pinned.0", "there is no model 77"),
        ({"promote_if": ["Accuracy"]}, {}, "serving.promote_if", "'Accuracy' is no condition of a promotion"),
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
