"""Warm worker processes: forked in about 20 ms from a server process that has imported PyTorch already.

A job is `package.module:function` with one picklable request; a process runs `function(request, report)`. It sends progress messages, ends
with a result or an error, can be asked to stop, writes its output to a log file, and ends with its service.
"""

from __future__ import annotations

from modyn.records import JobState
from modyn.workers.limits import WorkerLimits
from modyn.workers.pool import JobTable, WorkerPool
from modyn.workers.process import Job, JobConnection, die_with_parent

__all__ = ["Job", "JobConnection", "JobState", "JobTable", "WorkerLimits", "WorkerPool", "die_with_parent"]
