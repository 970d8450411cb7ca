"""A service as a process: `python -m modyn.<service> --config FILE`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from modyn.config.system import load_system_config
from modyn.errors import ModynError
from modyn.registry import load_object


def service_main(name: str, build: str) -> int:
    """Run the service `name` until SIGTERM. `build`: `module:function` that makes its servicers, see `run_service`.

    The exit code: 0 after SIGTERM or SIGINT, 1 when the service could not start, also for a wrong configuration.
    """
    parser = argparse.ArgumentParser(prog=f"python -m modyn.{name}", description=f"The service {name} of Modyn.")
    parser.add_argument("--config", type=Path, help="system configuration, YAML; default: $MODYN_CONFIG, or else the defaults")
    arguments = parser.parse_args()
    try:
        config = load_system_config(arguments.config)
    except ModynError as error:
        sys.stderr.write(f"modyn {name}: {error.message}\n")
        return 1
    # Imported late, so that a wrong configuration is reported at once.
    from modyn.rpc.server import run_service

    service: Any = load_object(build)
    return run_service(name, config, service)
