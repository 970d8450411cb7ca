"""Table of the samples that a trigger's training chose: key, weight, location of the payload, and scores of the training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from modyn.analysis.feedback import score_columns
from modyn.errors import NotFoundError
from modyn.records import DOWNSAMPLING_WEIGHT, FeedbackHeader, Int64Array, KeysAndWeights, RunId
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient
from modyn.supervisor.client import SupervisorClient
from modyn.trainer_server.client import TrainingResult

_NOT_TRAINED: Final = "trigger {} has no training yet: these are the samples of its trigger set"
_NOT_KEPT: Final = (
    "the training of trigger {} chose {:.1%} of its candidates, but did not keep its choice: these are the samples of the trigger set. Set "
    "selection_strategy.keep_scores: true before a run, or sample_then_batch: true"
)


@dataclass(frozen=True, slots=True, eq=False)
class ChosenTable:
    """The requested samples. total: number of samples, including those that `limit` omits. note: text about unknown properties of the samples,
    with the reason; empty: all properties are known.
    """

    table: pd.DataFrame
    total: int
    note: str


def training_result_of(supervisor: SupervisorClient, run_id: str, trigger_id: int) -> TrainingResult:
    """Return the result of the training of a trigger. Raises: NotFoundError: the run or the trigger does not exist."""
    found = supervisor.triggers(run_id, trigger_id, with_losses=False)
    if not found or found[0].trigger_id != trigger_id:
        raise NotFoundError(f"run '{run_id}' has no trigger {trigger_id}; `modyn show {run_id}` lists them")
    return found[0].training_result


def chosen_samples(
    selector: SelectorClient,
    storage: StorageClient,
    run_id: str,
    trigger_id: int,
    result: TrainingResult,
    limit: int | None = None,
    *,
    whole_set: bool = False,
) -> ChosenTable:
    """Return the samples that the training of a trigger chose, in stream order. Columns: key, weight in the trigger set, timestamp, label, path
    (missing if the sample was deleted), `chosen`, and each score that the training kept, from the last epoch that contains the sample. A score of
    several numbers has a column for each number.

    With downsampling, the table has the samples of the last epoch or selection, with their `downsampling_score` and `downsampling_weight`. If the
    training did not keep its choice, the table has the whole trigger set, and `chosen` is missing.

    Args: result: result of the training. limit: largest number of samples; None: all. whole_set: include samples that were not chosen.
    Raises: NotFoundError: the run, the trigger or its dataset does not exist.
    """
    run, note = RunId(run_id), ""
    info, (dataset, identity) = selector.trigger_set(run, trigger_id), selector.dataset(run)
    header = next((header for header in selector.feedback_headers(run) if header.trigger_id == trigger_id), None)
    chosen = _chosen_keys(selector, header) if header is not None and DOWNSAMPLING_WEIGHT in header.widths else None
    if not result.has_ended:
        note = _NOT_TRAINED.format(trigger_id)
    elif chosen is None and (record := result.downsampling) is not None:
        note = _NOT_KEPT.format(trigger_id, record.num_chosen / max(1, record.num_candidates))
    listed = _listed(_partitions(selector, run, trigger_id), None if whole_set else chosen, limit)
    exist = ~storage.deleted_keys(dataset, identity).contains(listed.keys)
    places = pd.DataFrame(
        [(place.key, place.timestamp, place.label, place.path) for place in storage.locate(dataset, listed.keys[exist])],
        columns=["key", "timestamp", "label", "path"],
    )
    if places["label"].map(lambda label: isinstance(label, int)).all():
        places = places.astype({"label": "Int64"})  # Labels stay integers even if the merge adds rows without a label.
    table = pd.DataFrame({"key": listed.keys, "weight": listed.weights}).merge(places, on="key", how="left")
    known = np.ones(len(listed), np.bool_) if chosen is None else np.isin(listed.keys, chosen)
    table["chosen"] = pd.Series(pd.NA if note else known, table.index, "boolean")
    if header is not None:
        table = table.assign(**_scores(selector, header, listed.keys))
    return ChosenTable(table, info.num_keys if chosen is None or whole_set else len(chosen), note)


def _chosen_keys(selector: SelectorClient, header: FeedbackHeader) -> Int64Array:
    """Return the keys of the last epoch that a training has scored, ascending. At most one epoch is in memory."""
    last, held = -1, list[Int64Array]()
    for rows in selector.feedback(header):
        if len(rows) and int(rows.epochs.max()) > last:
            last, held = int(rows.epochs.max()), []
        held.append(rows.keys[rows.epochs == last])
    keys: Int64Array = np.unique(np.concatenate([np.zeros(0, np.int64), *held]))
    return keys


def _partitions(selector: SelectorClient, run: RunId, trigger_id: int) -> Iterator[KeysAndWeights]:
    info = selector.trigger_set(run, trigger_id)
    for partition in range(info.num_partitions):
        yield selector.keys(run, trigger_id, partition, info.keys_checksum)


def _listed(partitions: Iterator[KeysAndWeights], chosen: Int64Array | None, limit: int | None) -> KeysAndWeights:
    """Return the first `limit` chosen samples of a trigger set. Args: chosen: ascending keys; None: all samples were chosen. limit: None: return all
    chosen samples.
    """
    parts, left = list[KeysAndWeights](), limit
    for share in partitions:
        rows = np.arange(len(share)) if chosen is None else np.flatnonzero(np.isin(share.keys, chosen))
        rows = rows[:left]
        parts.append(KeysAndWeights(share.keys[rows], share.weights[rows]))
        left = None if left is None else left - len(rows)
        if left == 0:
            break
    return KeysAndWeights.concatenate(parts)


def _scores(selector: SelectorClient, header: FeedbackHeader, keys: Int64Array) -> dict[str, np.ndarray[Any, Any]]:
    """Return the last value of each score of a training for each key: a column for each score, (n,); NaN: the value is missing."""
    order = np.argsort(keys)
    in_order, columns = keys[order], dict[str, np.ndarray[Any, Any]]()
    for rows in selector.feedback(header) if len(keys) else ():
        kept = np.flatnonzero(np.isin(rows.keys, keys))
        found = score_columns(rows, kept)
        at = order[np.searchsorted(in_order, found.pop("key"))]
        for name, values in found.items():
            column = columns.setdefault(name, np.full(len(keys), np.nan, np.float32))
            column[at] = values
    return columns
