"""A real supervisor in the test's own process, over services in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from modyn.config.system import SystemConfig
from modyn.db.engine import open_database
from modyn.proto import supervisor_pb2_grpc
from modyn.rpc.server import Registration, start_server
from modyn.state_folders import prepare_run_dir
from modyn.supervisor.client import SupervisorClient
from modyn.supervisor.journal.events import EventHub
from modyn.supervisor.journal.journal import Journal
from modyn.supervisor.queue.queue import RunQueue
from modyn.supervisor.served.history import ServedHistory
from modyn.supervisor.service import SupervisorService
from modyn.testing.services import InMemoryServices


@contextmanager
def serve_supervisor(
    services: InMemoryServices, config: SystemConfig, servicer: type[SupervisorService] = SupervisorService
) -> Iterator[SupervisorClient]:
    """The service at its endpoint of `config`, and a client of it."""
    database = open_database(config, "supervisor", "modyn.supervisor.migrations")
    hub = EventHub()
    journal = Journal(database, hub.wake_watchers, config.supervisor.events_kept)
    runs = RunQueue(journal, hub, services.clients, config.supervisor)
    endpoint = config.endpoint("supervisor")
    add = supervisor_pb2_grpc.add_SupervisorServicer_to_server
    prepare_run_dir(config.run_dir)
    server = start_server(
        "supervisor", endpoint, [Registration(add, servicer(runs, hub, ServedHistory(journal)), "modyn.Supervisor")]
    )
    with SupervisorClient(endpoint) as client:
        yield client
    server.stop(0)
    runs.close()
    database.close()
