"""Balance by a column of the dataset: what is asked of storage and how often, which samples are kept, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn._core import KeySet
from modyn.config.base import Severity
from modyn.config.system import SystemConfig
from modyn.config.system_sections.endpoint import Endpoint
from modyn.db.engine import Database, open_database
from modyn.errors import ConfigError, NotFoundError, UnavailableError
from modyn.records import Int64Array, RunId, RunRegistration, SampleBatch
from modyn.selector.selection import build_selection
from modyn.selector.selector import Selector
from modyn.selector.storage_columns import StorageColumns, stratum, validate_columns
from modyn.selector.window import SelectionContext, StateFiles, window_of_trigger
from modyn.selector.window.strata import MOST_STRATA
from modyn.storage.client import StorageClient
from modyn.testing.fake_selector import FakeSelectorClient
from modyn.testing.fake_storage import FakeStorage
from modyn.testing.memory_reader import MemoryReader
from tests.support.selecting import serving

RUN = RunId("r")


def section(strategy: str = "ColumnBalanced", tail: int | None = None, **options: Any) -> dict[str, Any]:
    presampling = {"strategy": strategy, "ratio": 40, "column": "site", **options}
    return {"name": "CoresetStrategy", "maximum_keys_in_memory": 7, "tail_triggers": tail, "presampling_config": presampling}


def batch(first: int, end: int) -> SampleBatch:
    """Samples whose keys are three times their positions."""
    positions = np.arange(first, end)
    return SampleBatch(positions * 3, positions, positions % 4)


class Sites:
    """A column by position, which notes what is asked of it."""

    def __init__(self, strata: Sequence[int] | Int64Array) -> None:
        self.strata, self.asked = np.asarray(strata, np.int64), list[int]()

    def __call__(self, dataset: str, identity: str, column: str, keys: Int64Array) -> Int64Array:
        assert (dataset, column) == ("d", "site")
        self.asked += (keys // 3).tolist()
        found: Int64Array = self.strata[keys // 3]
        return found


def shares(counts: Counter[int], budget: int) -> list[int]:
    """Return the shares of water-filling, ascending, computed one sample after the other."""
    given = dict.fromkeys(counts, 0)
    for _ in range(min(budget, counts.total())):
        given[min((share, value) for value, share in given.items() if share < counts[value])[1]] += 1
    return sorted(given.values())


@given(data=st.data(), tail=st.sampled_from([None, 0, 1, 2]), warmup=st.integers(0, 2))
def test_each_value_gets_the_same_share_and_is_asked_for_once(data: st.DataObject, tail: int | None, warmup: int) -> None:
    ends = np.cumsum(data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=5))).tolist()
    strata = data.draw(st.lists(st.sampled_from([-1, 5, 2**62, 7]), min_size=ends[-1], max_size=ends[-1]))
    gone = data.draw(st.lists(st.sets(st.integers(0, max(ends[-1] - 1, 0))), min_size=len(ends), max_size=len(ends)))
    deleted = [set().union(*gone[: number + 1]) for number in range(len(ends))]
    column = Sites(strata)
    client = FakeSelectorClient(lambda *_: KeySet(3 * np.array(sorted(deleted[len(client.runs[RUN].sets)]), np.int64)), column)
    client.register_run(RunRegistration(RUN, "d", {**section(tail=tail), "warmup_triggers": warmup}, 3))
    client.inform(RUN, 0, batch(0, ends[-1]))
    for number, end in enumerate(ends):
        client.trigger(RUN, number, end)
        start = 0 if tail is None or tail >= number else ends[number - tail - 1]
        window = [position for position in range(start, end) if position not in deleted[number]]
        found = (client.runs[RUN].sets[number].keys // 3).tolist()
        assert set(found) <= set(window)
        if number >= warmup:
            counts = Counter(strata[position] for position in window)
            budget = max(len(window) * 40 // 100, min(len(window), 1))
            by_value = Counter(strata[position] for position in found)
            assert sorted(by_value[value] for value in counts) == shares(counts, budget)
    assert max(Counter(column.asked).values(), default=1) == 1


@settings(max_examples=10)
@given(data=st.data(), strategy=st.sampled_from(["ColumnBalanced", "Stratified"]))
def test_both_backends_select_the_same(
    tmp_path_factory: pytest.TempPathFactory, system_database: Database, data: st.DataObject, strategy: str
) -> None:
    ends = np.cumsum(data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=3))).tolist()
    column = Sites(data.draw(st.lists(st.integers(0, 5), min_size=ends[-1], max_size=ends[-1])))
    selector = Selector(system_database, tmp_path_factory.mktemp("selector"), lambda *_: KeySet(np.zeros(0, np.int64)), column)
    found = []
    for backend in ("local", "database"):
        selector.register_run(RunRegistration(RunId(backend), "d", {**section(strategy), "storage_backend": backend}, 3))
        selector.inform(RunId(backend), 0, batch(0, ends[-1]))
        found.append([selector.trigger(RunId(backend), number, end).keys_checksum for number, end in enumerate(ends)])
        selector.delete_run(RunId(backend))
    selector.close()
    assert found[0] == found[1]


@pytest.fixture(scope="module")
def system_database(tmp_path_factory: pytest.TempPathFactory, postgres_server: Any) -> Iterator[Database]:
    config = SystemConfig(state_dir=tmp_path_factory.mktemp("state"), database_url=postgres_server.url)
    opened = open_database(config, "selector", "modyn.selector.migrations")
    yield opened
    opened.close()


def test_stratified_keeps_the_shares_of_a_column() -> None:
    client = FakeSelectorClient(read_column=Sites(np.repeat([4, 9, 2], [10, 30, 60])))
    client.register_run(RunRegistration(RUN, "d", section("Stratified"), 3))
    client.inform(RUN, 0, batch(0, 100))
    client.trigger(RUN, 0, 100)
    found = client.runs[RUN].sets[0].keys // 3
    assert [np.count_nonzero((found >= start) & (found < end)) for start, end in ((0, 10), (10, 40), (40, 100))] == [4, 12, 24]


def test_a_file_that_has_all_is_kept_and_one_that_reaches_back_too_far_is_cut(tmp_path: Path) -> None:
    """Triggers of which the second brings nothing, and the fourth has a window that begins later."""
    column, policy, files = Sites(np.arange(100) % 3), build_selection(section()), StateFiles(tmp_path, 0)
    names, sizes = [], []
    for number, (start, end) in enumerate(((0, 40), (0, 40), (0, 60), (50, 90))):
        files = StateFiles(tmp_path, number, files.references())
        window = window_of_trigger(MemoryReader(batch(0, 100)), start, end, 1)
        context = SelectionContext(
            1, number, files, lambda: np.zeros(0, np.int64), column=lambda name, keys: column("d", "", name, keys)
        )
        assert sum(len(chunk) for chunk in policy.select(window, context).chunks) == (end - start) * 40 // 100
        names.append(files.references()["column"]["file"])
        written = StateFiles(tmp_path, number + 1, files.references()).open("column")
        assert written is not None
        sizes.append((written.meta["first"], len(written.column("strata"))))
    assert names == ["000000.column.state", "000000.column.state", "000002.column.state", "000003.column.state"]
    assert sizes == [(0, 40), (0, 40), (0, 60), (50, 40)]
    assert column.asked == list(range(90))


def test_a_range_of_deleted_samples_costs_nothing() -> None:
    """The range is in the window, is longer than one read, and is not requested."""
    size = 700_000
    column = Sites(np.arange(size) % 2)
    gone = KeySet(3 * np.arange(10, size - 10))
    client = FakeSelectorClient(lambda *_: gone, column)
    client.register_run(RunRegistration(RUN, "d", section(ratio=100), 3))
    client.inform(RUN, 0, batch(0, size))
    for number, end in enumerate((size - 5, size)):
        client.trigger(RUN, number, end)
    assert (client.runs[RUN].sets[1].keys // 3).tolist() == [*range(10), *range(size - 10, size)]
    assert sorted(column.asked) == [*range(10), *range(size - 10, size)]


def test_too_many_values_are_refused() -> None:
    client = FakeSelectorClient(read_column=Sites(np.arange(MOST_STRATA + 1)))
    client.register_run(RunRegistration(RUN, "d", {**section(), "maximum_keys_in_memory": 2**20}, 3))
    client.inform(RUN, 0, batch(0, MOST_STRATA + 1))
    with pytest.raises(ConfigError, match="has more than 1048576 values of the column, too many to divide a trigger set among"):
        client.trigger(RUN, 0, MOST_STRATA + 1)


def test_forced_balance_names_what_is_balanced() -> None:
    client = FakeSelectorClient(read_column=Sites(np.arange(10)))
    client.register_run(RunRegistration(RUN, "d", section(force_column_balancing=True), 3))
    client.inform(RUN, 0, batch(0, 10))
    with pytest.raises(ConfigError, match="4 samples are fewer than the 10 values of the column of the window"):
        client.trigger(RUN, 0, 10)


def test_the_stratum_of_a_value_is_the_same_in_every_process() -> None:
    assert (stratum("oslo"), stratum(""), stratum(None)) == (8079082606332175587, -5426141060434712860, -1)
    assert len({stratum(str(number)) for number in range(100_000)} | {stratum(None)}) == 100_001


def sites_storage(sites: Sequence[str | None]) -> FakeStorage:
    storage = FakeStorage()
    storage.add_dataset("d")
    storage.add_samples("d", range(len(sites)), columns={"site": sites})
    return storage


def test_values_become_strata() -> None:
    sites = ["a", None, "b", "a", "", None]
    read = StorageColumns(sites_storage(sites).client())
    found = read("d", "", "site", np.array([5, 0, 2, 3, 4]))
    assert found.tolist() == [-1, stratum("a"), stratum("b"), stratum("a"), stratum("")]
    assert read("d", "", "site", np.array([1])).tolist() == [-1]
    with pytest.raises(ConfigError, match="dataset 'd' has no column 'sites' in its first and last samples, did you mean 'site'"):
        read("d", "", "sites", np.array([0]))
    with pytest.raises(NotFoundError, match="another was registered under its name"):
        read("d", "other", "site", np.array([0]))


def test_a_pipeline_that_names_a_column_that_is_not_there_is_wrong() -> None:
    client = sites_storage(["a"]).client()

    def problems(column: str, dataset: str = "d", **options: Any) -> list[tuple[str, str, Severity]]:
        pipeline = {"data": {"dataset_id": dataset}, "selection_strategy": {**section(column=column), **options}}
        found = validate_columns(pipeline, client)
        return [(problem.path, problem.message, problem.severity) for problem in found]

    assert problems("site") == []
    ((path, message, severity),) = problems("sight")
    assert (path, severity) == ("selection_strategy.presampling_config.column", Severity.ERROR)
    assert message == (
        "dataset 'd' has no column 'sight' in its first and last samples, did you mean 'site'? Correct the name of the column"
    )
    assert problems("sight", "unknown") == []  # what is wrong there is said of `data`
    assert [found[0] for found in problems("sight", limit=0)] == ["selection_strategy.limit"]
    without = {"data": {"dataset_id": "d"}, "selection_strategy": {"name": "NewDataStrategy", "maximum_keys_in_memory": 1}}
    for pipeline in (without, {**without, "data": 5}, {"selection_strategy": section()}):
        assert validate_columns(pipeline, client) == []


def test_a_check_without_storage_gives_no_verdict() -> None:
    pipeline = {"data": {"dataset_id": "d"}, "selection_strategy": section()}
    with StorageClient(Endpoint(address="unix:/nowhere/storage"), wait_s=0) as away:
        with pytest.raises(UnavailableError, match="cannot be reached"):
            validate_columns(pipeline, away)
        assert validate_columns({**pipeline, "selection_strategy": section("LabelBalanced", column="site")}, away) != []


def test_over_the_wire(system_config: SystemConfig) -> None:
    sites: list[str | None] = [*"ab" * 4, *"c" * 12, *[None] * 20]
    storage = sites_storage(sites)
    with serving(system_config, storage) as client:
        pipeline = {"data": {"dataset_id": "d"}, "selection_strategy": section(column="sight")}
        (problem,) = client.validate(pipeline)
        assert problem.path == "selection_strategy.presampling_config.column"
        assert "did you mean 'site'" in problem.message
        client.register_run(RunRegistration(RUN, "d", section(column="site"), 3))
        client.inform(RUN, 0, SampleBatch(np.arange(40), np.arange(40), np.zeros(40, np.int64)))
        client.trigger(RUN, 0, 20)
        info = client.trigger(RUN, 1, 40)
        keys = [key for part in range(info.num_partitions) for key in client.keys(RUN, 1, part).keys.tolist()]
        assert Counter(sites[key] for key in keys) == {"a": 4, "b": 4, "c": 4, None: 4}


class Interrupted(Sites):
    """A column that cannot be read in the second request."""

    requests = 0

    def __call__(self, dataset: str, identity: str, column: str, keys: Int64Array) -> Int64Array:
        self.requests += 1
        if self.requests == 2:
            raise UnavailableError("storage is away")
        return super().__call__(dataset, identity, column, keys)


def test_a_trigger_without_storage_fails_and_is_made_later(database: Database, tmp_path: Path) -> None:
    column = Interrupted(np.arange(20) % 2)
    selector = Selector(database, tmp_path, lambda *_: KeySet(np.zeros(0, np.int64)), column)
    selector.register_run(RunRegistration(RUN, "d", section(), 3))
    selector.inform(RUN, 0, batch(0, 20))
    selector.trigger(RUN, 0, 10)
    with pytest.raises(UnavailableError, match="away"):
        selector.trigger(RUN, 1, 20)
    assert selector.trigger(RUN, 1, 20).num_keys == 8
    assert column.asked == list(range(20))
    selector.close()
