"""Storage with its payload server as a process: `python -m modyn.storage --config FILE`."""

from __future__ import annotations

from modyn.rpc.main import service_main

if __name__ == "__main__":
    raise SystemExit(service_main("storage", "modyn.storage.service:build"))
