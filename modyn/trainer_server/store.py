"""Models into and out of a training: the parent to start from, the optimizers that go with it, and the trained model into model storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from modyn.errors import CorruptStateError, NotFoundError, TrainingError
from modyn.model_storage.client import ModelHeader, StoredModel
from modyn.models.weights import save_weights
from modyn.records import ModelVersion
from modyn.rpc.logs import get_logger
from modyn.rpc.retry import Retrier, RetryPolicy
from modyn.trainer_server.build import TrainingContext, TrainingInputs
from modyn.trainer_server.checkpoint import read_state, write_state
from modyn.trainer_server.config import TrainingConfig
from modyn.trainer_server.files import remove, remove_outlived, scratch_dir
from modyn.trainer_server.loop import TrainingComponents
from modyn.trainer_server.request import Trained, TrainingRequest


@contextmanager
def fetch_parent(
    request: TrainingRequest, config: TrainingConfig, context: TrainingContext
) -> Iterator[Callable[[], StoredModel | None]]:
    """Fetch the model to start from while the block runs; the call that it is given waits for it and returns None for initial weights.

    The file of the model is removed when the block ends. Raises, from that call: NotFoundError: there is no such model.
    """
    parent_id = request.parent_model_id
    if parent_id is None and config.initial_model == "pretrained":
        parent_id = config.initial_model_id
    if parent_id is None:
        yield lambda: None
        return
    into = _weights_path(request, context, "parent")
    with ThreadPoolExecutor(1, thread_name_prefix="parent") as fetching:
        stored = fetching.submit(context.get_model, parent_id, into)
        try:
            yield stored.result
        except NotFoundError as error:
            if stored.done() and stored.exception() is error:
                raise NotFoundError(f"the model to start from does not exist: {error.message}") from error
            raise
        finally:
            # The thread writes the file: it must have ended before the file is removed.
            wait([stored])
            remove(into)


def take_over_optimizers(inputs: TrainingInputs, components: TrainingComponents, parent: ModelVersion) -> None:
    """Load moments and counters of the parent's optimizers. Learning rates and other options stay as configured, since schedulers
    start anew. A parent of another run (a pretrained model) has none."""
    if parent.run_id != inputs.request.run_id:
        return
    path = inputs.optimizers_path(parent.trigger_id)
    if not path.exists():
        raise TrainingError(
            f"training.keep_optimizer_state: the optimizers of trigger {parent.trigger_id} were not kept here ({path} does not exist); "
            "set it to false, or start a new run"
        )
    saved = read_state(path)["optimizers"]
    for name, optimizer in components.optimizers.items():
        options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        try:
            optimizer.load_state_dict(saved[name])
        except (KeyError, ValueError) as error:
            raise CorruptStateError(
                f"{path} does not fit optimizer '{name}': {error}; it was written for another pipeline"
            ) from error
        for group, own in zip(optimizer.param_groups, options, strict=True):
            group.update(own)


def store_model(
    inputs: TrainingInputs, components: TrainingComponents, parent: StoredModel | None, result: dict[str, Any]
) -> Trained:
    """Put the trained model into model storage.

    The optimizers' states are written before, so that they exist once the model does. The checkpoint is removed after: until the model is
    stored, the next attempt starts from it.
    """
    started = perf_counter()
    request, path = inputs.request, _weights_path(inputs.request, inputs.context, "trained")
    try:
        save_weights(components.model, path)
        if inputs.config.keep_optimizer_state:
            states = {name: optimizer.state_dict() for name, optimizer in components.optimizers.items()}
            write_state(inputs.optimizers_path(request.trigger_id), {"version": 1, "optimizers": states})
        result["seconds"]["store"] = perf_counter() - started
        section = request.pipeline["model"]
        header = ModelHeader(
            run_id=request.run_id,
            trigger_id=request.trigger_id,
            model_class=section["id"],
            model_config=section.get("config") or {},
            model_storage=request.pipeline.get("model_storage") or {},
            training_result=result,
            parent_id=parent.version.model_id if parent else None,
        )
        retrier = Retrier(RetryPolicy(inputs.context.put_limit_s, longest_pause_s=5.0))
        version = retrier.call(inputs.context.put_model, header, path)
    finally:
        remove(path)
    remove_outlived(inputs.context.folder, request)
    get_logger("training").info("stored", model_id=version.model_id, samples=result["num_samples"])
    return Trained(version.model_id, version.weights_sha256, result)


def _weights_path(request: TrainingRequest, context: TrainingContext, kind: str) -> Path:
    folder = scratch_dir(context.folder, request)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{kind}.safetensors"
