"""Fetch the model that a training starts from, while the training prepares. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

from modyn.errors import NotFoundError
from modyn.model_storage.client import StoredModel
from modyn.trainer_server.disk.files import remove, scratch_dir
from modyn.trainer_server.loop.inputs import TrainingContext
from modyn.trainer_server.request.config import TrainingConfig
from modyn.trainer_server.request.records import TrainingRequest


@contextmanager
def fetch_parent(
    request: TrainingRequest, config: TrainingConfig, context: TrainingContext
) -> Iterator[Callable[[], StoredModel | None]]:
    """Fetch the initial model of `request`, or else of `config`, into a scratch file while the block runs.

    Yields a function that waits for the model. This function returns None if the training starts from initial weights, or raises NotFoundError. The
    end of the block removes the file.
    """
    parent_id = request.parent_model_id
    if parent_id is None and config.initial_model == "pretrained":
        parent_id = config.initial_model_id
    if parent_id is None:
        yield lambda: None
        return
    folder = scratch_dir(context.folder, request)
    folder.mkdir(parents=True, exist_ok=True)
    into = folder / "parent.safetensors"
    with ThreadPoolExecutor(1, thread_name_prefix="parent") as fetching:
        stored = fetching.submit(context.get_model, parent_id, into)
        try:
            yield stored.result
        except NotFoundError as error:
            # Errors of the block itself are raised unchanged.
            if stored.done() and stored.exception() is error:
                raise NotFoundError(f"the model to start from does not exist: {error.message}") from error
            raise
        finally:
            # The thread writes the file, and must therefore end before the file is removed.
            wait([stored])
            remove(into)
