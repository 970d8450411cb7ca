"""View of `modyn cache status`: the content of this installation's stores, and the samples that the stores served to trainings."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from modyn.cache.served_counts import ServedCounts
from modyn.cli.context import connect, is_embedded, say, services_run
from modyn.cli.views.output import drawn_table, print_json, print_table, printable, size
from modyn.errors import ModynError

if TYPE_CHECKING:
    from modyn.cache.plan.profile import CacheProfile
    from modyn.cache.tiers.stores import StoreUsage
    from modyn.client import Client
    from modyn.config.system import SystemConfig
    from modyn.trainer_server.client import TrainingStatus

NEWEST_RUNS: Final = 10
"""Largest number of runs whose trainings are shown."""
NEWEST_TRIGGERS: Final = 20
"""Largest number of shown triggers of each shown run."""
INTERVAL_S: Final = 2.0
"""Seconds between two updates while watching."""

_LINES_AROUND: Final = 10
"""Number of lines that both tables need in addition to their rows."""

Table = tuple[str, Sequence[str], Sequence[Sequence[object]]]
"""Title, columns and rows."""


@dataclass(frozen=True, slots=True)
class ServedTraining:
    """Sources of the samples of one training."""

    run_id: str
    trigger_id: int
    counts: ServedCounts
    saved_s: float | None
    """See `ServedCounts.seconds_saved`. None: this machine has no measurements for the pipeline's section `data`."""
    is_running: bool = False
    """Whether the training is still running. If so, the counts are not final."""

    def values(self) -> dict[str, Any]:
        """Return all values, for programs."""
        counts = self.counts
        parts = {"hit_share": counts.hit_share, "preparations_per_sample": counts.preparations, "saved_s": self.saved_s}
        start = {"run": self.run_id, "trigger": self.trigger_id, "is_running": self.is_running, "served": counts.served}
        return {**start, **asdict(counts), **parts}


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """Stores and trainings that are shown."""

    stores: Sequence[StoreUsage]
    trainings: Sequence[ServedTraining]
    """The newest trainings that a cache served, oldest first within a run. A running training is the last of its run."""
    notes: Sequence[str]
    """Sentences about what is not shown, with the reason."""

    def values(self) -> dict[str, Any]:
        """Return all values, for programs."""
        return {
            "stores": [
                {"store": usage.store, "where": usage.where, "is_reachable": usage.is_reachable, "tiers": usage.tiers}
                for usage in self.stores
            ],
            "trainings": [training.values() for training in self.trainings],
            "notes": self.notes,
        }


def read_stores(config: SystemConfig) -> list[StoreUsage]:
    """Count the content of the stores that this machine can reach. Raises ConfigError: the URL or the password of Redis is wrong."""
    from modyn.cache.tiers.stores import check_redis_access, memory_usage, redis_usage
    from modyn.state_folders import shared_folder

    stores = [memory_usage(shared_folder(config.state_dir))]
    if (url := redis_url(config)) is None:
        return stores
    check_redis_access(url)
    return [*stores, redis_usage(url)]


def redis_url(config: SystemConfig) -> str | None:
    """Return the URL of the Redis that trainings use; None if there is no Redis, or the embedded Redis is not running."""
    runs = config.redis_url is not None or services_run()
    return config.resolved_redis_url() if runs else None


def read_status(config: SystemConfig) -> CacheStatus:
    """Read the stores and, if services are running, the newest trainings."""
    stores = read_stores(config)
    notes = [
        f"the Redis at {usage.where} does not answer: its content is not shown" for usage in stores if not usage.is_reachable
    ]
    if not is_embedded(config):
        notes.append("the table has the shared memory of this machine or container; trainings use that of the trainer server")
    trainings: list[ServedTraining] = []
    if services_run():
        try:
            with connect() as client:
                trainings = newest_trainings(client)
        except ModynError as error:
            notes.append(f"trainings are not shown: {error.message}")
    else:
        notes.append("trainings are not shown, because no services are running: start them with `modyn up`")
    return CacheStatus(stores, trainings, notes)


def newest_trainings(client: Client) -> list[ServedTraining]:
    """Return the newest trainings that a cache served. The counts of a finished training come from its result; the counts of a running training
    are its present counts.
    """
    found = []
    for run in client.supervisor.runs()[-NEWEST_RUNS:]:
        first = max(0, run.num_triggers - NEWEST_TRIGGERS)
        triggers = client.supervisor.triggers(run.run_id, first, with_losses=False)
        served = [
            (trigger.trigger_id, counts, False)
            for trigger in triggers
            if (counts := trigger.training_result.served_counts) is not None
        ]
        if triggers and triggers[-1].finished_at is None and (status := _status_now(client, run.run_id, triggers[-1].trigger_id)):
            counts = ServedCounts.of(status.samples_loaded, status.num_cached, status.cache_work)
            served.append((status.trigger_id, counts, True))
        if served:
            profile = _profile(client, client.show(run.run_id).pipeline)
            found += [
                ServedTraining(
                    run.run_id, trigger_id, counts, None if profile is None else counts.seconds_saved(profile), is_running
                )
                for trigger_id, counts, is_running in served
            ]
    return found


def _status_now(client: Client, run_id: str, trigger_id: int) -> TrainingStatus | None:
    """Return the status of a trigger's training if the training is running and a cache serves its samples."""
    try:
        with closing(client.trainer_server.watch(run_id, trigger_id)) as statuses:
            status = next(statuses, None)
    except ModynError:  # The training has not started, or this machine cannot reach the trainer server.
        return None
    if status is None or status.state.is_final:
        return None
    return status if any(status.num_cached.values()) or any(status.cache_work.values()) else None


def _profile(client: Client, pipeline: Mapping[str, Any]) -> CacheProfile | None:
    """Return the measurements for a pipeline on this machine. None: there are no measurements, or the measurements belong to another registration of
    the pipeline's dataset.
    """
    from modyn.cache.plan.profile import profile_of
    from modyn.dataset.config import DataConfig

    try:
        data = DataConfig.model_validate(pipeline["data"])
        return profile_of(client.config.state_dir, data.model_dump(mode="json"), client.dataset(data.dataset_id).identity)
    except (KeyError, ValueError, ModynError):
        return None


def tables(status: CacheStatus) -> list[Table]:
    """Return the tables of a status."""
    held = [
        [usage.store, tier.name, size(tier.budget_bytes), size(tier.used_bytes), _percent(tier.used_bytes, tier.budget_bytes),
         tier.num_samples, tier.num_namespaces, tier.num_evicted, size(tier.evicted_bytes)]
        for usage in status.stores
        for tier in usage.tiers
    ]  # fmt: skip
    served = [
        [t.run_id, str(t.trigger_id), "runs" if t.is_running else "has ended", c.served, c.storage, c.encoded, c.decoded, c.augmented,
         f"{c.hit_share:.0%}", f"{c.preparations:.2f}", c.evicted, c.not_asked, "–" if t.saved_s is None else f"{t.saved_s:.1f}"]
        for t in status.trainings
        for c in [t.counts]
    ]  # fmt: skip
    sources = ("storage", "encoded", "decoded", "augmented")
    return [
        ("Stores", ("store", "tier", "budget", "used", "full", "samples", "namespaces", "evicted", "of bytes"), held),
        (
            "Trainings served by a cache",
            (
                "run",
                "trigger",
                "training",
                "samples",
                *sources,
                "from the cache",
                "decoded a sample",
                "evicted",
                "not asked",
                "saved s",
            ),
            served,
        ),
    ]


def show(status: CacheStatus, *, json: bool, indent: int | None = 2) -> None:
    """Print a status. Args: indent: indentation of the JSON; None: print it on one line."""
    if json:
        return print_json(status.values(), indent)
    for title, columns, rows in tables(status):
        print_table(columns, rows, title=title, empty=f"{title}: none")
    for note in status.notes:
        say(note)
    return None


def watch(read: Callable[[], CacheStatus], *, json: bool, pause: Callable[[], None] = lambda: time.sleep(INTERVAL_S)) -> None:
    """Show the status at intervals until Ctrl-C. On a terminal, each status replaces the previous status; elsewhere statuses are printed one after
    the other. With `json`, each status is one line.
    """
    try:
        if json or not sys.stdout.isatty():
            while True:
                show(read(), json=json, indent=None)
                pause()
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        with Live(refresh_per_second=4) as live:
            while True:
                status = fitting(read(), live.console.height)
                drawn = [drawn_table(columns, rows, title) for title, columns, rows in tables(status)]
                live.update(Group(*drawn, *(Text(printable(note)) for note in status.notes)), refresh=True)
                pause()
    except KeyboardInterrupt:
        return


def fitting(status: CacheStatus, num_lines: int) -> CacheStatus:
    """Leave out older trainings that do not fit on a terminal. Args: num_lines: height of the terminal."""
    others = sum(len(usage.tiers) for usage in status.stores) + 2 * len(status.notes) + _LINES_AROUND
    return replace(status, trainings=status.trainings[-max(1, num_lines - others) :])


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "–"
