"""What may be the id of a run: services name files and folders after it."""

from __future__ import annotations

import re

from modyn.errors import InvalidArgumentError

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,199}")


def check_run_id(run_id: str) -> None:
    """Raise InvalidArgumentError unless the id can be part of the name of a file."""
    if not _RUN_ID.fullmatch(run_id):
        raise InvalidArgumentError(
            f"'{run_id}' cannot name a run: use letters, digits, '.', '_' and '-', at most 200, a letter or a digit first"
        )
