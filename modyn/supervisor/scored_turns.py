"""Which downsampling policy serves a trigger where the turns go by a score: decided once, journalled with the trigger, passed to the trainer."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from modyn.config.base import Problem
from modyn.config.downsampling_turns import UNNAMED_HANDLER, ScoreThresholds, load_turns, scored_handlers, turns_by_score
from modyn.config.pipeline import Pipeline
from modyn.evaluator.client import EvaluationResult
from modyn.registry import nearest
from modyn.supervisor.evaluation_plan import EvaluationTask
from modyn.supervisor.evaluation_queue import EvaluationQueue
from modyn.supervisor.records import TriggerRecord

_DIGITS: Final = 12
"""Digits of a score behind the point: what the order of additions changes lies behind them, and decides nothing."""


def score_of(results: Iterable[EvaluationResult], metric: str, datasets: Collection[str]) -> float | None:
    """The score of a model over all its intervals and datasets, each weighted by its number of samples.

    Args: results: of one model and handler. metric: label of the metric. datasets: those that were to be evaluated on.
    Returns: None if nothing was to be evaluated, a dataset has no result, as of an evaluation that failed, or no interval with samples has
    a defined value.
    """
    found = [result for result in results if result.metric == metric]
    if {result.dataset for result in found} != {*datasets}:
        return None
    defined = [(r.value, r.num_samples) for r in found if r.value is not None and math.isfinite(r.value) and r.num_samples]
    num_samples = sum(number for _, number in defined)
    if not num_samples:
        return None
    return round(math.fsum(value * number for value, number in defined) / num_samples, _DIGITS)


def next_turn(thresholds: ScoreThresholds, score: float | None, before: int) -> int:
    """The position of the policy that serves the next trigger. Args: score: None: there is none. before: the turn of the trigger before.

    >>> thresholds = ScoreThresholds(values=[0.6, 0.8])
    >>> [next_turn(thresholds, score, before=1) for score in (0.59, 0.6, 0.8, None)]
    [0, 1, 2, 1]
    """
    return before if score is None else thresholds.turn(score)


class ScoredTurns:
    """Decides the turns of a run, trigger by trigger. Called by the run's thread.

    The score of a trigger is that of the newest model, as its evaluation after its training gave it; those that are still made are waited for.
    Without a score the turn of the trigger before stays, at first 0. `warmup_triggers` have no turn.
    """

    def __init__(
        self, pipeline: Pipeline, thresholds: ScoreThresholds, evaluations: EvaluationQueue, triggers: Sequence[TriggerRecord]
    ) -> None:
        """Args: triggers: those that the journal holds."""
        (handler,) = scored_handlers(thresholds, pipeline.evaluation or {})
        self._handler = handler.get("name", UNNAMED_HANDLER)
        self._thresholds = thresholds
        self._warmup_triggers = load_turns(pipeline.selection_strategy).warmup_triggers
        self._evaluations = evaluations
        self._turn = next((t.downsampling_turn for t in reversed(triggers) if t.downsampling_turn is not None), 0)

    def decide(self, trigger: TriggerRecord, due: Iterable[EvaluationTask]) -> TriggerRecord:
        """The trigger with its turn, unless that is journalled already. Raises: UnavailableError: the evaluator stays away.

        Args: due: the evaluations that the newest model has made due; none: there is no model.
        """
        if trigger.downsampling_turn is not None or trigger.trigger_id < self._warmup_triggers:
            return trigger
        tasks = [task for task in due if task.handler == self._handler]
        results = self._evaluations.results(tasks) if tasks else []
        score = score_of(results, self._thresholds.metric, {task.dataset for task in tasks})
        self._turn = next_turn(self._thresholds, score, self._turn)
        return replace(trigger, downsampling_turn=self._turn, downsampling_score=score)


def scored_turns(pipeline: Pipeline, evaluations: EvaluationQueue, triggers: Sequence[TriggerRecord]) -> ScoredTurns | None:
    """What decides the turns of a run; None: they go by the number of the trigger, or there are none. Args: as for `ScoredTurns`."""
    found = turns_by_score(pipeline.as_dict())
    return None if found is None else ScoredTurns(pipeline, found[0], evaluations, triggers)


def check_scored_turns(pipeline: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the handler whose scores decide; empty: nothing, or no turn goes by a score. The evaluator checks the metric."""
    if (found := turns_by_score(pipeline)) is None:
        return []
    (thresholds, path), evaluation = found, pipeline.get("evaluation")
    if not isinstance(evaluation, Mapping):
        message = (
            "turns go by a score, and there is no section `evaluation`: add one, with a handler of execution_time after_training"
        )
        return [Problem(path, f"{message}, or write numbers of triggers")]
    handlers, path = scored_handlers(thresholds, evaluation), f"{path}.handler"
    known = [str(entry.get("name", UNNAMED_HANDLER)) for entry in scored_handlers(ScoreThresholds(values=[0]), evaluation)]
    choice = f"after_training: {', '.join(known) or 'none'}"
    if thresholds.handler is None:
        if len(handlers) == 1:
            return _unscored(handlers[0], choice, path)
        need = "name one" if handlers else "the scores of one decide; add it"
        return [Problem(path, f"is required: {len(handlers)} handlers have execution_time {choice}; {need}")]
    if not handlers:
        message = f"'{thresholds.handler}' is not a handler in evaluation.handlers{nearest(thresholds.handler, known) or '.'}"
        return [Problem(path, f"{message} Those with execution_time {choice}")]
    return _unscored(handlers[0], choice, path)


def _unscored(handler: Mapping[str, Any], choice: str, path: str) -> list[Problem]:
    """Why a handler does not evaluate the newest model before the next training."""
    name, when = handler.get("name", UNNAMED_HANDLER), handler.get("execution_time")
    if when != "after_training":
        message = f"'{name}' has execution_time {when}, too late for the next training. Those with execution_time {choice}"
        return [Problem(path, message)]
    if handler.get("models") == "active":
        message = f"'{name}' evaluates `models: active`, after a training the model before it: let it evaluate `models: matrix`"
        return [Problem(path, f"{message}, or name another handler")]
    return []
