"""Check of run ids, which services use in names of files and folders."""

from __future__ import annotations

import re

from modyn.errors import InvalidArgumentError

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,199}")


def check_run_id(run_id: str) -> None:
    """Raise InvalidArgumentError unless the id can be part of a file name."""
    if not _RUN_ID.fullmatch(run_id):
        raise InvalidArgumentError(
            f"'{run_id}' cannot name a run: use at most 200 letters, digits, '.', '_' and '-', and begin with a letter or digit"
        )
