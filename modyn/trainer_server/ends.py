"""Functions that end a training without a model. Imports torch: for workers only."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from modyn.errors import TrainingError
from modyn.rpc.logs import get_logger
from modyn.trainer_server.disk.files import finished_path, keep_without_model, remove_earlier_ends, remove_own
from modyn.trainer_server.divergence import cause_of_divergence
from modyn.trainer_server.learning import NothingLearnedError
from modyn.trainer_server.loop.hooks import DivergedError
from modyn.trainer_server.loop.inputs import TrainingInputs
from modyn.trainer_server.loop.loop import Training
from modyn.trainer_server.online.prequential import Prequential
from modyn.trainer_server.online.step_guard import StepGuard, left_out_reason
from modyn.trainer_server.online.stream_preprocessing import preprocessing_result
from modyn.trainer_server.result import NO_RESULT, TrainingCounts, TrainingResult
from modyn.workers import JobConnection

ONLY_TESTED: Final = "the new samples were only tested"
"""Reason why a training that only tests makes no model."""


def nothing_trained(inputs: TrainingInputs, reason: str, result: TrainingResult = NO_RESULT) -> TrainingResult:
    """Return the result of a training that makes no model, for `reason`. A training without a model is not an error: the previous model stays in use.

    Args: result: other facts about the training.
    """
    if not inputs.request.tests_only:
        get_logger("training").warning("nothing_trained", reason=reason)
    counts = replace(result.counts, num_keys=inputs.trigger_set.num_keys)
    return replace(result, counts=counts, device=inputs.config.device, nothing_trained=reason)


def end_without_model(inputs: TrainingInputs, reason: str, result: TrainingResult = NO_RESULT) -> TrainingResult:
    """Replace the checkpoint of a training without a model by a record of its end, so that the training is not repeated.
    A failure to write is logged: without the record, the training is repeated, and ends in the same way.
    """
    ended, path = nothing_trained(inputs, reason, result), finished_path(inputs.context.folder, inputs.request)
    remove_own(inputs.context.folder, inputs.request)
    if inputs.request.tests_only:
        remove_earlier_ends(inputs.context.folder, inputs.request)
    try:
        keep_without_model(path, ended.to_mapping(), inputs.identity(), durable=inputs.ends_durably)
    except TrainingError as error:
        get_logger("training").warning("end_not_kept", reason=error.message)
    return ended


def end_diverged(inputs: TrainingInputs, error: DivergedError, training: Training, connection: JobConnection) -> TrainingResult:
    """End a diverged training without a model, if `training.on_divergence` allows it. The result contains the tests of steps before the divergence. A
    further pass over the samples looks for the cause. Raises: TrainingError: `training.on_divergence` is `fail`.
    """
    reason = f"the training diverged: {error.message}; {cause_of_divergence(inputs, training, connection)}"
    return _end(inputs, reason, error, sample_results(training, until_divergence=True))


def end_unlearned(inputs: TrainingInputs, error: NothingLearnedError, training: Training) -> TrainingResult:
    """Treat a training that learned nothing like a diverged training. Online steps never raise an error here, because later steps may learn."""
    counts = TrainingCounts(skipped_steps=training.progress.skipped_steps)
    found = replace(sample_results(training), counts=counts)
    return _end(inputs, f"the training learned nothing: {error.message}", error, found, fails=not inputs.request.online)


def _end(
    inputs: TrainingInputs, reason: str, error: TrainingError, found: TrainingResult, *, fails: bool = True
) -> TrainingResult:
    if not fails or inputs.config.on_divergence == "keep_previous":
        return end_without_model(inputs, reason, found)
    # The checkpoint is removed, because it may be from the beginning of the divergence. The next attempt would then diverge again.
    remove_own(inputs.context.folder, inputs.request)
    raise TrainingError(f"{reason}; or keep the model before by training.on_divergence: keep_previous") from error


def end_tested(inputs: TrainingInputs, training: Training) -> TrainingResult:
    """End a training without a remaining step, after all of its new samples were tested."""
    found = sample_results(training)
    guards = training.hooks_of(StepGuard)
    reason = left_out_reason(guards[0]) if guards else ONLY_TESTED
    counts = TrainingCounts(num_tested=0 if found.prequential is None else sum(found.prequential.num))
    return end_without_model(inputs, reason, replace(found, counts=counts))


def sample_results(training: Training, *, until_divergence: bool = False) -> TrainingResult:
    """Return the results on a training's samples: preprocessing, tests of new samples, and the actions of `StepGuard`."""
    found = TrainingResult(preprocessing=preprocessing_result(training))
    for tests in training.hooks_of(Prequential):
        found = replace(found, prequential=tests.result(until_divergence=until_divergence))
    for guard in training.hooks_of(StepGuard):
        found = replace(found, step_guard=guard.result())
    return found
