"""Modules that the trainer's fork server imports once, so that training workers import only user code.

Starts no threads, because a fork does not copy threads. The import of this module never fails, so that a user's broken package fails only the worker
that needs it.
"""

from __future__ import annotations

import multiprocessing.popen_forkserver  # used when a worker starts processes for user code
from io import BytesIO

import google.protobuf.descriptor_pb2  # used to list the fields of a message
import grpc._channel  # used to open a channel, with grpc.experimental
import grpc.experimental
import numpy.ctypeslib  # NumPy imports these two at their first use
import numpy.random
import safetensors.torch  # used to read and write weights
import structlog
import torch

import modyn.models.dlrm
import modyn.models.networks
import modyn.models.tabular
import modyn.models.text
import modyn.models.wild_time
import modyn.trainer_server.check
import modyn.trainer_server.train
from modyn.models import MODELS
from modyn.preprocessing import COMPONENTS
from modyn.storage.payloads import preload_file_formats
from modyn.trainer_server.downsampling.policies import DOWNSAMPLING
from modyn.trainer_server.request.config import OPTIMIZERS, SCHEDULERS

PRELOADED = (multiprocessing, google, grpc, numpy, safetensors, modyn)

# PyTorch imports its compiler (1 s) and other modules at the first optimizer, its first step, and the first write of a file.
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
