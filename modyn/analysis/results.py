"""Read the results of runs as tables, and compute evaluation matrix, composite models, pipeline score and cost from these tables.

Section 3.1 of the SIGMOD'25 paper defines these terms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from typing import Any, Final, Literal

import pandas as pd

from modyn.analysis.prequential import prequential_table
from modyn.config.durations import format_timestamp
from modyn.config.evaluation import EvaluationHandler, ModelChoice
from modyn.evaluator.client import EvaluationResult, EvaluatorClient
from modyn.model_storage.client import Promotion
from modyn.supervisor.client import (
    CheckRecord,
    RequestedEvaluation,
    Run,
    ServedInterval,
    SupervisorClient,
    TriggerRecord,
    model_at,
)

Kind = Literal["active", "trained"]
"""Composite models."""

_INPUT_COLUMNS: Final = {
    "trigger_id": "int64",
    "timestamp": "int64",
    "column": "object",
    "rows": "int64",
    "missing": "float64",
    "unlike": "float64",
}

STAGES = ("select", "train", "store", "evaluate")
"""Stages of a trigger with reported seconds, in order of execution."""

LOSS_CURVES = 30
"""Losses are shown for this number of the run's newest trainings."""

CACHED_COLUMNS = ("cached_encoded", "cached_decoded", "cached_augmented")
"""Number of samples that a training took from each tier of the cache; missing means 0."""
CACHE_WORK_COLUMNS = ("decoded_for_cache", "evicted")
"""Number of samples that were decoded only for the cache, and number of values that a training's sampler evicted; missing means 0."""

LEARNED_COLUMNS = ("skipped_steps", "ignored_labels")
"""Number of steps of a training that changed no weight, and number of labels that the loss ignored; missing means 0."""

_STAGE_SECONDS = tuple(f"{stage}_s" for stage in (*STAGES, "total"))
_WHOLE, _FRACTION, _TEXT, _FLAG = "Int64", "float64", "object", "bool"
_TRIGGER_COLUMNS = {
    "trigger_id": _WHOLE,
    "state": _TEXT,
    "online": _FLAG,
    "position": _WHOLE,
    "first_timestamp": _WHOLE,
    "last_timestamp": _WHOLE,
    "fired_at": _WHOLE,
    "num_keys": _WHOLE,
    "num_waiting": _WHOLE,
    "num_trained": _WHOLE,
    "num_loaded": _WHOLE,
    "num_skipped": _WHOLE,
    "num_steps": _WHOLE,
    **dict.fromkeys(LEARNED_COLUMNS, _WHOLE),
    "num_tested": _WHOLE,
    "rollbacks": _WHOLE,
    **dict.fromkeys((*CACHED_COLUMNS, *CACHE_WORK_COLUMNS), _WHOLE),
    "bad_samples": _TEXT,
    "warnings": _TEXT,
    "keys_checksum": _TEXT,
    "model_id": _WHOLE,
    "parent_model_id": _WHOLE,
    "weights_sha256": _TEXT,
    "started_at": _FRACTION,
    "finished_at": _FRACTION,
    "loss": _FRACTION,
    **dict.fromkeys(_STAGE_SECONDS, _FRACTION),
}
"""Columns of the table of triggers in order, with their types."""
_SERIES = ["handler", "dataset", "metric"]
_INTERVAL = ["start", "end", "anchor"]
_EVALUATION_COLUMNS = [
    *("trigger_id", "model_id", "handler", "dataset", "start", "end", "anchor", "metric", "value", "num_samples", "note"),
    "num_deleted",
]


@dataclass(frozen=True, slots=True, eq=False)
class RunResults:
    """The results of a run. Stream times are int64 seconds since 1970; columns that end in `_s` are seconds of work.

    Args: triggers: one row for each trigger, in order. evaluations: one row for each model, interval, dataset and metric. `value` is NaN if the
    metric is undefined. `num_deleted` is the number of deleted samples of the dataset at the time of the evaluation, see `sample_notes`.
    """

    run: Run
    triggers: pd.DataFrame
    evaluations: pd.DataFrame
    losses: pd.DataFrame = field(default_factory=lambda: losses_table([]))
    """Losses of the newest trainings from `losses_table`, if requested."""
    checks: Sequence[CheckRecord] = ()
    """Checks in which the trigger policy examined data, if requested."""
    prequential: pd.DataFrame = field(default_factory=lambda: prequential_table([]))
    """The result of `prequential_table`, which has the tests of new samples; empty if the run has no online learning."""
    promotions: Sequence[Promotion] = ()
    """Promotions of versions, if requested."""
    served: Sequence[ServedInterval] = ()
    """Reports of prediction servers, if requested."""
    requested: Sequence[RequestedEvaluation] = ()
    """Evaluations that users requested. A request may have its own handlers."""

    @property
    def handlers(self) -> list[EvaluationHandler]:
        """Return the evaluation handlers of the pipeline and of requested evaluations."""
        asked = [(one.handlers, one.evaluation.handlers) for one in self.requested if one.evaluation is not None]
        return [*self.run.evaluation.handlers, *(each for names, found in asked for each in found if each.name in names)]

    @property
    def datasets(self) -> list[Mapping[str, Any]]:
        """Return the entries of `evaluation.datasets` of the pipeline and of requested evaluations."""
        evaluations = [self.run.evaluation, *(asked.evaluation for asked in self.requested)]
        return [entry for evaluation in evaluations if evaluation for entry in evaluation.datasets.values()]


def read_results(
    supervisor: SupervisorClient,
    evaluator: EvaluatorClient,
    run_id: str,
    *,
    with_losses: bool = False,
    with_checks: bool = False,
    with_served: bool = False,
    promotions: Sequence[Promotion] = (),
) -> RunResults:
    """Read run, triggers and evaluations of a run, finished or not. Raises NotFoundError for an unknown run.

    Args: with_losses: include losses of the newest LOSS_CURVES trainings. with_checks: include checks of the trigger policy. with_served: include
    reports of prediction servers. promotions: promotions of the run's models, for the report.
    """
    run = supervisor.run(run_id)
    records = supervisor.triggers(run_id, with_losses=False)
    triggers = triggers_table(records)
    losses = losses_table([])
    if with_losses and len(made := triggers["trigger_id"][triggers["loss"].notna()]):
        losses = losses_table(supervisor.triggers(run_id, int(made.iloc[-LOSS_CURVES:].iloc[0])))
    evaluations = evaluations_table(evaluator.results(run.run_id))
    checks = supervisor.checks(run_id) if with_checks else []
    tested, requested = prequential_table(records), supervisor.evaluations(run_id)
    served = supervisor.served(run_id) if with_served else ()
    return RunResults(run, triggers, evaluations, losses, checks, tested, promotions, served, requested)


def losses_table(triggers: Sequence[TriggerRecord]) -> pd.DataFrame:
    """Return one row for each loss that trainings have kept: trigger_id, batch (from 1), loss, and `of`.

    `of` is `batch`, `epoch` (the mean of one epoch) or `validation` (the mean over the held-out samples).
    """
    rows = []
    for trigger in triggers:
        result = trigger.training_result
        losses, counts = result.losses, result.counts
        rows += [(trigger.trigger_id, batch, loss, "batch") for batch, loss in losses.batch_losses]
        # All epochs have the same number of batches. There may be losses of fewer epochs than the training had.
        per_epoch = counts.num_batches / max(counts.num_epochs, len(losses.epoch_losses), 1)
        for of, values in (("epoch", losses.epoch_losses), ("validation", losses.validation_losses)):
            rows += [(trigger.trigger_id, round((i + 1) * per_epoch), loss, of) for i, loss in enumerate(values)]
    types = {"trigger_id": "int64", "batch": "int64", "loss": "float64", "of": "str"}
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def triggers_table(triggers: Sequence[TriggerRecord]) -> pd.DataFrame:
    """Return one row for each trigger. Unknown numbers are missing."""
    rows = [_trigger_row(trigger) for trigger in sorted(triggers, key=lambda trigger: trigger.trigger_id)]
    types = {name: kind for name, kind in _TRIGGER_COLUMNS.items() if kind != _TEXT}
    return pd.DataFrame(rows, columns=list(_TRIGGER_COLUMNS)).astype(types)


def _trigger_row(trigger: TriggerRecord) -> dict[str, Any]:
    result = trigger.training_result
    counts, tests, guard, cache = result.counts, result.prequential, result.step_guard, result.cache
    row = {
        **_values(trigger),
        "state": str(trigger.state),
        "fired_at": trigger.fired_at_timestamp,
        "num_trained": trigger.num_trained,
        "num_loaded": trigger.num_loaded,
        "num_skipped": trigger.num_skipped,
        "num_steps": counts.num_steps if result.has_ended else None,
        **{name: getattr(counts, name) or None for name in LEARNED_COLUMNS},
        "num_tested": None if tests is None else sum(tests.num),
        "rollbacks": None if guard is None else len(guard.rollbacks),
        "bad_samples": [asdict(sample) for sample in result.bad_samples],
        "warnings": list(result.warnings),
        "loss": result.losses.loss,
        **{f"{stage}_s": seconds for stage, seconds in trigger.seconds.items()},
    }
    if cache is not None:
        row |= {f"cached_{tier}": num_samples for tier, num_samples in cache.num_cached.items()}
        row |= {"decoded_for_cache": cache.cache_work.get("decoded"), "evicted": cache.cache_work.get("evicted")}
    return row


def training_warnings(triggers: pd.DataFrame) -> list[tuple[int, str]]:
    """Return the warnings of trainings, each as trigger id and sentence. Args: triggers: the table of `read_results`."""
    return [(int(t["trigger_id"]), warning) for t in triggers.to_dict("records") for warning in t["warnings"]]


def triggers_of_models(triggers: pd.DataFrame) -> dict[int, int]:
    """Return for each model the id of the trigger that made the model. Args: triggers: the table of `read_results`."""
    made = triggers.loc[triggers["model_id"].notna(), ["model_id", "trigger_id"]]
    return dict(made.itertuples(index=False, name=None))


def evaluations_table(results: Sequence[EvaluationResult]) -> pd.DataFrame:
    """Return one row for each value of the evaluation results.

    If a dataset was registered again, it may have other samples. The column `dataset` then has a name for each registration, so that no matrix mixes
    registrations.
    """
    registrations = {(r.dataset, r.dataset_identity) for r in results}
    several = {name for name, number in Counter(name for name, _ in registrations).items() if number > 1}

    def named(result: EvaluationResult) -> str:
        if result.dataset not in several:
            return result.dataset
        return f"{result.dataset} (registration {result.dataset_identity[:8] or 'not known'})"

    rows = [
        (r.trigger_id, r.model_id, r.handler, named(r), i.start, i.end, i.anchor, r.metric, r.value, r.num_samples, r.note, r.num_deleted)
        for r in results
        for i in [r.interval]
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=_EVALUATION_COLUMNS)
    whole = ["trigger_id", "model_id", "start", "end", "anchor", "num_samples"]
    table = table.astype({**dict.fromkeys(whole, "int64"), "value": "float64", "num_deleted": "Int64"})
    return table.sort_values(["handler", "dataset", "metric", "trigger_id", "start"], ignore_index=True)


def sample_notes(evaluations: pd.DataFrame, run_id: str) -> list[str]:
    """Return sentences about datasets with scores that may come from different samples: because samples were deleted between two evaluations, or
    because an interval got samples or labels between two evaluations of the interval.

    Args: evaluations: the table of `read_results`, or the rows of one series. run_id: id of the run.
    """
    notes = []
    for dataset, cells in evaluations.groupby("dataset"):
        newest = cells["num_deleted"].max()
        old = cells[cells["num_deleted"].lt(newest).fillna(False)]
        if len(old):
            changed = f"{newest - old['num_deleted'].min():,} samples of dataset '{dataset}' were deleted"
            notes.append(_sample_note(changed, old, run_id))
        largest = cells.groupby([*_SERIES, "start", "end", "num_deleted"], dropna=False)["num_samples"].transform("max")
        # A cell without a value is not compared, for example if the interval had no samples yet.
        old = cells.assign(largest=largest)[(cells["num_samples"] < largest) & cells["value"].notna()]
        if len(old):
            first = old.sort_values(["start", "end", "num_samples"]).iloc[0]
            others = len(old[["start", "end"]].drop_duplicates()) - 1
            changed = (
                f"dataset '{dataset}' got samples or labels in the interval {format_timestamp(first['start'])} to {format_timestamp(first['end'])} "
                f"({first['num_samples']:,} samples, then {first['largest']:,}){f' and in {others} more' if others else ''}"
            )
            notes.append(_sample_note(changed, old, run_id))
    return notes


def _sample_note(changed: str, old: pd.DataFrame, run_id: str) -> str:
    """Return the sentence about the scores `old`, which were made before the change."""
    triggers, handlers = sorted(set(old["trigger_id"])), sorted(set(old["handler"]))
    first, last = triggers[0], triggers[-1]
    of = f"trigger {first}" if first == last else f"{len(triggers)} triggers, {first} to {last}"
    return (
        f"{changed} since it was scored for {of}: these scores may come from other samples than newer scores next to them, and a pipeline score may "
        f"come from both; `modyn evaluate {run_id}{''.join(f' --handler {name}' for name in handlers)}` scores all models on the present samples"
    )


def _values(record: Any) -> dict[str, Any]:
    return {column.name: getattr(record, column.name) for column in fields(record)}


@dataclass(frozen=True, slots=True)
class Series:
    """One evaluation matrix: the intervals of one handler on one dataset, scored by one metric."""

    handler: str
    dataset: str
    metric: str


def series_cells(evaluations: pd.DataFrame) -> Iterator[tuple[Series, pd.DataFrame]]:
    """Yield each series with its rows of `evaluations`, in alphabetical order."""
    for names, cells in evaluations.groupby(_SERIES, sort=True):
        yield Series(*map(str, names)), cells


def evaluation_matrix(evaluations: pd.DataFrame, series: Series) -> pd.DataFrame:
    """Return the scores of models (rows, by trigger id) on intervals (columns: start, end, anchor). NaN: there is no score.

    Args: evaluations: the table of `read_results`. Source: SIGMOD'25, section 3.1.
    """
    wanted = [evaluations[name] == value for name, value in zip(_SERIES, astuple(series), strict=True)]
    cells = evaluations[wanted[0] & wanted[1] & wanted[2]].set_index(["trigger_id", *_INTERVAL])["value"]
    matrix: pd.DataFrame = cells.unstack(_INTERVAL).sort_index().sort_index(axis=1)
    return matrix


def composite_model(triggers: pd.DataFrame, anchors: Sequence[int], kind: Kind) -> list[int | None]:
    """Return for each anchor the trigger id of the composite model's version; None: there is no version for the anchor.

    active: the newest model whose training data ends before the anchor. trained: the next model after the active model, or the newest model of all if
    there is no next or no active model (see `model_at`).

    Args: triggers: the table of `read_results`. anchors: seconds since 1970.
    """
    trained = triggers[triggers["model_id"].notna()].sort_values("trigger_id")
    ids = [int(trigger_id) for trigger_id in trained["trigger_id"]]
    ends = [int(fired_at) + 1 for fired_at in trained["fired_at"]]
    chosen = [model_at(ends, anchor, following=kind == "trained") for anchor in anchors]
    return [ids[index] if index >= 0 else None for index in chosen]


def composite_scores(cells: pd.DataFrame, triggers: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """Return the scores of the composite model: columns start, end, anchor, trigger_id, value, one row for each interval.

    trigger_id is missing if there is no model; value is NaN if there is no score.

    Args: cells: rows of one series, see `series_cells`. triggers, kind: see `composite_model`.
    """
    intervals = cells[_INTERVAL].drop_duplicates().sort_values(_INTERVAL, ignore_index=True)
    chosen = composite_model(triggers, intervals["anchor"].tolist(), kind)
    answers = intervals.assign(trigger_id=pd.array(chosen, dtype="Int64"))
    scored = cells[["trigger_id", *_INTERVAL, "value"]].astype({"trigger_id": "Int64"})
    return answers.merge(scored, how="left", on=["trigger_id", *_INTERVAL])


def pipeline_score(performance: pd.DataFrame) -> float:
    """Return the mean over the intervals with a score; NaN if no interval has a score."""
    scored = performance["value"].dropna()
    return float(scored.mean()) if len(scored) else float("nan")


def evaluated_kinds(handlers: Sequence[EvaluationHandler], name: str) -> tuple[Kind, ...]:
    """Return the composite models that a handler evaluates. `scores` counts the scored intervals of the first composite model.

    A handler with `models: active` evaluates only the active composite model. Some of the evaluated cells may also belong to the trained composite
    model, but these few cells give no score.

    Args: handlers: the handlers of `RunResults`. name: name of one or more handlers. An unknown handler counts as a handler of the whole matrix.
    """
    both: tuple[Kind, ...] = ("active", "trained")
    kinds_of: dict[ModelChoice, tuple[Kind, ...]] = {"matrix": both, "active": ("active",), "train": ("trained",)}
    found = [kinds_of[handler.models] for handler in handlers if handler.name == name] or [both]
    return tuple(kind for kind in both if any(kind in kinds for kinds in found))


def scores(triggers: pd.DataFrame, evaluations: pd.DataFrame, handlers: Sequence[EvaluationHandler] = ()) -> pd.DataFrame:
    """Return one row for each series with its pipeline scores: columns handler, dataset, metric, active, trained, scored_intervals, intervals.

    A composite model that the handler did not evaluate has the score NaN. scored_intervals: number of intervals with a score of the evaluated
    composite model (of the active model if both are evaluated). intervals: number of all intervals.

    Args: triggers, evaluations, handlers: fields of `RunResults`. Without handlers, all evaluations count as evaluations of the whole matrix.
    """
    rows = []
    for series, cells in series_cells(evaluations):
        found = {kind: composite_scores(cells, triggers, kind) for kind in evaluated_kinds(handlers, series.handler)}
        values = [pipeline_score(found[kind]) if kind in found else float("nan") for kind in ("active", "trained")]
        counted = next(iter(found.values()))
        rows.append([*astuple(series), *values, int(counted["value"].notna().sum()), len(counted)])
    return pd.DataFrame(rows, columns=["handler", "dataset", "metric", "active", "trained", "scored_intervals", "intervals"])


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a pipeline (SIGMOD'25, section 3.1, "Cost trade-off").

    Pipelines with the same selection policy can be compared by the number of triggers, and all pipelines by the number of samples. Seconds include
    all work, but are comparable only if the machine is otherwise idle.
    """

    num_triggers: int
    num_samples: int
    """Number of training samples, summed over the triggers. The trainer counts samples after downsampling, once for each epoch."""
    wall_s: float
    """Time from submission to the end of the run by the system clock, including pauses between stop and resume. If the clock was set back, the
    value is still at least the sum of the seconds of selection and training, which do not overlap."""
    by_stage_s: dict[str, float]
    """Seconds of work by stage, summed over the triggers. The sum of all stages may exceed `wall_s`, because evaluation overlaps the next training.
    """


def cost(results: RunResults) -> Cost:
    """Return the cost of a run so far."""
    triggers, end, started = results.triggers, results.run.finished_at, results.run.submitted_at
    trained = triggers[triggers["model_id"].notna()]
    last = triggers["finished_at"].max() if len(triggers) else started
    elapsed = float((end if end is not None else last if pd.notna(last) else started) - started)
    by_stage_s = {stage: float(triggers[f"{stage}_s"].fillna(0.0).sum()) for stage in STAGES}
    return Cost(
        num_triggers=len(trained),
        num_samples=int(trained["num_trained"].sum()),
        wall_s=max(elapsed, by_stage_s["select"] + by_stage_s["train"]),
        by_stage_s=by_stage_s,
    )


def inputs_table(triggers: Sequence[TriggerRecord]) -> pd.DataFrame:
    """Return the counts of a run's InputGuard, one row for each training and column of its inputs.

    Columns: stream time of the trigger, number of `rows`, and the shares of `missing` and `unlike` values. A value is unlike if it is outside the
    range of all earlier values, or is a new category. If the pipeline has no InputGuard, the table is empty.
    """
    rows = [
        (trigger.trigger_id, trigger.fired_at_timestamp, column, found.rows, found.missing, found.unlike)
        for trigger in sorted(triggers, key=lambda trigger: trigger.trigger_id)
        if (preprocessing := trigger.training_result.preprocessing) is not None
        for column, found in (preprocessing.inputs or {}).items()
    ]
    return pd.DataFrame(rows, columns=list(_INPUT_COLUMNS)).astype(_INPUT_COLUMNS)
