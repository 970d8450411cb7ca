"""Check a pipeline before a run. The supervisor checks the keys of the file and its own sections; the other services check the other sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from modyn.config.base import Problem, Severity, check_section, load_section, refuse, section_at, sections_in
from modyn.config.durations import format_duration
from modyn.config.online import ONLINE
from modyn.config.pipeline import Pipeline, check_frame, load_pipeline
from modyn.config.preprocessing import PREPROCESSING, decoding_sections, with_columns
from modyn.config.published import pipeline_source
from modyn.config.selection_parts import downsampled_size, presampled_size
from modyn.config.trigger_parts import WINDOWS, Part, compared_windows, trigger_sections
from modyn.config.yaml_source import YamlSource, load_yaml, with_lines
from modyn.dataset.field_names import wrong_form, wrong_names, wrong_number
from modyn.errors import ConfigError, DataError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.model_storage.client import ModelStorageClient
from modyn.models.classes import label_classes
from modyn.models.names import check_sources
from modyn.records import Interval
from modyn.registry import nearest
from modyn.storage.client import DatasetInfo, StorageClient
from modyn.supervisor.evaluation import check_handlers
from modyn.supervisor.journal.records import Run, RunMode, RunOptions
from modyn.supervisor.pipeline_checks.sections import OBSERVATIONS, check_online, check_serving, pinned_models, served_datasets
from modyn.supervisor.run.scored_turns import check_scored_turns
from modyn.supervisor.triggers import check_trigger_section, samples_per_trigger, with_defaults
from modyn.supervisor.triggers.measures.windows import TimeWindowingStrategy

Check = Callable[[Mapping[str, Any]], list[Problem]]
"""Function that takes a whole pipeline and lists the mistakes in the sections of one service."""


def check_pipeline(yaml: str, file_name: str, section_checks: Iterable[Check], references: Check | None = None) -> list[Problem]:
    """List every mistake and warning in a pipeline file once, in the order of the file, each with its line. No run is started.

    Args: yaml: the text of the file. file_name: name of the file in messages. section_checks: checks of the services. references: checks the datasets
        and models that the file names.
    """
    try:
        source = pipeline_source(load_yaml(yaml, file_name))
    except ConfigError as error:
        return [Problem("", error.message)]
    found = find_problems(source, section_checks, references)
    return [replace(problem, message=f"{problem.message} (line {source.locate(problem.path)})") for problem in found]


def checked_pipeline(yaml: str, file_name: str, section_checks: Iterable[Check]) -> tuple[Pipeline, list[Problem]]:
    """Return a pipeline without mistakes, and the warnings about the pipeline. Args: see `check_pipeline`.

    Raises: ConfigError: lists every mistake, and every package or device that this machine lacks.
    """
    source = pipeline_source(load_yaml(yaml, file_name))
    found = find_problems(source, section_checks)
    if refused := [replace(problem, severity=Severity.ERROR) for problem in found if problem.severity is not Severity.WARNING]:
        raise ConfigError("\n".join(with_lines(refused, source)))
    return load_pipeline(yaml, file_name), found


def find_problems(source: YamlSource, section_checks: Iterable[Check], references: Check | None = None) -> list[Problem]:
    """List every mistake in a pipeline once, in the order of the file, including the mistakes from `section_checks` and `references`.

    If the service that uses a value finds a mistake, the service's message replaces all other messages for the same path.
    """
    source = pipeline_source(source)
    data = source.data
    found, asked = [*check_frame(data), *source.notes], with_columns(data)
    if isinstance(trigger := data.get("trigger"), Mapping):
        found += check_trigger_section(trigger)
        asked |= {"trigger": with_defaults(asked["trigger"])}
    if isinstance(online := data.get(ONLINE), Mapping) and isinstance(trigger := online.get("trigger"), Mapping):
        asked |= {ONLINE: {**online, "trigger": with_defaults(asked[ONLINE]["trigger"])}}
    if isinstance(evaluation := data.get("evaluation"), Mapping):
        found += check_handlers(evaluation)
    found += check_online(data) + check_serving(data) + check_sources(data)
    found += check_scored_turns(data) + check_batch_size(data) + (references(data) if references else [])
    of_services = [problem for check in section_checks for problem in check(asked)]
    # The message of the service that uses a value is more precise than the supervisor's message for the same path.
    mistakes = {problem.path for problem in of_services if problem.severity is Severity.ERROR}
    found = [problem for problem in found if problem.path not in mistakes]
    return sorted({*found, *of_services}, key=lambda problem: (source.locate(problem.path), problem))


@dataclass(frozen=True, slots=True)
class StreamExtent:
    """The samples that a run will receive: the samples of the registered dataset with keys below `end_key`, and the first `end_label` late labels.
    The three numbers are None for live data.
    """

    dataset_identity: str
    evaluation_identities: Mapping[str, str]
    """Identity of each dataset of the section `evaluation`, by name."""
    total_samples: int | None = None
    end_key: int | None = None
    end_label: int | None = None


def check_references(pipeline: Mapping[str, Any], storage: StorageClient, model_storage: ModelStorageClient) -> list[Problem]:
    """Check the datasets and models that a pipeline names.

    Mistakes: a dataset or model does not exist, a dataset accepts no observations, files lack a column, or the label is a feature. Warnings: files
    have problems, or a dataset is too small for one batch or for the compared seasons.
    """
    found, infos, data = list[Problem](), dict[str, DatasetInfo](), section_at(pipeline, "data")
    training, entries = section_at(pipeline, "training"), section_at(pipeline, "evaluation").get("datasets")
    sections = {"data": data} | {
        f"evaluation.datasets.{i}": entry for i, entry in enumerate(entries if isinstance(entries, list) else [])
    }
    named = {f"{path}.dataset_id": entry.get("dataset_id") for path, entry in sections_in(sections).items()}
    # If the batch size is refused for every dataset, a warning about this dataset is omitted.
    is_refused = any(problem.severity is Severity.ERROR for problem in check_batch_size(pipeline))
    for path, name in {**named, **served_datasets(pipeline)}.items():
        if not isinstance(name, str):
            continue
        try:
            info = storage.dataset(name)
        except NotFoundError:
            found.append(Problem(path, _no_dataset(storage, name)))
            continue
        if path in named and not section_at(sections, path.removesuffix(".dataset_id")).get("label_transformer_function"):
            infos[path] = info
        found += label_among_features(pipeline, path, info) if path in named else []
        if info.num_problems and path in named:
            what = f"files of the dataset '{name}' have problems ({info.num_problems:,}), so that samples are missing or cannot be read"
            found.append(Problem(path, f"{what}; `modyn data problems {name}` says why, and what to do", Severity.WARNING))
        found += check_windows(pipeline, info) if path == "data.dataset_id" else []
        if path == OBSERVATIONS and not info.config.holds_records:
            what = f"dataset '{name}' is made of files, and takes no observations"
            found.append(Problem(path, f"{what}; `modyn data register NAME --records` makes one that does"))
        largest = _largest_set(pipeline, info.num_samples, RunOptions(RunMode.EXPERIMENT))
        for kept, why in _without_batch(pipeline, largest) if path == "data.dataset_id" and not is_refused else ():
            message = f"dataset '{name}' holds {info.num_samples} samples{_of_largest(largest, info.num_samples)}{kept}: {why}"
            found.append(Problem("training.batch_size", message, Severity.WARNING))
    for path, model_id in {"training.initial_model_id": training.get("initial_model_id"), **pinned_models(pipeline)}.items():
        try:
            if isinstance(model_id, int):
                model_storage.describe(model_id)
        except NotFoundError as error:
            found.append(Problem(path, error.message))
    return found + other_classes(pipeline, infos) + _wrong_columns(pipeline, storage)


def check_windows(pipeline: Mapping[str, Any], dataset: DatasetInfo) -> list[Problem]:
    """Return the warnings for the sections `trigger` and `online.trigger` of a pipeline. Args: dataset: dataset of the stream."""
    return [
        problem
        for path, trigger in trigger_sections(pipeline).items()
        for place, compared in compared_windows(with_defaults(trigger), path)
        for problem in _too_short(compared, place, dataset)
    ]


def _too_short(compared: Part, path: str, dataset: DatasetInfo) -> Iterator[Problem]:
    """Warn if the dataset covers less time than the seasons that the policy compares."""
    section = compared[WINDOWS]
    if not isinstance(section, Mapping) or section.get("season") is None or check_section(TimeWindowingStrategy, section, ""):
        return
    windows, start, end = load_section(TimeWindowingStrategy, section), dataset.min_timestamp, dataset.max_timestamp
    held = 0 if start is None or end is None else end - start + 1
    if held < windows.horizon:
        needed = "season and limit_cur reach" if windows.limit_ref is None else "limit_ref or limit_cur reaches"
        message = f"{needed} over {format_duration(windows.horizon)}, and the dataset '{dataset.name}' holds {held:,} s"
        consequence = "a replay of it compares nothing, and a run of live data nothing until it has this much data"
        yield Problem(f"{path}.{WINDOWS}.season", f"{message}: {consequence}", Severity.WARNING)


def _wrong_columns(pipeline: Mapping[str, Any], storage: StorageClient) -> list[Problem]:
    """Compare the section `preprocessing` with the known columns and row formats of the pipeline's datasets."""
    found = dict[Problem, None]()
    for data in decoding_sections(pipeline):
        section, name = data.get(PREPROCESSING), data.get("dataset_id")
        if not isinstance(section, Mapping) or not isinstance(name, str):
            continue
        with suppress(NotFoundError):  # `check_references` reports the missing dataset.
            info = storage.dataset(name)
            found |= dict.fromkeys(wrong := wrong_form(section, info.config))
            if any(problem.severity is Severity.ERROR for problem in wrong):
                continue  # With a wrong row format, the fields cannot be compared.
            if info.schema is not None or info.num_samples or info.config.holds_records:
                found |= dict.fromkeys(wrong_names(section, name, info.schema))
            if isinstance(names := section.get("names"), list) and (number := _num_fields(storage, info)):
                found |= dict.fromkeys(wrong_number(names, name, number))
    return list(found)


def _num_fields(storage: StorageClient, dataset: DatasetInfo) -> int:
    """Return the largest number of fields in a row of CSV files without column names; 0 if the number is not known."""
    has_names = dataset.schema is not None and bool(dataset.schema.names)
    if dataset.config.file_wrapper != "CsvFileWrapper" or has_names or not dataset.num_samples:
        return 0
    try:
        return len(storage.column_names(dataset.name, dataset.identity))  # Empty if all samples that storage reads were deleted.
    except (DataError, UnavailableError):
        return 0  # A file cannot be read; a run reports the reason.


def checked_references(pipeline: Pipeline, storage: StorageClient, model_storage: ModelStorageClient) -> list[Problem]:
    """Return the warnings of `check_references`. Raises: ConfigError: `check_references` finds a mistake about columns. NotFoundError:
    `check_references` finds any other mistake.
    """
    found = check_references(pipeline.as_dict(), storage, model_storage)
    of_columns = [problem for problem in found if problem.path.startswith(f"{PREPROCESSING}.")]
    if missing := [problem for problem in found if problem.severity is Severity.ERROR and problem not in of_columns]:
        raise NotFoundError("\n".join(map(str, missing)))
    refuse(of_columns)
    return found


def label_among_features(pipeline: Mapping[str, Any], path: str, dataset: DatasetInfo) -> list[Problem]:
    """Return a mistake if the section `preprocessing` uses the label of a dataset as a feature; return a warning if the payloads contain the label.

    Args: path: path of the dataset's name in the pipeline.
    """
    options, preprocessing = dataset.config.file_wrapper_config, section_at(pipeline, PREPROCESSING)
    names, index = preprocessing.get("names") or (dataset.schema and dataset.schema.names), options.get("label_index")
    label = options.get("label_column") or options.get("label_field")
    if label is None and isinstance(names, list | tuple) and isinstance(index, int) and 0 <= index < len(names):
        label = names[index]
    columns = preprocessing.get("columns")
    if label is not None and isinstance(columns, Mapping) and label in columns:
        what = f"'{label}' is the label of the dataset '{dataset.name}', and the model would see the label; remove the column"
        return [Problem(f"{PREPROCESSING}.columns.{label}", what)]
    if label in (options.get("payload_columns") or ()):
        what = f"payloads of the dataset '{dataset.name}' hold its label, the column '{label}': unless the parser leaves it out, it is a feature"
        return [Problem(path, f"{what}; register the dataset without it in payload_columns", Severity.WARNING)]
    return []


def other_classes(pipeline: Mapping[str, Any], datasets: Mapping[str, DatasetInfo]) -> list[Problem]:
    """Compare the named classes of the dataset that a pipeline trains on with the classes of its model (a warning) and of the datasets that evaluate
    it (mistakes).

    Args: datasets: by the path of their names in the pipeline, without those whose labels a label_transformer_function changes.
    """
    compared = {path: dataset for path, dataset in datasets.items() if dataset.classes}
    if (trained := compared.pop("data.dataset_id", None)) is None:
        return []
    found, classes = list[Problem](), label_classes(pipeline)
    if classes is not None and classes.number is not None and len(trained.classes) > classes.number:
        what = f"dataset '{trained.name}' has {len(trained.classes):,} classes, and the model {classes.number:,}: trainings fail at further classes"
        found.append(Problem("model.config.num_classes", f"{what}; set it to at least {len(trained.classes)}", Severity.WARNING))
    for path, dataset in compared.items():
        both = enumerate(zip(trained.classes, dataset.classes, strict=False))
        for number, (ours, theirs) in ((number, names) for number, names in both if names[0] != names[1]):
            what = f"class {number} of dataset '{dataset.name}' is '{theirs}', and of '{trained.name}', which the model learns, '{ours}'"
            advice = f"register it again with the option label_classes, the classes that `modyn data show {trained.name}` lists"
            found.append(Problem(path, f"{what}: {advice}"))
            break
    return found


def unreached_handlers(run: Run) -> list[str]:
    """Return a warning if a run ends only on request and has handlers that evaluate at its end; an empty list otherwise."""
    if run.mode is not RunMode.PRODUCTION or run.max_triggers is not None:
        return []
    waiting = [h.name for h in run.evaluation.handlers if h.execution_time == "after_pipeline"]
    names = ", ".join(f"'{name}'" for name in waiting)
    verb = f"handler {names} evaluates" if len(waiting) == 1 else f"handlers {names} evaluate"
    return [f"{verb} at the end of the run, which `modyn finish {run.run_id}` brings about"] if waiting else []


def check_batch_size(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return a mistake if the batch size is larger than every trigger set: `drop_last_batch` would drop every batch. Return a warning if the batch
    size is larger than the first trigger set.
    """
    path, limit, sizes = "training.batch_size", section_at(pipeline, "selection_strategy").get("limit"), _set_sizes(pipeline)
    found = list[Problem]()
    if isinstance(limit, int) and limit > 0:
        for kept, why in _without_batch(pipeline, limit, presampled=True):
            found.append(Problem(path, f"selection_strategy.limit keeps trigger sets at {limit} samples{kept}: {why}"))
    if sizes is None:
        return found
    first, most = sizes
    for kept, why in _without_batch(pipeline, most) if most is not None else ():
        return [*found, Problem(path, f"the trigger policy keeps trigger sets at {most} samples{kept}: {why}")]
    for kept, why in _without_batch(pipeline, first):
        what = f"the trigger policy gives the first trigger {first} samples{kept}: {why}. Later triggers have more samples"
        found.append(Problem(path, what, Severity.WARNING))
    return found


def _set_sizes(pipeline: Mapping[str, Any]) -> tuple[int, int | None] | None:
    """Return the size of the first trigger set, and the largest size of a later set (None if each selection includes all earlier samples).

    Return None if the sizes are not known. The sizes are known if the policy states `samples_per_trigger`, unless `label_delay` lets several labels
    arrive together.
    """
    tail = section_at(pipeline, "selection_strategy").get("tail_triggers")
    amount, delay = samples_per_trigger(section_at(pipeline, "trigger")), section_at(pipeline, "data").get("label_delay")
    if amount is None or delay:
        return None
    return amount, amount * (tail + 1) if isinstance(tail, int) else None


def _largest_set(pipeline: Mapping[str, Any], num_samples: int, options: RunOptions) -> int:
    """Return the largest size of a trigger set in a replay of `num_samples` samples, as far as the size is known."""
    sizes = _set_sizes(pipeline)
    if sizes is None or num_samples < sizes[0]:
        return num_samples
    amount, most = sizes
    num_triggers = num_samples // amount
    if options.max_triggers is not None and options.max_triggers <= num_triggers:
        reached = options.max_triggers * amount
    else:
        reached = num_samples if options.final_trigger else num_triggers * amount
    return reached if most is None else min(reached, most)


def _of_largest(largest: int, num_samples: int) -> str:
    return f", and its largest trigger set {largest}" if largest < num_samples else ""


def _without_batch(pipeline: Mapping[str, Any], num_samples: int, *, presampled: bool = False) -> Iterator[tuple[str, str]]:
    """Yield one pair if a trigger with `num_samples` samples trains on no batch; yield nothing otherwise, or if the sections are invalid. The pair
    is a phrase with the number of samples that remain after the selection (empty if all remain), and the reason.

    With batch-then-sample, every number of samples gives a batch. Args: presampled: whether `num_samples` is the number after presampling.
    """
    training, selection = section_at(pipeline, "training"), section_at(pipeline, "selection_strategy")
    size, left, kept = training.get("batch_size"), num_samples, ""
    if not isinstance(size, int) or not training.get("drop_last_batch", True):
        return
    chooses = not selection.get("warmup_triggers")
    downsampling = section_at(selection, "downsampling_config")
    if (downsampling and not downsampling.get("sample_then_batch")) or "downsampling_list" in {*selection, *downsampling}:
        return
    shares = (("presampling_config", presampled_size), ("downsampling_config", downsampled_size))
    for name, size_after in shares[presampled:] if chooses else ():
        ratio, whole = section_at(selection, name).get("ratio"), section_at(selection, name).get("ratio_max", 100)
        if isinstance(ratio, int) and isinstance(whole, int) and 0 < ratio < whole:
            left = size_after(left, ratio, whole)
            kept = f", of which {left} are left by selection_strategy"
    if 0 < left < size:
        yield (
            kept,
            f"a batch of {size} is never full, and nothing is trained on; lower it, or set training.drop_last_batch to false",
        )


def measure_stream(pipeline: Pipeline, options: RunOptions, storage: StorageClient) -> StreamExtent:
    """Return the samples that a run of the pipeline will receive. A replay receives only samples that are indexed now.

    Raises: NotFoundError: the dataset does not exist. InvalidArgumentError: there are no samples to replay.
    """
    dataset = pipeline.dataset_id
    info = storage.dataset(dataset)
    entries = (pipeline.evaluation or {}).get("datasets") or []
    evaluated = {entry["dataset_id"]: storage.dataset(entry["dataset_id"]).identity for entry in entries}
    if options.mode is RunMode.PRODUCTION:
        return StreamExtent(info.identity, evaluated)
    # `next_key` fixes the end of the replay: samples that are indexed later are left out.
    num_samples = storage.count_samples(dataset, options.interval, info.next_key, info.identity)
    if num_samples == 0:
        advice = f"`modyn data ingest {dataset}` indexes its files, `modyn data problems {dataset}` lists those set aside"
        if info.num_samples:
            advice = (
                f"its samples lie in [{info.min_timestamp}, {info.max_timestamp}], in seconds since 1970: choose another interval"
            )
        where = "" if options.interval == Interval() else f" in [{options.interval.start}, {options.interval.end})"
        raise InvalidArgumentError(f"dataset '{dataset}' holds no samples{where}, so there is nothing to replay; {advice}")
    largest = _largest_set(pipeline.as_dict(), num_samples, options)
    for kept, why in _without_batch(pipeline.as_dict(), largest):
        raise InvalidArgumentError(
            f"training.batch_size: the replay has {num_samples} samples{_of_largest(largest, num_samples)}{kept}: {why}"
        )
    return StreamExtent(info.identity, evaluated, num_samples, info.next_key, info.num_labels)


def _no_dataset(storage: StorageClient, name: str) -> str:
    known = [info.name for info in storage.list_datasets()]
    return f"there is no dataset '{name}'{nearest(name, known) or ';'} registered: {', '.join(known) or 'none'}; `modyn data register` adds one"
