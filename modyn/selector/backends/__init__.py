"""Where the samples of a run are kept: `local` columnar files, or the `database`."""

from __future__ import annotations

from modyn.selector.backends.base import Held, SampleLog
from modyn.selector.backends.local import FileLog
from modyn.selector.backends.postgres import TableLog

__all__ = ["FileLog", "Held", "SampleLog", "TableLog"]
