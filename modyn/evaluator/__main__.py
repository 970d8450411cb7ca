"""The evaluator as a process: `python -m modyn.evaluator --config FILE`."""

from __future__ import annotations

from modyn.rpc.main import service_main

if __name__ == "__main__":
    raise SystemExit(service_main("evaluator", "modyn.evaluator.service:build"))
