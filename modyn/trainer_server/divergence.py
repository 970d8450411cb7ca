"""Find the cause of a divergence among the samples of a training. Imports torch: for workers only."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from modyn.dataset.batch import Batch, map_tensors
from modyn.errors import CancelledError, DataError, ModynError
from modyn.rpc.logs import get_logger
from modyn.trainer_server.loop.hooks import DivergedError, check_weights
from modyn.trainer_server.loop.inputs import TrainingInputs
from modyn.trainer_server.loop.loop import Training, stopped
from modyn.trainer_server.request.records import StageProgress
from modyn.trainer_server.scoring.scoring_pass import candidate_passes
from modyn.workers import JobConnection

_NAMED: Final = 10
"""Largest number of samples that are named for one cause. The search ends at this number."""
_STAGE: Final = "looking for the cause of the divergence"


def cause_of_divergence(inputs: TrainingInputs, training: Training, connection: JobConnection) -> str:
    """Explain why a training diverged, and what to do. The cause is samples with inputs, labels or weights that are not finite, or too large steps.

    The function reads the samples of the trigger set again, without random transformations, until `_NAMED` such samples are found. If no such sample
    is found, the function reads all samples once more with the random transformations of the pipeline. These transformations draw other numbers than
    in the training. Raises: CancelledError: on a request to stop.
    """
    randomly = False
    try:
        found = _odd_samples(inputs, training, connection, randomly=False)
        if inputs.data.random_transformations and not any(found.values()):
            found, randomly = _odd_samples(inputs, training, connection, randomly=True), True
    except CancelledError:
        raise
    except Exception as error:  # noqa: BLE001  (user code may fail in any way, but the user must learn of the divergence)
        reason = error.message if isinstance(error, ModynError) else f"{type(error).__name__}: {error}"
        get_logger("training").warning("cause_not_looked_for", reason=reason)
        return f"its samples could not be looked at ({reason}); {_smaller_steps(training)}"
    for what, keys in found.items():
        if keys:
            more = " at least" if len(keys) >= _NAMED else ""
            after, advice = (" after data.random_transformations", _RANDOM_ADVICE) if randomly else ("", _ADVICE[what])
            return (
                f"the {what} of{more} {len(keys)} samples of the trigger set hold NaN or infinity{after}: sample keys "
                f"{', '.join(map(str, keys))}; {advice}"
            )
    return f"all inputs, labels and weights of its samples are finite, so the steps were too large: {_smaller_steps(training)}"


_MEND_DATA: Final = (
    "`modyn data locate` shows where they lie: correct the files and index them again with `modyn data reindex NAME FILE`, delete the samples with "
    "`modyn data delete`"
)
_ADVICE: Final = {
    "inputs": f"{_MEND_DATA}, or let data or preprocessing replace what is missing",
    "labels": f"{_MEND_DATA}, or mend data.label_transformer_function",
    "weights": "correct the selection strategy, or set selection_strategy.uses_weights: false",
}
_RANDOM_ADVICE: Final = "they are finite before: correct these transformations"


def check_initial_weights(model: nn.Module, origin: str) -> None:
    """Check that the initial weights are finite. Args: origin: source of the weights. Raises: DataError."""
    try:
        check_weights(model)
    except DivergedError as error:
        raise DataError(f"{origin} cannot be trained further: {error.message}; start from another model") from error


def _odd_samples(
    inputs: TrainingInputs, training: Training, connection: JobConnection, *, randomly: bool
) -> dict[str, list[int]]:
    """Return the keys of samples whose inputs, labels or weights are not finite: the first `_NAMED` in the order of the trigger set."""
    connection.send(StageProgress(_STAGE))
    found: dict[str, list[int]] = {"inputs": [], "labels": [], "weights": []}
    with closing(candidate_passes(inputs, None, 1, randomly=randomly)) as passes:
        for batch in passes.batches(0):
            if connection.stopping:
                raise stopped()
            features = training.preprocessing if batch.columns is not None else None
            shown = batch if features is None else features.transformed(batch)
            for what, rows in _odd_rows(shown, uses_weights=inputs.uses_weights).items():
                found[what] = [*found[what], *batch.keys[rows].tolist()][:_NAMED]
            if any(len(keys) >= _NAMED for keys in found.values()):
                break
    connection.send(StageProgress())
    return found


def _odd_rows(batch: Batch, *, uses_weights: bool) -> dict[str, Tensor]:
    """Return the rows of a batch that are not finite, by name of the tensor: bool (n,) each. If a tensor without rows is not finite, no row is
    finite."""
    looked_at = {"inputs": batch.data, "labels": batch.labels, **({"weights": batch.weights} if uses_weights else {})}
    found = {}
    for what, data in looked_at.items():
        rows = torch.zeros(len(batch), dtype=torch.bool)
        map_tensors(data, partial(_mark_odd, rows))
        found[what] = rows
    return found


def _mark_odd(rows: Tensor, tensor: Tensor) -> None:
    if tensor.is_floating_point():
        has_rows = tensor.ndim > 0 and len(tensor) == len(rows)
        rows |= ~tensor.isfinite().reshape(len(rows) if has_rows else 1, -1).all(1)


def _smaller_steps(training: Training) -> str:
    groups = {name: optimizer.param_groups for name, optimizer in training.components.optimizers.items()}
    rates = ", ".join(
        f"{float(of[0].get('initial_lr', of[0]['lr'])):g} of optimizer '{name}'" for name, of in groups.items() if "lr" in of[0]
    )
    half = (
        "; float16 ends at 65,504, bfloat16 does not (training.amp_dtype)"
        if training.components.amp_dtype is torch.float16
        else ""
    )
    return f"lower the learning rate ({rates}), or set training.gradient_clip_norm{half}"
