"""A training that imports next to nothing: where no file can grow, what a worker imports is compiled each time."""

from __future__ import annotations

import resource
import sys

from modyn.errors import DataError
from modyn.trainer_server.client import TrainingJob
from modyn.workers import JobConnection


def fail_loudly(job: TrainingJob, connection: JobConnection) -> None:
    """Write to both outputs, of which neither can be written, then raise an error that is traced."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    print("about to fail")
    print("really", file=sys.stderr)
    raise DataError("record 7 is short")
