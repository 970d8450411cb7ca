"""Trainings that make features of columns: when statistics are updated, and what of it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modyn.errors import CancelledError, ConfigError, DataError
from modyn.models.calls import score
from modyn.models.weights import read_statistics
from modyn.preprocessing import Preprocessing
from modyn.trainer_server.check import check
from modyn.trainer_server.client import TrainingRequest
from modyn.trainer_server.train import TrainingSections, run_training
from tests.support.column_samples import (
    CSV,
    DENSE,
    SPARSE,
    SPARSE_MODEL,
    ColumnData,
    column_pipeline,
    columns_of,
    csv_row,
    json_row,
    preprocessing_of_keys,
)
from tests.support.training import NoModel, Outcome, RecordedReport, TrainingRoom, context_of, small_pipeline

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

FIRST: dict[str, Any] = {**SPARSE, "statistics": "before_training"}
TABULAR: dict[str, Any] = {
    "id": "TabularMLP",
    "config": {"num_categories": [50, 7], "num_dense": 2, "num_classes": 10, "hidden_sizes": [8]},
}


def statistics(room: TrainingRoom, outcome: Outcome) -> Preprocessing:
    path = room.folder / "statistics.safetensors"
    room.models.get(outcome.trained.model_id, path)
    content = read_statistics(path)
    path.unlink()
    assert content is not None
    return Preprocessing.from_bytes(content)


def batches(num_keys: int, size: int = 8) -> list[list[int]]:
    return [list(range(first, min(first + size, num_keys))) for first in range(0, num_keys, size)]


def equal_weights(one: Outcome, other: Outcome) -> bool:
    return all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


@pytest.mark.parametrize("section", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_each_batch_of_the_first_epoch_updates_the_statistics_before_it_is_transformed(
    section: dict[str, Any], tmp_path: Path
) -> None:
    """Do the same by hand, with PyTorch and Preprocessing alone."""
    room = TrainingRoom(tmp_path)
    pipeline = column_pipeline(section, {"epochs_per_trigger": 3, "drop_last_batch": False})
    trained = room.train(pipeline, ColumnData(20))
    by_hand = Preprocessing(section)
    model = start_of(room, pipeline)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for keys in batches(20):
            columns = columns_of(keys)
            features = by_hand.transform(columns) if epoch else by_hand.update_and_transform(columns)
            data = features.to_torch()
            output = model(**data) if isinstance(data, dict) else model(data)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(output, torch.tensor(keys) % 10).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    np.testing.assert_equal(statistics(room, trained).state(), by_hand.state())
    for name, weights in model.state_dict().items():
        torch.testing.assert_close(trained.weights[name], weights, rtol=1e-5, atol=1e-7)
    assert trained.result["preprocessing"]["rows"] == 20


def start_of(room: TrainingRoom, pipeline: dict[str, Any]) -> torch.nn.Module:
    """The model with the weights that a training with the seed begins with."""
    from modyn.models.weights import build_model
    from modyn.trainer_server.loop.seeding import derived_seed, seed_everything

    seed_everything(derived_seed(7, 0, 1))
    return build_model(pipeline["model"]["id"], pipeline["model"]["config"])


@pytest.mark.parametrize(
    "options", [{"dataloader_workers": 4}, {"num_prefetched_partitions": 3, "parallel_prefetch_requests": 2}]
)
def test_workers_and_prefetching_change_nothing(options: dict[str, Any], tmp_path: Path) -> None:
    training = {"epochs_per_trigger": 2, "shuffle": True}
    rooms = [TrainingRoom(tmp_path / name) for name in "ab"]
    for room in rooms:
        room.folder.mkdir()
    one = rooms[0].train(column_pipeline(SPARSE, training), ColumnData(100))
    other = rooms[1].train(column_pipeline(SPARSE, {**training, **options}), ColumnData(100))
    assert equal_weights(one, other)
    assert one.trained.weights_sha256 == other.trained.weights_sha256


def test_csv_gives_the_statistics_of_json(tmp_path: Path) -> None:
    found = []
    for name, section, payload in (("json", DENSE, None), ("csv", CSV, csv_row)):
        (tmp_path / name).mkdir()
        room = TrainingRoom(tmp_path / name)
        data = ColumnData(40) if payload is None else ColumnData(40, payload=payload)
        outcome = room.train(column_pipeline(section), data)
        found.append((statistics(room, outcome).state(), outcome.weights))
    np.testing.assert_equal(found[0][0], found[1][0])
    assert all(torch.equal(found[0][1][name], found[1][1][name]) for name in found[0][1])


def test_before_training_all_batches_are_transformed_by_the_statistics_of_all_samples(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    section = {**DENSE, "statistics": "before_training"}
    outcome = room.train(column_pipeline(section, {"shuffle": True, "epochs_per_trigger": 2}), ColumnData(40))
    expected = preprocessing_of_keys(section, *batches(40))
    np.testing.assert_equal(statistics(room, outcome).state(), expected.state())


@pytest.mark.parametrize("sample_then_batch", [True, False])
def test_samples_are_chosen_by_their_features(sample_then_batch: bool, tmp_path: Path) -> None:
    """The norms of the gradients of the last layer, computed by hand from the features of all samples."""
    downsampling = {"strategy": "GraNd", "parameters": "LastLayer", "ratio": 25, "sample_then_batch": sample_then_batch}
    selection = {"name": "CoresetStrategy", "maximum_keys_in_memory": 16, "downsampling_config": downsampling}
    pipeline = column_pipeline(FIRST, {"drop_last_batch": False}, model=TABULAR, selection_strategy=selection)
    assert [problem for problem in check(pipeline, RecordedReport()) if problem.path != "model.id"] == []
    room, keys = TrainingRoom(tmp_path), list(range(40))
    outcome = room.train(pipeline, ColumnData(40))
    by_hand = preprocessing_of_keys(FIRST, *batches(40))
    np.testing.assert_equal(statistics(room, outcome).state(), by_hand.state())
    assert outcome.result["downsampling"]["num_chosen"] == 10
    if not sample_then_batch:
        return
    model, data = start_of(room, pipeline), by_hand.transform(columns_of(keys)).to_torch()
    found = score(model, data, torch.tensor(keys) % 10, torch.nn.CrossEntropyLoss(reduction="none"))
    norms = torch.cat([part.flatten(1) for part in found.last_layer_gradients()], 1).norm(dim=1)
    [(_, rows)] = room.feedback
    assert sorted(rows.keys.tolist()) == sorted(norms.topk(10).indices.tolist())


def test_a_training_starts_from_the_statistics_of_its_parent_and_a_cold_one_from_none(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    pipeline = column_pipeline(DENSE)
    first = room.train(pipeline, ColumnData(16))
    warm = room.train(pipeline, ColumnData(24), trigger_id=1, parent_model_id=first.trained.model_id)
    cold = room.train(pipeline, ColumnData(24), trigger_id=2)
    assert statistics(room, warm).num_rows == 40
    np.testing.assert_equal(statistics(room, warm).state(), preprocessing_of_keys(DENSE, *batches(16), *batches(24)).state())
    np.testing.assert_equal(statistics(room, cold).state(), preprocessing_of_keys(DENSE, *batches(24)).state())


@pytest.mark.parametrize(
    ("stop_after", "when"),
    [
        pytest.param(stop_after, when, marks=[] if (stop_after == 7) == (when == "before_training") else pytest.mark.slow)
        for stop_after in (3, 7, 11)
        for when in ("while_training", "before_training")
    ],
)
def test_a_training_that_was_stopped_counts_each_sample_once(stop_after: int, when: str, tmp_path: Path) -> None:
    section = {**SPARSE, "statistics": when}
    training = {"epochs_per_trigger": 2, "shuffle": True, "checkpointing": {"activated": True, "interval": 2}}
    outcomes = []
    for name, report in (("alone", None), ("stopped", RecordedReport(stop_after))):
        (tmp_path / name).mkdir()
        room = TrainingRoom(tmp_path / name)
        if report is not None:
            with pytest.raises(CancelledError):
                room.train(column_pipeline(section, training), ColumnData(64), report)
        outcomes.append(room.train(column_pipeline(section, training), ColumnData(64)))
    assert outcomes[0].trained.weights_sha256 == outcomes[1].trained.weights_sha256


def test_the_order_of_keys_in_the_section_changes_nothing(tmp_path: Path) -> None:
    """Messages between services do not keep it."""
    turned = {
        **SPARSE,
        "columns": dict(reversed(SPARSE["columns"].items())),
        "components": [dict(reversed(component.items())) for component in SPARSE["components"]],
    }
    hashes = []
    for name, section in (("a", SPARSE), ("b", turned)):
        (tmp_path / name).mkdir()
        room = TrainingRoom(tmp_path / name)
        first = room.train(column_pipeline(section), ColumnData(24)).trained.model_id
        again = room.train(column_pipeline(SPARSE), ColumnData(24), trigger_id=1, parent_model_id=first)
        hashes.append(again.trained.weights_sha256)
    assert hashes[0] == hashes[1]


def test_samples_that_are_held_out_update_nothing(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    outcome = room.train(column_pipeline(SPARSE, {"validation": {"ratio": 25}, "drop_last_batch": False}), ColumnData(40))
    assert len(outcome.result["validation_losses"]) == 1
    assert statistics(room, outcome).num_rows == outcome.result["num_samples"] < 40


ONLINE: dict[str, Any] = {
    "trigger": {"id": "DataAmountTrigger", "num_samples": 8},
    "step_samples": 4,
    "history_samples": 2,
}


@pytest.mark.parametrize("updates", [True, False])
@pytest.mark.parametrize("deleted", [frozenset[int](), frozenset({21, 2})])
def test_in_steps_new_samples_alone_update_the_statistics(updates: bool, deleted: frozenset[int], tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    pipeline = column_pipeline(SPARSE, online={**ONLINE, "statistics": updates})
    first = room.train(pipeline, ColumnData(20))
    keys = (20, 21, 22, 23, 2, 7, 24, 25, 26, 27, 21, 3, 28, 1, 5)
    data = ColumnData(len(keys), keys=keys, deleted=deleted, trigger_id=1)
    request = TrainingRequest(first.trained.run_id, 1, pipeline, first.trained.model_id, None, 7, online=True)
    stored = run_training(
        request, TrainingSections.load(request.pipeline), context_of(room.models, data, room.folder), RecordedReport()
    )
    found = statistics(room, Outcome(stored, {}, RecordedReport()))  # type: ignore[arg-type]
    before = preprocessing_of_keys(SPARSE, *batches(20)[:2])  # drop_last_batch
    if updates:
        for new in ([20, 21, 22, 23], [24, 25, 26, 27], [28]):
            before.update(columns_of([key for key in new if key not in deleted]))
    np.testing.assert_equal(found.state(), before.state())


def test_a_parent_without_statistics_or_of_another_section_is_refused(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    with_them = room.train(column_pipeline(DENSE), ColumnData(16)).trained.model_id
    without = room.train(small_pipeline(), trigger_id=1).trained.model_id
    other = {**DENSE, "components": [{"id": "Imputer", "strategy": "median"}, *DENSE["components"][1:]]}
    for section, parent, said in (
        (DENSE, without, f"model {without} has no statistics of preprocessing"),
        (other, with_them, f"preprocessing.components: model {with_them} was trained with other components"),
    ):
        with pytest.raises(ConfigError, match=said):
            room.train(column_pipeline(section), ColumnData(16), trigger_id=2, parent_model_id=parent)
    with pytest.raises(ConfigError, match=f"preprocessing: is missing, and model {with_them}"):
        room.train(small_pipeline(), trigger_id=2, parent_model_id=with_them)


def test_a_bad_row_is_named_with_its_key_and_can_be_left_out(tmp_path: Path) -> None:
    def payload(key: int) -> bytes:
        return b'{"age": "old", "income": 1, "site": null}' if key == 13 else ColumnData().payload(key)

    room = TrainingRoom(tmp_path)
    with pytest.raises(DataError, match=r"sample 13 of dataset 'fake': column 'age': \"old\" is not a number"):
        room.train(column_pipeline(DENSE), ColumnData(24, payload=payload))
    data = {"dataset_id": "fake", "on_bad_sample": "skip"}
    outcome = room.train(column_pipeline(DENSE, {"drop_last_batch": False}, data=data), ColumnData(24, payload=payload))
    assert outcome.result["num_skipped"] == 1
    assert statistics(room, outcome).num_rows == 23


def test_a_value_that_is_not_a_feature_is_named_with_its_key(tmp_path: Path) -> None:
    section = {**DENSE, "components": DENSE["components"][1:]}
    with pytest.raises(DataError, match="sample key 3: it has no value in column 'age'; add an Imputer"):
        TrainingRoom(tmp_path).train(column_pipeline(section), ColumnData(24))


def test_a_number_that_is_too_large_is_named_with_its_key(tmp_path: Path) -> None:
    def payload(key: int) -> bytes:
        return b'{"age": 1, "income": 1e200, "site": null}' if key == 13 else ColumnData().payload(key)

    section = {**DENSE, "components": [{**DENSE["components"][0], "columns": ["age"]}, *DENSE["components"][1:]]}
    with pytest.raises(DataError, match=r"sample key 13: it has 1e\+200 in column 'income', which is too large"):
        TrainingRoom(tmp_path).train(column_pipeline(section), ColumnData(24, payload=payload))


@pytest.mark.parametrize(
    ("sections", "path", "said"),
    [
        ({"preprocessing": {"columns": {"a": "number"}}}, "preprocessing.format", "is required in a pipeline"),
        ({"preprocessing": {**DENSE, "statistics": "never"}}, "preprocessing.statistics", "'never' is wrong"),
        ({"preprocessing": {**DENSE, "components": [{"id": "Inputer"}]}}, "preprocessing.components.0.id", "Imputer"),
        ({"preprocessing": {**DENSE, "formats": "json"}}, "preprocessing.formats", "did you mean 'format'"),
        ({"data": {"dataset_id": "d", "record_layout": {"dtype": "u1"}}}, "data", "remove one of the two"),
        ({"data": {"dataset_id": "d", "transformations": ["f:g"]}}, "data", "and transformations would make tensors"),
        (
            {"model": {"id": "MLP", "config": {"input_size": 4, "num_classes": 2}}},
            "model.config",
            "takes 4 values a sample, and the section `preprocessing` makes 3 features: write input_size: 3",
        ),
        ({"preprocessing": SPARSE}, "model.id", "makes 57 sparse features: use SparseLogisticRegression"),
        (
            {"preprocessing": SPARSE, "model": {**SPARSE_MODEL, "config": {"num_features": 56, "num_classes": 10}}},
            "model.config",
            "write num_features: 57 and num_dense: 2",
        ),
        (
            {"selection_strategy": {"name": "NewDataStrategy", "downsampling_config": {"strategy": "Loss", "ratio": 50}}},
            "selection_strategy.downsampling_config",
            "before they have updated the statistics of `preprocessing`: set preprocessing.statistics: before_training",
        ),
        (
            {"preprocessing": FIRST, "selection_strategy": {"downsampling_config": {"strategy": "GraNd", "ratio": 50}}},
            "selection_strategy.downsampling_config",
            "GraNd cannot take the gradient by all parameters of a sample with sparse features: set parameters: LastLayer",
        ),
        (
            {
                "preprocessing": FIRST,
                "selection_strategy": {
                    "downsampling_config": {"strategy": "RHOLoss", "ratio": 50, "holdout_set_strategy": "Twin"}
                },
            },
            "selection_strategy.downsampling_config",
            "RHOLoss trains models of its own, which get no features",
        ),
    ],
)
def test_what_does_not_go_together_is_said_before_it_runs(sections: dict[str, Any], path: str, said: str) -> None:
    from modyn.config.preprocessing import with_columns

    pipeline = with_columns({**column_pipeline(DENSE), "data": {"dataset_id": "d"}, **sections})
    found = [problem for problem in check(pipeline, RecordedReport()) if problem.path == path]
    assert any(said in problem.message for problem in found), check(pipeline, RecordedReport())


def test_a_right_section_has_no_problems() -> None:
    assert [p for p in check(column_pipeline(SPARSE), RecordedReport()) if p.path != "model.id"] == []


def test_no_statistics_without_the_section_are_pointed_out() -> None:
    (found,) = [p for p in check(small_pipeline(online={**ONLINE, "statistics": False}), RecordedReport()) if "online" in p.path]
    assert found.path == "online.statistics"


GUARDED: dict[str, Any] = {
    **DENSE,
    "components": [
        {"id": "InputGuard", "warm_up_rows": 8, "min_rows": 40, "max_missing_share": 0.3, "max_unlike_share": 0.9},
        *DENSE["components"],
    ],
}


@pytest.mark.parametrize("stop_after", [None, 4])
def test_inputs_of_a_training_are_counted_by_themselves(stop_after: int | None, tmp_path: Path) -> None:
    """Also of one that was stopped: what the statistics of its parent had counted is not among them."""
    room = TrainingRoom(tmp_path)
    pipeline = column_pipeline(GUARDED, {"checkpointing": {"activated": True, "interval": 2}, "drop_last_batch": False})
    parent = room.train(pipeline, ColumnData(16))
    data = ColumnData(
        40, payload=lambda key: json_row(key).replace(b'"age": ', b'"age": null, "other_age": ') if key >= 8 else json_row(key)
    )
    rest: dict[str, Any] = {"trigger_id": 1, "parent_model_id": parent.trained.model_id}
    if stop_after is not None:
        with pytest.raises(CancelledError):
            room.train(pipeline, data, RecordedReport(stop_after), **rest)
    found = room.train(pipeline, data, **rest).result["preprocessing"]
    ages = [columns_of([key])["age"][0] for key in range(8)]
    missing = 32 + int(np.isnan(np.array(ages, np.float64)).sum())
    assert found["inputs"]["age"]["rows"] == 40
    assert found["inputs"]["age"]["missing"] == pytest.approx(missing / 40)
    assert found["unusual"] == [f"{100 * missing / 40:.1f} % of 'age' are missing (limit 30 %)"]
    of_parent = parent.result["preprocessing"]
    assert (of_parent["inputs"]["age"]["rows"], of_parent["unusual"]) == (8, []), "the first batch was the warm-up"


@pytest.mark.parametrize("stop_after", [None, 2])
@pytest.mark.parametrize("tests_only", [False, True])
def test_inputs_of_steps_that_update_no_statistics_are_counted_too(
    tests_only: bool, stop_after: int | None, tmp_path: Path
) -> None:
    """Where `online.statistics` is false, and where steps pause: of new samples alone, each once, by what the statistics know."""
    room = TrainingRoom(tmp_path)
    checkpoints = {"checkpointing": {"activated": True, "interval": 2}, "drop_last_batch": False}
    pipeline = column_pipeline(GUARDED, checkpoints, online={**ONLINE, "statistics": tests_only})
    parent = room.train(pipeline, ColumnData(16))
    drawn = 0 if tests_only else ONLINE["history_samples"]
    keys = tuple(key for new in range(16, 56, 4) for key in (*range(new, new + 4), *range(drawn)))
    data = ColumnData(
        len(keys), keys=keys, payload=lambda key: json_row(key).replace(b'"age": ', b'"age": null, "other_age": '), trigger_id=1
    )
    rest: dict[str, Any] = {"trigger_id": 1, "parent_model_id": parent.trained.model_id, "online": True, "tests_only": tests_only}
    if stop_after is not None:
        with pytest.raises(CancelledError):
            room.train(pipeline, data, RecordedReport(stop_after), **rest)
    if tests_only:
        with pytest.raises(NoModel) as ended:
            room.train(pipeline, data, **rest)
        found = ended.value.result["preprocessing"]
    else:
        found = room.train(pipeline, data, **rest).result["preprocessing"]
    assert found["inputs"]["age"] == {"rows": 40, "missing": 1.0, "unlike": 0.0}
    assert found["unusual"] == ["100 % of 'age' are missing (limit 30 %)"]
    assert found["rows"] == 16, "they update no statistics"


def test_a_vocabulary_that_is_full_is_in_the_result_of_the_training(tmp_path: Path) -> None:
    section = {**DENSE, "components": [*DENSE["components"][:2], {"id": "LabelIndexer", "max_categories": 2}]}
    found = TrainingRoom(tmp_path).train(column_pipeline(section), ColumnData(40)).result["preprocessing"]
    sites = [site for site in columns_of(list(range(40)))["site"] if site is not None]
    known = list(dict.fromkeys(sites))[:2]
    assert found["over_bound"] == {"2 LabelIndexer": {"site": sum(site not in known for site in sites) / len(sites)}}
