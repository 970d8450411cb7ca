"""How a training ends that makes no model. Imports torch: for workers only."""

from __future__ import annotations

from typing import Any, Final

from modyn.errors import TrainingError
from modyn.rpc.logs import get_logger
from modyn.trainer_server.client import NOTHING_TRAINED, NothingTrained
from modyn.trainer_server.divergence import cause_of_divergence
from modyn.trainer_server.files import finished_path, keep_without_model, remove_earlier_ends, remove_own
from modyn.trainer_server.hooks import DivergedError
from modyn.trainer_server.inputs import TrainingInputs
from modyn.trainer_server.learning import NothingLearnedError
from modyn.trainer_server.loop import Training
from modyn.trainer_server.prequential import PREQUENTIAL, Prequential
from modyn.trainer_server.step_guard import StepGuard, left_out_reason
from modyn.trainer_server.stream_preprocessing import preprocessing_result
from modyn.workers import JobConnection

ONLY_TESTED: Final = "the new samples were only tested"
"""Why a training that was asked for tests alone has made no model."""


def nothing_trained(inputs: TrainingInputs, reason: str, **found: Any) -> NothingTrained:
    """The end of a training that makes no model, for `reason`, and what its result adds: no error, the model before stays in use."""
    if not inputs.request.tests_only:
        get_logger("training").warning("nothing_trained", reason=reason)
    counts = dict.fromkeys(("num_samples", "num_batches", "num_steps", "num_epochs"), 0)
    named = {"num_keys": inputs.trigger_set.num_keys, "loss": None, "device": inputs.config.device, NOTHING_TRAINED: reason}
    return NothingTrained(reason, {**counts, **named, **found})


def end_without_model(inputs: TrainingInputs, reason: str, **found: Any) -> NothingTrained:
    """Keep the end of a training that was made and has no model, for `reason`, in place of its checkpoint, so that it is not made again.

    One that the disk does not take is logged: it saves a repetition, and the end is the same without it.
    """
    nothing, path = nothing_trained(inputs, reason, **found), finished_path(inputs.context.folder, inputs.request)
    remove_own(inputs.context.folder, inputs.request)
    if inputs.request.tests_only:
        remove_earlier_ends(inputs.context.folder, inputs.request)
    try:
        keep_without_model(path, nothing.result, inputs.identity(), durable=inputs.ends_durably)
    except TrainingError as error:
        get_logger("training").warning("end_not_kept", reason=error.message)
    return nothing


def end_diverged(inputs: TrainingInputs, error: DivergedError, training: Training, connection: JobConnection) -> NothingTrained:
    """End a training without a model if `training.on_divergence` says so; steps were tested until they diverged, which the result keeps.

    Looks for the cause among the samples, which is one more pass. Raises: TrainingError: it says otherwise.
    """
    reason = f"the training diverged: {error.message}; {cause_of_divergence(inputs, training, connection)}"
    return _end(inputs, reason, error, of_samples(training, until_divergence=True))


def end_unlearned(inputs: TrainingInputs, error: NothingLearnedError, training: Training) -> NothingTrained:
    """The same for a training that could not learn; one of steps ends without a model in any case, as the next may learn."""
    found = {"skipped_steps": training.progress.skipped_steps, **of_samples(training)}
    return _end(inputs, f"the training learned nothing: {error.message}", error, found, fails=not inputs.request.online)


def _end(
    inputs: TrainingInputs, reason: str, error: TrainingError, found: dict[str, Any], *, fails: bool = True
) -> NothingTrained:
    if not fails or inputs.config.on_divergence == "keep_previous":
        return end_without_model(inputs, reason, **found)
    # The checkpoint is removed: it may hold what has begun to diverge, and would lead the next attempt here again.
    remove_own(inputs.context.folder, inputs.request)
    raise TrainingError(f"{reason}; or go on with the model before by training.on_divergence: keep_previous") from error


def end_tested(inputs: TrainingInputs, training: Training) -> NothingTrained:
    """End a training of which no step is left: all of its new samples were tested."""
    found = of_samples(training)
    reasons = [left_out_reason(hook) for hook in training.hooks if isinstance(hook, StepGuard)]
    return end_without_model(inputs, *(reasons or [ONLY_TESTED]), num_tested=sum(found[PREQUENTIAL]["num"]), **found)


def of_samples(training: Training, *, until_divergence: bool = False) -> dict[str, Any]:
    """What the result says of the samples that came: their features and inputs, where there is preprocessing; of steps, what the new ones came to,
    and what became of them."""
    tests = [hook for hook in training.hooks if isinstance(hook, Prequential)]
    guards = [hook for hook in training.hooks if isinstance(hook, StepGuard)]
    return {
        **preprocessing_result(training),
        **{hook.name: hook.result(until_divergence=until_divergence) for hook in tests},
        **{hook.name: hook.result() for hook in guards},
    }
