"""What a figure was measured on, and how a dated report is written."""

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
    """Processor, cores, memory and software of this machine, one line."""
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
    """Cores that worked during the last `seconds`, for any process. The load average still counts what ran minutes ago."""

    def worked() -> float:
        user, nice, system, _, _, *interrupts = (
            int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
        )
        return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")

    before = worked()
    time.sleep(seconds)
    return (worked() - before) / seconds


def cpu_s(process: int, redis_url: str = "") -> float:
    """CPU seconds of a process and all that descend from it, and of the Redis at a URL if there is one."""
    ticks, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
            ticks[int(path.parent.name)] = sum(
                map(int, fields[11:15])
            )  # user and system, of itself and of children that have ended
    family, left = set(), {process}
    while left:
        family |= left
        left = {child for child, parent in parents.items() if parent in left}
    seconds = sum(ticks.get(member, 0) for member in family) / os.sysconf("SC_CLK_TCK")
    if redis_url:
        with Redis.from_url(redis_url) as client:
            info: Any = client.info("server")
        if info["process_id"] not in family:
            seconds += ticks.get(info["process_id"], 0) / os.sysconf("SC_CLK_TCK")
    return seconds


def spread(values: Sequence[float], unit: str = "s") -> str:
    """Median with minimum and maximum."""
    return f"{statistics.median(values):.2f} {unit} ({min(values):.2f}–{max(values):.2f})"


def dated(name: str) -> str:
    """`name` with today's date before it, as reports and what belongs to them are called."""
    return f"{dt.date.today().isoformat()}-{name}"


def write_report(name: str, command: str, body: str, folder: Path = REPORTS) -> Path:
    """Writes `<folder>/<date>-<name>.md` and returns where it is."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{dated(name)}.md"
    path.write_text(
        f"# {name.replace('-', ' ').capitalize()}\n\n{dt.date.today().isoformat()} · {describe()} · `{command}`\n\n{body.strip()}\n"
    )
    return path
