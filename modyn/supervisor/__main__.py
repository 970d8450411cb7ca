"""The supervisor as a process: `python -m modyn.supervisor --config FILE`."""

from __future__ import annotations

from modyn.rpc.main import service_main

if __name__ == "__main__":
    raise SystemExit(service_main("supervisor", "modyn.supervisor.service:build"))
