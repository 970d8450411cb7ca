"""Messages for values of samples that drift metrics cannot compare."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from modyn.errors import DataError
from modyn.evaluator.drift.base import UNFIT, num_unfit
from modyn.evaluator.records import ComparedData, DriftQuestion
from modyn.records import LabelArray

_ADVICE: Final = {
    ComparedData.EMBEDDINGS: "model {id} has diverged: lower its learning rate or clip its gradients, or compare what needs no model (on: payload)",
    ComparedData.PREDICTIONS: "model {id} has diverged: lower its learning rate or clip its gradients, or compare what needs no model (on: payload)",
    ComparedData.PAYLOAD: "its samples hold them, or what decodes them makes them: correct data.bytes_parser_function",
    ComparedData.LABELS: "its labels hold them",
}


def refuse_unfit(question: DriftQuestion, window: str, rows: torch.Tensor) -> None:
    """Raise DataError with advice if a sample of a window cannot be compared."""
    if number := num_unfit(rows):
        advice = _ADVICE[question.data].format(id=question.model_id)
        raise DataError(
            f"{number} of {len(rows)} {window} samples have {question.data} that are {UNFIT}, so drift cannot be measured; {advice}"
        )


def refuse_quantities(name: str, labels: LabelArray) -> None:
    """Raise DataError if labels are quantities instead of classes. Args: name: the metric, which compares classes. labels: (n,)."""
    between = labels[np.isfinite(labels) & (labels != np.rint(labels))]
    if len(between):
        raise DataError(
            f"drift metric '{name}' compares labels as classes, and {len(between)} of {len(labels)} are not whole numbers, such as {between[0]:g}: "
            "compare quantities by another metric, such as KSDriftMetric"
        )
