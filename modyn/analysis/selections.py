"""Tables of the candidates and choices of triggers, from summaries of the selector and records of trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Final, get_type_hints

import pandas as pd

from modyn.records import OTHER_CLASSES, RunId, SelectionSummary
from modyn.selector.client import SelectorClient
from modyn.supervisor.client import SupervisorClient, TriggerRecord
from modyn.trainer_server.client import DownsamplingResult

NEWEST: Final = 100
"""Largest number of triggers of a run that are read. There is a limit because the first summary of a trigger reads all samples of the trigger."""
_SHARES: Final = ["trigger_id", "label", "candidates", "chosen", "candidates_share", "chosen_share", "trained_share"]
_TRAINED_SHARES: Final = ["trigger_id", "label", "before_share", "after_share"]


@dataclass(frozen=True, slots=True)
class SelectionRow:
    """The candidates and choices of one trigger: a row of `selections_table`. Unknown values are None."""

    trigger_id: int
    num_candidates: int
    num_chosen: int
    chosen_before: float | None
    """Share of the chosen samples that the previous trigger also chose."""
    num_classes: int
    median_age: float | None
    """Median age of the chosen samples, in seconds relative to the newest candidate."""
    median_age_candidates: float | None
    least_weight: float | None
    median_weight: float | None
    most_weight: float | None
    """Largest weight of the trigger set."""
    downsampling: str | None
    """The downsampling strategy."""
    downsampling_turn: int | None
    """Position of the strategy in `downsampling_list`, if a score decides."""
    downsampling_score: float | None
    """The score that chose the position."""
    downsampling_candidates: int | None
    downsampling_chosen: int | None
    downsampling_weight_5: float | None
    downsampling_weight_50: float | None
    downsampling_weight_95: float | None
    downsampling_weight_largest: float | None
    downsampling_effective: float | None
    """Equivalent number of samples of equal weight, (Σw)² / Σw²."""
    downsampling_mode: str | None
    score_s: float | None
    choose_s: float | None
    irreducible_s: float | None
    """Seconds for the models of RHOLoss."""
    effective_epochs: float | None
    """Number of training samples divided by the size of the trigger set."""


_DTYPES: Final = {int: "Int64", int | None: "Int64", float | None: "float64", str | None: "object"}


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
    """Return one `SelectionRow` for each trigger, as a table. Args: triggers: records of the same triggers, in the same order."""
    dtypes = {name: _DTYPES[hint] for name, hint in get_type_hints(SelectionRow).items()}
    rows = [astuple(_selection_row(*each)) for each in zip(summaries, triggers, strict=True)]
    return pd.DataFrame(rows, columns=list(dtypes)).astype(dtypes)


def _selection_row(summary: SelectionSummary, trigger: TriggerRecord) -> SelectionRow:
    result, size = trigger.training_result, summary.num_chosen
    record, weights = result.downsampling or DownsamplingResult(), summary.weights
    has_record = result.downsampling is not None
    epochs = None if trigger.num_trained is None or not size else trigger.num_trained / size
    return SelectionRow(
        trigger_id=summary.trigger_id,
        num_candidates=summary.num_candidates,
        num_chosen=size,
        chosen_before=summary.num_shared / size if size else None,
        num_classes=summary.num_classes,
        median_age=summary.ages[2] if summary.ages else None,
        median_age_candidates=summary.candidate_ages[2] if summary.candidate_ages else None,
        least_weight=weights[0] if weights else None,
        median_weight=weights[2] if weights else None,
        most_weight=weights[4] if weights else None,
        downsampling=record.strategy if has_record else None,
        downsampling_turn=trigger.downsampling_turn,
        downsampling_score=trigger.downsampling_score,
        downsampling_candidates=record.num_candidates if has_record else None,
        downsampling_chosen=record.num_chosen if has_record else None,
        downsampling_weight_5=record.weight_quantiles.get("0.05"),
        downsampling_weight_50=record.weight_quantiles.get("0.5"),
        downsampling_weight_95=record.weight_quantiles.get("0.95"),
        downsampling_weight_largest=record.largest_weight,
        downsampling_effective=record.effective_samples,
        downsampling_mode=record.mode if has_record else None,
        score_s=record.seconds.get("score"),
        choose_s=record.seconds.get("choose"),
        irreducible_s=result.seconds.get("irreducible") if has_record else None,
        effective_epochs=record.effective_epochs if has_record else epochs,
    )


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
