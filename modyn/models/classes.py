"""Check whether labels are classes of a model, if the pipeline defines the classes. This module imports torch only for plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from modyn.config.base import Severity, load_section, section_at
from modyn.models import MODELS, check_model, config_class
from modyn.models.names import ModelKind

_OF_CLASSES: Final = ("CrossEntropyLoss", "NLLLoss")
_OF_PROBABILITIES: Final = ("BCELoss", "BCEWithLogitsLoss")
_OF_NUMBERS: Final = ("GaussianNLLLoss", "HuberLoss", "L1Loss", "MSELoss", "PoissonNLLLoss", "SmoothL1Loss")
_OF_LIBRARIES: Final[Mapping[str, str]] = {
    ModelKind.TORCHVISION: "num_classes",
    ModelKind.TIMM: "num_classes",
    ModelKind.TRANSFORMERS: "num_labels",
}
"""The argument of models of libraries that is the number of classes."""
_IGNORED: Final = -100
"""The label that classification losses ignore by default."""


@dataclass(frozen=True, slots=True)
class LabelClasses:
    """The valid labels: whole numbers from 0 to `number` - 1, and the label that the loss ignores. If labels are probabilities, all numbers from 0 to
    1 are valid."""

    number: int | None
    """Number of classes; None: the number is not known, because the model is of a user."""
    ignored: int
    of_probabilities: bool = False

    @property
    def largest(self) -> int:
        """Return the largest class."""
        return 2**63 - 1 if self.number is None else self.number - 1

    def why_not(self, label: float) -> str:
        """Return a text that says why a label is not valid; empty: the label is valid."""
        if label == self.ignored or (0 <= label <= self.largest and (self.of_probabilities or label == int(label))):
            return ""
        if self.number is None:
            return f"the label is {label!r}, and classes are whole numbers from 0 on"
        if self.of_probabilities:
            return f"the label is {label!r}, and the loss takes probabilities, from 0 to 1 (CrossEntropyLoss takes classes)"
        return f"the label is {label!r}, and the model has {self.number} classes (0 to {self.number - 1})"


def num_classes(model: object) -> int | None:
    """Return the number of classes of a section `model`. None: the section is not valid, or its model is neither built in nor of a library."""
    if not isinstance(model, Mapping) or not isinstance(id_ := model.get("id"), str):
        return None
    if (name := _OF_LIBRARIES.get(id_.partition(":")[0])) is not None:
        number = section_at(model, "config").get(name)
        return number if isinstance(number, int) and number > 0 else None
    if id_ not in MODELS.builtin:
        return None
    if any(problem.severity is Severity.ERROR for problem in check_model(id_, model.get("config") or {})):
        return None
    return int(load_section(config_class(id_), model.get("config") or {}).model_dump()["num_classes"])


def label_classes(pipeline: Mapping[str, Any]) -> LabelClasses | None:
    """Return the labels that a training of this pipeline accepts, after the label_transformer_function if there is one. None: any label.

    >>> model = {"id": "MLP", "config": {"input_size": 4, "hidden_sizes": [8], "num_classes": 3}}
    >>> label_classes({"model": model, "training": {"optimization_criterion": {"name": "CrossEntropyLoss"}}})
    LabelClasses(number=3, ignored=-100, of_probabilities=False)
    """
    criterion = _criterion(pipeline)
    if criterion.get("name") in _OF_PROBABILITIES:
        return LabelClasses(2, ignored=0, of_probabilities=True)
    if criterion.get("name") not in _OF_CLASSES:
        return None
    return LabelClasses(num_classes(pipeline.get("model")), int((criterion.get("config") or {}).get("ignore_index", _IGNORED)))


def is_regression(pipeline: Mapping[str, Any]) -> bool:
    """Return whether a pipeline trains with a loss for regression."""
    return _criterion(pipeline).get("name") in _OF_NUMBERS


def _criterion(pipeline: Mapping[str, Any]) -> Mapping[str, Any]:
    found = (pipeline.get("training") or {}).get("optimization_criterion")
    return found if isinstance(found, Mapping) else {}
