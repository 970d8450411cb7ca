"""Model storage as a process: `python -m modyn.model_storage --config FILE`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from modyn.config.system import load_system_config
from modyn.errors import ModynError
from modyn.model_storage.service import build
from modyn.rpc.server import run_service


def main() -> int:
    """Serve until SIGTERM; 1 if the service cannot start."""
    parser = argparse.ArgumentParser(prog="python -m modyn.model_storage", description=__doc__)
    parser.add_argument("--config", type=Path, default=None, help="system configuration; default: MODYN_CONFIG, or none")
    try:
        config = load_system_config(parser.parse_args().config)
    except ModynError as error:
        sys.stderr.write(f"modyn model_storage: {error.message}\n")
        return 1
    return run_service("model_storage", config, build)


if __name__ == "__main__":
    sys.exit(main())
