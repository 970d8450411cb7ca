"""The labels that a pipeline's model can learn from."""

from __future__ import annotations

from typing import Any

import pytest

from modyn.models.classes import LabelClasses, is_regression, label_classes, num_classes

MLP = {"id": "MLP", "config": {"input_size": 4, "hidden_sizes": [8], "num_classes": 3}}


def pipeline(loss: str, model: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return {"model": model or MLP, "training": {"optimization_criterion": {"name": loss, "config": options}}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pipeline("CrossEntropyLoss"), LabelClasses(3, -100)),
        (pipeline("NLLLoss", ignore_index=9), LabelClasses(3, 9)),
        (pipeline("CrossEntropyLoss", {"id": "ResNet18"}), LabelClasses(1000, -100)),
        (pipeline("MSELoss"), None),
        (pipeline("BCEWithLogitsLoss"), LabelClasses(2, 0, of_probabilities=True)),
        (pipeline("CrossEntropyLoss", {"id": "own", "config": {"num_classes": 3}}), LabelClasses(None, -100)),
        (pipeline("MSELoss", {"id": "own"}), None),
        ({}, None),
    ],
)
def test_labels_are_classes_where_model_and_loss_say_so(given: dict[str, Any], expected: LabelClasses | None) -> None:
    assert label_classes(given) == expected


def test_a_model_that_is_not_valid_has_no_known_classes() -> None:
    assert num_classes(MLP) == 3
    for model in (None, {"id": 3}, {"id": ["MLP"]}, {"id": "MLP", "config": {"num_classes": "x"}}):
        assert num_classes(model) is None


def test_a_label_is_a_class_or_the_ignored_one() -> None:
    classes = LabelClasses(2, ignored=-1)
    for label in (0, 1, 1.0, -1):
        assert classes.why_not(label) == ""
    for label in (2, -2, 0.5):
        assert classes.why_not(label) == f"the label is {label!r}, and the model has 2 classes (0 to 1)"


def test_of_a_plug_in_it_is_known_that_classes_count_from_0() -> None:
    classes = LabelClasses(None, ignored=-1)
    assert [classes.why_not(label) for label in (0, 10**9, -1)] == ["", "", ""]
    for label in (-2, 0.5):
        assert classes.why_not(label) == f"the label is {label!r}, and classes are whole numbers from 0 on"


def test_a_label_of_a_loss_of_probabilities_is_one() -> None:
    """Beyond them such a loss falls without end, and no jump of the error shows it."""
    classes = label_classes(pipeline("BCEWithLogitsLoss"))
    assert classes is not None
    assert [classes.why_not(label) for label in (0, 1, 0.3)] == ["", "", ""]
    for label in (99, -1, 1.5):
        assert (
            classes.why_not(label)
            == f"the label is {label!r}, and the loss takes probabilities, from 0 to 1 (CrossEntropyLoss takes classes)"
        )


def test_losses_of_numbers_are_regressions() -> None:
    assert is_regression(pipeline("MSELoss"))
    assert not is_regression(pipeline("CrossEntropyLoss"))
    assert not is_regression({})
