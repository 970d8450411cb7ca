"""An additional process that serves payloads from storage's publications: `python -m modyn.storage.replica --number N --config FILE`.

The process has no state and needs no database, because it reads only storage's folder and the data files. A replica works also while storage is
stopped. If a replica does not find the files of a dataset, other payload servers serve this dataset.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from modyn.config.system import load_system_config
from modyn.errors import ConfigError, ModynError
from modyn.rpc.server import Registration, ServiceContext, run_service
from modyn.storage.files.file_system import Roots
from modyn.storage.flight.server import PayloadServer, ServerLimits
from modyn.storage.read.published_datasets import PublishedDatasets, PublishedNames
from modyn.storage.read.record_readers import RecordReaders


def build(context: ServiceContext) -> Sequence[Registration]:
    """Build the payload server of this replica. The service's own socket answers only health checks."""
    config = context.config
    roots = Roots.of(config.storage.dataset_roots)
    sources = RecordReaders(config.storage.num_threads, config.storage.row_group_cache_bytes, roots)
    context.on_shutdown(sources.close)
    names = PublishedNames.of(config)
    datasets = PublishedDatasets(names, sources, context.name)
    # All datasets are opened at the start, so that a problem is in the log before the first request.
    for name in names.names():
        try:
            datasets.snapshot(name)
        except ModynError as error:
            context.logger.error("dataset_not_served", dataset=name, error=error.message)
    endpoint = config.replicas[context.name]
    payloads = PayloadServer(
        endpoint, datasets, ServerLimits(config.storage.max_threads), name=context.name, setting="storage.replica_addresses"
    )
    # Shutdown callbacks run in reverse order, so the server stops before its files are closed.
    context.on_shutdown(payloads.stop)
    context.logger.info("serving_payloads", address=payloads.address)
    return []


def main() -> int:
    """Run one replica of the payload server until it is stopped. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m modyn.storage.replica", description="A further process that serves payloads."
    )
    parser.add_argument(
        "--number", type=int, required=True, metavar="N", help="number of this replica, from 1 to storage.replicas"
    )
    parser.add_argument("--config", type=Path, help="system configuration, YAML; default: $MODYN_CONFIG, or else the defaults")
    arguments = parser.parse_args()
    name = f"replica-{arguments.number}"
    try:
        config = load_system_config(arguments.config)
        if name not in config.replicas:
            raise ConfigError(f"storage.replicas: there is no replica {arguments.number} of {config.storage.replicas}; raise it")
    except ModynError as error:
        sys.stderr.write(f"modyn {name}: {error.message}\n")
        return 1
    return run_service(name, config, build)


if __name__ == "__main__":
    raise SystemExit(main())
