"""Live data while everything dies: files that arrive, late and future ones, deletions, and `kill -9` of any process in between.

What two production runs come to is compared with what an undisturbed run selects: the policy's own decisions on what they read, and windows
without the samples that were deleted by then.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from modyn.client import Client
from modyn.config.system import SERVICES
from modyn.records import RunId, SampleBatch
from modyn.rpc.retry import Retrier, RetryPolicy
from modyn.selector.client import SelectorClient
from modyn.supervisor.client import RunMode, RunState
from modyn.supervisor.journal.states import TriggerState
from modyn.supervisor.triggers import TriggerContext, build_trigger
from modyn.testing.checks import decide
from modyn.testing.stack import (
    DAY,
    NUM_CLASSES,
    NUM_FEATURES,
    RECORD,
    RunningStack,
    tiny_dataset_config,
    tiny_pipeline,
    tiny_training,
)
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.killed_stack import KilledStack, trigger_set_keys

pytestmark = pytest.mark.timeout(1200)

T = TypeVar("T")
KILLED = (*SERVICES, "postgres", "redis")
NUM_ACTIONS = 16
POLICIES = {
    # The trigger policy, and how many windows before its own a trigger selects from.
    "amount": ({"id": "DataAmountTrigger", "num_samples": 25}, 1),
    "time": ({"id": "TimeTrigger", "every": "2d", "start_timestamp": 0}, 0),
}


def insist(call: Callable[[], T]) -> T:
    """Repeat a call, as a user does, while the service that answers it is dead."""
    return Retrier(RetryPolicy(4 * PATIENCE_S)).call(call)


@dataclass
class World:
    """A watched dataset, and all that the test did to it. Files come one after the other, so that their keys are known."""

    name: str
    folder: Path
    client: Client
    times: list[int] = field(default_factory=list)
    """Time of the sample of each key."""
    labels: list[int] = field(default_factory=list)
    deleted_before: list[int] = field(default_factory=list)
    """Number of deletions that were answered before the file of each key came."""
    deletions: list[set[int]] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)
    fixed: dict[tuple[str, int], int] = field(default_factory=dict)
    """Number of deletions that were requested when a trigger of a run was first seen to be complete."""
    num_future: int = 0

    def write(self, when: int, count: int) -> None:
        """A file with `count` samples of one time appears complete."""
        number = len(list(self.folder.iterdir()))
        records = np.zeros(count, RECORD)
        records["label"] = np.random.default_rng(number).integers(0, NUM_CLASSES, count)
        records["features"] = np.eye(NUM_FEATURES, dtype=np.float32)[records["label"]]
        path = self.folder.parent / f"{self.name}-{number:03d}.part"
        path.write_bytes(records.tobytes())
        os.utime(path, (when, when))
        path.rename(self.folder / f"{number:03d}.bin")
        if when > time.time():
            self.num_future += 1
            return
        self.times += [when] * count
        self.labels += records["label"].tolist()
        self.deleted_before += [len(self.deletions)] * count
        eventually(lambda: self.next_key() == len(self.times), f"{path} was to be indexed", timeout_s=4 * PATIENCE_S)

    def next_key(self) -> int:
        return insist(lambda: self.client.dataset(self.name)).next_key

    def delete(self, keys: set[int]) -> None:
        for policy, run_id in self.runs.items():
            for trigger in insist(partial(self.client.supervisor.triggers, run_id, with_losses=False)):
                if trigger.state is not TriggerState.FIRED:
                    self.fixed.setdefault((policy, trigger.trigger_id), len(self.deletions))
        insist(lambda: self.client.delete_samples(self.name, sorted(keys)))
        self.deletions.append(keys)

    def gone_after(self, deletions: int) -> set[int]:
        """Return the keys that the first `deletions` deletions delete."""
        return set().union(*self.deletions[:deletions])

    def log(self, policy: str) -> SampleBatch:
        """Return the samples that a run has read, in order."""
        with SelectorClient(self.client.config.endpoint("selector")) as selector:
            return insist(lambda: selector.samples(RunId(self.runs[policy]), 0, len(self.times) + 1))

    def is_read(self, policy: str) -> bool:
        run = insist(lambda: self.client.show(self.runs[policy]))
        return run.state is RunState.WAITING_FOR_DATA and len(self.times) - 1 in self.log(policy).keys

    def check(self, policy: str) -> None:
        """Check that a run decided and selected as an undisturbed one does."""
        section, tail = POLICIES[policy]
        log, run_id = self.log(policy), self.runs[policy]
        stream = log.keys.tolist()
        assert stream == sorted(set(stream)), "a sample was read twice, or out of turn"
        assert set(range(len(self.times))) - set(stream) <= self.gone_after(len(self.deletions)), "a sample was lost"
        assert log.timestamps.tolist() == [self.times[key] for key in stream]
        assert log.labels.tolist() == [self.labels[key] for key in stream]

        triggers = insist(lambda: self.client.supervisor.triggers(run_id))
        fires = [check.position for check in decide(build_trigger(section, TriggerContext(1)), [log]) if check.fires]
        assert [trigger.position for trigger in triggers] == fires
        bounds = [0] * (tail + 1) + fires
        at_least = 0
        for trigger, (start, end) in zip(triggers, [(bounds[i], bounds[i + tail + 1]) for i in range(len(fires))], strict=True):
            window = stream[start:end]
            found = trigger_set_keys(self.client, run_id, trigger.trigger_id)
            assert len(found) == len(set(found))
            # Between the deletions that were answered before the sample came that let the trigger fire, and those that came too late.
            at_least = max(at_least, self.deleted_before[window[-1]])
            at_most = self.fixed.get((policy, trigger.trigger_id), len(self.deletions))
            possible = [n for n in range(at_least, at_most + 1) if set(window) - self.gone_after(n) == set(found)]
            assert possible, (
                f"{policy}: trigger {trigger.trigger_id} selected {sorted(found)} of {window}, [{at_least}, {at_most}]"
            )
            at_least = possible[0]
            assert trigger.num_keys == len(found)
            assert trigger.state in (TriggerState.TRAINED, TriggerState.UNTRAINED if found else TriggerState.EMPTY)


@contextmanager
def striking(stack: RunningStack, seed: str) -> Iterator[list[str]]:
    """Kill one, two or three processes at once, again and again until the block ends. Yields what was killed."""
    chance, ended, killed, errors = random.Random(seed), threading.Event(), list[str](), list[BaseException]()

    def strike() -> None:
        with stack.client() as client:
            while not ended.wait(chance.uniform(0, 3)):
                names = chance.sample(KILLED, chance.choice([1, 1, 2, 3]))
                KilledStack(stack, client).kill_at_once(names)
                killed.extend(names)

    def guarded() -> None:
        try:
            strike()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]


@pytest.fixture(scope="module")
def stack(own_stack: Callable[..., RunningStack]) -> RunningStack:
    """A stack whose supervisor resumes its runs by itself."""
    return own_stack(supervisor={"resume_on_start": True})


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.exhaustive if seed else pytest.mark.slow) for seed in range(3)]
)
def test_live_data_and_kills_come_to_what_an_undisturbed_run_selects(stack: RunningStack, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    folder = tmp_path / "live"
    folder.mkdir()
    with stack.client() as client:
        world = World(f"live-{seed}", folder, client)
        client.register_dataset(tiny_dataset_config(world.name, folder, watch=True))
        for policy, (trigger, tail) in POLICIES.items():
            path = tmp_path / f"{policy}.yaml"
            strategy = {"name": "NewDataStrategy", "maximum_keys_in_memory": 10, "tail_triggers": tail}
            text = tiny_pipeline(
                world.name, pipeline={"name": policy}, trigger=trigger, selection_strategy=strategy, training=tiny_training()
            )
            path.write_text(text)
            world.runs[policy] = client.run(path, RunMode.PRODUCTION).run_id
        day = 0
        with striking(stack, f"strikes {seed}") as killed:
            for action in chance.choices(["arrive", "late", "future", "delete"], weights=[6, 3, 1, 4], k=NUM_ACTIONS):
                time.sleep(chance.uniform(0, 1))
                if action == "arrive" or not world.times:
                    day += chance.choice([0, 1, 1, 4])
                    world.write(day * DAY + chance.randrange(DAY), chance.randint(1, 40))
                elif action == "late":
                    world.write(chance.randrange(day * DAY + 1), chance.randint(1, 20))
                elif action == "future":
                    world.write(int(time.time()) + 1000 * DAY, 5)
                else:
                    newest = range(max(0, len(world.times) - 60), len(world.times))
                    world.delete(set(chance.sample(newest, min(len(newest), chance.randint(1, 25)))))
        KilledStack(stack, client).kill_all()
        world.write((day + 5) * DAY, 30)  # Nothing of it is deleted: a run that has read its last sample has read all.
        for policy, run_id in world.runs.items():
            eventually(partial(world.is_read, policy), partial(client.show, run_id), timeout_s=6 * PATIENCE_S)
            world.check(policy)
            client.stop(run_id)
            assert client.wait(run_id).state is RunState.STOPPED
        assert len(killed) >= 3
        assert len(client.problems(world.name)) == world.num_future
