"""`python -m modyn.storage --config FILE`: the storage service with its payload server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from modyn.config.system import SystemConfig, load_system_config
from modyn.errors import ConfigError, SecurityError
from modyn.proto.storage_pb2_grpc import add_StorageServicer_to_server
from modyn.rpc.server import Registration, ServiceContext, prepare_run_dir, run_service
from modyn.storage.catalogue import Catalogue
from modyn.storage.flight_server import PayloadServer
from modyn.storage.service import FULL_NAME, StorageService
from modyn.storage.store import Store


def build(context: ServiceContext) -> Sequence[Registration]:
    config = context.config
    _check_roots(config)
    store = Store(config, Catalogue.open(config))
    context.on_shutdown(store.close)
    store.start()
    prepare_run_dir(config.run_dir)
    payloads = PayloadServer(config.endpoint("flight"), store, config.storage.num_threads)
    context.on_shutdown(payloads.stop)
    context.logger.info("serving_payloads", address=payloads.address)
    return [Registration(add_StorageServicer_to_server, StorageService(store), FULL_NAME)]


def _check_roots(config: SystemConfig) -> None:
    """Raises SecurityError where somebody from outside could have any folder of this machine read to them."""
    reachable = [config.endpoint(name).address for name in ("storage", "flight") if not config.endpoint(name).is_local]
    if reachable and not config.storage.dataset_roots:
        raise SecurityError(
            f"storage will not listen on {reachable[0]}, which other machines can reach, without limits to what it reads; "
            "set storage.dataset_roots in the system file to the folders that datasets lie in"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="modyn.storage", description=__doc__)
    parser.add_argument("--config", type=Path, help="system configuration; default: the file that MODYN_CONFIG names")
    try:
        config = load_system_config(parser.parse_args().config)
    except ConfigError as error:
        sys.stderr.write(f"modyn storage: {error.message}\n")
        return 1
    return run_service("storage", config, build)


if __name__ == "__main__":
    sys.exit(main())
