"""`modyn.Client`: all functions of the command line for Python programs, with results as pandas DataFrames."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from modyn.models.names import changed_sources, with_sources
from modyn.records import DeletedSamples, keys_array
from modyn.registry import Plugin
from modyn.result_tables import table_of
from modyn.rpc.retry import ResumingStream, Retrier, RetryPolicy
from modyn.storage.client import AppendedRecord, DatasetInfo, FileProblem, IngestProgress, NewRecord, SamplePlace
from modyn.supervisor.client import RequestedEvaluation, Run, RunEvent, RunMode, RunOptions

if TYPE_CHECKING:
    import pandas as pd

    from modyn.cache.plan.measuring import MeasuredPart
    from modyn.cache.plan.profile import CacheProfile
    from modyn.trainer_server.cache_plan.cache_planning import CacheForecast, ProfiledPipeline


_WATCH_POLICY = RetryPolicy(limit_s=120.0)
"""`Client.watch` waits for a supervisor that restarts."""


@dataclass(frozen=True, slots=True)
class Reindexed:
    """Result of `Client.reindex`. told: ids of the runs whose journals got an event about the deleted samples."""

    num_deleted: int
    told: tuple[str, ...]


class Client(ModelAccess):
    """Client of the services of one installation. Times in its tables are datetimes in UTC.

    Args: config: a SystemConfig, or the path of a system file; None: the defaults (embedded services under `.modyn`). state_dir: folder of the
    installation's state, like `modyn --state-dir`; a value that is not empty overrides `config`. start: start the embedded services if they are not
    running. wait_s: seconds for which a call waits for a service that cannot be reached, for example while it restarts.

        >>> client = Client(start=True)                             # doctest: +SKIP
        >>> run = client.wait(client.run("pipeline.yaml").run_id)   # doctest: +SKIP
        >>> client.scores(run.run_id)                               # doctest: +SKIP

    Raises: every method raises only errors of `modyn.errors`. Methods that return tables also raise UnavailableError if pandas is not installed.
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
        if state_dir:  # An empty text would mean the current folder.
            loaded = loaded.model_copy(update={"state_dir": Path(state_dir).expanduser().absolute()})
        super().__init__(loaded, wait_s)
        if start:
            self.up()

    # --- Services ---------------------------------------------------------------------------------------------------------------

    def up(self, progress: Callable[[StackStatus], None] | None = None) -> StackStatus:
        """Start the embedded services that are not running, and wait until all are healthy.

        Args: progress: function that receives each status during the wait. Raises: ConfigError: the Redis of `redis_url` refuses this installation.
        """
        if self.config.redis_url is not None and (url := self.config.resolved_redis_url()) is not None:
            from modyn.cache.tiers.stores import check_redis_access

            check_redis_access(url)
        return start_stack(self.config, self._config_file, progress)

    def down(self) -> bool:
        """Stop the embedded services. Returns whether the services were running."""
        return stop_stack(self.config)

    def status(self) -> StackStatus:
        """Return the current status of the embedded services."""
        return stack_status(self.config)

    # --- Runs -------------------------------------------------------------------------------------------------------------------

    def check(self, pipeline: Path | str) -> list[Problem]:
        """Return all mistakes and warnings (see `severity`) that the services find in a pipeline file. No code of the pipeline is run, except
        the file of its model."""
        path = Path(pipeline)
        return self.supervisor.validate(with_sources(read_pipeline(path), str(path)), str(path))

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
        """Start a run of a pipeline and return it immediately; `wait` and `watch` follow it. The run's `message` has the warnings of the checks.

        Args: pipeline: path of a file, or the content as a dictionary. mode: replay history (experiment), or follow live data (production).
        from_timestamp, to_timestamp: use only samples in [from, to); each is seconds since 1970, an ISO 8601 date or a datetime. max_triggers: end
        after this number of triggers. final_trigger: train on the remaining samples when the stream ends, even if the trigger policy has not fired.
        settings: values that the run uses and keeps, e.g. `training.batch_size=64`. tags: words by which the run can be found.
        Raises: ConfigError: all mistakes in the file, with their lines. InvalidArgumentError: another argument is wrong.
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
        text = override(text, file_name, arguments.texts("settings", settings))
        return self.supervisor.submit(with_sources(text, file_name), file_name, options)

    def watch(
        self, run_id: str, after_seq: int = 0, evaluation: int | None = None, *, newest: int | None = None
    ) -> Iterator[RunEvent]:
        """Yield the events of a run until its state is terminal. Reconnects if the supervisor restarts.

        Args: after_seq: omit events up to this `seq`; 0: omit none. newest: number of newest stored events to start with. evaluation:
        number of a request for evaluations; the events end when the requested evaluations end, not when the run ends.
        Raises: NotFoundError. UnavailableError: the supervisor cannot be reached again.
        """
        position = after_seq

        def position_after(event: RunEvent) -> int:
            nonlocal position
            position = max(position, event.seq)  # Progress events are not stored: their `seq` is 0.
            return position

        return ResumingStream(
            lambda seq: self.supervisor.watch(run_id, seq, evaluation, None if seq > after_seq else newest),
            after_seq,
            position_after,
            Retrier(_WATCH_POLICY),
        )

    def wait(self, run_id: str) -> Run:
        """Wait until the state of the run is terminal, and return the run. Raises: see `watch`."""
        for _ in self.watch(run_id):
            continue
        return self.supervisor.run(run_id)

    def runs(self) -> pd.DataFrame:
        """Return all runs, oldest first. Columns are the fields of `Run` except the pipeline."""
        return table_of(Run, self.supervisor.runs(), without=("yaml", "pipeline"))

    def show(self, run_id: str) -> Run:
        """Return a run. Raises: NotFoundError."""
        return self.supervisor.run(run_id)

    def stop(self, run_id: str) -> Run:
        """Ask a run to stop, without waiting. `wait` waits for the end, and `resume` continues the run later. Raises: NotFoundError."""
        return self.supervisor.stop(run_id)

    def resume(self, run_id: str) -> Run:
        """Continue a run that was stopped, interrupted or failed. Finished steps are not repeated. `message` names changed files of
        its model; the run keeps its copies. Raises: ConflictError: the run has finished.
        """
        run = self.supervisor.resume(run_id)
        notes = changed_sources(run.pipeline)
        return replace(run, message="\n".join([run.message, *notes]).strip()) if notes else run

    def finish(self, run_id: str) -> Run:
        """End the stream of a run at its present position, make its final evaluations, and finish the run. A production run normally ends in this
        way.

        Raises: NotFoundError. ConflictError: the run is stopping, or another supervisor executes the run.
        """
        return self.supervisor.finish(run_id)

    def remove(self, run_id: str, *, even_promoted: bool = False) -> None:
        """Permanently remove a run that has ended from all services: journal, trigger sets, models, results and files of its trainings.

        Args: even_promoted: also remove a run with a promoted model.
        Raises: NotFoundError. ConflictError: the run is active, or one of its models is promoted or needed by another run.
        """
        self.supervisor.remove(run_id, even_promoted=even_promoted)

    def evaluate(
        self, run_id: str, handlers: Sequence[str | Path] = (), *, datasets: Sequence[str] = (), metrics: Sequence[str] = ()
    ) -> RequestedEvaluation:
        """Evaluate the models that a run has made so far. The run may be in any state. `wait_evaluation` waits for the end.

        Args: handlers: names of the run's handlers; or one file with a handler or a section `evaluation`, which replaces the run's section.
        Empty: all manual handlers, and failed evaluations. datasets, metrics: replace the datasets of the handlers, and the metrics of the datasets.
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
        """Wait until the evaluations of request `number` have ended. Returns the request with its state, and the reason of a failure. Raises:
        NotFoundError.
        """
        request = self.supervisor.evaluation(run_id, number)
        for _ in self.watch(run_id, request.after_seq, number):
            continue
        return self.supervisor.evaluation(run_id, number)

    # --- Data -------------------------------------------------------------------------------------------------------------------

    def register_dataset(self, dataset: DatasetConfig) -> DatasetInfo:
        """Register a folder of files as a dataset. A second, equal call changes nothing. Raises: AlreadyExistsError: the dataset is registered
        with other options.
        """
        return self.storage.register_dataset(dataset)

    def change_dataset(self, dataset: DatasetConfig) -> DatasetInfo:
        """Change the options of a dataset for files that are indexed from now on. Raises InvalidArgumentError: the options would change indexed
        samples."""
        return self.storage.change_dataset(dataset)

    def ingest(self, name: str, progress: Callable[[IngestProgress], None] | None = None) -> DatasetInfo:
        """Index the new files of a dataset now, and return the dataset. Args: progress: called in this thread a few times per second."""
        for step in self.storage.ingest(name):
            if progress is not None:
                progress(step)
        return self.storage.dataset(name)

    def append_records(self, name: str, records: Sequence[NewRecord]) -> list[AppendedRecord]:
        """Append records durably to a dataset of records. The records become samples within about a second. Returns an answer for each record.

        Only the first record of an idempotency key counts, so the call may be repeated. Raises: InvalidArgumentError.
        """
        return self.storage.append_records(name, records)

    def set_labels(self, name: str, labels: Mapping[str, float]) -> list[AppendedRecord]:
        """Set the labels of records that were appended without a label (`label=None`), by key. Returns an answer for each label.

        A record keeps its first label: for the same label, the answer has `is_duplicate`, and for another label, `differs`. The call may therefore be
        repeated. Runs in production mode can train on a sample when it has its label.

        Raises: NotFoundError: a key has no record. InvalidArgumentError: a label is invalid.
        """
        return self.storage.set_labels(name, labels)

    def datasets(self) -> pd.DataFrame:
        """Return one row for each dataset, with registration and counts. `client.storage.list_datasets()` returns records."""
        found = self.storage.list_datasets()
        table = table_of(DatasetInfo, found, without=("config",))
        for place, field in enumerate(DatasetConfig.model_fields):
            table.insert(place, field, [getattr(info.config, field) for info in found])
        return table

    def dataset(self, name: str) -> DatasetInfo:
        """Return a dataset. Raises: NotFoundError."""
        return self.storage.dataset(name)

    def delete_dataset(self, name: str) -> None:
        """Delete a dataset's index. The data files are not changed. Raises: NotFoundError."""
        self.storage.delete_dataset(name)

    def reindex(self, name: str, path: str, progress: Callable[[IngestProgress], None] = lambda _: None) -> Reindexed:
        """Index a changed data file again: delete the old samples of the file, and add its present samples with new keys. Bad rows that
        `max_bad_rows` allows become `problems`; the other rows are indexed. Each run whose models or scores may depend on the deleted samples gets
        an event.

        Args: path: path of the file, absolute or relative to the dataset's folder. progress: see `ingest`.
        Raises: NotFoundError: the file is not indexed, or is missing. DataError: the file is unusable; no sample is deleted. UnavailableError:
        raised also if the supervisor, which informs the runs, is not available. Then no sample is deleted, unless the supervisor becomes
        unavailable during the call.
        """
        try:
            # Without deleted samples, this call only checks that the supervisor answers.
            self.supervisor.tell_of_deletion(DeletedSamples(name, "", path, 0, first_key=None))
        except UnavailableError as error:
            raise UnavailableError(
                f"no sample of {path} was deleted, because runs that have read it cannot be informed: {error.message}"
            ) from error
        deleted = self.storage.forget_file(name, path)
        try:
            told = self.supervisor.tell_of_deletion(deleted)
        except UnavailableError as error:
            raise UnavailableError(
                f"{deleted.num_samples:,} samples of {path} are deleted, but runs that have read them are not informed: {error.message}; the present "
                f"samples of the file are indexed by `modyn data ingest {name}`"
            ) from error
        self.ingest(name, progress)
        return Reindexed(deleted.num_samples, tuple(told))

    def delete_samples(self, name: str, keys: Sequence[int]) -> int:
        """Delete samples permanently from the index. Returns the number of `keys` that exist or have existed. Raises: NotFoundError."""
        return self.storage.delete_samples(name, keys_array(keys))

    def locate(self, name: str, keys: Sequence[int]) -> pd.DataFrame:
        """Return one row for each of these `keys` with the location of the sample: key, path, offset, num_bytes, label, timestamp.
        Raises: NotFoundError."""
        return table_of(SamplePlace, self.storage.locate(name, keys_array(keys)))

    def problems(self, name: str) -> pd.DataFrame:
        """Return the rejected files of a dataset, and the damaged files of its index: path, reason, found_at.
        Raises: NotFoundError."""
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
        """Measure the parameters of a cache for a pipeline's dataset on this machine, and store them for `plan_cache` and for trainings with
        `split: auto`. The pipeline's code runs in this process and its children. Use an idle machine; see docs/how-to/cache.md.

        Args: pipeline: see `run`. seconds: approximate total time. workers: number of threads or processes that read and decode, for all trainings
        that share the machine; default: `training.dataloader_workers`. progress: called when a part of the measurement begins.
        Raises: ConfigError: all mistakes in the file. NotFoundError: the dataset does not exist. DataError, UserCodeError, TrainingError: samples
        cannot be read, decoded or trained on.
        """
        from modyn.trainer_server.cache_plan.cache_planning import measure_cache

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
        """Predict the speed of a pipeline with a cache from the measurements of `profile_cache`. The result has the store and split that trainings
        use with `split: auto`, and other splits for comparison. The call changes nothing. If services run, the call checks that the dataset is the
        measured dataset.

        Args: pipeline: see `run`. size: bytes, or a text such as 2GB. jobs: number of concurrent trainings on the same samples that share the cache.
        split: the present split, for comparison: percentages encoded-decoded-augmented, such as 58-42-0. Defaults: the values of the pipeline or
        the system file, or 2GB and one training.
        Raises: InvalidArgumentError: an argument is wrong. ConfigError: this machine cannot have such a cache. NotFoundError, CorruptStateError:
        there are no valid measurements. ConflictError: the dataset was registered again after the measurement.
        """
        from modyn.trainer_server.cache_plan.cache_planning import check_dataset, read_forecast

        found = read_forecast(self.config, _profiled(pipeline), size, jobs, split)
        if self.config.endpoint("storage").is_unix and self.status().state != "ready":
            return found
        return check_dataset(found, self.storage)

    # --- Plug-ins ---------------------------------------------------------------------------------------------------------------

    def plugins(self) -> pd.DataFrame:
        """Return the plug-ins of the services, which are built in or come from installed packages: group, id, path, distribution."""
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
        """Explain a field of the pipeline file: meaning, type, bounds, default. Without a field, list the sections."""
        from modyn.reference.explain import explain

        return explain(field)


def _profiled(pipeline: Path | str | Mapping[str, Any]) -> ProfiledPipeline:
    from modyn.trainer_server.cache_plan.cache_planning import load_profiled

    if isinstance(pipeline, Mapping):
        return load_profiled(with_sources(pipeline_yaml(pipeline), "pipeline"), "pipeline")
    return load_profiled(with_sources(read_pipeline(pipeline), str(pipeline)), str(pipeline))
