"""Process of a service: `python -m modyn.rpc SERVICE --config FILE`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from modyn.config.system import SERVICES, WorkerServiceConfig, load_system_config
from modyn.errors import ModynError
from modyn.registry import load_object
from modyn.rpc.environment import keep_allowed, look_here_last


def main() -> int:
    """Run the service of the command line until SIGTERM or SIGINT. Returns the exit code; 1: the service could not start."""
    parser = argparse.ArgumentParser(prog="python -m modyn.rpc", description="One service of Modyn.")
    parser.add_argument("service", choices=SERVICES)
    parser.add_argument("--config", type=Path, help="system configuration, YAML; default: $MODYN_CONFIG, or else the defaults")
    arguments = parser.parse_args()
    name = arguments.service
    look_here_last()
    try:
        config = load_system_config(arguments.config)
    except ModynError as error:
        sys.stderr.write(f"modyn {name}: {error.message}\n")
        return 1
    if isinstance(settings := config.service(name), WorkerServiceConfig):
        # User code in child processes must not inherit passwords. This process has read its configuration already.
        keep_allowed(os.environ, settings.worker_environment)
    # structlog would import rich, which takes 5 MB, for a renderer that no service uses.
    sys.modules["rich"] = None  # type: ignore[assignment]
    # A late import, so that a wrong configuration is reported immediately.
    from modyn.rpc.server import run_service

    build: Any = load_object(f"modyn.{name}.service:build")
    return run_service(name, config, build)


if __name__ == "__main__":
    raise SystemExit(main())
