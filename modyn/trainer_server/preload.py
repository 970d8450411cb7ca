"""What the fork server imports once, so that no worker has to: everything that a training needs whatever it trains.

Must start no threads, and must not fail: what is wrong with a package of a user is told by the worker that needs it.
"""

from __future__ import annotations

import grpc._channel  # imported by the first channel that is opened
import safetensors.torch
import structlog
import torch._dynamo  # imported by every optimizer of PyTorch when it is made, which takes a second

import modyn.models.mlp_nn
import modyn.models.resnet_nn
import modyn.models.small_cnn_nn
import modyn.trainer_server.check
import modyn.trainer_server.downsampling.no
import modyn.trainer_server.train
from modyn.errors import ConfigError
from modyn.models import MODELS
from modyn.trainer_server.downsampling import DOWNSAMPLING
from modyn.trainer_server.registries import OPTIMIZERS, SCHEDULERS

PRELOADED = (grpc._channel, safetensors.torch, torch._dynamo, modyn.models, modyn.trainer_server)
_logger = structlog.get_logger("preload")

for registry in (MODELS, OPTIMIZERS, SCHEDULERS, DOWNSAMPLING):
    try:
        registry.plugins  # noqa: B018  (looks through all installed packages, and remembers what it found)
    except ConfigError as error:
        _logger.warning("plugins", error=error.message)
