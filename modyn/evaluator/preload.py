"""Imports for the fork server of the evaluator, so that an evaluation worker imports only user code.

The import starts no threads, because a fork does not copy threads. The import never fails: a broken user package fails only the worker that needs the
package.
"""

from __future__ import annotations

import multiprocessing.popen_forkserver  # imported when a worker starts processes for user code

import google.protobuf.descriptor_pb2  # imported when the fields of a message are listed
import grpc._channel  # imported when a channel is opened, with grpc.experimental
import grpc.experimental
import numpy.ctypeslib  # NumPy imports these three when they are first used
import numpy.ma
import numpy.random
import safetensors.torch  # imported when weights are read or written
import structlog

import modyn.evaluator.drift.pairs
import modyn.evaluator.evaluate
import modyn.evaluator.measure_drift
import modyn.models.dlrm
import modyn.models.networks
import modyn.models.tabular
import modyn.models.text
import modyn.models.wild_time
from modyn.evaluator.drift import DRIFT_METRICS
from modyn.evaluator.metrics.metrics import METRICS
from modyn.models import MODELS
from modyn.preprocessing import COMPONENTS
from modyn.storage.payloads import preload_file_formats

PRELOADED = (multiprocessing, google, grpc, numpy, safetensors, modyn)

for preload in (MODELS.preload, COMPONENTS.preload, METRICS.preload, DRIFT_METRICS.preload, preload_file_formats):
    if problem := preload():
        structlog.get_logger("preload").warning("plugins", error=problem)
