"""Imported by the processes of test_fork_server.py."""

import psutil  # type: ignore[import-untyped]


def children() -> list[str]:
    """Process ids of the children of this process that are a fork server or its resource tracker."""
    return [str(child.pid) for child in psutil.Process().children() if _is_server(child)]


def _is_server(process: psutil.Process) -> bool:
    try:
        return any(name in " ".join(process.cmdline()) for name in ("forkserver", "resource_tracker"))
    except psutil.NoSuchProcess:  # it has just ended
        return False
