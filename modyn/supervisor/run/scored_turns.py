"""Choose the downsampling policy of a trigger by a score. The choice is made once, journalled with the trigger, and passed to the trainer."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from modyn.config.base import Problem, section_at
from modyn.config.downsampling_turns import UNNAMED_HANDLER, DownsamplingTurns, ScoreThresholds, scored_handlers, turns_by_score
from modyn.config.evaluation import EvaluationHandler
from modyn.evaluator.client import EvaluationResult
from modyn.registry import nearest
from modyn.supervisor.evaluation.queue import EvaluationQueue
from modyn.supervisor.journal.records import EvaluationTask, TriggerRecord

_DIGITS: Final = 12
"""Number of decimal places of a score. Rounding makes the score independent of the order of additions."""


def score_of(results: Iterable[EvaluationResult], metric: str, datasets: Collection[str]) -> float | None:
    """Return the score of a model: the mean over all intervals and datasets, each weighted by the number of samples.

    Args: results: results of one model and handler. metric: label of the metric. datasets: all datasets of the handler.
    Returns: the score; None if no evaluation was due, if a dataset has no result because the evaluation failed, or if no interval with samples has a
    defined value.
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
    """Return the position of the policy for the next trigger. Args: score: score of the newest model; None if there is no score. before: position of
    the policy of the previous trigger.

    >>> thresholds = ScoreThresholds(values=[0.6, 0.8])
    >>> [next_turn(thresholds, score, before=1) for score in (0.59, 0.6, 0.8, None)]
    [0, 1, 2, 1]
    """
    return before if score is None else thresholds.turn(score)


class ScoredTurns:
    """Decides the *turn* of each trigger of a run, which is the position of its policy in `downsampling_list`. The run's thread calls all methods.

    The score is the score of the newest model in the evaluation after training; the caller waits for running evaluations. Without a score, the turn
    of the previous trigger is kept; the first turn is 0. `warmup_triggers` have no turn.
    """

    def __init__(
        self,
        thresholds: ScoreThresholds,
        warmup_triggers: int,
        handler: str,
        evaluations: EvaluationQueue,
        triggers: Sequence[TriggerRecord],
    ) -> None:
        """Args: handler: handler whose scores decide. triggers: the triggers in the journal."""
        self._thresholds, self._warmup_triggers, self._handler = thresholds, warmup_triggers, handler
        self._evaluations = evaluations
        self._turn = next((t.downsampling_turn for t in reversed(triggers) if t.downsampling_turn is not None), 0)

    def decide(self, trigger: TriggerRecord, due: Iterable[EvaluationTask]) -> TriggerRecord:
        """Return the trigger with the turn. The turn is decided here unless the journal already has the turn.

        Args: due: evaluations of the newest model; empty without a model. Raises: UnavailableError: the evaluator stays unavailable.
        """
        if trigger.downsampling_turn is not None or trigger.trigger_id < self._warmup_triggers:
            return trigger
        tasks = [task for task in due if task.handler == self._handler]
        results = self._evaluations.results(tasks) if tasks else []
        score = score_of(results, self._thresholds.metric, {task.dataset for task in tasks})
        self._turn = next_turn(self._thresholds, score, self._turn)
        return replace(trigger, downsampling_turn=self._turn, downsampling_score=score)


def scored_turns(
    turns: DownsamplingTurns,
    handlers: Iterable[EvaluationHandler],
    evaluations: EvaluationQueue,
    triggers: Sequence[TriggerRecord],
) -> ScoredTurns | None:
    """Return the object that decides the turns of a run by scores; None if scores do not decide. Args: handlers: handlers of the run. The other
    arguments: see `ScoredTurns`.
    """
    thresholds = turns.thresholds
    if not isinstance(thresholds, ScoreThresholds):
        return None
    # If no handler is named, the only handler that evaluates before the next training decides.
    handler = thresholds.handler or next(h.name for h in handlers if h.execution_time == "after_training")
    return ScoredTurns(thresholds, turns.warmup_triggers, handler, evaluations, triggers)


def check_scored_turns(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return the mistakes about the handler whose scores decide; empty if no scores decide. The evaluator checks the metric."""
    if (found := turns_by_score(pipeline)) is None:
        return []
    (thresholds, path), evaluation = found, section_at(pipeline, "evaluation")
    if not evaluation:
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
    """Check that a handler evaluates the newest model before the next training."""
    name, when = handler.get("name", UNNAMED_HANDLER), handler.get("execution_time")
    if when != "after_training":
        message = f"'{name}' has execution_time {when}, too late for the next training. Those with execution_time {choice}"
        return [Problem(path, message)]
    if handler.get("models") == "active":
        message = f"'{name}' evaluates `models: active`, after a training the model before it: let it evaluate `models: matrix`"
        return [Problem(path, f"{message}, or name another handler")]
    return []
