"""The trainer server as a process: `python -m modyn.trainer_server --config FILE`."""

from __future__ import annotations

from modyn.rpc.main import service_main

if __name__ == "__main__":
    raise SystemExit(service_main("trainer_server", "modyn.trainer_server.service:build"))
