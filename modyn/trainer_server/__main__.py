"""`python -m modyn.trainer_server --config FILE`: runs the trainer server until SIGTERM."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from modyn.config.system import load_system_config
from modyn.errors import ConfigError


def main() -> int:
    """The exit code: 0 after SIGTERM or SIGINT, 1 when the service could not start, 2 for a wrong configuration."""
    parser = argparse.ArgumentParser(prog="python -m modyn.trainer_server", description="The trainer server of Modyn.")
    parser.add_argument("--config", type=Path, help="system configuration, YAML; default: $MODYN_CONFIG, or else the defaults")
    arguments = parser.parse_args()
    try:
        config = load_system_config(arguments.config)
    except ConfigError as error:
        sys.stderr.write(f"modyn trainer_server: {error.message}\n")
        return 2
    # Imported late: a wrong configuration is told at once.
    from modyn.rpc.server import run_service
    from modyn.trainer_server.service import build

    return run_service("trainer_server", config, build)


if __name__ == "__main__":
    sys.exit(main())
