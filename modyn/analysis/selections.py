"""Tables of the candidates and choices of triggers, from summaries of the selector and records of trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from modyn.records import OTHER_CLASSES, RunId, SelectionSummary
from modyn.selector.client import SelectorClient
from modyn.supervisor.client import SupervisorClient, TriggerRecord

NEWEST: Final = 100
"""Largest number of triggers of a run that are read. There is a limit because the first summary of a trigger reads all samples of the trigger."""
_COLUMNS: Final = {
    "trigger_id": "Int64",
    "num_candidates": "Int64",
    "num_chosen": "Int64",
    "chosen_before": "float64",
    "num_classes": "Int64",
    "median_age": "float64",
    "median_age_candidates": "float64",
    "least_weight": "float64",
    "median_weight": "float64",
    "most_weight": "float64",
    "downsampling": "object",
    "downsampling_turn": "Int64",
    "downsampling_score": "float64",
    "downsampling_candidates": "Int64",
    "downsampling_chosen": "Int64",
    "downsampling_weight_5": "float64",
    "downsampling_weight_50": "float64",
    "downsampling_weight_95": "float64",
    "downsampling_weight_largest": "float64",
    "downsampling_effective": "float64",
    "downsampling_mode": "object",
    "score_s": "float64",
    "choose_s": "float64",
    "irreducible_s": "float64",
    "effective_epochs": "float64",
}
"""Columns of the table of selections, with their types."""
_SHARES: Final = ["trigger_id", "label", "candidates", "chosen", "candidates_share", "chosen_share", "trained_share"]
_TRAINED_SHARES: Final = ["trigger_id", "label", "before_share", "after_share"]


@dataclass(frozen=True, slots=True, eq=False)
class SelectionTables:
    """The tables of `selections_table`, `class_shares_table` and `trained_shares_table`, for the same triggers."""

    selections: pd.DataFrame
    class_shares: pd.DataFrame
    trained_class_shares: pd.DataFrame

    @property
    def other_shares(self) -> pd.DataFrame:
        """Return the rows of `trained_class_shares` for triggers without trained shares in `class_shares`. The classes of these trainings are not the
        labels of the stream."""
        known = self.class_shares.loc[self.class_shares["trained_share"].notna(), "trigger_id"]
        return self.trained_class_shares[~self.trained_class_shares["trigger_id"].isin(known)]


def selection_tables(supervisor: SupervisorClient, selector: SelectorClient, run_id: str) -> SelectionTables:
    """Return the choices of the newest triggers of a run. Raises: NotFoundError: the run does not exist."""
    summaries, triggers = read_selections(supervisor, selector, run_id)
    return SelectionTables(
        selections_table(summaries, triggers), class_shares_table(summaries, triggers), trained_shares_table(triggers)
    )


def read_selections(
    supervisor: SupervisorClient, selector: SelectorClient, run_id: str
) -> tuple[Sequence[SelectionSummary], Sequence[TriggerRecord]]:
    """Read the choices and the records of the newest triggers with a trigger set. Online triggers are omitted, because they use all new samples.

    Raises: NotFoundError: the run does not exist.
    """
    found = supervisor.triggers(run_id, with_losses=False)
    triggers = [trigger for trigger in found if trigger.num_keys is not None and not trigger.online][-NEWEST:]
    return [selector.summary(RunId(run_id), trigger.trigger_id) for trigger in triggers], triggers


def selections_table(summaries: Sequence[SelectionSummary], triggers: Sequence[TriggerRecord]) -> pd.DataFrame:
    """Return one row for each trigger. Columns: counts; `chosen_before`, the share of the chosen samples that the previous trigger also chose;
    ages in seconds relative to the newest candidate; weights of the trigger set; `effective_epochs`, the number of training samples divided by the
    size of the trigger set. Columns on downsampling: strategy, the strategy's position in `downsampling_list`, the score that chose the position,
    mode, counts, the 5, 50 and 95 % quantiles of the weights, the largest weight, `downsampling_effective` (the equivalent number of samples of
    equal weight, (Σw)² / Σw²), and seconds (`irreducible_s`: for the models of RHOLoss). Unknown values are missing.

    Args: triggers: records of the same triggers, in the same order.
    """
    rows = [
        [
            summary.trigger_id,
            summary.num_candidates,
            summary.num_chosen,
            summary.num_shared / summary.num_chosen if summary.num_chosen else None,
            summary.num_classes,
            *(values[2] if values else None for values in (summary.ages, summary.candidate_ages)),
            *((summary.weights[at] if summary.weights else None) for at in (0, 2, 4)),
            *_of_downsampling(trigger, summary),
        ]
        for summary, trigger in zip(summaries, triggers, strict=True)
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype(_COLUMNS)


def _of_downsampling(trigger: TriggerRecord, summary: SelectionSummary) -> list[Any]:
    record = trigger.training_result.downsampling
    turn = [trigger.downsampling_turn, trigger.downsampling_score]
    if record is None:
        trained = trigger.num_trained
        epochs = None if trained is None or not summary.num_chosen else trained / summary.num_chosen
        return [None, *turn, *[None] * 11, epochs]
    return [
        record.strategy,
        *turn,
        record.num_candidates,
        record.num_chosen,
        *(record.weight_quantiles.get(at) for at in ("0.05", "0.5", "0.95")),
        record.largest_weight,
        record.effective_samples,
        record.mode,
        *(record.seconds.get(stage) for stage in ("score", "choose")),
        trigger.training_result.seconds.get("irreducible"),
        record.effective_epochs,
    ]


def class_shares_table(summaries: Sequence[SelectionSummary], triggers: Sequence[TriggerRecord]) -> pd.DataFrame:
    """Return one row for each trigger and class: trigger_id, label, numbers and shares of candidates and chosen samples, and `trained_share`, the
    share after downsampling. `trained_share` is missing if there is no downsampling, if the training has other classes
    (`label_transformer_function`), or if the training does not count the class separately.

    Args: triggers: records of the same triggers, in the same order.
    """
    rows = []
    for summary, trigger in zip(summaries, triggers, strict=True):
        trained = _trained(trigger)
        record = trigger.training_result.downsampling
        if (record is not None and record.transforms_labels) or not _has_labels_of(trained, summary):
            trained = {}
        _, others = trained.get(OTHER_CLASSES, (None, 0.0))
        absent = 0.0 if trained and not others else None
        for found in summary.classes:
            shares = (found.candidates / summary.num_candidates, found.chosen / max(1, summary.num_chosen))
            _, after = trained.get(str(found.label), (None, absent))
            rows.append([summary.trigger_id, found.label, found.candidates, found.chosen, *shares, after])
    table = pd.DataFrame(rows, columns=_SHARES)
    return table.astype({**dict.fromkeys(_SHARES[:4], "int64"), **dict.fromkeys(_SHARES[4:], "float64")})


def trained_shares_table(triggers: Sequence[TriggerRecord]) -> pd.DataFrame:
    """Return one row for each class of each training with downsampling: trigger_id, label (a text; `others` are all classes that are not counted
    separately), `before_share` among the candidates (missing if no choice used labels), and `after_share` among the chosen samples."""
    rows = [[trigger.trigger_id, label, *shares] for trigger in triggers for label, shares in _trained(trigger).items()]
    table = pd.DataFrame(rows, columns=_TRAINED_SHARES)
    return table.astype({"trigger_id": "int64", "label": "object", **dict.fromkeys(_TRAINED_SHARES[2:], "float64")})


def _has_labels_of(trained: Mapping[str, object], summary: SelectionSummary) -> bool:
    """Return whether the classes of a training may be the labels that the selector lists."""
    listed = {str(found.label) for found in summary.classes}
    return summary.num_classes > len(listed) or trained.keys() - {OTHER_CLASSES} <= listed


def _trained(trigger: TriggerRecord) -> dict[str, tuple[float | None, float]]:
    """Return the shares of each class of a training before and after downsampling. The first share is None if no choice used labels."""
    if (record := trigger.training_result.downsampling) is None:
        return {}
    before, after = record.class_shares.before, record.class_shares.after
    labels = dict.fromkeys((*before, *after))
    return {label: (before.get(label, 0.0) if before else None, after.get(label, 0.0)) for label in labels}
