"""Description of the machine of a figure, and dated reports."""

from __future__ import annotations

import datetime as dt
import os
import platform
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from redis import Redis

REPORTS = Path(__file__).parent / "reports"


def describe() -> str:
    """Return processor, cores, memory and software of this machine in one line."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    software = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {software}"


def busy_cores(seconds: float = 1.0) -> float:
    """Return the number of busy cores during the last `seconds`. The load average would still count processes of minutes ago."""

    def worked() -> float:
        user, nice, system, _, _, *interrupts = (
            int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
        )
        return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")

    before = worked()
    time.sleep(seconds)
    return (worked() - before) / seconds


def family(*processes: int) -> list[int]:
    """Return some processes and all that descend from them, none twice. One that ends meanwhile has no descendants."""
    members = list(dict.fromkeys(processes))
    for member in members:
        for tasks in Path(f"/proc/{member}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):
                members += [child for child in map(int, tasks.read_text().split()) if child not in members]
    return members


def cpu_s(*processes: int, redis_url: str = "") -> float:
    """CPU seconds of some processes and all that descend from them, and of the Redis at a URL if there is one."""
    if redis_url:
        with Redis.from_url(redis_url) as client:
            info: Any = client.info("server")
        processes = *processes, info["process_id"]
    ticks = 0
    for member in family(*processes):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # user and system, of itself and of children that have ended
    return ticks / os.sysconf("SC_CLK_TCK")


def spread(values: Sequence[float], unit: str = "s") -> str:
    """Return the median with minimum and maximum."""
    return f"{statistics.median(values):.2f} {unit} ({min(values):.2f}–{max(values):.2f})"


def dated(name: str) -> str:
    """Return `name` with today's date before it, as reports and their files are named."""
    return f"{dt.date.today().isoformat()}-{name}"


def write_report(name: str, command: str, body: str, folder: Path = REPORTS) -> Path:
    """Write `<folder>/<date>-<name>.md` and return its path."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{dated(name)}.md"
    path.write_text(
        f"# {name.replace('-', ' ').capitalize()}\n\n{dt.date.today().isoformat()} · {describe()} · `{command}`\n\n{body.strip()}\n"
    )
    return path
