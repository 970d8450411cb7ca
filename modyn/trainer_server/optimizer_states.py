"""The optimizers' states between the trainings of a run, for `keep_optimizer_state`. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch.optim import Optimizer

from modyn.errors import CorruptStateError, NotFoundError, TrainingError
from modyn.model_storage.client import StoredModelInfo
from modyn.rpc.logs import get_logger
from modyn.trainer_server.components import TrainingComponents
from modyn.trainer_server.files import optimizers_path, remove, scratch_dir
from modyn.trainer_server.inputs import TrainingInputs
from modyn.trainer_server.state_file import read_state_file, write_state_file

OPTIMIZERS_LOST: Final = "optimizer_state_not_kept"
"""In the result of a training: why the optimizers' states were not kept for the next."""


def keep_optimizers(inputs: TrainingInputs, components: TrainingComponents) -> dict[str, str]:
    """Write the optimizers' states, which are put into model storage with the model.

    Args: inputs: name the file. components: hold the optimizers.
    Returns: what the result of the training says of it: nothing, or why they could not be written; without them the model is as good.
    """
    states = {name: optimizer.state_dict() for name, optimizer in components.optimizers.items()}
    kept = optimizers_path(inputs.context.folder, inputs.request.run_id, inputs.request.trigger_id)
    remove(kept)  # of an attempt whose model was not finished
    try:
        content = {"version": 1, "optimizers": states}
        write_state_file(kept, content, "training.keep_optimizer_state", durable=inputs.ends_durably)
    except TrainingError as error:
        get_logger("training").warning("optimizer_state_not_kept", reason=error.message)
        return {OPTIMIZERS_LOST: error.message}
    return {}


def take_over_optimizers(inputs: TrainingInputs, components: TrainingComponents, stored: StoredModelInfo) -> None:
    """Load moments and counters of the parent's optimizers. Learning rates and other options stay as configured, since schedulers
    start anew. A parent of another run (a pretrained model) has none.

    Args: inputs: of the training that begins. components: its optimizers, which are changed. stored: the parent's version.
    Raises: TrainingError: they were not kept. CorruptStateError: they do not fit the configured optimizers.
    """
    parent, training_result = stored.version, stored.training_result
    if parent.run_id != inputs.request.run_id:
        return
    if lost := training_result.get(OPTIMIZERS_LOST):
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

    Args: state: of its `state_dict`. Raises: ValueError: it is of other parameters.
    """
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(dict(state))
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update(own)
