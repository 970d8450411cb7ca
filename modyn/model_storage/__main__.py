"""Model storage as a process: `python -m modyn.model_storage --config FILE`."""

from __future__ import annotations

from modyn.rpc.main import service_main

if __name__ == "__main__":
    raise SystemExit(service_main("model_storage", "modyn.model_storage.service:build"))
