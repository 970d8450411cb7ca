"""Table of simulated trigger policies: the cost of each policy, and estimated scores of its models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from modyn.analysis.results import RunResults, evaluated_kinds, evaluation_matrix, read_results, series_cells
from modyn.evaluator.client import error_metrics
from modyn.supervisor.simulation.run_simulation import (
    SimulatedPolicy,
    Simulation,
    SimulationClients,
    SimulationOptions,
    SimulationProgress,
    run_simulation,
)

ESTIMATE: Final = "estimated "
"""Prefix of columns with estimated scores."""
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
    progress: Callable[[SimulationProgress], None] = lambda _: None,
    price_per_hour: float | None = None,
) -> pd.DataFrame:
    """Simulate policies on a stream, and return the table of `simulation_table`. For Args and Raises, see `run_simulation` and `simulation_table`."""
    simulation = run_simulation(clients, policies, options, progress)
    results = None if options.run_id is None else read_results(clients.supervisor, clients.evaluator, options.run_id)
    return simulation_table(simulation, [str(section["id"]) for section in policies.values()], results, price_per_hour)


def simulation_table(
    simulation: Simulation, ids: Sequence[str], results: RunResults | None = None, price_per_hour: float | None = None
) -> pd.DataFrame:
    """Return one row for each policy, in order.

    Columns: `policy`, `id`, `triggers`; `checks`, the number of checks that examined data; `samples_trained`, over all epochs; `training_s`, the
    forecast seconds of selection and training (NaN: not known); `price` of these seconds (if `price_per_hour` is given); `waiting_sample_s`, the
    number of waiting samples integrated over stream time; `mean_waiting_s`, the mean waiting time of a sample; `left_samples`, the number of
    samples that wait at the end. `failed`: reason why the policy ended early, or empty. A failed policy has no estimate, and its numbers cover
    only the samples before its end. `positions` and `times` (seconds since 1970): lists for the triggers.

    With the results of a run, there are two columns for each series of the run: `estimated METRIC` (see `estimated_scores`; the name includes
    dataset and handler if there are several of them) and `scored METRIC`, the share of the intervals with a score. `pareto`: whether the policy is
    on the Pareto front of cost and first estimate. `attrs` of the table: `notes`, and `lower_is_better`, the names of the estimates in which low
    values are good.

    Args: ids: ids of the policies, in order. results: results of the simulated run. price_per_hour: price of training, in any currency.
    """
    rows = [[name, id_, *_numbers(policy)] for (name, policy), id_ in zip(simulation.policies.items(), ids, strict=True)]
    table = pd.DataFrame(rows, columns=list(_COLUMNS)).astype(_COLUMNS)
    table.attrs["notes"] = [f"training_s: {simulation.note}"] if simulation.note else []
    if price_per_hour is not None:
        table.insert(list(_COLUMNS).index("training_s") + 1, "price", table["training_s"] * price_per_hour / 3600)
    if results is not None and (estimates := estimated_scores(list(simulation.policies.values()), results)):
        for name, estimate in estimates.items():
            table[f"{ESTIMATE}{name}"] = estimate.values
            table[f"scored {name}"] = estimate.scored
        first = next(iter(estimates.values()))
        score = -first.values if first.lower_is_better else first.values
        table["pareto"] = pareto_front(np.asarray(cost_of(table), np.float64), score)
        table.attrs["lower_is_better"] = [f"{ESTIMATE}{name}" for name, found in estimates.items() if found.lower_is_better]
        table.attrs["notes"] += [f"{ESTIMATE}{name}: {found.note}" for name, found in estimates.items()]
    table["failed"] = pd.Series([policy.failed for policy in simulation.policies.values()], dtype=object)
    lists = [
        [[t.position for t in policy.triggers], [t.fired_at for t in policy.triggers]] for policy in simulation.policies.values()
    ]
    table["positions"] = pd.Series([positions for positions, _ in lists], dtype=object)
    table["times"] = pd.Series([times for _, times in lists], dtype=object)
    return table


def cost_of(table: pd.DataFrame) -> pd.Series[float]:
    """Return the cost by which policies are compared: the training time if it is known, otherwise the number of training samples."""
    return table["training_s"] if table["training_s"].notna().all() else table["samples_trained"].astype("float64")


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """Estimated scores of policies' models in one series of the reference run."""

    values: NDArray[np.float64]
    """Mean over the common intervals, float64 (policies,). Common intervals have a score of every policy that has any score. NaN: the policy has no
    score, or there are no common intervals.
    """
    scored: NDArray[np.float64]
    """Share of the intervals that have a score of the policy, float64 (policies,)."""
    lower_is_better: bool
    note: str
    """Text with the number of common intervals, and with limits of the estimate."""


def estimated_scores(policies: Sequence[SimulatedPolicy], results: RunResults) -> dict[str, Estimate]:
    """Estimate the score of each policy's currently active model from the evaluation matrix of a run. Returns the estimates by the name of the
    series.

    For each interval, the policy's newest trigger with data that ends before the anchor counts. The estimate is the score of the run's last model
    that was trained at the position of this trigger or earlier. The policy's own model would have been trained at this position, on other samples.
    If there is no such trigger, model or evaluation, the interval has no score. Policies are compared over their common intervals (SIGMOD'25,
    section 7.2); a policy without any score is excluded.
    """
    trained = results.triggers[results.triggers["model_id"].notna()].sort_values("trigger_id")
    positions, ids = trained["position"].to_numpy(np.int64), trained["trigger_id"].to_numpy(np.int64)
    errors = error_metrics(results.datasets)
    found = {}
    series = [series for series, _ in series_cells(results.evaluations)]
    for one in series:
        # If only one series has the metric, the series is named by the metric alone.
        name = one.metric if sum(other.metric == one.metric for other in series) == 1 else " ".join(reversed(astuple(one)))
        matrix = evaluation_matrix(results.evaluations, one).reindex(ids)
        anchors = matrix.columns.get_level_values("anchor").to_numpy(np.int64)
        cells = np.stack([_active_scores(policy, positions, anchors, matrix.to_numpy(np.float64)) for policy in policies])
        whole = len(evaluated_kinds(results.handlers, one.handler)) > 1
        found[name] = _compare(cells, lower_is_better=(one.dataset, one.metric) in errors, handler="" if whole else one.handler)
    return found


def _compare(cells: NDArray[np.float64], *, lower_is_better: bool, handler: str) -> Estimate:
    """Compare policies. Args: cells: scores, float64 (policies, intervals); NaN: no score. handler: name of the handler if it did not evaluate all
    models, otherwise empty.
    """
    known = np.isfinite(cells)
    compared = known.any(axis=1)
    common = np.asarray(known[compared].all(axis=0) if compared.any() else np.zeros(cells.shape[1], bool))
    values = np.full(len(cells), np.nan)
    if common.any():
        values[compared] = cells[compared][:, common].mean(axis=1)
    note = f"mean over {common.sum()} of {len(common)} intervals, namely those with a score of every policy that has any score"
    if lower_is_better:
        note += "; low values are good"
    if handler:
        note += (
            f"; handler '{handler}' did not evaluate all models at all intervals, so scores are missing: `modyn evaluate RUN --handler FILE` "
            "with `models: matrix` adds them"
        )
    return Estimate(values, known.mean(axis=1), lower_is_better, note)


def _active_scores(
    policy: SimulatedPolicy, positions: NDArray[np.int64], anchors: NDArray[np.int64], matrix: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the score for each interval; NaN: no score. Args: positions: position of the run's model in each row of `matrix`."""
    if policy.failed:
        return np.full(len(anchors), np.nan)
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
    """Return whether each entry is on the Pareto front: no other entry has a higher score at no higher cost, or the same score at a lower cost. An
    entry without a score is not on the front.

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
