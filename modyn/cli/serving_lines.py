"""What servers of predictions do, as texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.cli.output import clock

SHOWN_S: Final = 5.0
"""Servers report once a second: a report that is older is of servers that are gone."""


def serving_text(status: Mapping[str, Any]) -> str:
    """Format which versions answer, how much and how fast; empty: there is no server. Args: status: fields of `ServingStatus`.

    >>> serving_text({"num_servers": 1, "versions": [{"role": "canary", "model_id": 18, "since": 0}], "rate": 1240.4, "p99_s": 0.0042})
    'no version yet; canary 18; 1,240 requests/s, p99 4.2 ms'
    >>> serving_text({"num_servers": 2, "versions": [], "rate": 0.0, "p99_s": 0.0})
    'no version yet; no requests; 2 servers'
    >>> serving_text({"num_servers": 0})
    ''
    """
    if not status["num_servers"]:
        return ""
    of_role: dict[str, list[str]] = {"serving": [], "canary": [], "shadow": []}
    for version in status["versions"]:
        since = f" since {clock(version['since'])}" if version["role"] == "serving" else ""
        of_role[version["role"]].append(f"{version['model_id']}{since}")
    serving = of_role.pop("serving")
    parts = [f"version {' and '.join(serving)}" if serving else "no version yet"]
    parts += [f"{role} {' and '.join(names)}" for role, names in of_role.items() if names]
    rate, p99_ms = status["rate"], 1000 * status["p99_s"]
    parts.append(f"{rate:,.{0 if rate >= 10 else 1}f} requests/s, p99 {p99_ms:.3g} ms" if rate else "no requests")
    parts += [f"{status['num_servers']} servers"] if status["num_servers"] > 1 else []
    return "; ".join(parts)
