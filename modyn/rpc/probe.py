"""`python -m modyn.rpc.probe SERVICE`: exit code 0 if the service is healthy, else 1. For health checks of containers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from modyn.config.system import SERVICES, load_system_config
from modyn.errors import ConfigError, ModynError
from modyn.rpc.channel import is_serving


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask one service for its health.

    Args: arguments: arguments of the command line; None: the arguments of this process.
    Returns: exit code: 0: the service is healthy; 1: the service is not healthy, and standard error has the reason.
    """
    parser = argparse.ArgumentParser(prog="modyn.rpc.probe", description=__doc__)
    parser.add_argument("service", help=f"{', '.join(SERVICES)}, or replica-1, replica-2, …")
    parser.add_argument("--config", type=Path, help="system configuration; default: the file that MODYN_CONFIG names")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="S", help="seconds to wait for the answer (default: 5)")
    options = parser.parse_args(arguments)
    try:
        config = load_system_config(options.config)
        if options.service not in (known := (*SERVICES, *config.replicas)):
            raise ConfigError(f"there is no service '{options.service}'; there are {', '.join(known)}")
        endpoint = config.endpoint(options.service)
        healthy = is_serving(endpoint, timeout_s=options.timeout)
    except ModynError as error:
        sys.stderr.write(f"modyn probe: {error.message}\n")
        return 1
    if not healthy:
        sys.stderr.write(f"modyn probe: {options.service} at {endpoint.address} does not answer or is not healthy\n")
    return 0 if healthy else 1


if __name__ == "__main__":
    raise SystemExit(main())
