"""The one reader of run results: records as tables, and from these evaluation matrix, composite models, pipeline score and cost.

All are defined in section 3.1 of the SIGMOD'25 paper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import Any, Literal

import pandas as pd

from modyn.analysis.checks import checks_table
from modyn.analysis.prequential import prequential_table
from modyn.evaluator.client import EvaluationResult, EvaluatorClient
from modyn.model_storage.client import Promotion
from modyn.supervisor.client import RequestedEvaluation, Run, ServedInterval, SupervisorClient, TriggerRecord, model_at

Kind = Literal["active", "trained"]
"""Composite models."""

STAGES = ("select", "train", "store", "evaluate")
"""Stages of a trigger whose seconds are reported, in the order in which they run."""

LOSS_CURVES = 30
"""The newest so many trainings of a run show their losses."""

CACHED_COLUMNS = ("cached_encoded", "cached_decoded", "cached_augmented")
"""How many samples a training took from each tier of the cache; missing: from none."""
CACHE_WORK_COLUMNS = ("decoded_beside", "evicted")
"""Samples that were decoded for the cache only, and values that the sampler of a training had dropped from it; missing: none."""

LEARNED_COLUMNS = ("skipped_steps", "ignored_labels")
"""Steps of a training that changed no weight, and labels that the loss ignored; missing: none."""

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
"""Columns of the table of triggers in order, each with its type."""
_SERIES = ["handler", "dataset", "metric"]
_INTERVAL = ["start", "end", "anchor"]
_EVALUATION_COLUMNS = [
    *("trigger_id", "model_id", "handler", "dataset", "start", "end", "anchor", "metric", "value", "num_samples", "note"),
    "num_deleted",
]


@dataclass(frozen=True, slots=True, eq=False)
class RunResults:
    """The results of a run. Stream times are int64 seconds since 1970; columns that end in `_s` are seconds of work.

    Args: triggers: one row a trigger, in order. evaluations: one row for each model, interval, dataset and metric; `value` is NaN where undefined,
    `num_deleted` is how many samples of the dataset were deleted until then: see `deletion_notes`.
    """

    run: Run
    triggers: pd.DataFrame
    evaluations: pd.DataFrame
    losses: pd.DataFrame = field(default_factory=lambda: losses_table([]))
    """Losses of the newest trainings, if they were asked for: as `losses_table` makes it."""
    checks: pd.DataFrame = field(default_factory=lambda: checks_table([]))
    """Those of the trigger policy that looked at data, if they were asked for: as `checks_table` makes it."""
    prequential: pd.DataFrame = field(default_factory=lambda: prequential_table([]))
    """What the model said of new samples, where the run learns online: as `prequential_table` makes it."""
    promotions: Sequence[Promotion] = ()
    """Which versions were the ones to use, if it was asked for."""
    served: Sequence[ServedInterval] = ()
    """What servers of predictions reported, if it was asked for."""
    requested: Sequence[RequestedEvaluation] = ()
    """Evaluations that users asked for, some with handlers of their own."""

    @property
    def handlers(self) -> list[Mapping[str, Any]]:
        """All handlers that evaluated: those of the pipeline, and those that requested evaluations put in their place."""
        own = (self.run.pipeline.get("evaluation") or {}).get("handlers") or []
        asked = [(asked.handlers, asked.section.get("handlers") or []) for asked in self.requested if asked.section]
        return [*own, *(handler for names, handlers in asked for handler in handlers if handler.get("name") in names)]

    @property
    def datasets(self) -> list[Mapping[str, Any]]:
        """All entries of `evaluation.datasets` that were evaluated on: those of the pipeline, and those of requested evaluations."""
        sections = [self.run.pipeline.get("evaluation"), *(asked.section for asked in self.requested)]
        return [entry for section in sections if section for entry in section.get("datasets") or []]


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

    Args: with_losses: also those of the newest LOSS_CURVES trainings. with_checks: also those of the trigger policy. with_served: also what was
    served of it. promotions: of its models, for the report.
    """
    run = supervisor.run(run_id)
    records = supervisor.triggers(run_id, with_losses=False)
    triggers = triggers_table(records)
    losses = losses_table([])
    if with_losses and len(made := triggers["trigger_id"][triggers["loss"].notna()]):
        losses = losses_table(supervisor.triggers(run_id, int(made.iloc[-LOSS_CURVES:].iloc[0])))
    evaluations = evaluations_table(evaluator.results(run.run_id))
    checks = checks_table(supervisor.checks(run_id) if with_checks else [])
    tested, requested = prequential_table(records), supervisor.evaluations(run_id)
    served = supervisor.served(run_id) if with_served else ()
    return RunResults(run, triggers, evaluations, losses, checks, tested, promotions, served, requested)


def losses_table(triggers: Sequence[TriggerRecord]) -> pd.DataFrame:
    """Return the losses that trainings have kept, one row each: trigger_id, batch (from 1), loss, and of what it is.

    `of` is batch; epoch, the mean of one; or validation, the mean over the samples that are held out.
    """
    rows = []
    for trigger in triggers:
        result = trigger.training_result
        epochs, batches = result.get("epoch_losses", []), result.get("num_batches", 0)
        rows += [(trigger.trigger_id, int(batch), loss, "batch") for batch, loss in result.get("losses", [])]
        # Epochs have the same number of batches; the log of epochs may be shorter than the training.
        per_epoch = batches / max(result.get("num_epochs", 0), len(epochs), 1)
        for of, values in (("epoch", epochs), ("validation", result.get("validation_losses", []))):
            rows += [(trigger.trigger_id, round((i + 1) * per_epoch), loss, of) for i, loss in enumerate(values)]
    types = {"trigger_id": "int64", "batch": "int64", "loss": "float64", "of": "str"}
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def triggers_table(triggers: Sequence[TriggerRecord]) -> pd.DataFrame:
    """Return triggers as a table, one row each; numbers that are not known yet are missing."""
    rows = [
        {
            **_values(t),
            "state": str(t.state),
            "fired_at": t.fired_at_timestamp,
            "num_trained": t.num_trained,
            "num_loaded": t.num_loaded,
            "num_skipped": t.num_skipped,
            "num_steps": t.training_result.get("num_steps"),
            **{name: t.training_result.get(name) or None for name in LEARNED_COLUMNS},
            "num_tested": sum(t.training_result["prequential"]["num"]) if "prequential" in t.training_result else None,
            "rollbacks": len(t.training_result["step_guard"]["rollbacks"]) if "step_guard" in t.training_result else None,
            **{f"cached_{tier}": num_samples for tier, num_samples in t.training_result.get("num_cached", {}).items()},
            "decoded_beside": t.training_result.get("cache_work", {}).get("decoded"),
            "evicted": t.training_result.get("cache_work", {}).get("evicted"),
            "bad_samples": t.training_result.get("bad_samples", []),
            "warnings": t.training_result.get("warnings", []),
            "loss": t.training_result.get("loss"),
        }
        | {f"{stage}_s": seconds for stage, seconds in t.seconds.items()}
        for t in sorted(triggers, key=lambda t: t.trigger_id)
    ]
    types = {name: kind for name, kind in _TRIGGER_COLUMNS.items() if kind != _TEXT}
    return pd.DataFrame(rows, columns=list(_TRIGGER_COLUMNS)).astype(types)


def training_warnings(triggers: pd.DataFrame) -> list[tuple[int, str]]:
    """Return what trainings warn of: the trigger, and a sentence. Args: triggers: table of `read_results`."""
    return [(int(t["trigger_id"]), warning) for t in triggers.to_dict("records") for warning in t["warnings"]]


def triggers_of_models(triggers: pd.DataFrame) -> dict[int, int]:
    """Return the ids of the triggers that made models, by model. Args: triggers: table of `read_results`."""
    made = triggers.loc[triggers["model_id"].notna(), ["model_id", "trigger_id"]]
    return dict(made.itertuples(index=False, name=None))


def evaluations_table(results: Sequence[EvaluationResult]) -> pd.DataFrame:
    """Return evaluation results as a table, one row a value.

    Scores of two registrations of a dataset are of different samples: `dataset` names each registration then, so that no matrix holds both.
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


def deletion_notes(evaluations: pd.DataFrame, run_id: str) -> list[str]:
    """Return a sentence for each dataset of which samples were deleted between scores that stand together: they may be of other samples.

    Args: evaluations: table of `read_results`, or the rows of one series. run_id: of the run.
    """
    notes = []
    for dataset, cells in evaluations.dropna(subset=["num_deleted"]).groupby("dataset"):
        newest = cells["num_deleted"].max()
        old = cells[cells["num_deleted"] < newest]
        if len(old):
            triggers, handlers = sorted(set(old["trigger_id"])), sorted(set(old["handler"]))
            first, last = triggers[0], triggers[-1]
            of = f"trigger {first}" if first == last else f"{len(triggers)} triggers, {first} to {last}"
            notes.append(
                f"{newest - old['num_deleted'].min():,} samples of dataset '{dataset}' were deleted since it was scored for {of}: these scores may "
                "be of other samples than the newer ones next to them, and a pipeline score may be of both; "
                f"`modyn evaluate {run_id}{''.join(f' --handler {name}' for name in handlers)}` scores all models on the samples of now"
            )
    return notes


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
    """Return models (rows, trigger id) × intervals (columns: start, end, anchor). NaN where a model has no score.

    Args: evaluations: table of `read_results`. Source: SIGMOD'25, section 3.1.
    """
    wanted = [evaluations[name] == value for name, value in zip(_SERIES, astuple(series), strict=True)]
    cells = evaluations[wanted[0] & wanted[1] & wanted[2]].set_index(["trigger_id", *_INTERVAL])["value"]
    matrix: pd.DataFrame = cells.unstack(_INTERVAL).sort_index().sort_index(axis=1)
    return matrix


def composite_model(triggers: pd.DataFrame, anchors: Sequence[int], kind: Kind) -> list[int | None]:
    """Return for each anchor the trigger id of the model that answers there, None where there is none.

    active: the newest model whose training data ends before the anchor; none before the end of the first model's. trained: the model after
    it, and the most recent of all where none is active (see `model_at`).

    Args: triggers: table of `read_results`. anchors: seconds since 1970.
    """
    trained = triggers[triggers["model_id"].notna()].sort_values("trigger_id")
    ids = [int(trigger_id) for trigger_id in trained["trigger_id"]]
    ends = [int(fired_at) + 1 for fired_at in trained["fired_at"]]
    chosen = [model_at(ends, anchor, following=kind == "trained") for anchor in anchors]
    return [ids[index] if index >= 0 else None for index in chosen]


def composite_scores(cells: pd.DataFrame, triggers: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """Return the scores of the composite model: columns start, end, anchor, trigger_id, value, one row an interval.

    trigger_id is missing where no model answers; value is NaN where there is no score.

    Args: cells: rows of one series, see `series_cells`. triggers, kind: as for `composite_model`.
    """
    intervals = cells[_INTERVAL].drop_duplicates().sort_values(_INTERVAL, ignore_index=True)
    chosen = composite_model(triggers, intervals["anchor"].tolist(), kind)
    answers = intervals.assign(trigger_id=pd.array(chosen, dtype="Int64"))
    scored = cells[["trigger_id", *_INTERVAL, "value"]].astype({"trigger_id": "Int64"})
    return answers.merge(scored, how="left", on=["trigger_id", *_INTERVAL])


def pipeline_score(performance: pd.DataFrame) -> float:
    """Return the mean over the intervals that have a score; NaN if none has."""
    scored = performance["value"].dropna()
    return float(scored.mean()) if len(scored) else float("nan")


def evaluated_kinds(handlers: Sequence[Mapping[str, Any]], name: str) -> tuple[Kind, ...]:
    """Return the composite models whose scores a handler's results determine, the one that counts for its coverage first.

    A handler with `models: active` evaluates the cells of one composite model only: what it holds of the other are single cells that happen
    to be the same, and no score.

    Args: handlers: of `RunResults`. name: of the handler; there may be several of one name, and one that is not there evaluates the matrix.
    """
    only: dict[str | None, tuple[Kind, ...]] = {"active": ("active",), "train": ("trained",)}
    both: tuple[Kind, ...] = ("active", "trained")
    found = [only.get(entry.get("models"), both) for entry in handlers if entry.get("name") == name] or [both]
    return tuple(kind for kind in both if any(kind in kinds for kinds in found))


def scores(triggers: pd.DataFrame, evaluations: pd.DataFrame, handlers: Sequence[Mapping[str, Any]] = ()) -> pd.DataFrame:
    """Return the pipeline scores of all series, one row each: columns handler, dataset, metric, active, trained, scored_intervals, intervals.

    A composite model that the handler did not evaluate has no score (NaN). scored_intervals: those of `intervals` for which the model that
    the handler evaluates, the active one if both, has a score.

    Args: triggers, evaluations, handlers: of `RunResults`; without handlers, each evaluates the matrix.
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

    The number of triggers compares pipelines with one selection policy, the number of samples all policies; seconds include everything but
    need an otherwise idle machine.
    """

    num_triggers: int
    num_samples: int
    """Samples trained on, summed over the triggers, as the trainer counted: after downsampling, each epoch."""
    wall_s: float
    """From submission to the end of the run, pauses between stop and resume included. By the clock of the machine, the only one that goes
    on over restarts; where it was set back, at least the seconds of selection and training, which do not overlap."""
    by_stage_s: dict[str, float]
    """Seconds of work by stage, summed over the triggers. Evaluation overlaps the next training: their sum may exceed `wall_s`."""


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
