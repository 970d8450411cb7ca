"""Online policies: golden sequences by the papers' pseudo-code, distributions, and what holds of every buffer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from modyn._core import KeySet
from modyn.config.system import SystemConfig
from modyn.errors import ConfigError, ModynError
from modyn.records import FeedbackHeader, FeedbackRows, Int64Array, RunId, RunRegistration, SampleBatch
from modyn.selector.deletions import StorageDeletions
from modyn.selector.presampling.buffered import Decider
from modyn.selector.presampling.class_balanced_reservoir import ClassBalancedReservoir
from modyn.selector.presampling.clib import ImportanceBalancer, updated
from modyn.selector.presampling.gdumb import GreedyBalancer
from modyn.selector.presampling.gss import Greedy, Quadratic, least_similar
from modyn.selector.presampling.reservoir import AlgorithmR
from modyn.selector.selection import build_selection, validate_selection
from modyn.selector.window import Feedback
from modyn.testing.fake_selector import FakeSelectorClient
from modyn.testing.fake_storage import FakeStorage
from tests.support.selecting import serving

A, B, C, D = range(4)
NAMES = ("Reservoir", "ClassBalancedReservoir", "GDumb", "CLiB", "GSS")
BY_CLASS = ("ClassBalancedReservoir", "GDumb", "CLiB")


class Script:
    """A generator that draws these numbers of [0, 1), and then 0."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = list(numbers)

    def random(self, size: int | None = None) -> Any:
        count = 1 if size is None else size
        drawn = [self._numbers.pop(0) if self._numbers else 0.0 for _ in range(count)]
        return drawn[0] if size is None else np.array(drawn)


def script(*numbers: float) -> np.random.Generator:
    return cast("np.random.Generator", Script(*numbers))


def held(decider: Decider, labels: Sequence[int], cuts: Sequence[int] = ()) -> dict[int, int]:
    """Return the sample that each slot holds at the end, offered in chunks that end at `cuts`."""
    slots: dict[int, int] = {}
    for start, stop in pairwise([0, *cuts, len(labels)]):
        changed, rows = decider.offer(np.array(labels[start:stop], np.int64))
        assert len(set(changed.tolist())) == len(changed)
        slots.update(zip(changed.tolist(), (start + rows).tolist(), strict=True))
    assert sorted(slots) == list(range(len(slots)))
    return slots


def test_the_reservoir_takes_sample_n_with_probability_size_over_n() -> None:
    # Samples 2, 3, 4 draw of 3, 4, 5 places: 1, 3 (none of the buffer), 0.
    assert held(AlgorithmR(2, script(0.5, 0.8, 0.1)), [A] * 5) == {0: 4, 1: 2}


def test_gdumb_by_hand() -> None:
    numbers = [0.0, 0.5, 0.9, 0.9, 0.1, 0.0, 0.0, 0.99]
    assert held(GreedyBalancer(3, script(*numbers)), [A, A, A, A, B, B, B, A, C, C]) == {0: 0, 1: 8, 2: 5}


def test_gdumb_leaves_room_for_classes_of_which_little_has_come() -> None:
    """Its share of 10 places is 5 for each of two classes, as in the paper, although one has only two samples; and remainders are used."""
    assert Counter(held(GreedyBalancer(10, script()), [A, A, *[B] * 20]).values()).total() == 7
    assert len(held(GreedyBalancer(10, script()), [A, B, C] * 20)) == 10


def test_the_class_balanced_reservoir_by_hand() -> None:
    numbers = [0.8, 0.5, 0.4, 0.0, 0.66, 0.9, 0.6, 0.5]
    assert held(ClassBalancedReservoir(4, script(*numbers)), [A, A, A, B, A, A, B, B, C, C]) == {0: 7, 1: 9, 2: 2, 3: 8}


def test_clib_by_hand() -> None:
    balancer = ImportanceBalancer(3, np.array([A, A, B]), np.array([0.25, 0.125, 0.5]), np.arange(3), np.array([A, B]))
    changed, rows = balancer.offer(np.array([A, B, C]))
    assert dict(zip(changed.tolist(), rows.tolist(), strict=True)) == {0: 1, 1: 0, 2: 2}
    assert balancer.importance.tolist() == [0.5, 0.25, 0.0]
    assert balancer.order.tolist() == [4, 3, 5]


def plain_clib(size: int, labels: Sequence[int]) -> dict[int, int]:
    """The memory of CLIB as its pseudo-code has it: lists that are searched."""
    memory: list[tuple[int, float, int]] = []  # row, importance, when
    slots: dict[int, int] = {}
    for row, label in enumerate(labels):
        slot = len(memory)
        if slot == size:
            classes = list(dict.fromkeys(labels[: row + 1]))
            counts = Counter(labels[held] for held, _, _ in memory) + Counter([label])
            largest = max(classes, key=lambda other: (counts[other], -classes.index(other)))
            slot = min((m[1], m[2], at) for at, m in enumerate(memory) if labels[m[0]] == largest)[2]
        else:
            memory.append((row, 0.0, row))
        memory[slot] = (row, 0.0, row)
        slots[slot] = row
    return slots


@given(size=st.integers(5, 12), labels=st.lists(st.integers(0, 4), max_size=80))
def test_clib_replaces_as_its_pseudo_code_does(size: int, labels: list[int]) -> None:
    assert held(ImportanceBalancer(size), labels) == plain_clib(size, labels)


def feedback_of(*parts: tuple[list[int], list[float]]) -> Feedback:
    rows = [
        FeedbackRows(np.array(keys), np.zeros(len(keys), np.int32), {"loss_decrease": np.array(values, np.float32)[:, None]})
        for keys, values in parts
    ]
    header = SimpleNamespace(widths={"loss_decrease": 1})
    return cast("Feedback", SimpleNamespace(header=header, chunks=lambda: iter(rows)))


def test_importance_is_a_moving_average_of_decreases_in_their_order() -> None:
    keys, before = np.array([9, 7]), np.array([1.0, 0.0])
    for found in (feedback_of(([9, 7, 9, 5], [3, np.nan, 1, 4])), feedback_of(([9], [3]), ([7, 9], [np.nan, 1]), ([5], [4]))):
        assert updated(before, keys, found, 0.5).tolist() == [1.5, 0.0]
    assert before.tolist() == [1.0, 0.0]


def test_gss_greedy_by_hand() -> None:
    nothing = np.zeros(0, np.int64), np.zeros((0, 2), np.float32), np.zeros(0)
    greedy = Greedy(2, script(0.5, 0.99), *nothing, 10)
    gradients = np.array([[1, 0], [2, 0], [0, 1], [-1, 0], [-1, 0.1], [0, 0]], np.float32)
    greedy.offer(np.arange(6), gradients)
    assert greedy.keys.tolist() == [0, 3]
    assert greedy.scores.tolist() == [1.0, 0.0]
    assert greedy.gradients.tolist() == [[1, 0], [-1, 0]]


def test_gss_iqp_finds_the_least_sum_of_cosines_nearly_always() -> None:
    """Among the best 5 % of all sets, in the mean among the best 1 %; no exchange of one for another makes it better."""
    ranks = []
    for seed in range(30):
        directions = np.random.default_rng(seed).normal(size=(12, 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        cosines = directions @ directions.T
        totals = {chosen: float(cosines[np.ix_(chosen, chosen)].sum()) for chosen in combinations(range(12), 6)}
        found = tuple(least_similar(cosines, 6).tolist())
        ranks.append(float(np.mean([total < totals[found] - 1e-9 for total in totals.values()])))
        for leaves in found:
            for enters in set(range(12)) - set(found):
                assert totals[tuple(sorted({*found, enters} - {leaves}))] >= totals[found] - 1e-6
    assert max(ranks) < 0.05
    assert np.mean(ranks) < 0.01


def test_gss_iqp_keeps_the_directions_that_differ() -> None:
    gradients = np.array([[1, 0]] * 5 + [[0, 1]] * 5 + [[-1, -1]] * 5, np.float32)
    selector = Quadratic(3, np.zeros(0, np.int64), np.zeros((0, 2), np.float32), np.zeros(0), 4)
    selector.offer(np.arange(15), gradients)
    selector.finish()
    assert sorted((selector.keys // 5).tolist()) == [0, 1, 2]


def uniformity(counts: Int64Array, num_runs: int, size: int) -> float:
    """How likely counts of n samples, each of which a run holds with probability size / n, deviate as far as these."""
    n, share = len(counts), size / len(counts)
    statistic = ((counts - num_runs * share) ** 2).sum() / (num_runs * share * (1 - share)) * (n - 1) / n
    return float(chi2.sf(statistic, n - 1))


RUNS = 10_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AlgorithmR, ClassBalancedReservoir])
def test_a_reservoir_holds_each_sample_equally_often(kind: Callable[..., Decider]) -> None:
    """The class-balanced one is a plain reservoir for a single class."""
    counts = np.zeros(30, np.int64)
    for run in range(RUNS):
        counts[list(held(kind(7, np.random.default_rng([1, run])), [A] * 30, [5, 11]).values())] += 1
    assert counts.sum() == 7 * RUNS
    assert uniformity(counts, RUNS, 7) > 1e-4


@pytest.mark.slow
def test_a_reservoir_is_uniform_across_triggers_with_generators_of_their_own() -> None:
    counts = np.zeros(30, np.int64)
    for run in range(RUNS):
        slots, seen = dict[int, int](), 0
        for trigger, size in enumerate((4, 15, 11)):
            decider = AlgorithmR(7, np.random.default_rng([2, run, trigger]), len(slots), seen)
            changed, rows = decider.offer(np.zeros(size, np.int64))
            slots.update(zip(changed.tolist(), (seen + rows).tolist(), strict=True))
            seen += size
        counts[list(slots.values())] += 1
    assert uniformity(counts, RUNS, 7) > 1e-4


@pytest.mark.slow
def test_a_reservoir_stays_uniform_when_samples_are_deleted() -> None:
    """Samples 0 to 4 of 20 are deleted before 15 others come: 30 are left."""
    counts, sizes = np.zeros(35, np.int64), Counter[int]()
    for run in range(RUNS):
        generator = np.random.default_rng([3, run])
        before = list(held(AlgorithmR(7, generator), [A] * 20).values())
        kept = [sample for sample in before if sample >= 5]
        lost = len(before) - len(kept)
        slots = dict(enumerate(kept))
        changed, rows = AlgorithmR(7, generator, len(kept), 15, (lost, 5 - lost)).offer(np.zeros(15, np.int64))
        slots.update(zip(changed.tolist(), (20 + rows).tolist(), strict=True))
        counts[list(slots.values())] += 1
        sizes[len(slots)] += 1
    assert sizes == {7: RUNS}
    assert uniformity(counts[5:], RUNS, 7) > 1e-4


@pytest.mark.slow
def test_the_class_balanced_reservoir_draws_the_largest_class_uniformly() -> None:
    """Two of B take the places of any two of A: each of the 20 of A is held equally often."""
    counts = np.zeros(20, np.int64)
    for run in range(RUNS):
        chosen = held(ClassBalancedReservoir(6, np.random.default_rng([4, run])), [A] * 20 + [B] * 2).values()
        counts[[row for row in chosen if row < 20]] += 1
    assert counts.sum() == 4 * RUNS
    assert uniformity(counts, RUNS, 4) > 1e-4


MAKERS: dict[str, Callable[[int, int], Decider]] = {
    "Reservoir": lambda size, seed: AlgorithmR(size, np.random.default_rng(seed)),
    "ClassBalancedReservoir": lambda size, seed: ClassBalancedReservoir(size, np.random.default_rng(seed)),
    "GDumb": lambda size, seed: GreedyBalancer(size, np.random.default_rng(seed)),
    "CLiB": lambda size, seed: ImportanceBalancer(size),
}


@given(
    name=st.sampled_from(sorted(MAKERS)),
    size=st.integers(4, 12),
    labels=st.lists(st.integers(0, 3), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    seed=st.integers(0, 100),
)
def test_a_buffer_keeps_its_bound_its_samples_differ_and_chunks_do_not_matter(
    name: str, size: int, labels: list[int], cuts: list[int], seed: int
) -> None:
    decider = MAKERS[name](size, seed)
    slots = held(decider, labels)
    rows = list(slots.values())
    assert len(rows) <= size
    assert len(set(rows)) == len(rows)
    assert held(MAKERS[name](size, seed), labels, sorted(min(cut, len(labels)) for cut in cuts)) == slots
    counts, seen = Counter(labels[row] for row in rows), Counter(labels)
    if name != "GDumb":
        assert len(rows) == min(size, len(labels))  # no room is wasted
    if name != "Reservoir":
        assert counts.keys() == seen.keys()
    if isinstance(decider, ClassBalancedReservoir):
        # A class that is not full is held whole, and none is larger than one that is.
        assert all(counts[label] == seen[label] for label in seen.keys() - decider.full)
        if len(labels) > size and decider.full:
            assert max(counts.values()) == max(counts[label] for label in decider.full)
    if name == "CLiB":
        most = max(counts.values(), default=0)
        assert all(counts[label] >= min(seen[label], most - 1) for label in seen)
    if name == "GDumb":
        share = size / max(1, len(seen))
        assert all(counts[label] >= min(1, seen[label]) for label in seen)
        assert len(rows) == size or all(counts[label] >= min(seen[label], share) for label in seen)


@pytest.mark.parametrize("name", BY_CLASS)
def test_balanced_streams_make_balanced_buffers(name: str) -> None:
    labels = (np.random.default_rng(5).permutation(4000) % 8).tolist()
    counts = Counter(labels[row] for row in held(MAKERS[name](50, 0), labels).values())
    assert sum(counts.values()) == 50
    assert set(counts.values()) <= {6, 7}


@pytest.mark.parametrize("name", BY_CLASS)
def test_a_buffer_smaller_than_the_classes_is_refused(name: str) -> None:
    decider = MAKERS[name](3, 0)
    decider.offer(np.array([A, B, C, A, B]))
    with pytest.raises(ConfigError, match=rf"buffer_size: {name} .* 4 classes and the buffer holds 3 samples: set buffer_size"):
        decider.offer(np.array([D]))


@pytest.mark.parametrize("tail_triggers", [0, None])
@pytest.mark.parametrize("name", NAMES)
def test_a_small_window_ends_no_run_whose_buffer_holds_all_classes(name: str, tail_triggers: int | None) -> None:
    """40 classes, of which all but five samples are deleted, then ten others, one of a new class: a buffer of 100 has room for each."""
    labels = np.concatenate([np.arange(400) % 40, np.zeros(9, np.int64), [41], np.arange(50) % 3])
    deleted = [set[int](), *[set(range(395))] * 3]
    client = FakeSelectorClient(lambda *_: KeySet(np.array(sorted(deleted[len(client.runs[RUN].sets)]), np.int64)))
    client.register_run(RunRegistration(RUN, "d", section(name, {"buffer_size": 100}, tail_triggers=tail_triggers), 3))
    client.inform(RUN, 0, SampleBatch(np.arange(len(labels)), np.arange(len(labels)), labels))
    for trigger_id, end in enumerate((400, 410, 411, len(labels))):
        client.trigger(RUN, trigger_id, end)
        train(client, RUN, trigger_id)
    left = set(labels[keys_of(client, RUN, 3)].tolist())
    assert name not in BY_CLASS or left >= ({0, 1, 2, 41} if tail_triggers is None else {0, 1, 2})


def test_the_share_of_gdumb_is_one_of_the_buffer_not_of_a_small_window() -> None:
    client = FakeSelectorClient()
    client.register_run(RunRegistration(RUN, "d", section("GDumb", {"buffer_size": 100}), 3))
    client.inform(RUN, 0, SampleBatch(np.arange(10), np.arange(10), np.array([B] * 2 + [A] * 8)))
    assert client.trigger(RUN, 0, 10).num_keys == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "buffer_size"),
        ({"buffer_size": 0}, "buffer_size"),
        ({"buffer_size": 10, "ratio": 50}, "leave ratio out"),
        ({"buffer_size": 10, "bufer_size": 3}, "buffer_size"),
        ({"buffer_size": 10, "force_column_balancing": True}, "balances no column"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_wrong_options_are_named(name: str, options: dict[str, Any], message: str) -> None:
    problems = validate_selection(section(name, options))
    assert problems
    assert any(message in f"{problem.path} {problem.message}" for problem in problems), problems


def test_options_of_single_policies_have_bounds() -> None:
    wrong: dict[str, list[dict[str, Any]]] = {
        "CLiB": [{"update_rate": 0}, {"update_rate": 1.5}],
        "GSS": [{"variant": "exact"}, {"gradient_size": 1}, {"variant": "iqp", "recent_size": 8190}],
    }
    for name, cases in wrong.items():
        for options in cases:
            assert validate_selection(section(name, {"buffer_size": 9, **options})), options


def section(name: str, options: Mapping[str, Any] | None = None, **strategy: Any) -> dict[str, Any]:
    presampling = {"strategy": name, **({"buffer_size": 20} if options is None else options)}
    return {"name": "CoresetStrategy", "maximum_keys_in_memory": 50, "presampling_config": presampling, **strategy}


def test_policies_name_the_scores_that_they_need() -> None:
    wanted = {name: build_selection(section(name, keep_scores=True)).feedback for name in NAMES}
    assert wanted == {
        "Reservoir": ("loss",),
        "ClassBalancedReservoir": ("loss",),
        "GDumb": ("loss",),
        "CLiB": ("loss", "loss_decrease"),
        "GSS": ("loss", "gradient_32"),
    }


RUN = RunId("run-1")
ENDS = (60, 130, 130, 260)


def stream() -> SampleBatch:
    positions = np.arange(ENDS[-1])
    return SampleBatch(np.random.default_rng(0).permutation(1000)[: len(positions)], positions, (positions * 7 % 13) % 5)


def keys_of(client: Any, run: RunId, trigger_id: int) -> Int64Array:
    info = client.trigger_set(run, trigger_id)
    parts = [client.keys(run, trigger_id, partition).keys for partition in range(info.num_partitions)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def train(client: Any, run: RunId, trigger_id: int, epochs: int = 2) -> None:
    """Send scores of a trigger set that follow from its keys, in another order in each epoch."""
    info, keys = client.trigger_set(run, trigger_id), keys_of(client, run, trigger_id)
    if not info.feedback:
        return
    parts = []
    for epoch in range(epochs):
        order = np.random.default_rng([trigger_id, epoch]).permutation(keys)
        made: dict[str, Any] = {
            "loss": order[:, None] / 1000,
            "loss_decrease": np.sin(order[:, None] + epoch),
            "gradient_32": np.sin(order[:, None] * np.arange(1, 33)),
        }
        scores = {name: made[name].astype(np.float32) for name in info.feedback}
        parts.append(FeedbackRows(order, np.full(len(order), epoch, np.int32), scores))
    widths = {name: values.shape[1] for name, values in parts[0].scores.items()}
    client.put_feedback(FeedbackHeader(run, trigger_id, info.keys_checksum, 1, epochs * len(keys), widths), lambda: parts)


def run_of(client: Any, run: RunId, strategy: dict[str, Any]) -> list[list[int]]:
    """The trigger sets of a whole run."""
    client.register_run(RunRegistration(run, "d", strategy, 3))
    client.inform(run, 0, stream())
    found = []
    for trigger_id, end in enumerate(ENDS):
        client.trigger(run, trigger_id, end)
        train(client, run, trigger_id)
        found.append(keys_of(client, run, trigger_id).tolist())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_both_backends_and_the_fake_select_the_same_keys(name: str, system_config: SystemConfig) -> None:
    expected = run_of(FakeSelectorClient(), RUN, section(name))
    with serving(system_config) as client:
        for number, backend in enumerate(("local", "database")):
            assert run_of(client, RunId(f"run-{number}"), section(name, storage_backend=backend)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_trigger_sets_are_bounded_distinct_in_order_and_change(name: str) -> None:
    found = run_of(FakeSelectorClient(), RUN, section(name))
    position = {key: at for at, key in enumerate(stream().keys.tolist())}
    for keys, start, end in zip(found, (0, *ENDS), ENDS, strict=False):
        places = [position[key] for key in keys]
        assert places == sorted(set(places))
        assert max(places) < end
        new = [place for place in places if place >= start]
        assert len(places) - (len(new) if name == "GSS" else 0) <= 20
        assert name != "GSS" or new == list(range(start, end))
    assert name == "GDumb" or found[0] != found[1]
    assert set(found[3]) & {key for key, at in position.items() if at < ENDS[0]}, "nothing old is left"


@pytest.mark.parametrize("name", ["CLiB", "GSS"])
def test_feedback_decides(name: str) -> None:
    """The buffer holds other samples without feedback."""
    client, without = FakeSelectorClient(), FakeSelectorClient()
    found = run_of(client, RUN, section(name))
    without.put_feedback = lambda header, rows: header  # type: ignore[method-assign]
    assert run_of(without, RUN, section(name)) != found


@pytest.mark.parametrize("name", NAMES)
def test_warm_up_triggers_are_offered_afterwards(name: str) -> None:
    found = run_of(FakeSelectorClient(), RUN, section(name, warmup_triggers=2))
    assert len(found[0]) == ENDS[0]
    assert len(found[1]) == ENDS[1]
    assert len(found[3]) <= (20 if name != "GSS" else 20 + ENDS[3] - ENDS[2])


@pytest.mark.parametrize("tail_triggers", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_a_window_that_moves_on_takes_its_samples_along(name: str, tail_triggers: int) -> None:
    found = run_of(FakeSelectorClient(), RUN, section(name, tail_triggers=tail_triggers))
    position = {key: at for at, key in enumerate(stream().keys.tolist())}
    first = [0, *ENDS]
    for trigger_id, keys in enumerate(found):
        start = first[max(0, trigger_id - tail_triggers)]
        assert all(start <= position[key] < ENDS[trigger_id] for key in keys)


@pytest.mark.parametrize("name", NAMES)
def test_limit_bounds_the_buffer(name: str) -> None:
    found = run_of(FakeSelectorClient(), RUN, section(name, limit=9))
    assert max(map(len, found)) <= 9
    assert len(found[3]) > 4


@pytest.mark.parametrize("name", NAMES)
def test_deleted_samples_leave_the_buffer_and_others_take_their_places(name: str) -> None:
    storage = FakeStorage()
    storage.add_dataset("d")
    storage.add_samples("d", timestamps=range(1000))
    client = FakeSelectorClient(StorageDeletions(storage.client()))
    client.register_run(RunRegistration(RUN, "d", section(name), 3))
    client.inform(RUN, 0, stream())
    client.trigger(RUN, 0, 60)
    train(client, RUN, 0)
    first = keys_of(client, RUN, 0)
    storage.client().delete_samples("d", first[::2])
    client.trigger(RUN, 1, 61)
    second = keys_of(client, RUN, 1)
    assert not set(second.tolist()) & set(first[::2].tolist())
    train(client, RUN, 1)
    client.trigger(RUN, 2, 260)
    third = keys_of(client, RUN, 2)
    assert not set(third.tolist()) & set(first[::2].tolist())
    assert len(third) >= (20 if name != "GDumb" else 18)


def test_a_trigger_that_was_cut_off_selects_the_same_keys_again(system_config: SystemConfig) -> None:
    """The files that its first attempt wrote do not count."""
    for number, name in enumerate(NAMES):
        with serving(system_config) as client:
            run = RunId(f"run-{number}")
            expected = run_of(client, run, section(name))
            again = RunId(f"again-{number}")
            client.register_run(RunRegistration(again, "d", section(name), 3))
            client.inform(again, 0, stream())
            client.trigger(again, 0, ENDS[0])
            train(client, again, 0)
            with pytest.raises(ModynError):
                client.trigger(again, 1, 10_000)
        with serving(system_config) as client:
            for trigger_id, end in enumerate(ENDS):
                client.trigger(again, trigger_id, end)
                train(client, again, trigger_id)
            assert [keys_of(client, again, trigger_id).tolist() for trigger_id in range(len(ENDS))] == expected
