"""The evaluator as a process: `python -m modyn.evaluator --config FILE`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from modyn.config.system import load_system_config
from modyn.errors import ModynError
from modyn.evaluator.service import build
from modyn.rpc.server import run_service


def main() -> int:
    """Serve until SIGTERM; 1 if the service cannot start."""
    parser = argparse.ArgumentParser(prog="python -m modyn.evaluator", description=__doc__)
    parser.add_argument("--config", type=Path, default=None, help="system configuration; default: MODYN_CONFIG, or none")
    try:
        config = load_system_config(parser.parse_args().config)
    except ModynError as error:
        sys.stderr.write(f"modyn evaluator: {error.message}\n")
        return 1
    return run_service("evaluator", config, build)


if __name__ == "__main__":
    sys.exit(main())
