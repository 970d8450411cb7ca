"""What `modyn cache status` shows: what the stores of this installation hold, and what its trainings had of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from modyn.cache.served_counts import ServedCounts
from modyn.cli.context import connect, is_embedded, say, services_run
from modyn.cli.output import drawn_table, print_json, print_table, printable, size
from modyn.errors import ModynError

if TYPE_CHECKING:
    from modyn.cache.profile import CacheProfile
    from modyn.cache.stores import StoreUsage
    from modyn.client import Client
    from modyn.config.system import SystemConfig
    from modyn.trainer_server.client import TrainingStatus

NEWEST_RUNS: Final = 10
"""Runs whose trainings are looked at."""
NEWEST_TRIGGERS: Final = 20
"""Of each of these runs."""
INTERVAL_S: Final = 2.0
"""Between two looks while watching."""

_LINES_AROUND: Final = 10
"""Of both tables beside their rows."""

Table = tuple[str, Sequence[str], Sequence[Sequence[object]]]
"""Title, columns and rows."""


@dataclass(frozen=True, slots=True)
class TrainingCounts:
    """Where the samples of one training came from."""

    run_id: str
    trigger_id: int
    counts: ServedCounts
    saved_s: float | None
    """As `ServedCounts.seconds_saved`; None: this machine and dataset were not measured with this pipeline's `data`."""
    is_running: bool = False
    """The counts are those until now."""

    def values(self) -> dict[str, Any]:
        """All of it, for programs."""
        counts = self.counts
        parts = {"hit_share": counts.hit_share, "preparations_per_sample": counts.preparations, "saved_s": self.saved_s}
        start = {"run": self.run_id, "trigger": self.trigger_id, "is_running": self.is_running, "served": counts.served}
        return {**start, **asdict(counts), **parts}


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """What there is to see."""

    stores: Sequence[StoreUsage]
    trainings: Sequence[TrainingCounts]
    """The newest ones that a cache has served, in order; those of a run that runs come last."""
    notes: Sequence[str]
    """What cannot be seen, and why."""

    def values(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "stores": [
                {"store": usage.store, "where": usage.where, "is_reachable": usage.is_reachable, "tiers": usage.tiers}
                for usage in self.stores
            ],
            "trainings": [training.values() for training in self.trainings],
            "notes": self.notes,
        }


def read_stores(config: SystemConfig) -> list[StoreUsage]:
    """Count what lies in the stores that this machine reaches. Raises: ConfigError: the URL of Redis is wrong, or its password."""
    from modyn.cache.stores import check_redis_access, memory_usage, redis_usage
    from modyn.state_folders import shared_folder

    stores = [memory_usage(shared_folder(config.state_dir))]
    if (url := redis_url(config)) is None:
        return stores
    check_redis_access(url)
    return [*stores, redis_usage(url)]


def redis_url(config: SystemConfig) -> str | None:
    """The URL of the Redis that trainings would use; None: there is none, or the embedded one does not run."""
    runs = config.redis_url is not None or services_run()
    return config.resolved_redis_url() if runs else None


def read_status(config: SystemConfig) -> CacheStatus:
    """Look at the stores and, where services run, at the newest trainings."""
    stores = read_stores(config)
    notes = [
        f"the Redis at {usage.where} does not answer: what it holds is not shown" for usage in stores if not usage.is_reachable
    ]
    if not is_embedded(config):
        notes.append("shared memory is that of this machine or container; that of trainings is where the trainer server runs")
    trainings: list[TrainingCounts] = []
    if services_run():
        try:
            with connect() as client:
                trainings = newest_trainings(client)
        except ModynError as error:
            notes.append(f"trainings are not shown: {error.message}")
    else:
        notes.append("trainings are not shown, for no services run: start them with `modyn up`")
    return CacheStatus(stores, trainings, notes)


def newest_trainings(client: Client) -> list[TrainingCounts]:
    """Return what a cache served to the newest trainings: to those that have ended with a model, as their results say, and to those that run,
    until now."""
    found = []
    for run in client.supervisor.runs()[-NEWEST_RUNS:]:
        first = max(0, run.num_triggers - NEWEST_TRIGGERS)
        triggers = client.supervisor.triggers(run.run_id, first, with_losses=False)
        served = [
            (trigger.trigger_id, counts, False)
            for trigger in triggers
            if (counts := ServedCounts.of_result(trigger.training_result)) is not None
        ]
        if triggers and triggers[-1].finished_at is None and (status := _status_now(client, run.run_id, triggers[-1].trigger_id)):
            counts = ServedCounts.of(status.samples_loaded, status.num_cached, status.cache_work)
            served.append((status.trigger_id, counts, True))
        if served:
            profile = _profile(client, client.show(run.run_id).pipeline)
            found += [
                TrainingCounts(
                    run.run_id, trigger_id, counts, None if profile is None else counts.seconds_saved(profile), is_running
                )
                for trigger_id, counts, is_running in served
            ]
    return found


def _status_now(client: Client, run_id: str, trigger_id: int) -> TrainingStatus | None:
    """The status of the training of a trigger, if it runs and a cache serves it."""
    try:
        with closing(client.trainer_server.watch(run_id, trigger_id)) as statuses:
            status = next(statuses, None)
    except ModynError:  # It has not begun; or only the supervisor can be reached.
        return None
    if status is None or status.state.is_final:
        return None
    return status if any(status.num_cached.values()) or any(status.cache_work.values()) else None


def _profile(client: Client, pipeline: Mapping[str, Any]) -> CacheProfile | None:
    """What was measured for a pipeline on this machine; None: nothing, or for another registration of its dataset."""
    from modyn.cache.profile import profile_of
    from modyn.dataset.config import DataConfig

    try:
        data = DataConfig.model_validate(pipeline["data"])
        return profile_of(client.config.state_dir, data.model_dump(mode="json"), client.dataset(data.dataset_id).identity)
    except (KeyError, ValueError, ModynError):
        return None


def tables(status: CacheStatus) -> list[Table]:
    """Return what is shown of it, for people."""
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
            "Trainings that a cache has served",
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
    """Print it. Args: indent: of JSON; None: in one line."""
    if json:
        return print_json(status.values(), indent)
    for title, columns, rows in tables(status):
        print_table(columns, rows, title=title, empty=f"{title}: none")
    for note in status.notes:
        say(note)
    return None


def watch(read: Callable[[], CacheStatus], *, json: bool, pause: Callable[[], None] = lambda: time.sleep(INTERVAL_S)) -> None:
    """Show it again and again until Ctrl-C: in place on a terminal, one below the other elsewhere, one line each as JSON."""
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
    """Leave out the older trainings, as many as do not fit on a terminal. Args: num_lines: of the terminal."""
    others = sum(len(usage.tiers) for usage in status.stores) + 2 * len(status.notes) + _LINES_AROUND
    return replace(status, trainings=status.trainings[-max(1, num_lines - others) :])


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "–"
