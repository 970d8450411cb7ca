"""What the fork server of the trainer imports once, so that a training worker imports nothing but user code.

Starts no threads, which a fork does not carry along, and does not fail: a broken package of a user fails the worker that needs it.
"""

from __future__ import annotations

import multiprocessing.popen_forkserver  # imported when a worker starts processes for user code
from io import BytesIO

import google.protobuf.descriptor_pb2  # imported when the fields of a message are listed
import grpc._channel  # imported when a channel is opened, with grpc.experimental
import grpc.experimental
import numpy.ctypeslib  # NumPy imports these two when they are first used
import numpy.random
import safetensors.torch  # imported when weights are read or written
import structlog
import torch

import modyn.models.networks
import modyn.trainer_server.check
import modyn.trainer_server.train
from modyn.models import MODELS
from modyn.preprocessing import COMPONENTS
from modyn.storage.payloads import preload_file_formats
from modyn.trainer_server.config import OPTIMIZERS, SCHEDULERS
from modyn.trainer_server.downsampling import DOWNSAMPLING

PRELOADED = (multiprocessing, google, grpc, numpy, safetensors, modyn)

# PyTorch imports modules, its compiler above all (a second), when an optimizer is made and stepped and when a file is written.
torch.optim.SGD([torch.zeros(1)], lr=0.1).step()
torch.save({}, BytesIO())

for preload in (
    MODELS.preload,
    COMPONENTS.preload,
    OPTIMIZERS.preload,
    SCHEDULERS.preload,
    DOWNSAMPLING.preload,
    preload_file_formats,
):
    if problem := preload():
        structlog.get_logger("preload").warning("plugins", error=problem)
