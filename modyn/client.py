"""`modyn.Client`: all functions of the command line from Python, with results as pandas DataFrames."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modyn.config import arguments
from modyn.config.base import Problem
from modyn.config.dataset import DatasetConfig
from modyn.config.overrides import override, pipeline_yaml, read_pipeline
from modyn.config.system import SystemConfig, load_system_config
from modyn.errors import InvalidArgumentError, UnavailableError
from modyn.local.control import StackStatus, stack_status, start_stack, stop_stack
from modyn.model_access import ModelAccess
from modyn.records import DeletedSamples, keys_array
from modyn.registry import Plugin
from modyn.result_tables import table_of
from modyn.rpc.retry import ResumingStream, Retrier, RetryPolicy
from modyn.storage.client import AppendedRecord, DatasetInfo, FileProblem, IngestProgress, NewRecord, SamplePlace
from modyn.supervisor.client import RequestedEvaluation, Run, RunEvent, RunMode, RunOptions

if TYPE_CHECKING:
    import pandas as pd

    from modyn.cache.measuring import MeasuredPart
    from modyn.cache.profile import CacheProfile
    from modyn.trainer_server.cache_planning import CacheForecast, ProfiledPipeline


_WATCH_POLICY = RetryPolicy(limit_s=120.0)
"""For how long `Client.watch` waits for a supervisor that restarts."""


@dataclass(frozen=True, slots=True)
class Reindexed:
    """What `Client.reindex` has done. told: the runs that have an event about the deleted samples."""

    num_deleted: int
    told: tuple[str, ...]


class Client(ModelAccess):
    """Client of the services of one installation. Times in its tables are datetimes of UTC.

    Args: config: a SystemConfig, the path of a system file, or nothing for the defaults (embedded services under `.modyn`).
    state_dir: folder of the installation's state, as `modyn --state-dir`, in place of the configuration's; an empty text is as none.
    start: start the embedded services if they do not run.
    wait_s: how long a call waits for a service that cannot be reached, for example while it restarts.

        >>> client = Client(start=True)                             # doctest: +SKIP
        >>> run = client.wait(client.run("pipeline.yaml").run_id)   # doctest: +SKIP
        >>> client.scores(run.run_id)                               # doctest: +SKIP

    Raises: errors of `modyn.errors` only, from every method. UnavailableError of methods that return tables: also where pandas is not installed.
    """

    def __init__(
        self,
        config: SystemConfig | Path | str | None = None,
        *,
        state_dir: Path | str | None = None,
        start: bool = False,
        wait_s: float = 10.0,
    ) -> None:
        self._config_file = Path(config) if isinstance(config, str | Path) else None
        loaded = config if isinstance(config, SystemConfig) else load_system_config(self._config_file)
        if state_dir:  # An empty text would be the current folder.
            loaded = loaded.model_copy(update={"state_dir": Path(state_dir).expanduser().absolute()})
        super().__init__(loaded, wait_s)
        if start:
            self.up()

    # --- Services ---------------------------------------------------------------------------------------------------------------

    def up(self, progress: Callable[[StackStatus], None] | None = None) -> StackStatus:
        """Start the embedded services, or those that died, and wait until all are healthy.

        Args: progress: receives each status meanwhile. Raises: ConfigError: the Redis of `redis_url` refuses this installation.
        """
        if self.config.redis_url is not None and (url := self.config.resolved_redis_url()) is not None:
            from modyn.cache.stores import check_redis_access

            check_redis_access(url)
        return start_stack(self.config, self._config_file, progress)

    def down(self) -> bool:
        """Stop the embedded services. Returns whether any ran."""
        return stop_stack(self.config)

    def status(self) -> StackStatus:
        """Return the present state of the embedded services."""
        return stack_status(self.config)

    # --- Runs -------------------------------------------------------------------------------------------------------------------

    def check(self, pipeline: Path | str) -> list[Problem]:
        """Return every mistake in a pipeline file, found by the services that act on it; also warnings, see `severity`. Runs nothing in it."""
        path = Path(pipeline)
        return self.supervisor.validate(read_pipeline(path), str(path))

    def run(
        self,
        pipeline: Path | str | Mapping[str, Any],
        mode: RunMode | str = RunMode.EXPERIMENT,
        *,
        from_timestamp: int | str | dt.datetime | None = None,
        to_timestamp: int | str | dt.datetime | None = None,
        max_triggers: int | None = None,
        final_trigger: bool = False,
        settings: Sequence[str] = (),
        tags: Sequence[str] = (),
    ) -> Run:
        """Start a run of a pipeline and return at once; `wait` and `watch` follow it. Its `message` has what the checks warn of.

        Args: pipeline: the path of its file, or what stands in it. settings: values that are set for this run, which keeps them, e.g.
        `training.batch_size=64`. from_timestamp, to_timestamp: only samples in [from, to), seconds since 1970, an ISO 8601 date or a
        datetime. max_triggers: end after so many. final_trigger: train on what is left when the stream ends, although the trigger policy
        has not fired. tags: words by which the run is found. mode: replay history (experiment), or follow live data (production).
        Raises: ConfigError: every mistake in the file, with its line. InvalidArgumentError: another argument is wrong.
        """
        if isinstance(pipeline, Mapping):
            text, file_name = pipeline_yaml(pipeline), "pipeline"
        else:
            text, file_name = read_pipeline(pipeline), str(pipeline)
        options = RunOptions(
            arguments.choice("mode", mode, RunMode),
            arguments.timestamp("from_timestamp", from_timestamp),
            arguments.timestamp("to_timestamp", to_timestamp),
            arguments.count("max_triggers", max_triggers),
            arguments.flag("final_trigger", final_trigger),
            arguments.texts("tags", tags),
        )
        return self.supervisor.submit(override(text, file_name, arguments.texts("settings", settings)), file_name, options)

    def watch(
        self, run_id: str, after_seq: int = 0, evaluation: int | None = None, *, newest: int | None = None
    ) -> Iterator[RunEvent]:
        """Yield the events of a run until it is terminal; reconnects if the supervisor restarts.

        Args: after_seq: leave out events up to this `seq`; 0: none. newest: begin with the newest so many of those that are kept.
        evaluation: number of requested evaluations, whose end counts instead of the run's.
        Raises: NotFoundError. UnavailableError: the supervisor stays away.
        """
        position = after_seq

        def position_after(event: RunEvent) -> int:
            nonlocal position
            position = max(position, event.seq)  # Progress is not kept and has no number: its `seq` is 0.
            return position

        return ResumingStream(
            lambda seq: self.supervisor.watch(run_id, seq, evaluation, None if seq > after_seq else newest),
            after_seq,
            position_after,
            Retrier(_WATCH_POLICY),
        )

    def wait(self, run_id: str) -> Run:
        """Wait until the run is terminal, and return it: also one that failed or was stopped, see `state`. Raises as `watch`."""
        for _ in self.watch(run_id):
            continue
        return self.supervisor.run(run_id)

    def runs(self) -> pd.DataFrame:
        """Return all runs, oldest first; columns: the fields of `Run` without the pipeline. Raises: UnavailableError: no pandas."""
        return table_of(Run, self.supervisor.runs(), without=("yaml", "pipeline"))

    def show(self, run_id: str) -> Run:
        """Return a run. Raises: NotFoundError."""
        return self.supervisor.run(run_id)

    def stop(self, run_id: str) -> Run:
        """Ask a run to stop, and return at once; `wait` waits for the end, `resume` continues it. Raises: NotFoundError."""
        return self.supervisor.stop(run_id)

    def resume(self, run_id: str) -> Run:
        """Continue a run that was stopped, failed or was interrupted. Finished steps are not repeated. Raises: ConflictError: it finished."""
        return self.supervisor.resume(run_id)

    def finish(self, run_id: str) -> Run:
        """End the stream of a run where it stands, make its final evaluations, and finish it: the good end of a production run.

        Raises: NotFoundError. ConflictError: it is stopping, or another supervisor executes it.
        """
        return self.supervisor.finish(run_id)

    def remove(self, run_id: str, *, even_promoted: bool = False) -> None:
        """Remove a run that has ended from all services, permanently: journal, trigger sets, models, results and files of its trainings.

        Args: even_promoted: also if one of its models is promoted.
        Raises: NotFoundError. ConflictError: it is active, or one of its models is promoted or needed by another run.
        """
        self.supervisor.remove(run_id, even_promoted=even_promoted)

    def evaluate(
        self, run_id: str, handlers: Sequence[str | Path] = (), *, datasets: Sequence[str] = (), metrics: Sequence[str] = ()
    ) -> RequestedEvaluation:
        """Evaluate the models that a run has made so far, whatever it is doing; `wait_evaluation` waits for the end.

        Args: handlers: names of its handlers, none: all manual ones and what has failed; or one file with a handler or an `evaluation`
            section that takes the place of the run's own. datasets, metrics: in place of those that the handlers and datasets name.
        Raises: NotFoundError, InvalidArgumentError, ConfigError.
        """
        handlers = arguments.items("handlers", handlers, (str, Path), "a list of names, or of one path,")
        chosen = (arguments.texts("datasets", datasets), arguments.texts("metrics", metrics))
        files = [Path(handler) for handler in handlers if isinstance(handler, Path) or Path(handler).is_file()]
        if len(files) > 1:
            raise InvalidArgumentError(f"{len(files)} files of handlers are given; put them into one, as a list under `handlers`")
        names = [str(handler) for handler in handlers if Path(handler) not in files]
        yaml = read_pipeline(files[0]) if files else ""
        return self.supervisor.evaluate(run_id, names, *chosen, yaml)

    def wait_evaluation(self, run_id: str, number: int) -> RequestedEvaluation:
        """Wait until the evaluations requested as `number` have ended; return their state and the reason of a failure. Raises: NotFoundError."""
        request = self.supervisor.evaluation(run_id, number)
        for _ in self.watch(run_id, request.after_seq, number):
            continue
        return self.supervisor.evaluation(run_id, number)

    # --- Data -------------------------------------------------------------------------------------------------------------------

    def register_dataset(self, dataset: DatasetConfig) -> DatasetInfo:
        """Register a folder of files as a dataset. Repeating it changes nothing. Raises: AlreadyExistsError: with other options."""
        return self.storage.register_dataset(dataset)

    def change_dataset(self, dataset: DatasetConfig) -> DatasetInfo:
        """Give a dataset other options, for what is indexed from now on. Raises: InvalidArgumentError: they would change what is indexed."""
        return self.storage.change_dataset(dataset)

    def ingest(self, name: str, progress: Callable[[IngestProgress], None] | None = None) -> DatasetInfo:
        """Index the new files of a dataset now. Returns the dataset afterwards. Args: progress: called in this thread, a few times a second."""
        for step in self.storage.ingest(name):
            if progress is not None:
                progress(step)
        return self.storage.dataset(name)

    def append_records(self, name: str, records: Sequence[NewRecord]) -> list[AppendedRecord]:
        """Append records to a dataset of records; return for each what became of it. They are durable then, and samples soon.

        Of all records with one idempotency key the first one counts, so that the call may be repeated. Raises: InvalidArgumentError.
        """
        return self.storage.append_records(name, records)

    def set_labels(self, name: str, labels: Mapping[str, float]) -> list[AppendedRecord]:
        """Give records that were appended without a label (`label=None`) their labels, by their keys; return for each what became of it.

        A record that has a label keeps it: the same one again is a duplicate, another one `differs`. So the call may be repeated. Runs in production
        mode train on a sample once its label has come.

        Raises: NotFoundError: there is no record with one of the keys. InvalidArgumentError: a label cannot be one.
        """
        return self.storage.set_labels(name, labels)

    def datasets(self) -> pd.DataFrame:
        """Return the datasets, one row each: registration and counts. `client.storage.list_datasets()` returns records.
        Raises: UnavailableError: no pandas."""
        found = self.storage.list_datasets()
        table = table_of(DatasetInfo, found, without=("config",))
        for place, field in enumerate(DatasetConfig.model_fields):
            table.insert(place, field, [getattr(info.config, field) for info in found])
        return table

    def dataset(self, name: str) -> DatasetInfo:
        """Return a dataset. Raises: NotFoundError."""
        return self.storage.dataset(name)

    def delete_dataset(self, name: str) -> None:
        """Delete a dataset's index. The data files are not touched. Raises: NotFoundError."""
        self.storage.delete_dataset(name)

    def reindex(self, name: str, path: str, progress: Callable[[IngestProgress], None] = lambda _: None) -> Reindexed:
        """Take a data file again that was changed after it was indexed: its samples are deleted, and what it holds now is added under new keys.
        Bad rows, of which `max_bad_rows` allows some, are among the `problems`, and the others are taken. Each run whose models or scores may rest on
        the deleted samples gets an event about it.

        Args: path: of the file, full or below the dataset's folder. progress: as of `ingest`.
        Raises: NotFoundError: it is not indexed, or is missing. DataError: it cannot be used as it is now; nothing is deleted then.
        UnavailableError: also if the supervisor, which tells the runs, is away: nothing is deleted then, unless it goes away meanwhile.
        """
        try:
            self.supervisor.tell_of_deletion(DeletedSamples(name, "", path, 0, first_key=None))  # of no sample: is it there?
        except UnavailableError as error:
            raise UnavailableError(
                f"no sample of {path} was deleted, since runs that have read it cannot be told: {error.message}"
            ) from error
        deleted = self.storage.forget_file(name, path)
        try:
            told = self.supervisor.tell_of_deletion(deleted)
        except UnavailableError as error:
            raise UnavailableError(
                f"{deleted.num_samples:,} samples of {path} are deleted, but runs that have read them are not told: {error.message}; what the file "
                f"holds now is taken by `modyn data ingest {name}`"
            ) from error
        self.ingest(name, progress)
        return Reindexed(deleted.num_samples, tuple(told))

    def delete_samples(self, name: str, keys: Sequence[int]) -> int:
        """Delete the samples with these `keys` from the index, permanently. Returns how many existed. Raises: NotFoundError."""
        return self.storage.delete_samples(name, keys_array(keys))

    def locate(self, name: str, keys: Sequence[int]) -> pd.DataFrame:
        """Return where the samples with these `keys` lie, one row each: key, path, offset, num_bytes, label, timestamp.
        Raises: NotFoundError, UnavailableError: no pandas."""
        return table_of(SamplePlace, self.storage.locate(name, keys_array(keys)))

    def problems(self, name: str) -> pd.DataFrame:
        """Return the files of a dataset that were set aside, and the damaged files of its index: path, reason, found_at.
        Raises: NotFoundError, UnavailableError: no pandas."""
        return table_of(FileProblem, self.storage.problems(name))

    # --- Cache ------------------------------------------------------------------------------------------------------------------

    def profile_cache(
        self,
        pipeline: Path | str | Mapping[str, Any],
        *,
        seconds: float = 60,
        workers: int | None = None,
        progress: Callable[[MeasuredPart], object] = lambda _: None,
    ) -> CacheProfile:
        """Measure on this machine what decides about a cache for a pipeline's dataset, and keep it for `plan_cache` and for trainings with
        `split: auto`. Runs the pipeline's code in this process and those that it starts: call it where nothing else runs; see docs/cache.md.

        Args: pipeline: as of `run`. seconds: in all, about. workers: threads or processes that read and decode, of all trainings that are to share
        the machine; None: `training.dataloader_workers`. progress: receives each part that begins.
        Raises: ConfigError: every mistake in the file. NotFoundError: there is no such dataset. DataError, UserCodeError, TrainingError: samples
        cannot be read, decoded or trained on.
        """
        from modyn.trainer_server.cache_planning import measure_cache

        if not seconds > 0:
            raise InvalidArgumentError(f"seconds is {seconds!r}; a number greater than 0 is expected")
        workers = arguments.count("workers", workers)
        loaded = _profiled(pipeline)
        return measure_cache(self.config, loaded, self.dataset(loaded.data.dataset_id), seconds, workers, progress)

    def plan_cache(
        self,
        pipeline: Path | str | Mapping[str, Any],
        size: int | str | None = None,
        jobs: int | None = None,
        split: str | None = None,
    ) -> CacheForecast:
        """Predict what a cache would bring to a pipeline, by what `profile_cache` has measured: the store and split that its trainings would use with
        `split: auto`, and others to compare. Nothing is measured or changed. Where services run, it is checked that the dataset is still the one that
        was measured.

        Args: pipeline: as of `run`. size: bytes, or a text such as 2GB. jobs: trainings that share it, at once and over the same samples. split:
        the one in use, to compare: percents encoded-decoded-augmented, as 58-42-0. None of these: what the pipeline or the system file says, or
        2GB for one training.
        Raises: InvalidArgumentError: an argument is wrong. ConfigError: this machine cannot have such a cache. NotFoundError, CorruptStateError: it
        is to be measured first. ConflictError: the dataset was registered anew since it was measured.
        """
        from modyn.trainer_server.cache_planning import check_dataset, read_forecast

        found = read_forecast(self.config, _profiled(pipeline), size, jobs, split)
        if self.config.endpoint("storage").is_unix and self.status().state != "ready":
            return found
        return check_dataset(found, self.storage)

    # --- Plug-ins ---------------------------------------------------------------------------------------------------------------

    def plugins(self) -> pd.DataFrame:
        """Return what is registered with the services, built in or from installed packages: group, id, path, distribution.
        Raises: UnavailableError: no pandas."""
        return table_of(Plugin, self.list_plugins())

    def list_plugins(self) -> list[Plugin]:
        """Return `plugins` as records."""
        services = (self.supervisor, self.storage, self.model_storage, self.evaluator, self.selector, self.trainer_server)
        found = [plugin for service in services for plugin in service.plugins()]
        return sorted(set(found), key=lambda plugin: (plugin.group, plugin.id))

    # --- The pipeline format, as it is installed here ---------------------------------------------------------------------------

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the pipeline file."""
        from modyn.reference.schema import pipeline_json_schema

        return pipeline_json_schema()

    def explain(self, field: str = "") -> str:
        """Explain a field of the pipeline file: meaning, type, bounds, default; without one, list the sections."""
        from modyn.reference.explain import explain

        return explain(field)


def _profiled(pipeline: Path | str | Mapping[str, Any]) -> ProfiledPipeline:
    from modyn.trainer_server.cache_planning import load_profiled

    if isinstance(pipeline, Mapping):
        return load_profiled(pipeline_yaml(pipeline), "pipeline")
    return load_profiled(read_pipeline(pipeline), str(pipeline))
