"""Warm worker processes. A worker is forked in about 20 ms from a server process that has already imported PyTorch.

A job is `package.module:function` with one picklable request. A process runs `function(request, connection)`. The process sends progress messages,
ends with a result or an error, stops on request, writes its output to a log file, and ends with its service.

Jobs of one session (`train`, `evaluate`) are commands to one process, which keeps imports, weights and the GPU between commands. The state of the
process is restored after each command (`process_state.py`). A command that fails ends the process.
"""

from __future__ import annotations

from modyn.records import JobState
from modyn.workers.job_table import JobTable
from modyn.workers.limits import WorkerLimits
from modyn.workers.pool import WorkerPool
from modyn.workers.session import Job, JobSpec
from modyn.workers.worker_process import JobConnection, KeptModels, SessionRules, die_with_parent

__all__ = [
    "Job",
    "JobConnection",
    "JobSpec",
    "JobState",
    "JobTable",
    "KeptModels",
    "SessionRules",
    "WorkerLimits",
    "WorkerPool",
    "die_with_parent",
]
