"""Takes too much memory when it is imported, and never ends doing so."""

from __future__ import annotations

import time

_held = [b"x" * (1 << 20) for _ in range(300)]
time.sleep(3600)
