"""`kill -9` of every process of an installation, at random moments of a run: the run ends as if nothing had happened.

Moments are drawn from seeds and counted in events of the run, so that they fall into all of its stages however fast the machine is.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg2
import pytest

from modyn.client import Client
from modyn.config.system import SERVICES
from modyn.rpc.retry import RetryPolicy
from modyn.supervisor.client import EvaluateStep, Run, RunState, StateChange, StepState
from modyn.supervisor.journal.states import RESUMABLE
from modyn.testing.stack import RunningStack, tiny_evaluation, tiny_pipeline, tiny_training
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.comparison import RunOutcome, broken_promises, differences, outcome
from tests.support.killed_stack import KilledStack, children, gone, trigger_set_keys
from tests.support.runs import messages_of

NUM_SAMPLES, NUM_TRIGGERS, DAYS = 400, 4, 4
SERVANTS = ("storage", "selector", "model_storage", "trainer_server", "evaluator", "postgres")
"""What a run needs and waits for by itself."""

# Several runs each, whose services start again and again: on a machine that is busy otherwise that takes minutes.
pytestmark = pytest.mark.timeout(600)


def pipeline() -> str:
    """Four trainings of 100 batches with checkpoints, each model evaluated at once and all together at the end."""
    evaluation = tiny_evaluation("kills-test", days=DAYS)
    evaluation["handlers"] += [  # type: ignore[operator]
        {
            "name": "active",
            "execution_time": "after_pipeline",
            "models": "active",
            "datasets": ["kills-test"],
            "strategy": {"type": "BetweenTwoTriggersEvalStrategy"},
        }
    ]
    return tiny_pipeline(
        "kills",
        trigger={"id": "DataAmountTrigger", "num_samples": NUM_SAMPLES // NUM_TRIGGERS},
        selection_strategy={"name": "NewDataStrategy", "maximum_keys_in_memory": 40, "tail_triggers": 0},
        training=tiny_training(
            epochs_per_trigger=10,
            shuffle=True,
            dataloader_workers=1,
            checkpointing={"activated": True, "interval": 10},
            optimizers=[
                {"name": "default", "algorithm": "Adam", "param_groups": [{"module": "model", "config": {"lr": 0.0004}}]}
            ],
        ),
        evaluation=evaluation,
    )


@dataclass
class Installation(KilledStack):
    """A deliberately broken installation, and the required outcome of its run."""

    expected: RunOutcome
    kept: frozenset[str]
    """Files of earlier runs, of other tests, that failed and can be resumed."""

    def start_run(self) -> str:
        path = self.stack.folder / "pipeline.yaml"
        path.write_text(pipeline())
        return self.client.run(path).run_id

    def finish(self, run_id: str) -> Run:
        """Wait for the end of the run, and resume it if its supervisor died."""
        run = self.client.wait(run_id)
        if run.state is RunState.INTERRUPTED:
            assert "supervisor" in run.error, run.error
            self.client.resume(run_id)
            run = self.client.wait(run_id)
        return run

    def check(self, run_id: str) -> None:
        """Check that the run is finished and equal to the undisturbed one."""
        run = self.client.show(run_id)
        assert run.state is RunState.FINISHED, f"{run.state}: {run.error}"
        assert differences(self.expected, outcome(self.client, run_id)) == []
        assert broken_promises(list(self.client.supervisor.watch(run_id)), NUM_TRIGGERS) == []
        assert sorted(trained_keys(self.client, run_id)) == list(range(NUM_SAMPLES))
        assert unfinished(self.client, run_id) == []


@dataclass
class Moments:
    """The events of a run as they come, progress included."""

    count: int = 0
    at_rest: bool = False

    def __post_init__(self) -> None:
        self._changed = threading.Condition()

    def follow(self, client: Client, run_id: str) -> None:
        try:
            for _ in client.watch(run_id):
                with self._changed:
                    self.count += 1
                    self._changed.notify_all()
        finally:
            with self._changed:
                self.at_rest = True
                self._changed.notify_all()

    def wait(self, more: int, timeout_s: float = 1.5) -> bool:
        """Wait until `more` events have come, at most `timeout_s`: restarting a killed part is a stage of the run like others. False if the
        run came to rest."""
        with self._changed:
            wanted = self.count + more
            self._changed.wait_for(lambda: self.at_rest or self.count >= wanted, timeout_s)
            return not self.at_rest


@contextmanager
def moments_of(installation: Installation, run_id: str) -> Iterator[Moments]:
    moments = Moments()
    with installation.stack.client() as client:
        follower = threading.Thread(target=moments.follow, args=(client, run_id))
        follower.start()
        try:
            yield moments
        finally:
            follower.join(PATIENCE_S)


def disturb(
    installation: Installation, strike: Callable[[], None], num_strikes: int, seed: str, *, most_events: int = 11
) -> None:
    """Strikes at random moments, in as many runs as it takes, and checks each of them."""
    chance = random.Random(seed)
    done = 0
    while done < num_strikes:
        run_id = installation.start_run()
        while done < num_strikes:
            with moments_of(installation, run_id) as moments:
                while done < num_strikes and moments.wait(chance.randint(1, most_events)):
                    time.sleep(chance.uniform(0, 0.15))
                    strike()
                    done += 1
                if not moments.at_rest:
                    installation.client.wait(run_id)
            run = installation.client.show(run_id)
            if run.state not in RESUMABLE:
                break
            installation.client.resume(run_id)
        installation.finish(run_id)
        installation.check(run_id)


def states_of_runs(installation: Installation, before: int) -> list[list[str]]:
    """Return the states of the runs after the first `before`."""
    supervisor = installation.client.supervisor
    events = [supervisor.watch(run.run_id) for run in supervisor.runs()[before:]]
    return [[str(event.detail.state) for event in run_events if isinstance(event.detail, StateChange)] for run_events in events]


def trained_keys(client: Client, run_id: str) -> list[int]:
    """The keys of all trigger sets of a run."""
    return [key for trigger in client.supervisor.triggers(run_id) for key in trigger_set_keys(client, run_id, trigger.trigger_id)]


def unfinished(client: Client, run_id: str) -> list[Any]:
    """Return rows of any service that say that work is not finished."""
    connection = psycopg2.connect(client.config.resolved_database_url())
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT evaluation_id, state FROM evaluator.evaluations WHERE state != 'finished' AND run_id = %s", [run_id]
            )
            found: list[Any] = cursor.fetchall()
            cursor.execute(
                "SELECT trigger_id, step, name FROM supervisor.steps WHERE state != 'finished' AND run_id = %s", [run_id]
            )
            return found + list(cursor.fetchall())
    finally:
        connection.close()


def stray_processes(parts: dict[str, int]) -> list[str]:
    """Return processes below the stack without a purpose: orphans, and workers without work."""
    strays = [f"orphan {child}" for child in children(parts["stack"]) if child not in parts.values()]
    for name in SERVICES:
        helpers = children(parts[name])
        if name not in ("trainer_server", "evaluator"):
            strays += [f"child of {name}: {helper}" for helper in helpers]
        strays += [f"worker of {name}: {worker}" for helper in helpers for worker in children(helper)]
    return strays


def stray_files(client: Client) -> list[str]:
    """Return files that no unfinished work needs. Model storage removes its own at its next start."""
    state = client.config.state_dir
    folders = [state / name for name in SERVICES]
    temporary = [p for folder in folders for pattern in ("*.partial", "*.tmp", "*.safetensors") for p in folder.rglob(pattern)]
    checkpoints = list((state / "trainer_server").rglob("*.checkpoint"))
    incoming = [*(state / "model_storage" / "incoming").iterdir()]
    scratch = list((state / "evaluator").rglob("model-*"))
    return [str(path) for path in (*temporary, *checkpoints, *incoming, *scratch)]


@pytest.fixture(scope="module")
def installation(running_stack: RunningStack) -> Iterator[Installation]:
    """Data, and one undisturbed run that shows what every other one has to come to."""
    stack = running_stack
    stack.tiny_dataset("kills", NUM_SAMPLES, DAYS)
    stack.tiny_dataset("kills-test", 120, DAYS)
    with stack.client() as client:
        kept = frozenset(stray_files(client))
        path = stack.folder / "pipeline.yaml"
        path.write_text(pipeline())
        run = client.wait(client.run(path).run_id)
        assert run.state is RunState.FINISHED, run.error
        installation = Installation(stack, client, outcome(client, run.run_id), kept)
        assert [trigger.position for trigger in installation.expected.triggers] == list(range(100, NUM_SAMPLES + 1, 100))
        # The first of the intervals between triggers has no active model yet.
        assert len(installation.expected.evaluations) == NUM_TRIGGERS * DAYS + NUM_TRIGGERS - 1
        assert len({cell.value for cell in installation.expected.evaluations}) > 5
        installation.check(run.run_id)
        yield installation


@pytest.fixture(autouse=True)
def nothing_is_left(installation: Installation) -> Iterator[None]:
    """Assert after each test that no process and no file of a killed process is left."""
    yield
    gone(lambda: stray_processes(installation.pids()))
    gone(lambda: sorted({*stray_files(installation.client)} - installation.kept))


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(SERVANTS, id="each once"),
        *(pytest.param(10 * (name,), id=name, marks=pytest.mark.exhaustive) for name in SERVANTS),
    ],
)
def test_a_run_survives_the_death_of_what_it_needs(installation: Installation, names: tuple[str, ...]) -> None:
    """The run continues by itself: it is not resumed."""
    before = len(installation.client.supervisor.runs())
    turns = iter(random.Random(0).sample(names, len(names)))
    disturb(installation, lambda: installation.kill(next(turns)), len(names), names[0])
    assert all(RunState.INTERRUPTED not in states for states in states_of_runs(installation, before))


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_a_run_whose_supervisor_died_is_interrupted_and_continues_when_resumed(installation: Installation, kills: int) -> None:
    before = len(installation.client.supervisor.runs())
    disturb(installation, lambda: installation.kill("supervisor"), kills, f"supervisor {kills}")
    seen = states_of_runs(installation, before)
    assert any(RunState.INTERRUPTED in states for states in seen)
    assert all(RunState.FAILED not in states for states in seen)


@pytest.mark.slow
def test_a_supervisor_that_is_configured_so_resumes_by_itself(installation: Installation) -> None:
    with installation.configured("supervisor", supervisor={"resume_on_start": True}):
        installation.client.supervisor.runs()  # Made again until it answers; to start a run is not.
        chance = random.Random("resume_on_start")
        run_id = installation.start_run()
        with moments_of(installation, run_id) as moments:
            for _ in range(3):
                assert moments.wait(chance.randint(1, 14))
                installation.kill("supervisor")
        run = installation.client.wait(run_id)
        assert run.state is RunState.FINISHED, run.error
        installation.check(run_id)


@pytest.mark.parametrize("kills", [pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.exhaustive)])
def test_everything_is_killed_at_once(installation: Installation, kills: int) -> None:
    """PostgreSQL, Redis, the six services and what looks after them, as when the power fails; then `modyn up` and `modyn resume`."""
    disturb(installation, installation.kill_all, kills, f"all {kills}")


@pytest.mark.slow
def test_the_process_that_looks_after_the_others_is_killed(installation: Installation) -> None:
    """No other process outlives it. Then `modyn up` and `modyn resume` continue the run."""
    disturb(installation, installation.kill_stack, 3, "stack")


@pytest.mark.slow
def test_a_worker_process_of_a_training_is_killed(installation: Installation) -> None:
    """Another worker resumes from its checkpoint, and the run says so. A worker that is killed while it is idle costs the run nothing."""
    chance = random.Random("worker of trainer_server")
    for _ in range(10):
        run_id = installation.start_run()
        time.sleep(chance.uniform(0, 0.5))
        installation.kill_workers("trainer_server")
        installation.finish(run_id)
        installation.check(run_id)
        if told_of_kills(installation, run_id, "training of run"):
            return
    pytest.fail("no worker was killed at work")


@pytest.mark.slow
def test_a_training_that_kills_every_worker_fails_its_run(installation: Installation) -> None:
    """Too little memory does the same. A resumed run continues."""
    run_id = installation.start_run()
    seen = 0
    for event in installation.client.watch(run_id):
        if event.kind == "training_progress":
            seen += installation.kill_workers("trainer_server")
    run = installation.client.show(run_id)
    assert run.state is RunState.FAILED
    assert seen >= RetryPolicy(0).max_worker_deaths
    assert "SIGKILL" in run.error
    assert f"training of run {run_id}" in run.error
    assert "the last of 3 workers" in run.error
    assert len(told_of_kills(installation, run_id, "training of run")) >= RetryPolicy(0).max_worker_deaths - 1
    installation.client.resume(run_id)
    installation.finish(run_id)
    installation.check(run_id)


def test_a_worker_process_of_an_evaluation_is_killed(installation: Installation) -> None:
    """Another worker makes the evaluation, and the run says so."""
    for _ in range(10):
        installation.kill_workers("evaluator")  # those that wait for further work of the run before
        run_id = installation.start_run()
        for event in installation.client.watch(run_id):
            if isinstance(event.detail, EvaluateStep) and event.detail.state is StepState.STARTED:
                eventually(lambda: installation.kill_workers("evaluator") > 0, "no worker began to evaluate")
                break
        installation.finish(run_id)
        installation.check(run_id)
        if told_of_kills(installation, run_id, "evaluation of run"):
            return
    pytest.fail("no worker was killed at work")


def told_of_kills(installation: Installation, run_id: str, what: str) -> list[str]:
    """The messages of a run on killed workers."""
    events = installation.client.supervisor.watch(run_id)
    return [
        message for message in messages_of(events) if what in message and "SIGKILL" in message and "another worker" in message
    ]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.exhaustive if seed else pytest.mark.slow) for seed in range(4)]
)
def test_anything_dies_at_any_moment(installation: Installation, seed: int) -> None:
    """One, two or three of the parts at once, twenty-five times."""
    chance = random.Random(seed)

    def strike() -> None:
        installation.kill_at_once(chance.sample([*SERVICES, "postgres", "redis"], chance.choice([1, 1, 2, 3])))

    disturb(installation, strike, 25, f"anything {seed}")
