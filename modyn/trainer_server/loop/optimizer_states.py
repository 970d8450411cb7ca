"""Optimizers' states that pass from one training of a run to the next (`keep_optimizer_state`). Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from modyn.errors import CorruptStateError, NotFoundError, TrainingError
from modyn.model_storage.client import StoredModelInfo
from modyn.rpc.logs import get_logger
from modyn.trainer_server.disk.files import optimizers_path, remove, scratch_dir
from modyn.trainer_server.disk.state_file import read_state_file, write_state_file
from modyn.trainer_server.loop.components import TrainingComponents
from modyn.trainer_server.loop.inputs import TrainingInputs
from modyn.trainer_server.result import TrainingResult


def keep_optimizers(inputs: TrainingInputs, components: TrainingComponents) -> str:
    """Write the optimizers' states, which are stored with the model.

    Args: inputs: determine the path of the file. components: contain the optimizers.
    Returns: the reason why the states could not be written, which is also logged; empty if the states were written. A failure raises no error,
    because the model does not depend on the states.
    """
    states = {name: optimizer.state_dict() for name, optimizer in components.optimizers.items()}
    kept = optimizers_path(inputs.context.folder, inputs.request.run_id, inputs.request.trigger_id)
    remove(kept)  # An existing file is from an attempt that did not finish its model.
    try:
        content = {"version": 1, "optimizers": states}
        write_state_file(kept, content, "training.keep_optimizer_state", durable=inputs.ends_durably)
    except TrainingError as error:
        get_logger("training").warning("optimizer_state_not_kept", reason=error.message)
        return error.message
    return ""


def take_over_optimizers(inputs: TrainingInputs, components: TrainingComponents, stored: StoredModelInfo) -> None:
    """Load moments and counters of the parent's optimizers. Learning rates and other options stay as configured, because schedulers start again. A
    parent of another run (a pretrained model) has no states.

    Args: inputs: inputs of the new training. components: contain the optimizers, which get the states. stored: the parent version.
    Raises: TrainingError: the parent's states were not kept. CorruptStateError: the states do not fit the configured optimizers.
    """
    parent = stored.version
    if parent.run_id != inputs.request.run_id:
        return
    if lost := TrainingResult.from_mapping(stored.training_result).optimizer_state_not_kept:
        get_logger("training").warning(
            "optimizers_start_anew", reason=f"those of trigger {parent.trigger_id} were not kept: {lost}"
        )
        return
    advice = "set training.keep_optimizer_state to false, or start a new run"
    path = scratch_dir(inputs.context.folder, inputs.request) / "optimizers"
    try:
        inputs.context.get_optimizers(parent.model_id, path)
        saved = read_state_file(path)["optimizers"]
    except NotFoundError as error:
        raise TrainingError(
            f"the state of the optimizers of trigger {parent.trigger_id} cannot be loaded: {error.message}; {advice}"
        ) from error
    except CorruptStateError as error:
        raise CorruptStateError(
            f"the state of the optimizers of trigger {parent.trigger_id} cannot be loaded: {error.message}; {advice}"
        ) from error
    finally:
        remove(path)
    for name, optimizer in components.optimizers.items():
        try:
            load_but_options(optimizer, saved[name])
        except (KeyError, ValueError) as error:
            raise CorruptStateError(
                f"the state that is kept with model {parent.model_id} does not fit optimizer '{name}': {error}; it was written for another pipeline"
            ) from error


def load_but_options(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load moments and counters of an optimizer. Learning rates and other options stay as they are.

    Args: state: result of the optimizer's `state_dict`. Raises: ValueError: the state belongs to other parameters.
    """
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    # `load_state_dict` also replaces the options. This loop restores the options.
    optimizer.load_state_dict(dict(state))
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update(own)
