"""Differences between an online training and a retraining. Imports no torch."""

from __future__ import annotations

import numpy as np

from modyn.config.online import ONLINE, TESTS_ONLY, OnlineConfig, load_online
from modyn.errors import ConfigError
from modyn.records import Int64Array
from modyn.trainer_server.request.config import TrainingConfig
from modyn.trainer_server.request.records import TrainingRequest


def section_of_steps(request: TrainingRequest) -> OnlineConfig:
    """Return the section `online` for an online training. Raises: ConfigError: the section is missing or wrong."""
    if (online := load_online(request.pipeline.get(ONLINE))) is None:
        raise ConfigError(f"the pipeline has no section `{ONLINE}`, which says how steps of proactive training are made")
    return online.model_copy(update=TESTS_ONLY) if request.tests_only else online


def config_of_steps(config: TrainingConfig, online: OnlineConfig) -> TrainingConfig:
    """Return the section `training` for an online training: one pass in the order of the trigger set, one batch a step, stored states of optimizers.

    Options for passes over a trigger set (schedulers, validation, early stopping, accumulation, limits) are left out.
    """
    return config.model_copy(
        update={
            "batch_size": online.batch_size,
            "epochs_per_trigger": 1,
            "num_samples_to_pass": None,
            "drop_last_batch": False,
            "shuffle": False,
            "gradient_accumulation_steps": 1,
            "lr_scheduler": None,
            "validation": None,
            "early_stopping": None,
            "use_previous_model": True,
            "keep_optimizer_state": True,
        }
    )


def parts_of_step(num_new: int, num_drawn: int, update_samples: int | None) -> Int64Array:
    """Return the batch number of each sample of a step, by its position in the trigger set: int64 (num_new + num_drawn,), ascending from 0.

    Online updates of `update_samples` samples come first; the last update may have fewer samples. The drawn samples follow. If `update_samples` is
    None, all samples are one batch.

    >>> parts_of_step(5, 3, 2).tolist()
    [0, 0, 1, 1, 2, 3, 3, 3]
    """
    if update_samples is None:
        return np.zeros(num_new + num_drawn, np.int64)
    updates = np.arange(num_new) // update_samples
    return np.append(updates, np.full(num_drawn, -(-num_new // update_samples)))


def new_of_steps(keys: Int64Array, online: OnlineConfig) -> Int64Array:
    """Return the new samples among the keys of an online trigger, in the order of the stream: int64 (n,).

    >>> online = OnlineConfig(trigger={}, step_samples=2, history_samples=1)
    >>> new_of_steps(np.array([5, 6, 1, 7, 8, 2, 9, 3]), online).tolist()
    [5, 6, 7, 8, 9]
    """
    size, drawn = online.batch_size, online.history_samples
    rest = len(keys) % size
    whole = keys[: len(keys) - rest].reshape(-1, size)[:, : online.step_samples].reshape(-1)
    return np.concatenate([whole, keys[len(keys) - rest : len(keys) - drawn] if rest else keys[:0]])
