"""Features of the samples of a batch that have them, where some values are none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from modyn.dataset.batch import Batch
from modyn.dataset.batch_preprocessing import learn_batch, learn_rows, transform_batch, transform_usable_rows
from modyn.errors import DataError
from modyn.preprocessing import Preprocessing

SECTION: dict[str, Any] = {"columns": {"n": "number"}, "components": [{"id": "StandardScaler"}]}


class Counting(Preprocessing):
    """A component that counts its transformations."""

    num_calls = 0

    def transform(self, raw: Any) -> Any:
        self.num_calls += 1
        return super().transform(raw)


def batch(values: list[float]) -> Batch:
    columns, num = pa.RecordBatch.from_pydict({"n": pa.array(values, pa.float64())}), len(values)
    return Batch(torch.arange(num) + 100, torch.empty(num, 0), torch.arange(num), torch.ones(num), columns=columns)


def learned(values: list[float]) -> Counting:
    made = Counting(SECTION)
    made.update({"n": np.array(values)})
    return made


@pytest.mark.parametrize("bad", [[], [0], [7], [3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 7]])
def test_the_other_samples_have_their_features(bad: list[int]) -> None:
    values = [float(row) for row in range(8)]
    preprocessing, good = learned(values), [row for row in range(8) if row not in bad]
    spoilt = batch([1e300 if row in bad else value for row, value in enumerate(values)])
    usable, rows = transform_usable_rows(spoilt, preprocessing)
    assert rows.tolist() == usable.labels.tolist() == good
    assert usable.keys.tolist() == [100 + row for row in good]
    alone, together = usable.data, transform_batch(batch(values), preprocessing).data
    assert isinstance(alone, torch.Tensor)
    assert isinstance(together, torch.Tensor)
    assert torch.equal(alone, together[good])
    if bad:
        with pytest.raises(DataError, match=f"sample key {100 + bad[0]}: "):
            transform_batch(spoilt, preprocessing)


def test_what_was_read_when_a_batch_was_made_counts_for_its_columns_alone() -> None:
    preprocessing, whole = learned([0.0, 1.0, 5.0]), batch([1.0, 2.0, 3.0])
    made = replace(whole, read=preprocessing.read(whole.columns))
    part = made.take(torch.tensor([2, 0]), made.weights[:2])
    otherwise = Preprocessing({"columns": {"n": "category"}, "components": [{"id": "OneHotEncoder", "max_categories": 2}]})
    assert made.columns is not None
    text = replace(made, columns=made.columns.cast(pa.schema({"n": pa.string()})))
    for ahead, without, by in (
        (made, whole, preprocessing),
        (part, replace(part, read=None), preprocessing),
        (replace(text, read=preprocessing.read({"n": np.zeros(3)})), text, otherwise),
        (replace(text, read=replace(otherwise.read(text.columns), kinds=preprocessing.kinds)), text, otherwise),
    ):
        for make in (transform_batch, learn_batch, lambda given, by: learn_rows(given, by, np.array([0]))):
            one, other = Preprocessing.from_snapshot(by.snapshot()), Preprocessing.from_snapshot(by.snapshot())
            found, expected = make(ahead, one).data, make(without, other).data
            assert one.to_bytes() == other.to_bytes()
            for tensor, wanted in zip(tensors(found), tensors(expected), strict=True):
                assert torch.equal(tensor, wanted)


def tensors(data: Any) -> list[torch.Tensor]:
    return list(data.values()) if isinstance(data, dict) else [data]


def test_one_bad_sample_among_many_takes_few_calls() -> None:
    preprocessing = learned([0.0, 1.0])
    values = [0.5] * 512
    values[300] = 1e300
    _, rows = transform_usable_rows(batch(values), preprocessing)
    assert len(rows) == 511
    assert preprocessing.num_calls <= 2 * 9 + 3
