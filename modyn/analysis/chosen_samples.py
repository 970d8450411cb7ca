"""The samples that a trigger chose, one row each: their keys and weights, where they lie, and what the training scored."""

from __future__ import annotations

import numpy as np
import pandas as pd

from modyn.analysis.feedback import score_columns
from modyn.records import KeysAndWeights, RunId
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient


def chosen_samples(
    selector: SelectorClient, storage: StorageClient, run_id: str, trigger_id: int, limit: int | None = None
) -> pd.DataFrame:
    """Return the samples of a trigger set in stream order: key, weight, timestamp, label, path (missing where a sample was deleted since), and a
    column for each score that its training kept, of the last epoch in which it saw the sample. A score of several numbers has a column for each.

    Args: limit: only the first so many; None: all. Raises: NotFoundError: there is no such run or trigger, or its dataset is gone.
    """
    run, left = RunId(run_id), limit
    info, (dataset, identity) = selector.trigger_set(run, trigger_id), selector.dataset(run)
    parts: list[KeysAndWeights] = []
    for partition in range(info.num_partitions):
        share = selector.keys(run, trigger_id, partition, info.keys_checksum)
        parts.append(KeysAndWeights(share.keys[:left], share.weights[:left]))
        left = None if left is None else left - len(parts[-1])
        if left == 0:
            break
    chosen = KeysAndWeights.concatenate(parts)
    exist = ~storage.deleted_keys(dataset, identity).contains(chosen.keys)
    places = pd.DataFrame(
        [(place.key, place.timestamp, place.label, place.path) for place in storage.locate(dataset, chosen.keys[exist])],
        columns=["key", "timestamp", "label", "path"],
    )
    table = pd.DataFrame({"key": chosen.keys, "weight": chosen.weights}).merge(places, on="key", how="left")
    header = next((header for header in selector.feedback_headers(run) if header.trigger_id == trigger_id), None)
    if header is None:
        return table
    found = [
        pd.DataFrame(score_columns(rows, np.flatnonzero(np.isin(rows.keys, chosen.keys)))) for rows in selector.feedback(header)
    ]
    if not found:
        return table
    scores = pd.concat(found)
    return table.merge(scores.drop_duplicates("key", keep="last"), on="key", how="left")
