"""Alerts of runs, which never change what a run does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text

from modyn.config.system import SupervisorConfig, SystemConfig
from modyn.config.system_sections.alerts import AlertsConfig
from modyn.db.engine import Database
from modyn.errors import TrainingError
from modyn.supervisor.alerts.alerts import HOLD_BACK_S, RunAlerts
from modyn.supervisor.alerts.channels import Alert, AlertQueue
from modyn.supervisor.journal.journal import Journal, RunJournal
from modyn.supervisor.journal.records import NewRun, RunMode, RunOptions, ServingStatus
from modyn.supervisor.journal.run_events import RunEvent, StreamProgress
from modyn.supervisor.journal.states import RunState
from modyn.supervisor.queue.queue import RunQueue
from modyn.supervisor.services.run_clients import stopped_with_supervisor
from modyn.testing.services import InMemoryServices, pipeline_yaml
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.receivers import WebReceiver, mail_receiver, web_receiver
from tests.support.runs import finish

EXPERIMENT = RunOptions(RunMode.EXPERIMENT)
EVALUATION = {
    "datasets": [{"dataset_id": "train", "metrics": [{"name": "Accuracy"}]}],
    "handlers": [
        {
            "name": "matrix",
            "execution_time": "after_training",
            "strategy": {"type": "SlicingEvalStrategy", "eval_every": "10s", "eval_start_from": 0, "eval_end_at": 30},
            "datasets": ["train"],
        }
    ],
}


@pytest.fixture
def web() -> Iterator[WebReceiver]:
    with web_receiver() as web:
        yield web


def posted(web: WebReceiver) -> list[dict[str, Any]]:
    return [json.loads(body) for _, body in web.received]


def to_web(web: WebReceiver, **options: object) -> dict[str, object]:
    return {"webhook_url": web.url, "webhook_secret": "0123456789abcdef", **options}


def executed(runs: RunQueue, yaml: str) -> str:
    return finish(runs, yaml).run_id


def test_runs_that_finish_and_fail_are_reported_by_webhook_and_mail(
    services: InMemoryServices, make_config: Callable[..., SystemConfig], web: WebReceiver
) -> None:
    with mail_receiver() as mail:
        by_mail = {"smtp_address": mail.address, "smtp_security": "none", "mail_from": "m@x.org", "mail_to": ["a@x.org"]}
        with services.supervise(make_config(alerts=to_web(web, **by_mail))) as runs:
            executed(runs, pipeline_yaml())
            eventually(lambda: len(web.received) == 1)

            def fail(request: object) -> Any:
                raise TrainingError("the loss is odd")

            services.trainer_server.train = fail
            executed(runs, pipeline_yaml())
            eventually(lambda: len(web.received) == len(mail.received) == 2)
    assert [(alert["kind"], alert["run_id"], alert["state"]) for alert in posted(web)] == [
        ("finished", "test-0001", "finished"),
        ("failed", "test-0002", "failed"),
    ]
    assert posted(web)[1]["message"] == "the loss is odd"
    assert [message["Subject"] for _, message in mail.received] == [
        "[modyn] run test-0001: finished",
        "[modyn] run test-0002: failed",
    ]


def test_failed_evaluations_degrade_a_run_and_are_reported_once(
    services: InMemoryServices, make_config: Callable[..., SystemConfig], web: WebReceiver
) -> None:
    services.evaluator.fail = lambda request: "no memory"
    with services.supervise(make_config(alerts=to_web(web))) as runs:
        executed(runs, pipeline_yaml(evaluation=EVALUATION))
        eventually(lambda: len(web.received) == 2)
    degraded, finished = posted(web)
    assert (degraded["kind"], degraded["message"]) == (
        "degraded",
        "evaluation of trigger 0 by handler 'matrix' on 'train' failed: no memory",
    )
    waiting = "5 samples wait for the next trigger, which has not fired; `modyn run --final-trigger` trains on them too"
    assert (finished["kind"], finished["message"]) == ("finished", f"{waiting}; 3 evaluations failed")


def test_only_the_kinds_that_are_asked_for_are_sent(
    services: InMemoryServices, make_config: Callable[..., SystemConfig], web: WebReceiver
) -> None:
    services.evaluator.fail = lambda request: "no memory"
    with services.supervise(make_config(alerts=to_web(web, kinds=["finished"]))) as runs:
        executed(runs, pipeline_yaml(evaluation=EVALUATION))
    assert [alert["kind"] for alert in posted(web)] == ["finished"]


def test_receivers_that_cannot_be_reached_change_nothing_in_a_run(
    services: InMemoryServices, make_config: Callable[..., SystemConfig]
) -> None:
    nowhere = {"webhook_url": "http://127.0.0.1:9/", "webhook_secret": "0123456789abcdef"}
    with services.supervise(make_config(alerts=nowhere)) as runs:
        assert runs.journal.run(executed(runs, pipeline_yaml())).state is RunState.FINISHED


class Kept:
    """A channel that keeps what it gets."""

    name = "kept"

    def __init__(self) -> None:
        self.alerts: list[Alert] = []

    def send(self, alert: Alert) -> None:
        self.alerts.append(alert)


class Followed:
    """A run whose journal the test writes, with a clock of the test's own, and the alerts that it raises. Each step ends with a look."""

    def __init__(self, database: Database) -> None:
        self.now, self.kept = 0.0, Kept()
        self.queue = AlertQueue(self.kept)
        self.alerts: RunAlerts | None = None
        self._journal = Journal(database, self._committed)
        self.run_id = self._journal.create(NewRun(EXPERIMENT, "p", "", "p.yaml", {}, selection_seed=1)).run_id
        self.journal: RunJournal = self._journal.claim(self.run_id)

    def follow(self) -> None:
        self.alerts = RunAlerts(AlertsConfig(stalled_after_s=60), self._journal, [self.queue], lambda: self.now)

    def look(self, after_s: float = 0.0) -> None:
        assert self.alerts is not None
        self.now += after_s
        self.alerts.poll()

    def again(self) -> None:
        """Submit the run again, and stream."""
        self._journal.submit_again(self.run_id)
        self.journal = self._journal.claim(self.run_id)
        self.journal.enter(RunState.STREAMING)
        self.look()

    def progress(self, samples: int) -> None:
        assert self.alerts is not None
        self.alerts.notice(self.run_id, RunEvent(0, 0.0, None, StreamProgress(samples)))

    def serving(self) -> None:
        """A server reports, which says nothing of the run."""
        assert self.alerts is not None
        self.alerts.notice(self.run_id, RunEvent(0, 0.0, None, ServingStatus(num_servers=1)))

    def raised(self) -> list[tuple[str, str]]:
        """Kind and message of all alerts; ends the queue."""
        self.queue.close(PATIENCE_S)
        return [(alert.kind, alert.message) for alert in self.kept.alerts]

    def _committed(self, run_id: str) -> None:
        if self.alerts is not None:
            self.alerts.notice(run_id, None)


class ClosingTogether(AlertQueue):
    """Its close ends once all of them are closing."""

    def __init__(self, together: threading.Barrier) -> None:
        super().__init__(Kept())
        self._together = together

    def close(self, patience_s: float = 0.0) -> None:
        super().close(PATIENCE_S)
        self._together.wait(PATIENCE_S)


def test_no_channel_waits_for_the_end_of_another(database: Database) -> None:
    together = threading.Barrier(2)
    queues = [ClosingTogether(together), ClosingTogether(together)]
    RunAlerts(AlertsConfig(), Journal(database), queues).close()


@pytest.fixture
def followed(database: Database) -> Iterator[Followed]:
    followed = Followed(database)
    yield followed
    followed.queue.close()


def still(seconds: int) -> tuple[str, str]:
    shows = "`modyn show p-0001` shows what it does"
    return "stalled", f"the run is streaming and has made no progress for {seconds} s; {shows}"


def test_a_run_that_works_without_progress_has_stalled_once_each_time(followed: Followed) -> None:
    followed.follow()
    followed.journal.enter(RunState.STREAMING)
    followed.progress(0)
    followed.look()
    followed.look(after_s=59)
    followed.progress(10)
    followed.look(after_s=59)
    followed.progress(10)
    followed.serving()
    followed.journal.message("storage cannot be reached")
    followed.look(after_s=2)
    followed.look(after_s=100)
    followed.progress(20)
    followed.look(after_s=70)
    assert followed.raised() == [still(61), still(70)]


@pytest.mark.parametrize("state", [RunState.WAITING_FOR_DATA, RunState.INTERRUPTED])
def test_a_run_that_has_nothing_to_do_has_not_stalled(followed: Followed, state: RunState) -> None:
    followed.follow()
    followed.journal.enter(RunState.STREAMING)
    if state is RunState.WAITING_FOR_DATA:
        followed.journal.enter(state)
    else:
        followed.journal.end(state, error="storage is away")
    followed.look()
    followed.look(after_s=1000)
    interrupted = [("stalled", "the run was interrupted: storage is away")]
    assert followed.raised() == (interrupted if state is RunState.INTERRUPTED else [])


@pytest.mark.parametrize("address", [None, "supervisor:9000"])
def test_a_run_that_is_stopped_with_its_supervisor_is_not_an_event_to_report(followed: Followed, address: str | None) -> None:
    followed.follow()
    followed.journal.enter(RunState.STREAMING)
    followed.journal.end(RunState.INTERRUPTED, error=stopped_with_supervisor(SupervisorConfig(address=address)))
    followed.look()
    followed.again()
    followed.journal.end(RunState.INTERRUPTED, error="storage is away")
    followed.look()
    assert followed.raised() == [("stalled", "the run was interrupted: storage is away")]


def test_the_same_trouble_is_held_back_and_counted(followed: Followed) -> None:
    followed.follow()
    followed.journal.enter(RunState.STREAMING)
    for after_s in (0.0, 1.0, 1.0, HOLD_BACK_S):
        followed.journal.end(RunState.INTERRUPTED, error="storage is away")
        followed.look(after_s)
        followed.again()
    away = "the run was interrupted: storage is away"
    assert followed.raised() == [("stalled", away), ("stalled", f"{away} (and 2 more since the last alert)")]


def test_what_happened_before_is_not_reported_again(followed: Followed) -> None:
    followed.journal.end(RunState.FAILED, error="old")
    followed.follow()
    followed.again()
    followed.journal.end(RunState.FAILED, error="new")
    followed.look()
    followed.look()
    assert followed.raised() == [("failed", "new")]


def test_news_that_cannot_be_read_now_are_read_later(followed: Followed, database: Database) -> None:
    followed.follow()
    with database.session() as session:
        session.execute(text("ALTER TABLE supervisor.events RENAME TO away"))
    assert followed.alerts is not None
    followed.alerts.notice(followed.run_id, None)
    followed.look()
    with database.session() as session:
        session.execute(text("ALTER TABLE supervisor.away RENAME TO events"))
    followed.journal.end(RunState.FAILED, error="new")
    followed.look()
    assert followed.raised() == [("failed", "new")]
