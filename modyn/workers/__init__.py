"""Warm worker processes: forked in about 20 ms from a server process that has imported PyTorch already.

A job is `package.module:function` with one picklable request; a process runs `function(request, connection)`. It sends progress messages,
ends with a result or an error, can be asked to stop, writes its output to a log file, and ends with its service.

Jobs of one session are commands to one process, which keeps imports, weights and the GPU between them: `train` and `evaluate`. Its state is
put back after each (`process_state.py`); one that fails ends it.
"""

from __future__ import annotations

from modyn.records import JobState
from modyn.workers.job_table import JobTable
from modyn.workers.limits import WorkerLimits
from modyn.workers.pool import WorkerPool
from modyn.workers.process import JobConnection, KeptModels, SessionRules, die_with_parent
from modyn.workers.session import Job, JobSpec

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
