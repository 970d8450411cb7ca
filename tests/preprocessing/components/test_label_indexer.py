"""Categories become the numbers of their order of appearance."""

from __future__ import annotations

from tests.preprocessing.streams import batch, pipeline


def test_indices_by_appearance_with_0_for_what_is_unknown() -> None:
    indexer = pipeline({"id": "LabelIndexer", "max_categories": 2}, columns="c")
    assert indexer.num_features == 1
    assert indexer.transform(batch(c=["a"])).dense.tolist() == [[0]]
    assert indexer.update_and_transform(batch(c=["b", "a", "b", None, "over"])).dense[:, 0].tolist() == [1, 2, 1, 0, 0]
    summary = indexer.summary()["components"]["0 LabelIndexer"]["c"]
    assert (summary["categories"], summary["missing"], summary["over_bound"]) == (2, 1, 1)


def test_indices_can_be_encoded_as_one_hot() -> None:
    one_step = pipeline({"id": "OneHotEncoder", "max_categories": 3}, columns="c")
    two_steps = pipeline({"id": "LabelIndexer", "max_categories": 3}, {"id": "OneHotEncoder"}, columns="c")
    rows = batch(c=["b", "a", None, "b", "d", "e"])
    assert one_step.update_and_transform(rows).to_dense().tolist() == two_steps.update_and_transform(rows).to_dense().tolist()
