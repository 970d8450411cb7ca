"""`python -m modyn.supervisor --config FILE` runs the supervisor until SIGTERM."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from modyn.config.system import load_system_config
from modyn.db.engine import open_database
from modyn.errors import ModynError
from modyn.proto import supervisor_pb2_grpc
from modyn.rpc.server import Registration, ServiceContext, run_service
from modyn.supervisor.clients import open_clients
from modyn.supervisor.events import EventHub
from modyn.supervisor.journal import Journal
from modyn.supervisor.runs import Runs
from modyn.supervisor.service import SupervisorService


def build(context: ServiceContext) -> Sequence[Registration]:
    config = context.config
    database = open_database(config, "supervisor", "modyn.supervisor.migrations")
    context.on_shutdown(database.close)
    hub = EventHub()
    journal = Journal(database, hub.committed)
    runs = Runs(journal, hub, lambda: open_clients(config), config.supervisor)
    context.on_shutdown(runs.close)
    runs.recover()
    service = SupervisorService(runs, journal, hub)
    return [Registration(supervisor_pb2_grpc.add_SupervisorServicer_to_server, service, "modyn.Supervisor")]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m modyn.supervisor", description="Runs the supervisor.")
    parser.add_argument("--config", type=Path, help="system configuration file")
    try:
        config = load_system_config(parser.parse_args().config)
    except ModynError as error:
        sys.stderr.write(f"modyn supervisor: {error.message}\n")
        return 1
    return run_service("supervisor", config, build)


if __name__ == "__main__":
    sys.exit(main())
