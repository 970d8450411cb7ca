"""Explain errors of the model and the criterion on a batch: batch, sample and cause. Imports torch: for workers only."""

from __future__ import annotations

import torch
from torch import nn

from modyn.dataset.batch import Batch, map_tensors
from modyn.errors import DataError, ModynError, TrainingError
from modyn.models.calls import forward


def explained(error: Exception, batch: Batch, model: nn.Module, of: str) -> ModynError:
    """Translate an error of the model or the criterion on a batch. The new error names the batch and, if known, the cause, such as a sample whose
    label is not a class of the model.

    Args: of: the source of the batch, for messages.
    """
    where = f"batch {batch.index} of {of} (sample keys {_shortened(batch.keys.tolist())})"
    try:
        found = _wrong_label(where, error, batch, model)
    except Exception:  # noqa: BLE001  (after an error on a GPU, nothing can be read from the GPU)
        found = None
    if found is not None:
        return found
    shapes = map_tensors(batch.data, lambda tensor: f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}")
    kind = str(batch.labels.dtype).removeprefix("torch.")
    return TrainingError(
        f"{where}: {type(error).__name__}: {error}; the model was given {shapes} and labels {kind}{list(batch.labels.shape)}: "
        "see that data, model and training.optimization_criterion fit together"
    )


def _wrong_label(where: str, error: Exception, batch: Batch, model: nn.Module) -> DataError | None:
    """Return an error if a label is not a class of the model."""
    labels = batch.labels.cpu()
    if labels.dtype.is_floating_point or labels.dim() != 1 or not len(labels):
        return None
    negative = labels < 0
    if bool(negative.any()) and "ignore" not in str(error):
        i = int(negative.nonzero()[0])
        return DataError(
            f"{where}: sample key {int(batch.keys[i])} has the label {int(labels[i])}; classes count from 0. {error}"
        )
    num_classes = _num_outputs(model, batch)
    if num_classes == 1:
        return DataError(
            f"{where}: {type(error).__name__}: {error}; the model gives one value a sample, as shape (n, 1), and labels are whole numbers of "
            "shape (n,). A loss such as BCEWithLogitsLoss needs labels like the output: return labels.float().unsqueeze(1) from "
            "data.label_transformer_function; or set model.config.num_classes to 2 and use CrossEntropyLoss"
        )
    if num_classes is None or int(labels.max()) < num_classes:
        return None
    i = int(labels.argmax())
    return DataError(
        f"{where}: sample key {int(batch.keys[i])} has the label {int(labels[i])}, but the model has {num_classes} classes "
        f"(0 to {num_classes - 1}): set model.config.num_classes, map labels with data.label_transformer_function, or delete the sample with "
        "`modyn data delete`"
    )


def _num_outputs(model: nn.Module, batch: Batch) -> int | None:
    """Return the number of columns of the model's output; None if the model returns no output, for example after an error on a GPU."""
    training = model.training
    try:
        with torch.no_grad():
            one = map_tensors(batch.data, lambda tensor: tensor[:1].to(next(model.parameters()).device))
            output = forward(model.eval(), one)
        return int(output.shape[1]) if output.dim() == 2 else None
    except Exception:  # noqa: BLE001  (the first error is the one to raise)
        return None
    finally:
        model.train(training)


def _shortened(keys: list[int]) -> str:
    return ", ".join(map(str, keys)) if len(keys) <= 6 else f"{', '.join(map(str, keys[:3]))}, … {keys[-1]}"
