"""Contract of every client of the selector: the real client with its service, and the fake that tests of its callers use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from modyn.config.system import SystemConfig
from modyn.errors import (
    AlreadyExistsError,
    ConfigError,
    ConflictError,
    InvalidArgumentError,
    ModynError,
    NotFoundError,
)
from modyn.records import ClassCount, FeedbackHeader, FeedbackRows, Int64Array, RunId, RunRegistration, SampleBatch
from modyn.selector.client import SelectorClient
from modyn.selector.deletions import StorageDeletions
from modyn.testing.fake_selector import FakeSelectorClient
from modyn.testing.fake_storage import FakeStorage
from tests.support.selecting import serving, stream

RUN = RunId("run-1")
SECTION: dict[str, Any] = {"name": "NewDataStrategy", "maximum_keys_in_memory": 10}


@pytest.fixture
def storage() -> FakeStorage:
    """A dataset `d`, from which samples can be deleted."""
    storage = FakeStorage()
    storage.add_dataset("d")
    storage.add_samples("d", timestamps=range(1000))
    return storage


@pytest.fixture(params=["service", "fake"])
def client(request: pytest.FixtureRequest, system_config: SystemConfig, storage: FakeStorage) -> Iterator[SelectorClient]:
    if request.param == "fake":
        yield cast("SelectorClient", FakeSelectorClient(StorageDeletions(storage.client())))
        return
    with serving(system_config, storage) as real:
        yield real


def keys_of(client: SelectorClient, trigger_id: int) -> list[int]:
    info = client.trigger_set(RUN, trigger_id)
    parts = [client.keys(RUN, trigger_id, partition).keys.tolist() for partition in range(info.num_partitions)]
    return [key for part in parts for key in part]


def test_the_fake_lacks_no_call() -> None:
    assert [name for name in vars(SelectorClient) if name[0] != "_" and name not in vars(FakeSelectorClient)] == []


def test_the_dataset_of_a_run_is_known(client: SelectorClient) -> None:
    client.register_run(RunRegistration(RUN, "d", SECTION, 1, dataset_identity="5eed"))
    assert client.dataset(RUN) == ("d", "5eed")
    assert client.data_section(RUN) is None
    with pytest.raises(NotFoundError):
        client.dataset(RunId("other-1"))


def test_what_is_informed_again_is_skipped_and_nothing_is_lost_in_silence(client: SelectorClient) -> None:
    client.register_run(RunRegistration(RUN, "d", SECTION, 1))
    assert client.inform(RUN, 0, SampleBatch.empty()) == 0
    assert client.inform(RUN, 0, stream(0, 10)) == 10
    assert client.inform(RUN, 4, stream(4, 20)) == 20
    assert client.inform(RUN, 2, stream(2, 5)) == 20
    with pytest.raises(ConflictError, match="leave a gap; send those from 20"):
        client.inform(RUN, 21, stream(21, 30))
    with pytest.raises(ConflictError, match="other samples at positions 10 to 20"):
        client.inform(RUN, 10, stream(11, 25))  # one sample of the past is missing in it
    with pytest.raises(ConflictError, match="other samples at positions 0 to 5"):
        client.inform(RUN, 0, stream(1, 6))
    with pytest.raises(InvalidArgumentError, match="int64 labels"):
        client.inform(RUN, 20, stream(20, 25, np.float64))
    with pytest.raises(InvalidArgumentError, match="negative"):
        client.inform(RUN, -1, stream(0, 5))
    assert client.samples(RUN, 0, 100).keys.tolist() == stream(0, 20).keys.tolist()


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_samples_come_back_as_they_were_informed(client: SelectorClient, dtype: type[np.generic]) -> None:
    client.register_run(RunRegistration(RUN, "d", SECTION, 1))
    assert len(client.samples(RUN, 0, 5)) == 0
    client.inform(RUN, 0, stream(0, 30, dtype))
    for position, limit in ((0, 30), (0, 7), (25, 7), (29, 1), (30, 1)):
        found, expected = client.samples(RUN, position, limit), stream(position, min(position + limit, 30), dtype)
        assert (found.keys.tolist(), found.timestamps.tolist()) == (expected.keys.tolist(), expected.timestamps.tolist())
        assert found.labels.tolist() == expected.labels.tolist()
        assert found.labels.dtype == dtype or not len(found)
    with pytest.raises(ConflictError, match="holds 30 samples, so none from position 31 on"):
        client.samples(RUN, 31, 5)
    for position, limit in ((-1, 5), (0, 0)):
        with pytest.raises(InvalidArgumentError, match="ask for 1 or more, from 0 on"):
            client.samples(RUN, position, limit)


def test_samples_that_are_only_tested_come_alone_and_are_history_later(client: SelectorClient) -> None:
    online = {"trigger": {"id": "DataAmountTrigger", "num_samples": 6}, "step_samples": 3, "history_samples": 2}
    client.register_run(RunRegistration(RUN, "d", SECTION, 1, online=online))
    client.inform(RUN, 0, stream(0, 24))
    client.trigger(RUN, 0, 6)
    for trigger_id, tests_only in ((1, False), (2, True), (3, False)):
        done = 6 * (trigger_id + 1)
        info = client.trigger(RUN, trigger_id, done, online=True, tests_only=tests_only)
        assert client.trigger(RUN, trigger_id, done, online=True, tests_only=tests_only) == info
    new = [stream(first, first + 6).keys.tolist() for first in (6, 12, 18)]
    assert keys_of(client, 2) == new[1]
    for number, keys in ((1, keys_of(client, 1)), (3, keys_of(client, 3))):
        assert keys[:3] + keys[5:8] == new[number - 1]
        assert len(keys) == 10
    drawn = {key for seed in range(8) for key in drawn_after_tests(client, seed, online)}
    assert drawn & set(stream(12, 18).keys.tolist())


def drawn_after_tests(client: SelectorClient, seed: int, online: dict[str, Any]) -> list[int]:
    """Steps draw from samples after those that were only tested."""
    run = RunId(f"run-{seed + 2}")
    client.register_run(RunRegistration(run, "d", SECTION, seed, online=online))
    client.inform(run, 0, stream(0, 24))
    client.trigger(run, 0, 12)
    client.trigger(run, 1, 18, online=True, tests_only=True)
    info = client.trigger(run, 2, 24, online=True)
    keys = [key for number in range(info.num_partitions) for key in client.keys(run, 2, number).keys.tolist()]
    return keys[3:5] + keys[8:]


def test_a_trigger_is_fixed_once_and_comes_in_order(client: SelectorClient) -> None:
    client.register_run(RunRegistration(RUN, "d", {**SECTION, "tail_triggers": 0}, 1))
    client.inform(RUN, 0, stream(0, 40))
    first = client.trigger(RUN, 0, 15)
    assert (first.num_keys, first.partition_size, first.num_partitions) == (15, 10, 2)
    assert client.trigger(RUN, 0, 15) == first == client.trigger_set(RUN, 0)
    assert client.trigger(RUN, 1, 15).num_keys == 0
    assert client.trigger(RUN, 2, 40).num_keys == 25
    refused: list[tuple[int, int, type[ModynError], str]] = [
        (0, 16, ConflictError, "does not change"),
        (4, 40, ConflictError, "next trigger of run 'run-1' is 3"),
        (3, 41, ConflictError, "but 40 are held"),
        (3, 39, ConflictError, "fewer than the 40"),
        (-1, 5, InvalidArgumentError, "neither may be negative"),
        (3, -5, InvalidArgumentError, "neither may be negative"),
    ]
    for trigger_id, num_samples, error, says in refused:
        with pytest.raises(error, match=says):
            client.trigger(RUN, trigger_id, num_samples)
    assert keys_of(client, 0) == stream(0, 15).keys.tolist()
    assert keys_of(client, 2) == stream(15, 40).keys.tolist()
    with pytest.raises(InvalidArgumentError, match="no partition 2"):
        client.keys(RUN, 0, 2)
    with pytest.raises(NotFoundError, match="no trigger 3"):
        client.keys(RUN, 3, 0)


def test_what_a_trigger_chose_from_is_counted_the_same_each_time(client: SelectorClient) -> None:
    client.register_run(RunRegistration(RUN, "d", {**SECTION, "limit": 20}, 1))
    client.inform(RUN, 0, stream(0, 60))
    for trigger_id, end in enumerate((30, 60)):
        client.trigger(RUN, trigger_id, end)
    found = client.summary(RUN, 1)
    assert (found.trigger_id, found.num_candidates, found.num_chosen, found.num_shared) == (1, 60, 20, 0)
    assert found.classes == tuple(ClassCount(label, 6, 2) for label in range(10))
    assert (found.ages[0], found.ages[-1], found.candidate_ages[-1], found.weights) == (0.0, 19.0, 59.0, (1.0,) * 5)
    assert client.summary(RUN, 1) == found
    assert client.summary(RUN, 0).num_candidates == 30
    with pytest.raises(NotFoundError, match="no trigger 2"):
        client.summary(RUN, 2)


RANDOM = {"name": "CoresetStrategy", "maximum_keys_in_memory": 10, "presampling_config": {"strategy": "Random", "ratio": 40}}


@pytest.mark.parametrize(
    ("section", "sizes"),
    [
        (SECTION, [15, 35, 0]),
        ({**SECTION, "limit": 10}, [10, 10, 0]),
        ({**SECTION, "limit": 10, "limit_reset": "sampleUAR"}, [10, 10, 0]),
        ({**SECTION, "tail_triggers": 0}, [15, 20, 0]),
        (RANDOM, [6, 14, 0]),
    ],
)
def test_deleted_samples_leave_windows_ratios_and_limits(
    client: SelectorClient, storage: FakeStorage, section: dict[str, Any], sizes: list[int]
) -> None:
    """25 of 40 are deleted before the first trigger, none of the next 20, and all before the last."""
    client.register_run(RunRegistration(RUN, "d", section, 1))
    client.inform(RUN, 0, stream(0, 40))
    deleted = stream(3, 28).keys
    storage.client().delete_samples("d", deleted)
    first = client.trigger(RUN, 0, 40)
    kept = keys_of(client, 0)
    client.inform(RUN, 40, stream(40, 60))
    second = client.trigger(RUN, 1, 60)
    storage.client().delete_samples("d", np.arange(1000))
    third = client.trigger(RUN, 2, 60)
    assert [first.num_keys, second.num_keys, third.num_keys] == sizes
    assert not np.isin(deleted, [*kept, *keys_of(client, 1)]).any()
    if section.get("limit_reset") is None and "limit" in section:
        assert kept == stream(30, 40).keys.tolist()
    # A trigger set is fixed: deletions since then change none.
    assert client.trigger(RUN, 0, 40) == first
    assert keys_of(client, 0) == kept


def test_a_dataset_that_storage_does_not_know_is_named(client: SelectorClient) -> None:
    client.register_run(RunRegistration(RUN, "unknown", SECTION, 1))
    client.inform(RUN, 0, stream(0, 40))
    with pytest.raises(NotFoundError, match="no dataset 'unknown'"):
        client.trigger(RUN, 0, 40)


def test_a_run_belongs_to_one_registration_of_its_dataset(client: SelectorClient, storage: FakeStorage) -> None:
    identity = storage.client().dataset("d").identity
    client.register_run(RunRegistration(RUN, "d", SECTION, 1, dataset_identity=identity))
    client.inform(RUN, 0, stream(0, 40))
    assert client.trigger(RUN, 0, 20).dataset_identity == client.trigger_set(RUN, 0).dataset_identity == identity
    storage.add_dataset("d")
    with pytest.raises(NotFoundError, match="dataset 'd' was deleted, and another was registered under its name"):
        client.trigger(RUN, 1, 40)
    assert client.trigger(RUN, 0, 20).num_keys == 20  # Readers of the set compare its identity.
    with pytest.raises(AlreadyExistsError, match="another registration of it"):
        client.register_run(RunRegistration(RUN, "d", SECTION, 1, dataset_identity=storage.client().dataset("d").identity))


def test_runs_are_registered_once_and_with_names_that_files_can_have(client: SelectorClient) -> None:
    data = {"dataset_id": "d"}
    client.register_run(RunRegistration(RUN, "d", SECTION, 1, data))
    client.register_run(RunRegistration(RUN, "d", SECTION, 1))
    assert client.data_section(RUN) == data
    for dataset, section, seed in (("e", SECTION, 1), ("d", {**SECTION, "limit": 3}, 1), ("d", SECTION, 2)):
        with pytest.raises(AlreadyExistsError, match="choose another run id"):
            client.register_run(RunRegistration(RUN, dataset, section, seed))
    with pytest.raises(ConfigError, match="limt"):
        client.register_run(RunRegistration(RunId("other"), "d", {**SECTION, "limt": 3}, 1))
    for name in ("", "../up", ".hidden", "a/b", "x" * 201, "a\nb"):
        with pytest.raises(InvalidArgumentError, match="cannot name a run"):
            client.register_run(RunRegistration(RunId(name), "d", SECTION, 1))


def test_an_unknown_run_and_one_that_was_deleted_are_refused_by_every_call(client: SelectorClient) -> None:
    client.register_run(RunRegistration(RUN, "d", SECTION, 1))
    client.inform(RUN, 0, stream(0, 20))
    before = client.trigger(RUN, 0, 20)
    client.delete_run(RUN)
    client.delete_run(RUN)
    for call in (
        lambda: client.inform(RUN, 0, stream(0, 5)),
        lambda: client.samples(RUN, 0, 5),
        lambda: client.trigger(RUN, 0, 0),
        lambda: client.trigger_set(RUN, 0),
        lambda: client.keys(RUN, 0, 0),
        lambda: client.data_section(RUN),
    ):
        with pytest.raises(NotFoundError, match="no run 'run-1'"):
            call()
    client.register_run(RunRegistration(RUN, "d", SECTION, 1))
    assert client.inform(RUN, 0, stream(100, 120)) == 20
    client.trigger(RUN, 0, 20)
    with pytest.raises(ConflictError, match="was deleted and started again"):
        client.keys(RUN, 0, 0, before.keys_checksum)


def scores_of(keys: Int64Array, epoch: int = 0) -> FeedbackRows:
    """A loss of key / 2 and a gradient of three numbers for each key."""
    gradients = np.repeat(keys[:, None], 3, axis=1).astype(np.float32)
    scores = {"loss": (keys[:, None] / 2).astype(np.float32), "gradient_3": gradients}
    return FeedbackRows(keys, np.full(len(keys), epoch, np.int32), scores)


def header_of(client: SelectorClient, trigger_id: int, num_rows: int, attempt: int = 1) -> FeedbackHeader:
    checksum = client.trigger_set(RUN, trigger_id).keys_checksum
    return FeedbackHeader(RUN, trigger_id, checksum, attempt, num_rows, {"loss": 1, "gradient_3": 3})


def triggered(client: SelectorClient, section: dict[str, Any] = SECTION) -> None:
    """Two triggers over 10 and 20 samples."""
    client.register_run(RunRegistration(RUN, "d", section, 1))
    client.inform(RUN, 0, stream(0, 20))
    client.trigger(RUN, 0, 10)
    client.trigger(RUN, 1, 20)


def held(client: SelectorClient, header: FeedbackHeader) -> list[tuple[list[int], list[int], dict[str, Any]]]:
    parts = list(client.feedback(header))
    return [
        (part.keys.tolist(), part.epochs.tolist(), {name: part.scores[name].tolist() for name in sorted(part.scores)})
        for part in parts
    ]


def test_feedback_comes_back_as_it_was_put_by_trigger(client: SelectorClient) -> None:
    triggered(client)
    assert client.feedback_headers(RUN) == []
    rows = [scores_of(np.array([1, 4, 7])), scores_of(np.array([], np.int64)), scores_of(np.array([4, 1, 2**40]), 1)]
    second = header_of(client, 1, 0)
    assert client.put_feedback(second, lambda: iter(())) == second
    header = header_of(client, 0, 6)
    assert client.put_feedback(header, lambda: iter(rows)) == header
    assert client.feedback_headers(RUN) == [header, second]
    parts = list(client.feedback(header))
    assert np.concatenate([part.keys for part in parts]).tolist() == [1, 4, 7, 4, 1, 2**40]
    assert np.concatenate([part.epochs for part in parts]).tolist() == [0, 0, 0, 1, 1, 1]
    losses = np.concatenate([part.scores["loss"] for part in parts])
    assert losses.dtype == np.float32
    assert losses.tolist() == [[0.5], [2.0], [3.5], [2.0], [0.5], [2.0**39]]
    assert parts[-1].scores["gradient_3"][-1].tolist() == [2.0**40] * 3
    assert list(client.feedback(second)) == []


def test_feedback_of_a_later_attempt_replaces_that_of_an_earlier_one_and_not_the_other_way_round(client: SelectorClient) -> None:
    triggered(client)
    first, second = header_of(client, 0, 2, 1), header_of(client, 0, 3, 2)
    client.put_feedback(first, lambda: [scores_of(np.array([1, 4]))])
    expected = held(client, first)
    assert client.put_feedback(first, lambda: [scores_of(np.array([7, 10]))]) == first
    assert held(client, first) == expected
    assert client.put_feedback(second, lambda: [scores_of(np.array([1, 4, 7]))]) == second
    with pytest.raises(ConflictError, match="read them again"):
        held(client, first)
    assert client.put_feedback(first, lambda: [scores_of(np.array([1, 4]))]) == second
    assert client.feedback_headers(RUN) == [second]


@pytest.mark.parametrize(
    ("change", "rows", "message"),
    [
        ({"num_rows": 3}, [[1, 4]], "ended after 2 of 3 rows"),
        ({"num_rows": 1}, [[1, 4]], "0 of 1 are there"),
        ({"widths": {"Loss": 1}}, [[1, 4]], "small letters"),
        ({"widths": {}}, [[1, 4]], "1 to 64 names"),
        ({"widths": {"loss": 5000}}, [[1, 4]], "1 to 4096 numbers"),
        ({"widths": {"loss": 2}}, [[1, 4]], "lack the score loss of 2 numbers"),
        ({"widths": {"entropy": 1}}, [[1, 4]], "lack the score entropy"),
        ({"num_rows": -1}, [], "-1 rows"),
    ],
)
def test_feedback_that_is_not_as_announced_is_refused_and_leaves_nothing(
    client: SelectorClient, change: dict[str, Any], rows: list[list[int]], message: str
) -> None:
    triggered(client)
    header = replace(header_of(client, 0, 2), **change)
    with pytest.raises(InvalidArgumentError, match=message):
        client.put_feedback(header, lambda: [scores_of(np.array(keys)) for keys in rows])
    assert client.feedback_headers(RUN) == []


def test_feedback_of_another_trigger_set_or_of_an_unknown_run_is_refused(client: SelectorClient) -> None:
    triggered(client)
    header = header_of(client, 0, 0)
    with pytest.raises(ConflictError):
        client.put_feedback(replace(header, keys_checksum="0" * 64), lambda: ())
    with pytest.raises(NotFoundError):
        client.put_feedback(replace(header, trigger_id=2), lambda: ())
    with pytest.raises(NotFoundError):
        client.feedback_headers(RunId("other-1"))


def test_feedback_goes_with_its_run(client: SelectorClient) -> None:
    triggered(client)
    client.put_feedback(header_of(client, 0, 2), lambda: [scores_of(np.array([1, 4]))])
    client.delete_run(RUN)
    triggered(client)
    assert client.feedback_headers(RUN) == []


def test_a_trigger_set_names_the_scores_that_its_run_asks_for(client: SelectorClient) -> None:
    triggered(client, {**SECTION, "keep_scores": True})
    assert client.trigger_set(RUN, 1).feedback == ("loss",)


def test_trigger_sets_are_selected_from_samples_with_labels_in_the_order_of_these(client: SelectorClient) -> None:
    """The first ten samples came with their labels; then those of later ones came in another order."""
    client.register_run(RunRegistration(RUN, "d", SECTION | {"tail_triggers": 0}, seed=1))
    client.inform(RUN, 0, stream(0, 10))
    assert client.trigger(RUN, 0, 4).num_keys == 4
    assert client.inform_labels(RUN, 10, SampleBatch.empty()) == 10
    client.inform(RUN, 10, stream(10, 30))
    order = [12, 11, 25, 10]
    came = SampleBatch.concatenate([stream(at, at + 1) for at in order])
    for _ in range(2):
        assert client.inform_labels(RUN, 10, came) == 14
    assert client.inform_labels(RUN, 12, SampleBatch.concatenate([came.slice(2, 4), stream(20, 21)])) == 15
    found = client.samples(RUN, 8, 100, labelled=True)
    expected = [*(3 * at + 1 for at in (8, 9, *order, 20))]
    assert (found.keys.tolist(), found.timestamps.tolist()) == (expected, [(key - 1) // 3 - 50 for key in expected])
    assert client.samples(RUN, 0, 100).keys.tolist() == stream(0, 30).keys.tolist(), "the stream stays as it was"
    client.trigger(RUN, 1, 12)
    client.trigger(RUN, 2, 15)
    assert keys_of(client, 1) == [3 * at + 1 for at in (4, 5, 6, 7, 8, 9, 12, 11)]
    assert keys_of(client, 2) == [76, 31, 61]
    assert client.summary(RUN, 2).num_candidates == 3
    with pytest.raises(ConflictError, match="15 are held"):
        client.trigger(RUN, 3, 16)
    with pytest.raises(ConflictError):
        client.inform_labels(RUN, 16, came)
    with pytest.raises(ConflictError):
        client.inform_labels(RUN, 10, stream(13, 15))
    with pytest.raises(ConflictError):
        client.inform_labels(RUN, 9, came)


def test_without_a_label_nothing_is_selected(client: SelectorClient) -> None:
    client.register_run(RunRegistration(RUN, "d", SECTION, seed=1))
    client.inform_labels(RUN, 0, SampleBatch.empty())
    client.inform(RUN, 0, stream(0, 30, np.float64))
    assert client.trigger(RUN, 0, 0).num_keys == 0
    assert len(client.samples(RUN, 0, 5, labelled=True)) == 0
    client.inform_labels(RUN, 0, stream(5, 8, np.float64))
    assert client.trigger(RUN, 1, 3).num_keys == 3
    assert client.samples(RUN, 0, 5, labelled=True).labels.dtype == np.float64
