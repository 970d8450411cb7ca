"""Typed client of the trainer server."""

from __future__ import annotations

from collections.abc import Iterator

from modyn.proto import trainer_server_pb2, trainer_server_pb2_grpc
from modyn.rpc.client import SectionClient
from modyn.rpc.wire import from_message, to_message
from modyn.trainer_server.request import TrainingRequest, TrainingState, TrainingStatus

__all__ = ["TrainerServerClient", "TrainingRequest", "TrainingState", "TrainingStatus"]


class TrainerServerClient(SectionClient):
    """Calls of the trainer server, which acts on the sections model, training, data and selection_strategy.downsampling_config."""

    _Stub = trainer_server_pb2_grpc.TrainerServerStub

    def start(self, request: TrainingRequest) -> TrainingStatus:
        """Start a training, or find it: idempotent by run and trigger.

        One that runs goes on, one whose model is stored is finished, a failed or stopped one is tried again.
        Raises: ConfigError: the pipeline is not valid.
        """
        return from_message(self._stub.Start(to_message(request, trainer_server_pb2.TrainingRequest)), TrainingStatus)

    def watch(self, run_id: str, trigger_id: int) -> Iterator[TrainingStatus]:
        """The status now, then one on every change, at most a few a second, and the final one last.

        Raises: NotFoundError: the training was not started since the service was.
        """
        for status in self._stub.Watch(trainer_server_pb2.TrainingId(run_id=run_id, trigger_id=trigger_id)):
            yield from_message(status, TrainingStatus)

    def stop(self, run_id: str, trigger_id: int) -> None:
        """Ask a training to stop, and return at once; its final status is STOPPED. Its last checkpoint stays."""
        self._stub.Stop(trainer_server_pb2.TrainingId(run_id=run_id, trigger_id=trigger_id))
