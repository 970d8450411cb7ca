"""What simulated trigger policies would have cost and brought, as a table: one row a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from modyn.analysis.results import RunResults, evaluation_matrix, read_results, series_cells
from modyn.supervisor.simulation import (
    SimulatedPolicy,
    Simulation,
    SimulationClients,
    SimulationOptions,
    SimulationProgress,
    run_simulation,
)

ESTIMATE: Final = "estimated "
"""Beginning of the names of columns with estimated scores."""
_COLUMNS: Final = {
    "policy": "object",
    "id": "object",
    "triggers": "int64",
    "checks": "int64",
    "samples_trained": "int64",
    "training_s": "float64",
    "waiting_sample_s": "float64",
    "mean_waiting_s": "float64",
    "left_samples": "int64",
}


def simulate(
    clients: SimulationClients,
    policies: Mapping[str, Mapping[str, Any]],
    options: SimulationOptions,
    folder: Path | None = None,
    progress: Callable[[SimulationProgress], None] = lambda _: None,
) -> pd.DataFrame:
    """Simulate policies on a stream, and return the table of `simulation_table`. Args, Raises: as of `run_simulation`."""
    simulation = run_simulation(clients, policies, options, folder, progress)
    results = None if options.run_id is None else read_results(clients.supervisor, clients.evaluator, options.run_id)
    return simulation_table(simulation, [str(section["id"]) for section in policies.values()], results)


def simulation_table(simulation: Simulation, ids: Sequence[str], results: RunResults | None = None) -> pd.DataFrame:
    """Return one row a policy, in order.

    Columns: `policy`, `id`, `triggers`; `checks` that looked at data; `samples_trained` over all epochs; `training_s`, the forecast seconds of
    selection and training (NaN: not known); `waiting_sample_s`, the area under the number of samples that wait for a trigger over stream
    time, and `mean_waiting_s`, that a sample; `left_samples` that wait at the end. With the results of a run, for each of its series
    `estimated METRIC` (see `estimated_scores`; with the dataset and the handler in the name where there are several) and the `scored` part of its
    intervals, and `pareto`: whether no other policy is better by the first of them and costs no more. Lists: `positions` and `times` (seconds
    since 1970) of the triggers.

    Args: ids: of the policies, in order. results: of the run that was simulated on.
    """
    rows = [[name, id_, *_numbers(policy)] for (name, policy), id_ in zip(simulation.policies.items(), ids, strict=True)]
    table = pd.DataFrame(rows, columns=list(_COLUMNS)).astype(_COLUMNS)
    if results is not None and (estimates := estimated_scores(list(simulation.policies.values()), results)):
        for name, (values, scored) in estimates.items():
            table[f"{ESTIMATE}{name}"] = values
            table[f"scored {name}"] = scored
        first = next(iter(estimates.values()))[0]
        table["pareto"] = pareto_front(cost_of(table).to_numpy(np.float64), first)
    lists = [
        [[t.position for t in policy.triggers], [t.fired_at for t in policy.triggers]] for policy in simulation.policies.values()
    ]
    table["positions"] = pd.Series([positions for positions, _ in lists], dtype=object)
    table["times"] = pd.Series([times for _, times in lists], dtype=object)
    return table


def cost_of(table: pd.DataFrame) -> pd.Series[float]:
    """What policies are compared by: their training time, where it is known, else the samples trained on."""
    return table["training_s"] if table["training_s"].notna().all() else table["samples_trained"].astype("float64")


def estimated_scores(
    policies: Sequence[SimulatedPolicy], results: RunResults
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Estimate the score of each policy's currently active model, by the evaluation matrix of a run.

    At each interval, the newest trigger of the policy whose data end before the anchor is answered by the nearest model of the run that was
    trained at its position or earlier. It is an estimate: the policy's own model would have been trained on other samples, and later. Where
    there is no such trigger, model or evaluation, the interval has no score.

    Returns: by name of the series the mean over the intervals that have a score, NaN if none has, and the part of the intervals that has one;
        float64 (policies,) each.
    """
    trained = results.triggers[results.triggers["model_id"].notna()].sort_values("trigger_id")
    positions, ids = trained["position"].to_numpy(np.int64), trained["trigger_id"].to_numpy(np.int64)
    found = {}
    series = [series for series, _ in series_cells(results.evaluations)]
    for one in series:
        # As users name them: by the metric, where that says which.
        name = one.metric if sum(other.metric == one.metric for other in series) == 1 else " ".join(reversed(astuple(one)))
        matrix = evaluation_matrix(results.evaluations, one).reindex(ids)
        anchors = matrix.columns.get_level_values("anchor").to_numpy(np.int64)
        cells = [_active_scores(policy, positions, anchors, matrix.to_numpy(np.float64)) for policy in policies]
        found[name] = (np.array([_mean(row) for row in cells]), np.array([float(np.isfinite(row).mean()) for row in cells]))
    return found


def _active_scores(
    policy: SimulatedPolicy, positions: NDArray[np.int64], anchors: NDArray[np.int64], matrix: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The score at each interval, NaN where there is none. Args: positions: of the run's models, the rows of `matrix`."""
    ends = np.array([trigger.fired_at + 1 for trigger in policy.triggers], np.int64)
    fired = np.array([trigger.position for trigger in policy.triggers], np.int64)
    newest = np.searchsorted(ends, anchors, side="right") - 1
    answered = newest >= 0
    row = np.full(len(anchors), -1)
    row[answered] = np.searchsorted(positions, fired[newest[answered]], side="right") - 1
    scores = np.full(len(anchors), np.nan)
    there = np.flatnonzero(row >= 0)
    scores[there] = matrix[row[there], there]
    return scores


def pareto_front(cost: NDArray[np.float64], score: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which entries no other beats: none costs no more with a higher score, or less with the same. Those without a score are not.

    >>> pareto_front(np.array([1.0, 2.0, 3.0, 3.0]), np.array([0.5, 0.4, 0.9, np.nan])).tolist()
    [True, False, True, False]
    """
    front, best = np.zeros(len(cost), bool), -np.inf
    order = np.lexsort((-np.nan_to_num(score, nan=-np.inf), cost))
    for at, index in enumerate(order.tolist()):
        same = at and (cost[index], score[index]) == (cost[order[at - 1]], score[order[at - 1]]) and front[order[at - 1]]
        front[index] = bool(score[index] > best or same)
        best = max(best, score[index]) if np.isfinite(score[index]) else best
    return front


def _numbers(policy: SimulatedPolicy) -> list[float]:
    triggers = policy.triggers
    seconds = [trigger.total_s for trigger in triggers if trigger.num_trained is not None]
    known = [value for value in seconds if value is not None]
    num_samples = policy.cursor.position
    return [
        len(triggers),
        policy.num_checks,
        sum(trigger.num_trained or 0 for trigger in triggers),
        sum(known) if len(known) == len(seconds) else float("nan"),
        policy.waiting,
        policy.waiting / num_samples if num_samples else 0.0,
        policy.cursor.num_pending,
    ]


def _mean(values: NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
