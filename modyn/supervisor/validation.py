"""Check a pipeline before it runs: its frame and the sections trigger and evaluation here, the others in the services that act on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from modyn.config.base import Problem, Severity
from modyn.config.pipeline import Pipeline, check_frame, load_pipeline
from modyn.config.policy import check_policy
from modyn.config.yaml_source import YamlSource, load_yaml, with_lines
from modyn.errors import ConfigError, InvalidArgumentError, NotFoundError
from modyn.model_storage.client import ModelStorageClient
from modyn.records import Interval
from modyn.registry import nearest
from modyn.storage.client import DatasetInfo, StorageClient
from modyn.supervisor.evaluation import check_handlers
from modyn.supervisor.records import RunMode, RunOptions
from modyn.supervisor.triggers import TRIGGERS

Check = Callable[[Mapping[str, Any]], list[Problem]]
"""Lists the mistakes in the sections of a whole pipeline that one service acts on."""


def check_pipeline(yaml: str, file_name: str, section_checks: Iterable[Check]) -> list[Problem]:
    """List every mistake in a pipeline file once, in the order of the file, each with its line, warnings too. Runs nothing of it.

    Args: yaml: the text of the file. file_name: its name in messages. section_checks: those of the services.
    """
    try:
        source = load_yaml(yaml, file_name)
    except ConfigError as error:
        return [Problem("", error.message)]
    found = find_problems(source, section_checks)
    return [replace(problem, message=f"{problem.message} (line {source.locate(problem.path)})") for problem in found]


def checked_pipeline(yaml: str, file_name: str, section_checks: Iterable[Check]) -> Pipeline:
    """Return the pipeline, which can run as it is. Args as for `check_pipeline`.

    Raises: ConfigError: lists every mistake, and what this machine lacks; warnings are left out.
    """
    source = load_yaml(yaml, file_name)
    found = find_problems(source, section_checks)
    if refused := [replace(problem, severity=Severity.ERROR) for problem in found if problem.severity is not Severity.WARNING]:
        raise ConfigError("\n".join(with_lines(refused, source)))
    return load_pipeline(yaml, file_name)


def find_problems(source: YamlSource, section_checks: Iterable[Check]) -> list[Problem]:
    """List every mistake in a pipeline once, in the order of the file; also those that `section_checks` find."""
    data = dict(source.data)
    found = check_frame(data)
    if isinstance(trigger := data.get("trigger"), Mapping):
        found += check_policy(TRIGGERS, trigger, "id", "trigger")
    if isinstance(evaluation := data.get("evaluation"), Mapping):
        found += check_handlers(evaluation)
    for check in section_checks:
        found += check(data)
    return sorted(set(found), key=lambda problem: (source.locate(problem.path), problem))


@dataclass(frozen=True, slots=True)
class StreamExtent:
    """The samples that a run will see: how many, all with keys below `end_key`. Both None: live data, not known."""

    num_samples: int | None = None
    end_key: int | None = None


def measure_stream(
    pipeline: Pipeline, options: RunOptions, storage: StorageClient, model_storage: ModelStorageClient
) -> StreamExtent:
    """Return which samples a run of the pipeline will see. A replay sees those that the dataset holds now, and none that come later.

    Raises: NotFoundError: a dataset or the initial model does not exist. InvalidArgumentError: there is nothing to replay.
    """
    dataset = pipeline.dataset_id
    info = _dataset(storage, dataset, "data.dataset_id")
    for index, entry in enumerate((pipeline.evaluation or {}).get("datasets", [])):
        _dataset(storage, entry["dataset_id"], f"evaluation.datasets.{index}.dataset_id")
    if (initial_model_id := pipeline.training.initial_model_id) is not None:
        try:
            model_storage.describe(initial_model_id)
        except NotFoundError as error:
            raise NotFoundError(f"training.initial_model_id: {error.message}") from error
    if options.mode is RunMode.PRODUCTION:
        return StreamExtent()
    num_samples = storage.count_samples(dataset, options.interval, info.next_key)
    if num_samples == 0:
        advice = f"`modyn data ingest {dataset}` indexes its files, `modyn data problems {dataset}` lists those set aside"
        if info.num_samples:
            advice = (
                f"its samples lie in [{info.min_timestamp}, {info.max_timestamp}], in seconds since 1970: choose another interval"
            )
        where = "" if options.interval == Interval() else f" in [{options.interval.start}, {options.interval.end})"
        raise InvalidArgumentError(f"dataset '{dataset}' holds no samples{where}, so there is nothing to replay; {advice}")
    return StreamExtent(num_samples, info.next_key)


def _dataset(storage: StorageClient, name: str, path: str) -> DatasetInfo:
    try:
        return storage.dataset(name)
    except NotFoundError:
        known = [info.name for info in storage.list_datasets()]
        raise NotFoundError(
            f"{path}: there is no dataset '{name}'{nearest(name, known) or ';'} registered: {', '.join(known) or 'none'}; "
            f"`modyn data register` adds one"
        ) from None
