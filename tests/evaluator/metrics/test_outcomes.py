"""Error, loss and confidence of a classifier on each sample."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import ConfigError
from modyn.evaluator.metrics.outcomes import outcomes

LOGIT = st.floats(-30, 30, width=32)


@given(data=st.data(), n=st.integers(0, 6), c=st.integers(2, 5))
def test_outcomes_are_those_of_the_softmax(data: st.DataObject, n: int, c: int) -> None:
    logits = data.draw(st.lists(st.lists(LOGIT, min_size=c, max_size=c, unique=True), min_size=n, max_size=n))
    labels = data.draw(st.lists(st.integers(0, c - 1), min_size=n, max_size=n))
    found = outcomes(torch.tensor(logits).reshape(n, c), torch.tensor(labels, dtype=torch.int64))
    assert (found.shape, found.dtype) == ((n, 3), torch.float32)
    for row, label, (error, loss, confidence) in zip(logits, labels, found.tolist(), strict=True):
        total = sum(math.exp(logit - max(row)) for logit in row)
        assert error == (row.index(max(row)) != label)
        assert loss == pytest.approx(math.log(total) + max(row) - row[label], rel=1e-4, abs=1e-4)
        assert confidence == pytest.approx(1 / total, rel=1e-4)


@given(logits=st.lists(LOGIT, max_size=6), data=st.data())
def test_a_single_logit_is_that_of_class_1(logits: list[float], data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.integers(0, 1), min_size=len(logits), max_size=len(logits)))
    given_labels = torch.tensor(labels, dtype=data.draw(st.sampled_from([torch.int64, torch.float32, torch.bool]))).reshape(-1, 1)
    for logit, label, (error, loss, confidence) in zip(
        logits, labels, outcomes(torch.tensor(logits).reshape(-1, 1), given_labels).tolist(), strict=True
    ):
        assert error == ((logit > 0) != label)
        assert loss == pytest.approx(math.log1p(math.exp(logit * (1 - 2 * label))), rel=1e-4, abs=1e-4)
        assert confidence == pytest.approx(1 / (1 + math.exp(-abs(logit))), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_logits_of_any_type(dtype: torch.dtype) -> None:
    found = outcomes(torch.tensor([[0.0, 2.0]], dtype=dtype), torch.tensor([0]))
    assert found.tolist()[0] == pytest.approx([1, math.log(1 + math.e**2), 1 / (1 + math.e**-2)], rel=1e-3)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (torch.tensor([0.5, 1.0]), "need classes as labels: .* These are torch.float32"),
        (torch.tensor([float("nan"), 1.0]), "need classes as labels"),
        (torch.tensor([[0, 1], [1, 0]]), r"of shape \[2, 2\]"),
        (torch.tensor([0, 3]), r"labels are in \[0, 3\], but the model has 3 classes"),
        (torch.tensor([-1, 2]), r"labels are in \[-1, 2\]"),
    ],
)
def test_labels_that_are_not_classes_are_refused(labels: torch.Tensor, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        outcomes(torch.zeros(2, 3), labels)
