"""Refuses all connections of a process to other machines, and records the attempts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

HERE: Final = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::", "", None)


def refuse_network(tried: Path | None = None) -> None:
    """From now on, any connection to another machine through Python's sockets raises RuntimeError. Args: tried: gets a line for each attempt."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("socket.connect", "socket.sendto"):
            address = arguments[1]
            host = address[0] if isinstance(address, tuple) else ""  # else the path of a Unix socket
        elif event == "socket.getaddrinfo":
            host = arguments[0]
        else:
            return
        host = host.decode() if isinstance(host, bytes) else host
        if host in HERE:
            return
        if tried is not None:
            with tried.open("a") as file:
                file.write(f"{event} {host}\n")
        raise RuntimeError(f"a library used the network: {event} {arguments}")

    sys.addaudithook(hook)


def for_all_processes(folder: Path) -> Path:
    """Write into `folder` what refuses the network to each Python process that has it on PYTHONPATH. Returns: the file of attempts."""
    tried = folder / "tried.txt"
    call = f"\nrefuse_network(Path({str(tried)!r}))\n"
    (folder / "sitecustomize.py").write_text(Path(__file__).read_text() + call)
    return tried
